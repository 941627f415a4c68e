//! Notifies a running task of changes of its parts: when a restart, signal or script that it is owed is due.
//!
//! In: a pass and the task. Out: changes that carry out what is due, and what the rest waits for.
//!
//! Replicas that share data would all restart at once when it changes. Restarts because of templates therefore go
//! through the group's `update`: an allocation waits while `max_parallel` others of its group restart, or are not
//! healthy again for `min_healthy_time`. An allocation that is not healthy itself does not wait: its restart takes
//! nothing away, and may be what it needs. If one does not become healthy with the new data, the others keep running
//! with the old until a user acts, also after `healthy_deadline`: data that breaks one replica would break them all.

use crate::{
    alloc::health,
    facts::Owed,
    op::{Part, TaskIndex, TaskPart},
    pass::Pass,
    plan::{TaskChange, Waiting},
    state::{LastValue, PartState, TaskState},
};

/// Plans the notifications of one running task.
pub fn settle(pass: &mut Pass<'_>, index: TaskIndex, known: &TaskState) {
    for (part, owed) in &known.owed {
        let is_made = match pass.state.parts.get(Part::Task(index, *part)) {
            // What it made last is there, although something newer is not.
            PartState::Up | PartState::Pending { last: LastValue::Kept, .. } => true,
            PartState::Unknown
            | PartState::Suspect(_)
            | PartState::Absent
            | PartState::Busy { .. }
            | PartState::Pending { last: LastValue::Gone, .. }
            | PartState::Failed { .. } => false,
        };
        if pass.state.is_notice_in_flight(index, *part) {
            continue;
        }
        // What it waits for is shown also while its part is inspected.
        if !pass.passed(&owed.due) {
            pass.wait(Waiting::Splay(index, *part));
        } else if may_settle(pass, index, (*part, owed)) && is_made {
            pass.change(index, TaskChange::Settle(*part));
        }
    }
}

fn may_settle(pass: &mut Pass<'_>, index: TaskIndex, (part, owed): (TaskPart, &Owed)) -> bool {
    if !owed.action.is_restart() {
        // A driver that has not recovered an attempt sends it nothing.
        return *pass.state.parts.get(Part::Task(index, TaskPart::Process)) == PartState::Up;
    }
    if pass.state.durable.stop.is_some() {
        return false;
    }
    if part != TaskPart::Templates || !health::is_healthy(pass.spec, pass.state) {
        return true;
    }
    let Some(other) = pass.ctx.restarts.blocker(pass.spec) else { return true };
    let other = other.clone();
    pass.wait(Waiting::Turn(index, other));
    false
}
