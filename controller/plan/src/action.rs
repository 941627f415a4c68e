//! What the executor is asked to do. Every action is idempotent: doing it again after a crash is safe.

use std_alloc::{string::String, sync::Arc, vec::Vec};

pub use herdlet_api_types::driver::{FailureClass, Recovered};
use herdlet_api_types::{Duration, service::CheckResult};

use crate::{
    facts::{Facts, Input},
    launch::Launch,
    op::{Op, Subject, Target},
    parts::Down,
};

/// One operation to start.
#[derive(Debug, Clone)]
pub struct Action {
    /// Under which id its outcome comes back.
    pub op: Op,
    /// What it is about.
    pub subject: Subject,
    /// For the mounts of a task: what to mount where.
    pub mounts: Vec<MountSource>,
    /// What it reads: the facts of other parts.
    pub inputs: Vec<Input>,
    /// For a process that was started: what its start has told. All that recover, stop, signal and exec read, whatever became of facts since.
    pub launch: Option<Arc<Launch>>,
    /// What to do.
    pub verb: Verb,
    /// After this the operation counts as overdue: its part becomes unknown, its slot stays taken until it truly ends.
    pub timeout: Duration,
}

/// One volume to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// Volume name.
    pub volume: String,
    /// Absolute path of its data.
    pub path: String,
    /// Where it appears, relative to the task directory.
    pub destination: String,
    /// The task may not write.
    pub read_only: bool,
}

/// What to do with the subject's part.
///
/// | part | `Up` | `Down` | `Look` |
/// | --- | --- | --- | --- |
/// | `Dir` | make the allocation directory | remove it with all that is mounted below | does it exist? |
/// | `Services` | make the catalogue hold exactly the group's registrations | take them back, confirmed | does it hold them? |
/// | `Checks` | run the group's checks | stop them | do they run? |
/// | `Task Dir` | make the task directory, tmpfs on `secrets` and `private` | – (goes with `Dir`) | does it exist, mounted? |
/// | `Task Artifacts` | fetch what is not there yet | – (goes with `Dir`) | was all of it fetched? |
/// | `Task Identity` | write tokens: `renew_at` | – (goes with `Dir`) | are they there and unexpired? |
/// | `Task Mounts` | mount all volumes of the task | unmount all | are all there and ours? |
/// | `Task Services`, `Task Checks` | as for the group | | |
/// | `Task Process` | – | – | – (own verbs) |
/// | volume | make it: its `root` | remove its data | is it there? |
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    /// Bring the part up.
    Up,
    /// Take the part down.
    Down,
    /// See what is there; changes nothing.
    Look,
    /// See whether the catalogue answers at all; changes nothing, and nothing follows from it. Only of `Services`: it is asked before the
    /// first registration is sent, so that what was never sent need not be taken back.
    Ask,
    /// Start attempt `attempt` of a task. Fenced by the attempt's record: whoever creates it first wins, so that starting
    /// the same number again is safe. Started when the process runs.
    Start {
        /// Attempt number. Committed before this action is released; the first is told by the allocation's own commit.
        attempt: u32,
    },
    /// Take back the start under way on the same part where it has not begun, or the download wherever it is; their own outcome
    /// tells. It has none.
    Withdraw,
    /// See what became of the attempt.
    Recover {
        /// Attempt number.
        attempt: u32,
    },
    /// Ask the attempt to end by `signal`, end it by force after `grace`. Fences an attempt that has not begun.
    Stop {
        /// Attempt number.
        attempt: u32,
        /// Signal name such as `SIGTERM`; the driver's default where absent.
        signal: Option<String>,
        /// Time between the signal and SIGKILL.
        grace: Duration,
    },
    /// Remove what an ended attempt left: leftover processes, its cgroup, its record.
    Destroy {
        /// Attempt number.
        attempt: u32,
    },
    /// Run the task's `prestop` command inside the attempt.
    Prestop {
        /// Attempt number.
        attempt: u32,
    },
    /// Send one signal. At most once: not repeated after a crash.
    Signal {
        /// Attempt number.
        attempt: u32,
        /// Signal name.
        signal: String,
    },
}

/// What an action waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Nothing: it changes nothing.
    AtOnce,
    /// The commit of the turn that decided it.
    AfterCommit,
    /// The same, but only for a second: a hung disk never keeps a task alive.
    Stop,
}

