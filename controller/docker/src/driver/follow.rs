//! What engines report about containers, and exits.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum as Status, EventMessage};
use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api_types::{UnixNanos, task::ExitResult};
use herdlet_base::clock::wall_now;
use herdlet_driver::{AttemptId, Exited};
use tokio::time;

use super::{Shared, locate::inspect};
use crate::{
    engine::{Continuity, Engine, EngineReport, List, Listener},
    names,
    runs::{self, Run, Seen},
};

/// How long an exit waits for the rest of the output.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Waits between attempts to determine an exit.
const AGAIN_MIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// What is known of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Ended,
    /// The engine has not answered.
    Unknown,
}

/// How an end was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// By an event; with the code that it names.
    Event(Option<i32>),
    /// By a request of the agent.
    Request,
    /// By a list after the engine was connected to: nobody has seen it.
    List,
}

impl Notice {
    /// The code that the engine has reported, for a container that is gone.
    fn code(self) -> Option<i32> {
        match self {
            Self::Event(code) => code,
            Self::Request | Self::List => None,
        }
    }
}

/// Receives the reports of all engines.
pub(super) struct DriverListener(pub(super) Arc<Shared>);

impl Listener for DriverListener {
    fn report(&self, engine: &Arc<Engine>, report: EngineReport) -> BoxFuture<'_, ()> {
        match report {
            EngineReport::Listed(list, continuity) => self.0.listed(engine, list, continuity),
            EngineReport::Changed(event) => self.0.changed(engine, &event),
        }
        async {}.boxed()
    }
}

impl Shared {
    /// An engine was connected to: runs whose containers have ended or are gone meanwhile are finished.
    fn listed(self: &Arc<Self>, engine: &Arc<Engine>, list: List, continuity: Continuity) {
        let found: BTreeMap<AttemptId, ContainerSummary> = list
            .all
            .into_iter()
            .filter_map(|container| Some((names::owned(&container, &self.owner)?, container)))
            .collect();
        for run in self.runs.running_on(engine) {
            let runs = found.get(&run.id).is_some_and(|container| {
                container.id.as_deref() == Some(&run.container) && is_running(container)
            });
            match (runs, continuity) {
                (false, _) => self.finish_soon(run, Notice::List),
                (true, Continuity::Restarted) => {
                    if let Some(logs) = run.logs.get() {
                        logs.mark_gap();
                    }
                }
                (true, Continuity::Kept) => {}
            }
        }
        let attempts = found.keys().cloned().collect();
        let is_first = {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            listed.insert(engine.socket().to_owned(), found).is_none()
        };
        if is_first && continuity == Continuity::Restarted {
            let mut restarted = self.restarted.lock().unwrap_or_else(PoisonError::into_inner);
            restarted.insert(engine.socket().to_owned());
        }
        // Last: attempts are recovered from the rest once they are known.
        self.first_lists.send_if_modified(|lists| {
            // What has changed before a later connection is in no event.
            let first = is_first.then_some((list.asked, attempts));
            lists.insert(engine.socket().to_owned(), first);
            is_first
        });
    }

    fn changed(self: &Arc<Self>, engine: &Arc<Engine>, event: &EventMessage) {
        self.outdate_lists(event.time_nano.map_or_else(wall_now, UnixNanos));
        let Some(actor) = &event.actor else { return };
        let attributes = actor.attributes.clone().unwrap_or_default();
        let action = event.action.as_deref().unwrap_or_default();
        // An event of a start may come after the list that shows its result. Another start follows an end.
        let is_start = matches!(action, "create" | "init" | "attach" | "start");
        if !is_start && let Some(id) = names::attempt_of(&attributes, &self.owner) {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = listed.get_mut(engine.socket()) {
                found.remove(&id);
            }
        }
        let Some(run) = actor.id.as_deref().and_then(|container| self.runs.of_container(container)) else {
            return;
        };
        match action {
            "die" | "died" => {
                let code = attributes.get("exitCode").or_else(|| attributes.get("containerExitCode"));
                self.finish_soon(run, Notice::Event(code.and_then(|code| code.parse().ok())));
            }
            // Podman's events of a removal have code 0, whatever the exit was.
            "cleanup" | "destroy" | "remove" => self.finish_soon(run, Notice::Event(None)),
            "oom" => {
                self.message(&run.id, "a process of the container was killed: it is out of memory".to_owned())
            }
            _ => {
                if let Some(health) = action.strip_prefix("health_status") {
                    let health = health.trim_start_matches(':').trim();
                    let health = if health.is_empty() {
                        attributes.get("health_status").map_or("", String::as_str)
                    } else {
                        health
                    };
                    if !health.is_empty() {
                        self.message(&run.id, format!("HEALTHCHECK: {health}"));
                    }
                }
            }
        }
    }

    /// Determines the exit of a run in the background, until it is known or the engine goes down: then the next connection to it does.
    pub(super) fn finish_soon(self: &Arc<Self>, run: Arc<Run>, notice: Notice) {
        let (shared, ended) = (Arc::clone(self), self.ended.clone());
        let finishing = async move {
            let mut pause = AGAIN_MIN;
            while shared.finish(&run, notice).await == State::Unknown && run.engine.is_up() {
                time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_MAX);
            }
        };
        tokio::spawn(async move { ended.run_until_cancelled(finishing).await });
    }

    /// Determines the exit of a run and reports it once.
    pub(super) async fn finish(self: &Arc<Self>, run: &Arc<Run>, notice: Notice) -> State {
        let _one = run.ending.lock().await;
        if run.exit().is_some() {
            return State::Ended;
        }
        let Ok(client) = run.engine.reach().await else { return State::Unknown };
        let exit = match inspect(&client, &run.container).await {
            Err(_) => return State::Unknown,
            Ok(Some(about)) => match runs::seen(&about) {
                // The engine has reported its end, and does not show it yet.
                Seen::Running if notice.code().is_some() => return State::Unknown,
                Seen::Running => return State::Running,
                Seen::Exited(exit) if notice == Notice::List => runs::unseen(exit),
                Seen::Exited(exit) => exit,
                Seen::Created => gone(notice.code(), "the engine has no record of its start"),
            },
            Ok(None) => gone(notice.code(), "its container was removed"),
        };
        if let Some(logs) = run.logs.get() {
            // The exit is not withheld for a full disk.
            let _ = time::timeout(DRAIN_MAX, logs.drained()).await;
        }
        run.finish(exit.clone());
        self.exits.send(Exited { id: run.id.clone(), result: exit }).await;
        State::Ended
    }
}

/// The exit of a container that can't be inspected any more.
fn gone(code: Option<i32>, why: &str) -> ExitResult {
    let signal = code.filter(|code| (129..=192).contains(code)).map_or(0, |code| code - 128);
    match code {
        Some(code) => ExitResult { code, signal, at: wall_now(), ..ExitResult::default() },
        None => ExitResult {
            code: -1,
            error: format!("its exit is unknown: {why}"),
            at: wall_now(),
            ..ExitResult::default()
        },
    }
}

/// Whether a listed container runs.
pub(super) fn is_running(container: &ContainerSummary) -> bool {
    match container.state {
        Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::STOPPING) => true,
        Some(Status::CREATED | Status::EXITED | Status::REMOVING | Status::DEAD | Status::EMPTY) | None => {
            false
        }
    }
}
