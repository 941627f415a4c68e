//! Ending and removing containers.

use std::{sync::Arc, time::Duration};

use bollard::{
    Docker,
    models::ContainerInspectResponse,
    query_parameters::{KillContainerOptionsBuilder, WaitContainerOptionsBuilder},
};
use futures_util::StreamExt as _;
use herdlet_base::{clock::wall_now, signal};
use herdlet_driver::{AttemptId, DriverError, DriverResult, Leftover, StopRequest};
use tokio::time;

use super::{Shared, follow::Notice};
use crate::{
    engine::Engine,
    failure::{self, Meaning},
    processes,
    records::RecordClaim,
    runs::{self, Seen},
};

/// The stop signal of images that name none.
const STOP_SIGNAL: &str = "SIGTERM";
/// How long a killed container may take to end before the stop is retried.
const KILL_MAX: Duration = Duration::from_secs(60);
/// How often a waiting stop asks the engine, in case a wait is lost.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// A container that was found, with its engine.
struct Found {
    engine: Arc<Engine>,
    about: ContainerInspectResponse,
}

impl Shared {
    /// The container of an attempt; none if it has none. An attempt that never started needs no engine.
    async fn found(self: &Arc<Self>, id: &AttemptId) -> DriverResult<Option<Found>> {
        if let Some(run) = self.runs.get(id) {
            let client = &run.engine.reach().await.map_err(DriverError::retry)?;
            let about = super::locate::inspect(client, &run.container).await?;
            return Ok(about.map(|about| Found { engine: Arc::clone(&run.engine), about }));
        }
        let record = self.record(id)?;
        let engine = self.engine_of(id, record.as_ref())?;
        let is_unknown = match &record {
            Some(record) => record.claim == RecordClaim::Fenced,
            None => !self.earlier.has(id) || engine.about().is_none() && !engine.socket().exists(),
        };
        if is_unknown || self.is_forgotten(&engine) {
            return Ok(None);
        }
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let about = self.find(client, id, record.as_ref()).await?;
        Ok(about.map(|about| Found { engine, about }))
    }

    pub(super) async fn stop(self: &Arc<Self>, id: &AttemptId, how: StopRequest) -> DriverResult<()> {
        if let Some(name) = &how.signal {
            signal::parse(name).map_err(DriverError::fatal)?;
        }
        let lock = self.runs.lock(id);
        let _held = lock.lock().await;
        if self.runs.get(id).is_some_and(|run| run.exit().is_some()) {
            return Ok(());
        }
        let Some(Found { engine, about }) = self.found(id).await? else {
            return match self.runs.get(id) {
                Some(run) => {
                    self.finish(&run, Notice::Request).await;
                    Ok(())
                }
                None => self.fence(id),
            };
        };
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let container = about.id.clone().unwrap_or_default();
        match runs::seen(&about) {
            Seen::Created => {
                self.remove_forgotten(client, &container).await?;
                self.fence(id)?;
            }
            Seen::Exited(_) => {}
            Seen::Running => {
                let of_image =
                    about.config.and_then(|config| config.stop_signal).filter(|name| !name.is_empty());
                let name = how.signal.or(of_image).unwrap_or_else(|| STOP_SIGNAL.to_owned());
                end(client, &container, &name, how.grace).await?;
            }
        }
        if let Some(run) = self.runs.get(id) {
            self.finish(&run, Notice::Request).await;
        }
        Ok(())
    }

    pub(super) async fn destroy(self: &Arc<Self>, id: &AttemptId, leftover: Leftover) -> DriverResult<()> {
        let lock = self.runs.lock(id);
        let _held = lock.lock().await;
        if let Some(Found { engine, about }) = self.found(id).await? {
            let client = &engine.reach().await.map_err(DriverError::retry)?;
            let container = about.id.clone().unwrap_or_default();
            match runs::seen(&about) {
                Seen::Running => {
                    match leftover {
                        Leftover::MainMustBeGone => {
                            return Err(DriverError::fatal(format!("destroy {id}: it still runs")));
                        }
                        Leftover::Kill => end(client, &container, "SIGKILL", Duration::ZERO).await?,
                    }
                    if let Some(run) = self.runs.get(id) {
                        self.finish(&run, Notice::Request).await;
                    }
                }
                Seen::Created => processes::end(&container).await?,
                Seen::Exited(_) => {}
            }
            if self.policy.remove_containers {
                self.remove(client, &container).await?;
            }
        }
        let sharing = self.pause_locks.lock_of(id.alloc);
        // Until its record is removed, too: of two attempts that are destroyed at once, one is the last.
        let _alone = if self.may_have_pause(id.alloc)? { Some(sharing.write().await) } else { None };
        self.release_network(id.alloc, Some(id)).await?;
        let record = self.record(id)?;
        if let Some((image, engine)) = record.and_then(|record| Some((record.image, record.engine?))) {
            self.note_image(&image, &engine);
        }
        self.runs.remove(id);
        self.release_image(id);
        self.outdate_lists(wall_now());
        self.records
            .remove(id)
            .map_err(|error| DriverError::retry(format!("remove the record of {id}: {error}")))
    }
}

/// Sends the signal, waits for the grace period, and kills. Returns when the container does not run.
async fn end(client: &Docker, container: &str, name: &str, grace: Duration) -> DriverResult<()> {
    if !grace.is_zero() && name != "SIGKILL" {
        kill(client, container, name).await?;
        if time::timeout(grace, ended(client, container)).await.is_ok() {
            return Ok(());
        }
    }
    kill(client, container, "SIGKILL").await?;
    match time::timeout(KILL_MAX, ended(client, container)).await {
        Ok(()) => Ok(()),
        Err(_) => Err(DriverError::retry(format!(
            "stop the container {container}: it still runs {} s after SIGKILL",
            KILL_MAX.as_secs()
        ))),
    }
}

async fn kill(client: &Docker, container: &str, name: &str) -> DriverResult<()> {
    let options = KillContainerOptionsBuilder::new().signal(name).build();
    match client.kill_container(container, Some(options)).await {
        Ok(()) => Ok(()),
        Err(error) => match failure::meaning(&error) {
            // It does not run any more.
            Meaning::Missing | Meaning::Conflict | Meaning::Unchanged => Ok(()),
            Meaning::Failed if failure::sentence(&error).contains("not running") => Ok(()),
            Meaning::Unreachable | Meaning::Refused | Meaning::Failed => {
                Err(failure::retry(&format!("send {name} to the container {container}"), &error))
            }
        },
    }
}

/// Waits until a container does not run.
async fn ended(client: &Docker, container: &str) {
    loop {
        let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
        let mut wait = std::pin::pin!(client.wait_container(container, Some(options)));
        // A non-zero exit is an error of this call, too.
        let _ = time::timeout(ASK_EVERY, wait.next()).await;
        match super::locate::inspect(client, container).await {
            Ok(None) => return,
            Ok(Some(about)) if runs::seen(&about) != Seen::Running => return,
            Ok(Some(_)) => {}
            Err(_) => time::sleep(Duration::from_millis(500)).await,
        }
    }
}
