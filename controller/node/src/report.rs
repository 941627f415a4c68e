//! Converts the view of an allocation into the report for servers.

use std::time::Duration;

use herdlet_api_types::{
    AllocId, UnixNanos,
    alloc::{AllocNetwork, ClientStatus},
    job::Dns,
    nomad,
    task::{TaskEvent, TaskStatus},
    view::{AllocView, TaskView},
};
use herdlet_nomad::wire::{
    self, AllocReport, RunState, TaskState,
    alloc::{DeploymentStatus, NetworkStatus},
};
use herdlet_rpc::codec::Time;

/// Stock clients report this for every pending allocation.
const NOT_STARTED: &str = "No tasks have started";

/// The report on a server's allocation; `None` for a local one.
pub fn of(view: &AllocView) -> Option<AllocReport> {
    view.spec.server.as_ref()?;
    let deployment_status = view.verdict.map(|healthy| DeploymentStatus {
        healthy: Some(healthy),
        timestamp: time(view.verdict_at),
        canary: view.spec.deployment.is_some_and(|of| of.canary),
        modify_index: 0,
    });
    Some(AllocReport {
        id: id(view.spec.id),
        client_status: status(view.status),
        client_description: match view.status {
            // The detailed reason is shown only locally.
            ClientStatus::Pending => NOT_STARTED.to_owned(),
            ClientStatus::Running | ClientStatus::Complete | ClientStatus::Failed => {
                view.description.clone().into_owned()
            }
        },
        task_states: view.tasks.iter().map(|task| (task.name.to_string(), task_state(task))).collect(),
        deployment_status,
        network_status: Some(view.network.as_ref().map(network_status).unwrap_or_default()),
        ..AllocReport::default()
    })
}

/// Stock clients send an empty one for tasks that use the machine's network.
fn network_status(network: &AllocNetwork) -> NetworkStatus {
    let AllocNetwork { interface, address, address6, dns } = network.clone();
    let Dns { servers, searches, options } = dns;
    NetworkStatus {
        interface_name: interface,
        address,
        address_ipv6: address6.unwrap_or_default(),
        dns: (!servers.is_empty()).then_some(wire::resources::Dns { servers, searches, options }),
    }
}

/// The report on an allocation that cannot be planned: failed, with all its tasks.
pub fn of_failed(alloc: &wire::Allocation, why: &str, now: UnixNanos) -> AllocReport {
    let event = wire::TaskEvent {
        kind: "Setup Failure".to_owned(),
        time: now.0,
        display_message: why.to_owned(),
        details: [("setup_error".to_owned(), why.to_owned()), ("fails_task".to_owned(), "true".to_owned())]
            .into(),
        setup_error: why.to_owned(),
        fails_task: true,
        ..wire::TaskEvent::default()
    };
    let dead = TaskState {
        state: RunState::Dead,
        failed: true,
        finished_at: time(now),
        events: vec![event],
        ..TaskState::default()
    };
    let known = alloc.deployment_status.as_ref().and_then(|status| status.healthy);
    let in_deployment = !alloc.deployment_id.is_empty() && known.is_none();
    AllocReport {
        id: alloc.id.clone(),
        client_status: wire::ClientStatus::Failed,
        client_description: format!("Unable to add allocation due to error: {why}"),
        task_states: alloc.job.tasks(&alloc.task_group).map(|name| (name.to_owned(), dead.clone())).collect(),
        deployment_status: in_deployment.then(|| DeploymentStatus {
            healthy: Some(false),
            timestamp: time(now),
            ..DeploymentStatus::default()
        }),
        network_status: Some(NetworkStatus::default()),
        ..AllocReport::default()
    }
}

/// The id in the servers' format.
pub fn id(id: AllocId) -> wire::AllocId {
    id.to_string().into()
}

fn status(status: ClientStatus) -> wire::ClientStatus {
    match status {
        ClientStatus::Pending => wire::ClientStatus::Pending,
        ClientStatus::Running => wire::ClientStatus::Running,
        ClientStatus::Complete => wire::ClientStatus::Complete,
        ClientStatus::Failed => wire::ClientStatus::Failed,
    }
}

fn task_state(task: &TaskView) -> TaskState {
    TaskState {
        state: match task.state {
            TaskStatus::Pending => RunState::Pending,
            TaskStatus::Running => RunState::Running,
            TaskStatus::Dead => RunState::Dead,
        },
        failed: task.failed,
        restarts: u64::from(task.restarts),
        last_restart: time(task.last_restart),
        started_at: time(task.started_at),
        finished_at: time(task.finished_at),
        events: task.events.iter().map(task_event).collect(),
        paused: String::new(),
    }
}

