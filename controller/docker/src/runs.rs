//! The attempts that this agent supervises, and what an engine's answer says about one.
//!
//! In: answers of the engine. Out: states, exits, networks. It calls no engine.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status};
use herdlet_api_types::{AllocId, UnixNanos, task::ExitResult};
use herdlet_driver::{AttemptId, DriverNetwork, Started};
use tokio::sync::Mutex as AsyncMutex;

use crate::{engine::Engine, logs::LogCopy, records::Record, stats::LastTimes};

/// An attempt that this agent has started or recovered.
pub(crate) struct Run {
    pub(crate) id: AttemptId,
    /// The container's id.
    pub(crate) container: String,
    pub(crate) engine: Arc<Engine>,
    pub(crate) record: Record,
    /// Its network; set before anybody gets the run from its start.
    pub(crate) network: OnceLock<Option<DriverNetwork>>,
    pub(crate) logs: OnceLock<LogCopy>,
    pub(crate) times: LastTimes,
    /// Only one caller determines the exit.
    pub(crate) ending: AsyncMutex<()>,
    exit: Mutex<Option<ExitResult>>,
}

impl Run {
    pub(crate) fn new(id: AttemptId, container: String, engine: Arc<Engine>, record: Record) -> Arc<Self> {
        Arc::new(Self {
            id,
            container,
            engine,
            record,
            network: OnceLock::new(),
            logs: OnceLock::new(),
            times: LastTimes::default(),
            ending: AsyncMutex::new(()),
            exit: Mutex::default(),
        })
    }

    pub(crate) fn exit(&self) -> Option<ExitResult> {
        self.exit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn finish(&self, exit: ExitResult) {
        *self.exit.lock().unwrap_or_else(PoisonError::into_inner) = Some(exit);
    }

    pub(crate) fn started(&self) -> Started {
        Started { handle: None, network: self.network.get().cloned().flatten() }
    }
}

/// All of them, and a lock for each attempt that is being started, recovered, stopped or destroyed.
#[derive(Default)]
pub(crate) struct Runs {
    all: Mutex<BTreeMap<AttemptId, Arc<Run>>>,
    locks: Mutex<BTreeMap<AttemptId, Arc<AsyncMutex<()>>>>,
}

impl Runs {
    pub(crate) fn get(&self, id: &AttemptId) -> Option<Arc<Run>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)
    }

    pub(crate) fn insert(&self, run: Arc<Run>) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).insert(run.id.clone(), run);
    }

    pub(crate) fn remove(&self, id: &AttemptId) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The runs on an engine that have not ended.
    pub(crate) fn running_on(&self, engine: &Arc<Engine>) -> Vec<Arc<Run>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.values()
            .filter(|run| Arc::ptr_eq(&run.engine, engine) && run.exit().is_none())
            .map(Arc::clone)
            .collect()
    }

    /// The runs of an allocation.
    pub(crate) fn of_alloc(&self, alloc: AllocId) -> Vec<Arc<Run>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().filter(|run| run.id.alloc == alloc).map(Arc::clone).collect()
    }

    pub(crate) fn of_container(&self, container: &str) -> Option<Arc<Run>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().find(|run| run.container == container).map(Arc::clone)
    }

    /// The lock of an attempt.
    pub(crate) fn lock(&self, id: &AttemptId) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(id.clone()).or_default())
    }
}

/// Whether a container runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was never started.
    Created,
    Running,
    Exited(ExitResult),
}

/// The state of an inspected container.
pub(crate) fn seen(about: &ContainerInspectResponse) -> Seen {
    let Some(state) = &about.state else { return Seen::Created };
    let ran = state.started_at.as_deref().and_then(unix_nanos).is_some();
    match state.status {
        Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::STOPPING) => Seen::Running,
        Some(Status::CREATED) => Seen::Created,
        Some(Status::EXITED | Status::DEAD | Status::REMOVING | Status::EMPTY) | None => {
            if state.running == Some(true) {
                Seen::Running
            } else if ran || state.exit_code.is_some_and(|code| code != 0) {
                Seen::Exited(exit(state))
            } else {
                Seen::Created
            }
        }
    }
}

/// The code that Docker reports if it does not know one: the container's supervisor was lost.
const UNKNOWN_CODE: i64 = 255;

