//! The allocation directory: created first, removed last. It stays after the tasks have ended, with their logs, until
//! the allocation is collected or forgotten.

use herdlet_api_types::alloc::Desired;

use crate::{
    op::Part,
    parts::{Medium, Progress},
    pass::Pass,
    plan::Waiting,
    state::{PartState, Run, TaskState},
};

/// Creates it. If it was deleted from outside, it is recreated only once the tasks that used it have ended. The disk of
/// the predecessor is migrated with it, so it waits for the predecessor's end; the tasks report that wait.
pub fn up(pass: &mut Pass<'_>) -> Progress {
    if pass.spec.predecessor().is_some() && pass.ctx.awaits(pass.spec).is_some() {
        return Progress::Pending;
    }
    let ending = |task: &TaskState| task.permanent_failure.is_some() && task.run != Run::Dead;
    if *pass.state.parts.get(Part::Dir) != PartState::Up && pass.state.durable.tasks.iter().any(ending) {
        return Progress::Pending;
    }
    pass.want_up(Part::Dir)
}

/// Removes it with everything mounted below, once nothing of the allocation can use it and no successor is to take over
/// its content.
pub fn down(pass: &mut Pass<'_>, above: Progress) -> Progress {
    match pass.spec.desired {
        Desired::Run | Desired::Stop if !pass.state.durable.collected => Progress::Arrived,
        Desired::Run | Desired::Stop | Desired::Gone if pass.ctx.successors.contains_key(&pass.spec.id) => {
            pass.wait(Waiting::Part(Part::Dir));
            Progress::Pending
        }
        Desired::Run | Desired::Stop | Desired::Gone => {
            if !above.has_arrived() || !nothing_under_way(pass) {
                return Progress::Pending;
            }
            pass.want_down(Part::Dir)
        }
    }
}

/// Whether no operation is left that could create something in the directory during its removal.
fn nothing_under_way(pass: &mut Pass<'_>) -> bool {
    // An operation on a catalogue creates nothing here, and may last as long as the catalogue hangs.
    let elsewhere = |part: Part| part == Part::Dir || part.row().medium == Medium::Catalogue;
    let busy = pass.state.parts.iter().find(|(part, state)| !elsewhere(*part) && state.is_busy());
    match busy {
        None => true,
        Some((part, _)) => {
            pass.wait(Waiting::Part(part));
            false
        }
    }
}