fn task_event(event: &TaskEvent) -> wire::TaskEvent {
    let shown = nomad::task_event(event);
    wire::TaskEvent {
        kind: shown.kind,
        time: shown.time,
        message: shown.message,
        display_message: shown.display_message,
        details: shown.details,
        fails_task: shown.fails_task,
        restart_reason: shown.restart_reason,
        setup_error: shown.setup_error,
        driver_error: shown.driver_error,
        exit_code: shown.exit_code,
        signal: shown.signal,
        kill_timeout: Duration::from_nanos(shown.kill_timeout.unsigned_abs()),
        kill_error: shown.kill_error,
        kill_reason: shown.kill_reason,
        start_delay: shown.start_delay,
        download_error: shown.download_error,
        validation_error: shown.validation_error,
        disk_limit: shown.disk_limit,
        failed_sibling: shown.failed_sibling,
        vault_error: shown.vault_error,
        task_signal_reason: shown.task_signal_reason,
        task_signal: shown.task_signal,
        driver_message: shown.driver_message,
        generic_source: shown.generic_source,
    }
}

/// Go's zero time if the event has not happened.
fn time(at: UnixNanos) -> Time {
    if at == UnixNanos::default() { Time::default() } else { Time::from_unix_nanos(at.0) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use herdlet_api_types::task::TaskEventKind;
    use herdlet_rpc::codec::{self, Extent, Limits};

    use super::*;
    use crate::test_recordings::messages;

    /// Details that are stored with an event; the others follow from its kind and message.
    const STORED: [&str; 9] = [
        "exit_code",
        "signal",
        "oom_killed",
        "exit_message",
        "kill_timeout",
        "start_delay",
        "kill_reason",
        "restart_reason",
        "task_signal",
    ];

    /// The stored form of an event that a stock client reported.
    fn stored(event: &wire::TaskEvent) -> TaskEvent {
        let kind: TaskEventKind = serde_json::from_value(event.kind.clone().into()).unwrap();
        let is_told = matches!(kind, TaskEventKind::NotRestarting | TaskEventKind::RestartSignaled);
        let is_stored = |key: &str| !is_told && STORED.contains(&key);
        let details = event.details.iter().filter(|(key, _)| is_stored(key));
        let details: BTreeMap<_, _> = details.map(|(key, text)| (key.clone(), text.clone())).collect();
        TaskEvent { kind, time: UnixNanos(event.time), message: event.display_message.clone(), details }
    }

    #[test]
    fn network_is_reported_like_stock_clients() {
        let servers = vec!["10.0.0.53".to_owned()];
        let network = AllocNetwork {
            interface: "eth0".to_owned(),
            address: "10.0.0.7".to_owned(),
            address6: Some("fd00::7".to_owned()),
            dns: Dns { servers: servers.clone(), ..Dns::default() },
        };
        let expected = NetworkStatus {
            interface_name: "eth0".to_owned(),
            address: "10.0.0.7".to_owned(),
            address_ipv6: "fd00::7".to_owned(),
            dns: Some(wire::resources::Dns { servers, ..wire::resources::Dns::default() }),
        };
        assert_eq!(network_status(&network), expected);
        let without_dns = AllocNetwork { dns: Dns::default(), ..network };
        assert_eq!(network_status(&without_dns).dns, None);
    }

    #[test]
    fn events_are_reported_like_stock_clients() {
        #[derive(Default, serde::Deserialize)]
        #[serde(default, rename_all = "PascalCase")]
        struct UpdateBody {
            alloc: Vec<AllocReport>,
        }
        let updates = messages()
            .into_iter()
            .filter(|message| (&*message.kind, &*message.method) == ("request", "Node.UpdateAlloc"));
        let events: Vec<wire::TaskEvent> = updates
            .flat_map(|message| {
                let header = Extent::new(Limits::HEADER).of(&message.bytes).unwrap().unwrap();
                codec::decode::<UpdateBody>(&message.bytes[header..]).unwrap().alloc
            })
            .flat_map(|alloc| alloc.task_states.into_values())
            .flat_map(|task| task.events)
            .collect();
        let kinds: std::collections::BTreeSet<&str> = events.iter().map(|event| &*event.kind).collect();
        assert!(kinds.len() >= 8, "{kinds:?}");
        for event in events {
            assert_eq!(task_event(&stored(&event)), event);
        }
    }
}
