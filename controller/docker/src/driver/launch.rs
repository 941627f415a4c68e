//! What a container needs from the machine at its start: paths of its allocation.
//!
//! In: a request. Out: mounts for the engine, which last until the container has started.

use std::sync::Arc;

use herdlet_base::privileges::{Mounting, Privileges};
use herdlet_driver::{AttemptId, DriverError, DriverResult};
use tokio::net::UnixStream;

use super::Shared;
use crate::{create::Pin, engine::Engine, pins};

impl Shared {
    /// Where paths of an attempt's allocation are mounted for the engine; none if this agent can't mount anything.
    pub(super) fn pins(&self, id: &AttemptId) -> Option<std::path::PathBuf> {
        let can_mount = *self.can_mount.get_or_init(|| Privileges::probe().mounting == Mounting::Possible);
        can_mount.then(|| self.records.pins(id))
    }

    /// Mounts what a request needs.
    pub(super) async fn pin(&self, id: &AttemptId, engine: &Engine, pins: &[Pin]) -> DriverResult<()> {
        if pins.is_empty() {
            return Ok(());
        }
        let wanted = pins.to_vec();
        let mounted = tokio::task::spawn_blocking(move || pins::mount(&wanted)).await;
        mounted.map_err(|error| DriverError::retry(format!("mount the volumes of {id}: {error}")))??;
        let failed = |error| DriverError::retry(format!("verify that {} sees mounts: {error}", engine.place));
        // A process in another namespace of processes has no id here.
        let peer = UnixStream::connect(engine.socket()).await.and_then(|socket| socket.peer_cred());
        let Some(process) = peer.map_err(failed)?.pid().filter(|process| *process > 0) else { return Ok(()) };
        match pins::sees(process, &self.records.pins(id)).map_err(failed)? {
            true => Ok(()),
            false => Err(DriverError::recoverable(format!(
                "mount the volumes of {id}: {} does not see the mounts of this agent; run both in one mount namespace, \
                 without PrivateTmp=, ProtectSystem= and the like in the agent's unit",
                engine.place
            ))),
        }
    }

    /// Removes what [`Self::pin`] has mounted, once the container has it.
    pub(super) async fn unpin(self: &Arc<Self>, id: &AttemptId) {
        let (shared, own) = (Arc::clone(self), id.clone());
        match tokio::task::spawn_blocking(move || shared.records.unpin(&own)).await {
            Ok(Ok(())) => {}
            // They are removed with the record.
            Ok(Err(error)) => tracing::warn!(%id, %error, "mounts for the start of a container remain"),
            Err(error) => tracing::warn!(%id, %error, "mounts for the start of a container remain"),
        }
    }

    /// As [`Self::unpin`], for a container that an earlier agent has started: nearly always there is nothing to remove.
    pub(super) fn release_pins(self: &Arc<Self>, id: &AttemptId) {
        if self.records.pins(id).exists() {
            let (shared, id) = (Arc::clone(self), id.clone());
            tokio::spawn(async move { shared.unpin(&id).await });
        }
    }
}
