//! What the processes of a settled system know, and what is stored about them.
//!
//! In: the machine and the stored records. Out: a violation, if a process has an outdated token, template or network.

use herdlet_api_types::{AllocId, job::Lifecycle};
use herdlet_plan::{
    action::Started,
    record::{RecordKey, RecordValue},
    state::TaskState,
};

use super::{Violation, never_comes};
use crate::sim::{
    life::Life,
    machine::{spec_of, started},
};

impl Life {
    /// Checks that every process has what it is notified of: an unexpired token, its token of Vault, the newest value of its probe, the network of its
    /// group, the present output of its templates.
    pub(super) fn check_processes_are_current(&self) -> Result<(), Violation> {
        for ((id, index, number), attempt) in self.machine.live() {
            let known_until = self.machine.token_known_until(*id, *index);
            if known_until.is_some_and(|until| until < self.now_ns) {
                let (name, task) = (attempt.alloc.name(), index);
                return never_comes(format!("task {task} of {name} has an expired token"));
            }
            let (group, task) = spec_of(&attempt.alloc, *index)?;
            // Without its state the agent cannot know what an attempt has read at its start.
            let is_forgotten = self.machine.forgotten.contains(id);
            if !is_forgotten && !self.machine.probes.is_known((*id, *index), task) {
                let name = attempt.alloc.name();
                return never_comes(format!(
                    "task {} of {name} does not know the newest value of its probe",
                    task.name
                ));
            }
            let key = (*id, *index, *number);
            if !is_forgotten && !self.machine.vault.is_known((*id, *index), task) {
                return never_comes(format!(
                    "task {} of {} has an old token of Vault",
                    task.name,
                    attempt.alloc.name()
                ));
            }
            let stays = task.lifecycle == Lifecycle::Poststop || is_forgotten;
            if !stays && !self.machine.networks.is_current(key, group) {
                let name = attempt.alloc.name();
                return never_comes(format!(
                    "task {} of {name} is not in the network of its group",
                    task.name
                ));
            }
            let trouble = self.machine.templates.trouble(key, (&attempt.alloc.job_key, task));
            if let Some(trouble) = trouble.filter(|_| !self.waits_for_turn(*id, *index) && !is_forgotten) {
                let name = attempt.alloc.name();
                return never_comes(format!("task {} of {name} {trouble}", task.name));
            }
        }
        Ok(())
    }

    /// Checks that the launch record of each running attempt has what its driver reports, however many agents died meanwhile.
    pub(super) fn check_launch_records(&self) -> Result<(), Violation> {
        for (key, attempt) in self.machine.live() {
            let (id, index, number) = *key;
            let stored = self.stored_task(id, index).and_then(|task| task.launch_of(number));
            let stored = stored.map(|launch| (launch.handle.clone(), launch.network.clone()));
            let Started { handle, network } = started(*key);
            if stored != Some((handle, network)) {
                let name = attempt.alloc.name();
                return never_comes(format!(
                    "of attempt {number} of task {index} of {name}, {stored:?} is stored"
                ));
            }
        }
        Ok(())
    }

    fn stored_task(&self, alloc: AllocId, index: u16) -> Option<&TaskState> {
        let RecordValue::AllocState(durable) = self.stored.get(&RecordKey::AllocState(alloc))? else {
            return None;
        };
        durable.tasks.get(usize::from(index))
    }
}
