//! The network that the tasks of an allocation share: set up before they start, and removed after they have ended. A
//! group whose tasks use the machine's network, and resolve names as it does, does not need one.
//!
//! If it had to be made again, the tasks that were started in the old one restart: a process does not move between
//! namespaces. This needs no state of its own: the launch records name the network that each task has read, so the
//! decision is the same after a crash.

use std_alloc::vec::Vec;

use herdlet_api_types::job::{Lifecycle, Task};

use crate::{
    facts::Revision,
    op::{Part, TaskIndex},
    parts::{Need, Progress},
    pass::Pass,
    plan::TaskChange,
    state::{Run, TaskState},
    time::BootId,
};

/// Sets it up. If it was damaged or removed from outside, it is repaired under the running tasks.
pub fn up(pass: &mut Pass<'_>) -> Progress {
    if pass.spec.need(Part::Network) == Need::Unneeded {
        return Progress::Arrived;
    }
    pass.want_up(Part::Network)
}

/// Removes it once nothing of any task is left: no process may lose its network before its end.
pub fn down(pass: &mut Pass<'_>, above: Progress) -> Progress {
    if pass.spec.need(Part::Network) == Need::Unneeded {
        return Progress::Arrived;
    }
    if above.has_arrived() { pass.want_down(Part::Network) } else { Progress::Pending }
}

/// Restarts the running tasks that were started in another network than the present one. Returns whether there are any.
/// Poststop tasks clean up once: they go on.
pub fn restart_users(pass: &mut Pass<'_>) -> bool {
    let Some(facts) = pass.state.facts.get(Part::Network) else { return false };
    if pass.state.durable.stop.is_some() {
        return false;
    }
    let present = Present { revision: facts.revision, boot: pass.now.boot };
    let tasks = (0..).zip(pass.group.tasks.iter().zip(&pass.state.durable.tasks));
    let outdated = tasks.filter(|(_, (task, known))| present.outdates(task, known));
    let outdated: Vec<TaskIndex> = outdated.map(|(index, _)| index).collect();
    for index in &outdated {
        pass.change(*index, TaskChange::ChangeNetwork);
    }
    !outdated.is_empty()
}

/// The network as it is now.
struct Present {
    revision: Revision,
    boot: BootId,
}

impl Present {
    /// Whether the task runs in another network, and is not to be stopped yet. A task of an earlier boot does not run.
    fn outdates(&self, task: &Task, known: &TaskState) -> bool {
        let Run::Running { attempt, boot } = known.run else { return false };
        let is_ending = known.restart_requested || known.permanent_failure.is_some();
        let read = known.launch_of(attempt).and_then(|launch| launch.revisions.get(&Part::Network));
        boot == self.boot
            && task.lifecycle != Lifecycle::Poststop
            && !is_ending
            && read.is_some_and(|read| *read != self.revision)
    }
}