/// The exit of a container whose end nobody has seen. Docker leaves the error empty if it finds the container dead, as it does
/// for a program that ended with the same code.
pub(crate) fn unseen(exit: ExitResult) -> ExitResult {
    if i64::from(exit.code) != UNKNOWN_CODE || !exit.error.is_empty() {
        return exit;
    }
    let error =
        "its exit is unknown: the engine reports 255, as it does if it has lost the container's supervisor";
    ExitResult { error: error.to_owned(), ..exit }
}

fn exit(state: &ContainerState) -> ExitResult {
    let code = state.exit_code.unwrap_or(UNKNOWN_CODE);
    let oom_killed = state.oom_killed.unwrap_or(false);
    let error = state.error.clone().unwrap_or_default();
    ExitResult {
        code: i32::try_from(code).unwrap_or(i32::MAX),
        // A shell's convention, and the engine's: 128 + n if signal n ended it.
        signal: i32::try_from(code)
            .ok()
            .filter(|code| (129..=192).contains(code))
            .map_or(0, |code| code - 128),
        oom_killed,
        error: if code == UNKNOWN_CODE && !error.is_empty() {
            format!("its exit is unknown: {error}")
        } else {
            error
        },
        at: state.finished_at.as_deref().and_then(unix_nanos).unwrap_or_default(),
    }
}

/// Parses a time in RFC 3339; the engines' time zero is none.
pub(crate) fn unix_nanos(text: &str) -> Option<UnixNanos> {
    let at = text.parse::<jiff::Timestamp>().ok()?.as_nanosecond();
    i64::try_from(at).ok().filter(|at| *at > 0).map(UnixNanos)
}

/// The network of a started container, for services with `address_mode = driver`.
pub(crate) fn network(about: &ContainerInspectResponse, record: &Record) -> Option<DriverNetwork> {
    let networks = about.network_settings.as_ref()?.networks.as_ref()?;
    let mut names: Vec<&String> = networks.keys().collect();
    names.sort();
    names.into_iter().find_map(|name| {
        let endpoint = networks.get(name)?;
        let ipv4 = endpoint.ip_address.clone().filter(|ip| !ip.is_empty());
        let ipv6 = endpoint.global_ipv6_address.clone().filter(|ip| !ip.is_empty());
        let ip = if record.advertise_ipv6 { ipv6.or(ipv4) } else { ipv4.or(ipv6) }?;
        // A network of the user's is reachable for others; the default one is not.
        let is_default = matches!(name.as_str(), "bridge" | "podman" | "host" | "none" | "nat" | "default");
        let auto_advertise = !is_default || record.advertise_ipv6;
        Some(DriverNetwork { ip, port_map: record.port_map.clone(), auto_advertise })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(text: &str) -> Seen {
        let state: ContainerState = serde_json::from_str(text).unwrap();
        seen(&ContainerInspectResponse { state: Some(state), ..Default::default() })
    }

    #[test]
    fn states_and_exits() {
        assert_eq!(
            state("{\"Status\": \"created\", \"StartedAt\": \"0001-01-01T00:00:00Z\"}"),
            Seen::Created
        );
        assert_eq!(state("{\"Status\": \"paused\", \"Running\": true}"), Seen::Running);
        let text = "{\"Status\": \"exited\", \"ExitCode\": 137, \"OOMKilled\": true, \"StartedAt\": \"2026-11-26T10:00:00Z\", \"FinishedAt\": \"2026-11-26T10:00:00.5Z\"}";
        let Seen::Exited(exit) = state(text) else { panic!() };
        assert_eq!((exit.code, exit.signal, exit.oom_killed), (137, 9, true));
        assert_eq!(exit.at.0, 1_795_687_200_500_000_000);
        assert_eq!(unix_nanos("0001-01-01T00:00:00Z"), None);
        let text = "{\"Status\": \"exited\", \"ExitCode\": 255, \"Error\": \"\", \"StartedAt\": \"2026-11-26T10:00:00Z\"}";
        let Seen::Exited(exit) = state(text) else { panic!() };
        assert_eq!((exit.code, &*exit.error), (255, ""), "a program's own code");
        assert!(unseen(exit).error.contains("unknown"));
    }
}
