//! The state of attempts that this instance of the driver does not supervise yet.

use std::{
    path::Path,
    sync::{Arc, PoisonError},
};

use bollard::models::{ContainerInspectResponse, ContainerSummary, NetworkSettings};
use herdlet_driver::{AttemptId, DriverError, DriverResult, Recovered};

use super::{
    Shared,
    follow::{Notice, is_running},
};
use crate::{
    engine::Engine,
    names,
    records::{Launch, Record, RecordClaim},
    runs::{self, Seen},
};

impl Shared {
    pub(super) async fn recover(self: &Arc<Self>, id: &AttemptId) -> DriverResult<Recovered> {
        let lock = self.runs.lock(id);
        let _held = lock.lock().await;
        if let Some(run) = self.runs.get(id) {
            return self.inspect_run(&run).await;
        }
        let record = self.record(id)?;
        let Some(known) = &record else {
            if !self.earlier.has(id) {
                return Ok(Recovered::NotStarted);
            }
            return self.take_over(id, None).await;
        };
        match known.claim {
            RecordClaim::Fenced => {
                self.remove_fenced(id, known).await;
                Ok(Recovered::Lost { why: "it was cancelled before it started".to_owned() })
            }
            RecordClaim::Taken => self.take_over(id, Some(known)).await,
        }
    }

    /// Verifies a run that is already supervised.
    async fn inspect_run(self: &Arc<Self>, run: &Arc<runs::Run>) -> DriverResult<Recovered> {
        if let Some(exit) = run.exit() {
            return Ok(Recovered::Exited(exit));
        }
        let client = &run.engine.reach().await.map_err(DriverError::retry)?;
        match super::locate::inspect(client, &run.container).await? {
            Some(about) if runs::seen(&about) == Seen::Running => Ok(Recovered::Running(run.started())),
            Some(_) | None => {
                self.finish(run, Notice::List).await;
                match run.exit() {
                    Some(exit) => Ok(Recovered::Exited(exit)),
                    None => Ok(Recovered::Running(run.started())),
                }
            }
        }
    }

    async fn take_over(self: &Arc<Self>, id: &AttemptId, record: Option<&Record>) -> DriverResult<Recovered> {
        let engine = self.engine_of(id, record)?;
        if let Some(record) = record
            && let Some(run) = self.adopt_listed(id, &engine, record)
        {
            self.release_pins(id);
            return Ok(Recovered::Running(run.started()));
        }
        let is_away = record.is_none() && engine.about().is_none() && !engine.socket().exists();
        // An attempt that was starting starts again, and finds the container if there is one.
        if is_away {
            return Ok(Recovered::NotStarted);
        }
        if self.is_forgotten(&engine) {
            let why = format!("it ran on {}, which is in forget_engines", engine.place);
            return Ok(Recovered::Lost { why });
        }
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let Some(about) = self.find(client, id, record).await? else {
            // The record is written before a container is created, and removed after it: without one, the earlier agent has asked for
            // nothing. With one, a request to create it may still be under way; the next start finds what that makes.
            if record.is_none_or(|record| record.launch == Launch::Unrequested) {
                return Ok(Recovered::NotStarted);
            }
            self.fence(id)?;
            return Ok(Recovered::Lost { why: "its exit is unknown: its container is gone".to_owned() });
        };
        if record.is_some_and(|record| !record.is_of(names::request_of(&about)))
            && runs::seen(&about) != Seen::Created
        {
            self.fence(id)?;
            self.remove(client, about.id.as_deref().unwrap_or_default()).await?;
            return Ok(Recovered::Lost {
                why: "its container was created with another configuration, by a newer state of this agent"
                    .to_owned(),
            });
        }
        match runs::seen(&about) {
            Seen::Created => {
                let container = about.id.as_deref().unwrap_or_default();
                let record = record.cloned().unwrap_or_else(|| self.lost_record(&engine, &about));
                if !may_have_run(&engine, &record, container) {
                    return Ok(Recovered::NotStarted);
                }
                self.remove_forgotten(client, container).await?;
                self.fence(id)?;
                Ok(Recovered::Lost { why: "its exit is unknown: its start was interrupted".to_owned() })
            }
            Seen::Running => {
                let record = record.cloned().unwrap_or_else(|| self.lost_record(&engine, &about));
                let run = self.adopt(id, &engine, &record, &about);
                self.mark_restart(&run);
                self.release_pins(id);
                Ok(Recovered::Running(run.started()))
            }
            Seen::Exited(exit) => {
                let exit = runs::unseen(exit);
                let record = record.cloned().unwrap_or_else(|| self.lost_record(&engine, &about));
                let run = runs::Run::new(
                    id.clone(),
                    about.id.clone().unwrap_or_default(),
                    Arc::clone(&engine),
                    record,
                );
                self.copy_logs(&run, about.log_path.clone());
                self.mark_restart(&run);
                if let Some(logs) = run.logs.get() {
                    let _ = tokio::time::timeout(std::time::Duration::from_secs(10), logs.drained()).await;
                }
                run.finish(exit.clone());
                self.runs.insert(run);
                Ok(Recovered::Exited(exit))
            }
        }
    }

