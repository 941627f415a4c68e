//! The allocation directory: first to come, last to go. It stays after the tasks ended, with their logs, until the
//! allocation is collected or forgotten.

use herdlet_api_types::alloc::Desired;

use crate::{
    op::Part,
    parts::{Medium, Progress},
    pass::Pass,
    plan::Waiting,
    state::{PartState, Run, TaskState},
};

/// Makes it; once somebody has deleted it, only when those who used it have ended. With it comes what is taken over of the disk of the
/// allocation before it, so it waits for that one's end; its tasks say so.
pub fn up(pass: &mut Pass<'_>) -> Progress {
    if pass.spec.predecessor().is_some() && pass.ctx.awaits(pass.spec).is_some() {
        return Progress::Pending;
    }
    let ending = |task: &TaskState| task.doom.is_some() && task.run != Run::Dead;
    if *pass.state.parts.get(Part::Dir) != PartState::Up && pass.state.durable.tasks.iter().any(ending) {
        return Progress::Pending;
    }
    pass.want_up(Part::Dir)
}

/// Removes it with all that is mounted below, once nothing of the allocation is left that could use it, and nobody is to take over what
/// is in it.
pub fn down(pass: &mut Pass<'_>, above: Progress) -> Progress {
    match pass.spec.desired {
        Desired::Run | Desired::Stop if !pass.state.durable.collected => Progress::Arrived,
        Desired::Run | Desired::Stop | Desired::Gone if pass.ctx.heirs.contains_key(&pass.spec.id) => {
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

/// Whether no operation is left that could make something in the directory while it is removed.
fn nothing_under_way(pass: &mut Pass<'_>) -> bool {
    // What is asked of a catalogue makes nothing here, and may be under way for as long as the catalogue hangs.
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
