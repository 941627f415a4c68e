//! The goal of an allocation's parts: whether its tasks and its services should exist.
//!
//! In: the stored state of the allocation. Out: the goal that its parts are planned for.

use herdlet_api_types::task::TaskStatus;

use crate::state::AllocState;

/// Whether the allocation's tasks should exist: nothing stops them and not all have ended.
pub(crate) fn wants_tasks(state: &AllocState) -> bool {
    state.durable.stop.is_none() && state.durable.tasks.iter().any(|task| task.status() != TaskStatus::Dead)
}

/// Whether the group's services should be registered: its tasks should exist and no group-wide restart is in progress.
pub(crate) fn wants_services(state: &AllocState) -> bool {
    wants_tasks(state) && state.durable.restart.is_none()
}
