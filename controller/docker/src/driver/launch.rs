//! What a container needs from the machine at its start: paths of its allocation, and the network of another container.
//!
//! In: a request. Out: mounts for the engine, which last until the container has started; the other container by its id, or a refusal.

use std::sync::Arc;

use bollard::Docker;
use herdlet_base::privileges::{Mounting, Privileges};
use herdlet_driver::{AttemptId, DriverError, DriverResult};
use tokio::net::UnixStream;

use super::{Shared, locate::inspect};
use crate::{
    create::{self, Pin, Request},
    engine::Engine,
    names::{self, Naming},
    pins,
};

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
        let mounted = herdlet_runtime::off_thread(move || pins::mount(&wanted)).await;
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
        match herdlet_runtime::off_thread(move || shared.records.unpin(&own)).await {
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

    /// Replaces the container whose network a task joins by its id. One of the same allocation needs no permission: Nomad's name of it is
    /// known here, too. Any other may be somebody else's.
    pub(super) async fn join(
        &self,
        client: &Docker,
        id: &AttemptId,
        request: &mut Request,
    ) -> DriverResult<()> {
        if request.network.is_some() {
            return Ok(());
        }
        let host = request.body.host_config.get_or_insert_default();
        let Some(name) = create::joined(host.network_mode.as_deref()) else { return Ok(()) };
        let sibling = self.runs.of_alloc(id.alloc).into_iter().find(|run| {
            run.exit().is_none() && names::container(&run.id, &self.owner.instance, Naming::Nomad) == name
        });
        let found = match sibling {
            Some(run) => Some(run.container.clone()),
            None => inspect(client, name).await?.and_then(|about| {
                let is_sibling = self.attempt_of(&about).is_some_and(|other| other.alloc == id.alloc);
                about.id.filter(|_| is_sibling)
            }),
        };
        match found {
            Some(container) => {
                host.network_mode = Some(format!("container:{container}"));
                Ok(())
            }
            None if self.policy.may_join_network(name) => Ok(()),
            None => Err(create::not_joined(name, id.alloc)),
        }
    }
}
