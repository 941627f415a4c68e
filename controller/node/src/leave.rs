//! Leaving the cluster, as configured, and waiting until no server's allocation runs here.

use std::sync::Arc;

use herdlet_agent::publish::ReadModel;
use herdlet_api_types::{job::JobType, view::AllocView};
use herdlet_config::DrainOnShutdown;
use herdlet_nomad::session::{Drain, DrainError, Queries};
use herdlet_rpc::{Service, connect::Dial};

/// Has servers drain the node, and waits for the end. Unreachable servers do not block it for long.
///
/// # Errors
/// Why the node was not drained.
pub async fn drain<S: Service, D: Dial>(
    queries: &Queries<S, D>,
    model: &ReadModel,
    how: DrainOnShutdown,
) -> Result<(), DrainError> {
    let DrainOnShutdown { deadline, force, ignore_system_jobs } = how;
    let drain = Drain { deadline: deadline.map(|deadline| deadline.to_std()), force, ignore_system_jobs };
    queries.drain(drain, || ended(model, ignore_system_jobs)).await
}

/// Waits until all allocations have ended that a drain stops.
pub(super) async fn ended(model: &ReadModel, ignore_system_jobs: bool) {
    let stays = |view: &Arc<AllocView>| ignore_system_jobs && view.spec.job.kind == JobType::System;
    let is_left =
        |view: &Arc<AllocView>| view.spec.server.is_some() && !view.status.is_terminal() && !stays(view);
    loop {
        let version = model.version();
        if !model.allocs().iter().any(is_left) {
            return;
        }
        model.changed(version).await;
    }
}