    /// Adopts a container that was running when its engine was connected to and has not changed since: many are adopted with one call
    /// of the engine. One whose output is not where the engine stores it by default is inspected.
    fn adopt_listed(
        self: &Arc<Self>,
        id: &AttemptId,
        engine: &Arc<Engine>,
        record: &Record,
    ) -> Option<Arc<runs::Run>> {
        let about = engine.about()?;
        // Held until the run is known: an exit removes the container from the list, or finds the run.
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let container = listed.get_mut(engine.socket())?.remove(id).filter(is_running)?;
        let request = container.labels.as_ref().and_then(|labels| labels.get(names::REQUEST));
        if !record.is_of(request.map(String::as_str)) {
            return None;
        }
        let container_id = container.id.clone()?;
        let log_path = about.log_file(&container_id);
        if record.logs.is_some() && !Path::new(&log_path).exists() {
            return None;
        }
        let about = inspected(container, log_path);
        let run = self.supervise(id, engine, record, &about);
        self.mark_restart(&run);
        Some(run)
    }

    /// Marks that output may be missing, if the engine was restarted while no agent ran.
    fn mark_restart(&self, run: &runs::Run) {
        let restarted = self.restarted.lock().unwrap_or_else(PoisonError::into_inner);
        if restarted.contains(run.engine.socket())
            && let Some(logs) = run.logs.get()
        {
            logs.mark_gap();
        }
    }

    /// A fence whose container appeared after all: a request that was under way when its agent died.
    async fn remove_fenced(self: &Arc<Self>, id: &AttemptId, record: &Record) {
        let Ok(engine) = self.engine_of(id, Some(record)) else { return };
        let Ok(client) = engine.reach().await else { return };
        if let Ok(Some(about)) = self.find(&client, id, None).await {
            let _ = self.remove_found(&client, &about).await;
        }
    }

    /// What is known of a container whose record is gone.
    fn lost_record(&self, engine: &Engine, about: &ContainerInspectResponse) -> Record {
        Record {
            claim: RecordClaim::Taken,
            engine: Some(engine.place.clone()),
            container: about.name.clone().unwrap_or_default().trim_start_matches('/').to_owned(),
            logs: None,
            image: String::new(),
            port_map: Default::default(),
            advertise_ipv6: false,
            request: String::new(),
            launch: Launch::Requested,
        }
    }

    pub(super) fn fence(&self, id: &AttemptId) -> DriverResult<()> {
        self.records
            .fence(id)
            .map_err(|error| DriverError::retry(format!("record that {id} is cancelled: {error}")))
    }
}

/// Whether the program of a container that its engine calls created may have run. Docker that is killed after the program began, and
/// before it has stored that, has no record of the start; it creates the file of the output before. Docker answers an inspection only
/// after a start that is in progress, so there is none. Podman asks its runtime.
fn may_have_run(engine: &Engine, record: &Record, container: &str) -> bool {
    if record.launch == Launch::Unrequested {
        return false;
    }
    let Some(about) = engine.about() else { return true };
    if !about.is_docker() {
        return false;
    }
    let log = about.log_file(container);
    let log = Path::new(&log);
    let is_visible = record.logs.is_some() && log.parent().is_some_and(Path::exists);
    !is_visible || log.exists()
}

/// A listed container in the form of an inspected one, as far as it is known.
fn inspected(container: ContainerSummary, log_path: String) -> ContainerInspectResponse {
    let networks = container.network_settings.and_then(|settings| settings.networks);
    ContainerInspectResponse {
        id: container.id,
        log_path: Some(log_path),
        state: Some(bollard::models::ContainerState {
            status: Some(bollard::models::ContainerStateStatusEnum::RUNNING),
            running: Some(true),
            ..Default::default()
        }),
        network_settings: Some(NetworkSettings { networks, ..NetworkSettings::default() }),
        ..ContainerInspectResponse::default()
    }
}
