//! The tasks of an allocation, each a small state machine.

use herdlet_api_types::job::Lifecycle;

use crate::{
    alloc::{network, task::machine},
    op::{Part, TaskIndex},
    parts::Progress,
    pass::Pass,
};

/// Advances every task. Running tasks are watched even if the steps before them are not ready.
pub fn up(pass: &mut Pass<'_>, above: Progress) -> Progress {
    for index in indexes(pass) {
        machine::plan(pass, index, above);
    }
    Progress::Arrived
}

/// Advances every task towards its end, and poststop tasks through their run. Arrived once nothing of any task is left.
pub fn down(pass: &mut Pass<'_>) -> Progress {
    let poststop_due = pass
        .state
        .durable
        .tasks
        .iter()
        .zip(&pass.group.tasks)
        .any(|(state, task)| task.lifecycle == Lifecycle::Poststop && state.status_live());
    let ready = if poststop_due { pass.want_up(Part::Dir).and(network::up(pass)) } else { Progress::Pending };
    let mut gone = Progress::Arrived;
    for index in indexes(pass) {
        gone = gone.and(machine::plan(pass, index, ready));
    }
    gone
}

fn indexes(pass: &Pass<'_>) -> core::ops::Range<TaskIndex> {
    0..TaskIndex::try_from(pass.group.tasks.len()).unwrap_or(TaskIndex::MAX)
}
