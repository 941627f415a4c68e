//! Task drivers that go away and come back, and node facts that change with them.
//!
//! In: faults. Out: events for the agent, and failed operations on processes while their driver is away. An agent that starts
//! knows the drivers before its first plan, as the real one does. Processes live on, as containers do whose engine is down; or
//! they end with it, as those of an engine that restarts. The driver reports exits once it is back.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::driver::{MOCK, RAW_EXEC};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Verb},
    event::Event,
    op::{Part, Subject, TaskPart},
    turn::Turn,
};

use super::{Life, settings};
use crate::sim::{coverage::Kind, machine::spec_of};

/// The drivers of all tasks. They go away together.
const DRIVERS: [&str; 2] = [MOCK, RAW_EXEC];

/// The exit code of processes that end with their engine.
const KILLED: i32 = 137;

/// The state of the driver.
#[derive(Debug, Clone, Default)]
pub(in crate::sim) struct Driver {
    /// Why tasks wait for it, if so.
    away: Option<String>,
    /// How often it has changed; shown in an attribute of the node.
    changes: u64,
    /// Exits that it has not seen yet.
    unseen: Vec<Event>,
}

impl Driver {
    /// Whether it performs an action.
    fn serves(&self, action: &Action) -> bool {
        let is_process = matches!(
            &action.subject,
            Subject::Alloc(_, Part::Task(_, TaskPart::Process | TaskPart::Prestop))
        );
        self.away.is_none() || !is_process
    }
}

impl Life {
    /// The driver goes away, or comes back if it is away.
    pub(super) fn turn_driver(&mut self) {
        let away = self.driver.away.is_none();
        self.set_driver(away.then(|| "the rng said so".to_owned()));
    }

    /// The driver is there again.
    pub(in crate::sim) fn end_driver_fault(&mut self) {
        if self.driver.away.is_some() {
            self.set_driver(None);
        }
    }

    /// Reports an exit, or keeps it until the driver is back.
    pub(super) fn see_exit(&mut self, exit: Event) {
        if self.driver.away.is_none() {
            return self.post(exit);
        }
        self.met.note(Kind::UnseenExit);
        self.driver.unseen.push(exit);
    }

    /// An agent that starts inspects attempts instead.
    pub(super) fn forget_unseen_exits(&mut self) {
        self.driver.unseen.clear();
    }

    fn set_driver(&mut self, away: Option<String>) {
        if away.is_some() && self.rng.one_in(3) && self.machine.end_all(self.now_ns, KILLED) > 0 {
            self.met.note(Kind::EngineRestart);
        }
        let seen = if away.is_some() { Vec::new() } else { std::mem::take(&mut self.driver.unseen) };
        self.met.note(if away.is_some() { Kind::DriverAway } else { Kind::DriverBack });
        let what = if away.is_some() { "goes away" } else { "is back" };
        self.trace.note(self.now_ns, || format!("the driver {what}"));
        self.driver.away = away;
        self.driver.changes += 1;
        let event = self.node_event();
        self.see(event);
        seen.into_iter().for_each(|exit| self.post(exit));
    }

    fn node_event(&self) -> Event {
        let mut facts = Box::new(settings().node);
        facts.attributes.insert(format!("driver.{MOCK}.changes"), self.driver.changes.to_string());
        let away = self.driver.away.iter();
        let away: BTreeMap<_, _> =
            away.flat_map(|why| DRIVERS.map(|driver| (driver.to_owned(), why.clone()))).collect();
        Event::Node { facts, away, disabled: BTreeSet::new() }
    }

    /// An agent that has just started knows the node before its first plan.
    pub(super) fn describe_node(&mut self) {
        let (now, event) = (self.now(), self.node_event());
        self.world.apply(now, event, &mut self.dirty, &mut Turn::default());
    }

    /// The outcome of an operation whose driver is away.
    pub(super) fn without_driver(&self, action: &Action) -> Option<Outcome> {
        let why = "reach the driver: it is away".to_owned();
        (!self.driver.serves(action)).then_some(Outcome::Failed { class: FailureClass::Retry, why })
    }

    /// No start is decided while its driver is away.
    pub(super) fn may_start_by_driver(&self, action: &Action) -> Result<(), String> {
        match (&action.subject, &action.verb) {
            (Subject::Alloc(alloc, Part::Task(index, _)), Verb::Start { .. })
                if self.driver.away.is_some() =>
            {
                let (_, task) = spec_of(alloc, *index)?;
                Err(format!("{}/{} starts while its driver is away", alloc.name(), task.name))
            }
            (_, _) => Ok(()),
        }
    }
}
