//! Actions for the executor. Every action is idempotent: repeating it after a crash is safe.

use std_alloc::{string::String, sync::Arc, vec::Vec};

pub use herdlet_api_types::driver::{FailureClass, Recovered, Started};
use herdlet_api_types::{Duration, job::MountPropagation, service::CheckResult};

use crate::{
    facts::{Facts, Input},
    launch::Launch,
    op::{Op, Subject, Target, TemplateIndex},
    parts::Down,
};

/// One operation to start.
#[derive(Debug, Clone)]
pub struct Action {
    /// Id that its outcome refers to.
    pub op: Op,
    /// The object it acts on.
    pub subject: Subject,
    /// For the mounts of a task: what to mount where.
    pub mounts: Vec<MountSource>,
    /// Its inputs: the facts of other parts.
    pub inputs: Vec<Input>,
    /// For a started process: the launch record that its start returned. Recover, stop, signal and exec read only this,
    /// regardless of later changes of facts.
    pub launch: Option<Arc<Launch>>,
    /// What to do.
    pub verb: Verb,
    /// After this time the operation counts as overdue: its part becomes unknown, and its slot stays taken until it
    /// ends.
    pub timeout: Duration,
}

/// One volume to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// Volume name.
    pub volume: String,
    /// Absolute path of its data.
    pub path: String,
    /// Destination, relative to the task directory.
    pub destination: String,
    /// Whether the task may not write.
    pub read_only: bool,
    /// What becomes of mounts that are made below it later.
    pub propagation: MountPropagation,
}

/// An operation on the subject's part.
///
/// | part | `Up` | `Down` | `Inspect` |
/// | --- | --- | --- | --- |
/// | `Dir` | create the allocation directory | remove it with all mounts below it | does it exist? |
/// | `Network` | set up what differs: its facts | remove it with its claims | is all of it there? |
/// | `Services` | make the catalogue hold exactly the group's registrations | deregister them, confirmed | does it hold them? |
/// | `Checks` | run the group's checks | stop them | do they run? |
/// | `Task Dir` | create the task directory, tmpfs on `secrets` and `private` | – (goes with `Dir`) | does it exist, mounted? |
/// | `Task Artifacts` | fetch what is missing | – (goes with `Dir`) | was everything fetched? |
/// | `Task Consul` | log in, or verify the token: `revision`, `renew_at` | revoke the token | is it there? |
/// | `Task Vault` | log in, or renew the token: `revision`, `renew_at` | revoke the token | is it there? |
/// | `Task Identity` | write tokens: `renew_at` | – (goes with `Dir`) | do they exist, unexpired? |
/// | `Task Templates` | render what differs: `outputs` | – (goes with `Dir`) | are the files there? |
/// | `Task Mounts` | mount all volumes of the task | unmount all | do all exist, and are they ours? |
/// | `Task CsiPlugin` | make its directories, shared with the machine | remove that of its socket | do they exist? |
/// | `Task Services`, `Task Checks` | as for the group | | |
/// | `Task Process` | – | – | – (own verbs) |
/// | volume | create it: its `root` | remove its data | does it exist? |
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    /// Bring the part up.
    Up,
    /// Take the part down.
    Down,
    /// Inspect the part; changes nothing.
    Inspect,
    /// Check whether the catalogue responds at all; changes nothing, and has no other effect. Only for `Services`: it
    /// runs before the first registration is sent, so that registrations that were never sent need not be removed.
    Ask,
    /// Start attempt `attempt` of a task. Fenced by the attempt's record: its first creator wins, so that starting the
    /// same number again is safe. The attempt counts as started when the process runs.
    Start {
        /// Attempt number. Committed before this action is released; for the first attempt the allocation's own commit
        /// is enough.
        attempt: u32,
    },
    /// Cancel the pending start on the same part if it has not begun, or the download at any point. It has no outcome
    /// of its own: the cancelled operation reports the result.
    Withdraw,
    /// Find the state of the attempt.
    Recover {
        /// Attempt number.
        attempt: u32,
    },
    /// Signal the attempt with `signal`, kill it after `grace`. Fences an attempt that has not begun.
    Stop {
        /// Attempt number.
        attempt: u32,
        /// Signal name such as `SIGTERM`; the driver's default if absent.
        signal: Option<String>,
        /// Time between the signal and SIGKILL.
        grace: Duration,
    },
    /// Remove the remains of an ended attempt: leftover processes, its cgroup, its record.
    Destroy {
        /// Attempt number.
        attempt: u32,
    },
    /// Run the task's `prestop` command inside the attempt.
    Prestop {
        /// Attempt number.
        attempt: u32,
    },
    /// Run the script of a template inside the attempt.
    Script {
        /// Attempt number.
        attempt: u32,
        /// The template.
        template: TemplateIndex,
    },
    /// Send one signal. At most once: not repeated after a crash.
    Signal {
        /// Attempt number.
        attempt: u32,
        /// Signal name.
        signal: String,
    },
}

