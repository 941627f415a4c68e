//! The probe of a task on the simulated machine: its state, and what processes know of it.
//!
//! In: operations on the two parts that only tests have, starts and signals. Out: their facts, or a violation: an operation
//! lacks facts it reads.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::{AllocId, job::Task};
use herdlet_plan::{
    facts::{Facts, Input, Revision},
    op::{Part, TaskPart},
};

/// The signal sent to a running task when its probe has changed.
pub(super) const SIGNAL: &str = "SIGUSR1";

/// A task of an allocation.
type Key = (AllocId, u16);

/// The state of one task's probe.
#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    /// How many times it was created: its value.
    made: u64,
    /// The value from which its reader was created.
    read: u64,
    /// The values of both that the process knows.
    known: (u64, u64),
}

/// The probes of all tasks.
#[derive(Debug, Default)]
pub struct Probes(BTreeMap<Key, Probe>);

impl Probes {
    /// Creates the probe. If it did not exist, it gets a new value.
    pub(super) fn make(&mut self, key: Key, is_new: bool) -> Arc<Facts> {
        let probe = self.0.entry(key).or_default();
        probe.made += u64::from(is_new);
        facts(probe.made)
    }

    /// Creates the reader.
    ///
    /// # Errors
    /// The action lacks the probe's facts.
    pub(super) fn read(&mut self, key: Key, inputs: &[Input]) -> Result<Arc<Facts>, String> {
        let value = input(key, TaskPart::Probe, inputs)?;
        let probe = self.0.entry(key).or_default();
        probe.read = value;
        Ok(facts(value))
    }

    /// The facts that an inspection of a part finds.
    pub(super) fn inspect(&self, key: Key, part: TaskPart) -> Option<Arc<Facts>> {
        let probe = self.0.get(&key).copied().unwrap_or_default();
        match part {
            TaskPart::Probe => Some(facts(probe.made)),
            TaskPart::ProbeReader => Some(facts(probe.read)),
            TaskPart::Dir
            | TaskPart::Identity
            | TaskPart::Vault
            | TaskPart::Consul
            | TaskPart::Secrets
            | TaskPart::Artifacts
            | TaskPart::Mounts
            | TaskPart::Templates
            | TaskPart::ApiSocket
            | TaskPart::CsiPlugin
            | TaskPart::Process
            | TaskPart::Services
            | TaskPart::Checks
            | TaskPart::Prestop => None,
        }
    }

    /// A process starts with the facts passed to its start.
    ///
    /// # Errors
    /// Facts that it reads are missing.
    pub(super) fn start(&mut self, key: Key, task: &Task, inputs: &[Input]) -> Result<(), String> {
        if !is_wanted(task) {
            return Ok(());
        }
        let known = (input(key, TaskPart::Probe, inputs)?, input(key, TaskPart::ProbeReader, inputs)?);
        self.0.entry(key).or_default().known = known;
        Ok(())
    }

    /// A process receives a signal and reads the facts that can be read while it runs.
    pub(super) fn signal(&mut self, key: Key) {
        if let Some(probe) = self.0.get_mut(&key) {
            probe.known.0 = probe.made;
        }
    }

    /// Whether a process knows the newest values, as every process must in the end.
    pub(super) fn is_known(&self, key: Key, task: &Task) -> bool {
        let probe = self.0.get(&key).copied().unwrap_or_default();
        !is_wanted(task) || (probe.known == (probe.made, probe.made) && probe.read == probe.made)
    }
}

/// Whether the task has a probe.
fn is_wanted(task: &Task) -> bool {
    task.config.get("probe").is_some_and(|wanted| *wanted == true)
}

fn facts(value: u64) -> Arc<Facts> {
    let env = [("PROBE".to_owned(), value.to_string())].into();
    Arc::new(Facts { revision: Revision(value), env, ..Facts::none() })
}

fn input((_, index): Key, part: TaskPart, inputs: &[Input]) -> Result<u64, String> {
    let given = inputs.iter().find(|input| input.part == Part::Task(index, part));
    given
        .map(|input| input.facts.revision.0)
        .ok_or(format!("{part:?} of task {index} is read, but the action lacks its facts"))
}