impl Action {
    /// What it waits for.
    pub fn release(&self) -> Release {
        match self.verb {
            Verb::Look | Verb::Ask | Verb::Recover { .. } => Release::AtOnce,
            Verb::Stop { .. } | Verb::Withdraw => Release::Stop,
            Verb::Down => match self.op.target {
                // It comes before the kill, and is made good where the decision was never stored.
                Target::Alloc(_, part) if part.row().down == Down::First => Release::Stop,
                // What is removed does not come back.
                Target::Alloc(..) | Target::Volume(_) => Release::AfterCommit,
            },
            Verb::Up
            | Verb::Start { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Signal { .. } => Release::AfterCommit,
        }
    }

    /// Whether a database that can't commit does not hold it up for long.
    pub fn is_stop(&self) -> bool {
        self.release() == Release::Stop
    }
}

/// The end of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// `Up`, `Down`, `Stop`, `Destroy`, `Prestop`, `Signal` did what they should. `Up` tells what the part has produced, where that is
    /// anything.
    Done(Option<Arc<Facts>>),
    /// Answer to `Start`: the process runs.
    Started(Launch),
    /// Answer to `Look`: it is there as wanted, and has produced this.
    Present(Option<Arc<Facts>>),
    /// Answer to `Look`: it is not there, or not as wanted.
    Absent,
    /// Answer to `Look`: what was kept in it is gone, in whole or in part, and can't be repaired.
    Lost {
        /// What.
        why: String,
    },
    /// Answer to `Look`: something that is not ours stands in its place.
    Foreign {
        /// What.
        why: String,
    },
    /// Answer to `Recover`.
    Recovered(Recovered),
    /// It did not work.
    Failed {
        /// Whether trying again may help.
        class: FailureClass,
        /// A sentence that reads after "failed to".
        why: String,
    },
    /// `Up` can't go on before something is there that the part needs. No failure; it may take days.
    Pending {
        /// What: reads after "waits for".
        on: String,
        /// When to ask again, where no event comes before.
        ask_in: Duration,
    },
    /// Its time is over; it may still end. The part is unknown.
    Overdue,
    /// What `Up` of checks made, and that of services in a Consul: the checks that are wanted from now on of their owner, with no result
    /// yet.
    Checking(Vec<CheckResult>),
}

#[cfg(test)]
mod tests {
    use std_alloc::vec;

    use super::*;
    use crate::{
        fixture::{alloc, task},
        op::{Part, TaskPart},
    };

    fn action(part: Part, verb: Verb) -> Action {
        let spec = alloc(vec![task("main", herdlet_api_types::job::Lifecycle::Main)]);
        Action {
            op: Op { target: Target::Alloc(spec.id, part), generation: 1 },
            subject: Subject::Alloc(spec, part),
            mounts: Vec::new(),
            inputs: Vec::new(),
            launch: None,
            verb,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_hung_disk_keeps_nothing_from_being_stopped_or_looked_at() {
        let (attempt, signal) = (1, String::from("SIGTERM"));
        let process = Part::Task(0, TaskPart::Process);
        for (verb, expected) in [
            (Verb::Stop { attempt, signal: None, grace: Duration::ZERO }, Release::Stop),
            (Verb::Up, Release::AfterCommit),
            (Verb::Look, Release::AtOnce),
            (Verb::Ask, Release::AtOnce),
            (Verb::Start { attempt }, Release::AfterCommit),
            (Verb::Withdraw, Release::Stop),
            (Verb::Recover { attempt }, Release::AtOnce),
            (Verb::Destroy { attempt }, Release::AfterCommit),
            (Verb::Prestop { attempt }, Release::AfterCommit),
            (Verb::Signal { attempt, signal }, Release::AfterCommit),
        ] {
            let action = action(process, verb);
            assert_eq!(action.release(), expected, "{:?}", action.verb);
            assert_eq!(action.is_stop(), expected == Release::Stop, "{:?}", action.verb);
        }
    }

    #[test]
    fn nothing_is_removed_before_the_decision_is_stored() {
        for (part, expected) in [
            (Part::Services, Release::Stop),
            (Part::Checks, Release::Stop),
            (Part::Task(0, TaskPart::Services), Release::Stop),
            (Part::Task(0, TaskPart::Checks), Release::Stop),
            (Part::Dir, Release::AfterCommit),
            (Part::Task(0, TaskPart::Dir), Release::AfterCommit),
            (Part::Task(0, TaskPart::Mounts), Release::AfterCommit),
        ] {
            assert_eq!(action(part, Verb::Down).release(), expected, "{part:?}");
        }
        let target = Target::Volume("data".into());
        let volume = Action { op: Op { target, generation: 1 }, ..action(Part::Dir, Verb::Down) };
        assert_eq!(volume.release(), Release::AfterCommit);
    }
}