/// When an action may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Immediately: it changes nothing.
    AtOnce,
    /// After the commit of the turn that decided it.
    AfterCommit,
    /// The same, but after one second at the latest: a hung disk never keeps a task alive.
    Stop,
}

impl Action {
    /// When it may start.
    pub fn release(&self) -> Release {
        match self.verb {
            Verb::Inspect | Verb::Ask | Verb::Recover { .. } => Release::AtOnce,
            Verb::Stop { .. } | Verb::Withdraw => Release::Stop,
            Verb::Down => match self.op.target {
                // It precedes the kill, and is redone if the decision was never stored.
                Target::Alloc(_, part) if part.row().down == Down::First => Release::Stop,
                // Removal can't be undone.
                Target::Alloc(..) | Target::Volume(_) => Release::AfterCommit,
            },
            Verb::Up
            | Verb::Start { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Script { .. }
            | Verb::Signal { .. } => Release::AfterCommit,
        }
    }

    /// Whether it starts soon even if the database can't commit.
    pub fn is_stop(&self) -> bool {
        self.release() == Release::Stop
    }
}

/// The end of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// `Up`, `Down`, `Stop`, `Destroy`, `Prestop` or `Signal` succeeded. `Up` reports the facts that the part has
    /// produced, if any.
    Done(Option<Arc<Facts>>),
    /// Result of `Start`: the process runs.
    Started(Launch),
    /// Result of `Inspect`: the part is as wanted, and has produced these facts.
    Present(Option<Arc<Facts>>),
    /// Result of `Inspect`: the part is missing, or not as wanted.
    Absent,
    /// Result of `Inspect`: the part's contents are lost, in whole or in part, and can't be repaired.
    Lost {
        /// What is lost.
        why: String,
    },
    /// Result of `Inspect`: something that is not ours is in its place.
    Foreign {
        /// What is there.
        why: String,
    },
    /// Result of `Recover`.
    Recovered(Recovered),
    /// The operation failed.
    Failed {
        /// Whether a retry may help.
        class: FailureClass,
        /// A sentence that continues "failed to".
        why: String,
    },
    /// `Up` can't continue before something exists that the part needs. This is no failure; it may take days.
    Pending {
        /// What is missing; continues "waits for".
        on: String,
        /// When to try again, if no event comes before.
        ask_in: Duration,
    },
    /// The same, and what the part has made before is still there: it is no longer the newest.
    Outdated {
        /// What is missing; continues "waits for".
        on: String,
        /// When to try again, if no event comes before.
        ask_in: Duration,
        /// Since when, by `CLOCK_BOOTTIME`.
        since_ns: u64,
    },
    /// It timed out, but may still end. The part is unknown.
    Overdue,
    /// Result of `Up` for checks, and for services in a Consul: the checks that their owner wants from now on, without
    /// results yet.
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
    fn hung_disk_blocks_no_stop_or_inspection() {
        let (attempt, signal) = (1, String::from("SIGTERM"));
        let process = Part::Task(0, TaskPart::Process);
        for (verb, expected) in [
            (Verb::Stop { attempt, signal: None, grace: Duration::ZERO }, Release::Stop),
            (Verb::Up, Release::AfterCommit),
            (Verb::Inspect, Release::AtOnce),
            (Verb::Ask, Release::AtOnce),
            (Verb::Start { attempt }, Release::AfterCommit),
            (Verb::Withdraw, Release::Stop),
            (Verb::Recover { attempt }, Release::AtOnce),
            (Verb::Destroy { attempt }, Release::AfterCommit),
            (Verb::Prestop { attempt }, Release::AfterCommit),
            (Verb::Script { attempt, template: 0 }, Release::AfterCommit),
            (Verb::Signal { attempt, signal }, Release::AfterCommit),
        ] {
            let action = action(process, verb);
            assert_eq!(action.release(), expected, "{:?}", action.verb);
            assert_eq!(action.is_stop(), expected == Release::Stop, "{:?}", action.verb);
        }
    }

    #[test]
    fn nothing_is_removed_before_its_commit() {
        for (part, expected) in [
            (Part::Services, Release::Stop),
            (Part::Checks, Release::Stop),
            (Part::Task(0, TaskPart::Services), Release::Stop),
            (Part::Task(0, TaskPart::Checks), Release::Stop),
            (Part::Dir, Release::AfterCommit),
            (Part::Network, Release::AfterCommit),
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
