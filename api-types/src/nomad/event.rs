//! Entries of a task's history in Nomad's form, whose details repeat the text's information for programs.
//!
//! In: an [`Event`], whose details are values that are in no text. Out: a [`TaskEvent`].
//!
//! Sources: `hashicorp/nomad:nomad/structs/structs.go` (`TaskEvent`), and recordings of stock clients.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::task::{TaskEvent as Event, TaskEventKind as Kind};

/// An entry of a task's history: the current form (`Details`, `DisplayMessage`) and the fields for old clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct TaskEvent {
    #[serde(rename = "Type")]
    pub kind: String,
    pub time: i64,
    pub message: String,
    pub display_message: String,
    pub details: BTreeMap<String, String>,
    pub fails_task: bool,
    pub restart_reason: String,
    pub setup_error: String,
    pub driver_error: String,
    pub exit_code: i64,
    pub signal: i64,
    pub kill_timeout: i64,
    pub kill_error: String,
    pub kill_reason: String,
    pub start_delay: i64,
    pub download_error: String,
    pub validation_error: String,
    pub disk_limit: i64,
    pub failed_sibling: String,
    pub vault_error: String,
    pub task_signal_reason: String,
    pub task_signal: String,
    pub driver_message: String,
    pub generic_source: String,
}

/// Converts an entry of a task's history to Nomad's form.
pub fn task_event(event: &Event) -> TaskEvent {
    let details = details(event);
    let text = |key: &str| details.get(key).cloned().unwrap_or_default();
    let number = |key: &str| details.get(key).and_then(|text| text.parse().ok()).unwrap_or_default();
    let duration = |key: &str| {
        let text = details.get(key)?;
        text.parse().ok().or_else(|| crate::parse_duration(text).ok())
    };
    TaskEvent {
        kind: event.kind.as_str().to_owned(),
        time: event.time.0,
        message: text("message"),
        display_message: event.message.clone(),
        fails_task: details.get("fails_task").is_some_and(|text| text == "true"),
        restart_reason: text("restart_reason"),
        setup_error: text("setup_error"),
        driver_error: text("driver_error"),
        exit_code: number("exit_code"),
        signal: number("signal"),
        kill_timeout: duration("kill_timeout").unwrap_or_default(),
        kill_error: text("kill_error"),
        kill_reason: text("kill_reason"),
        start_delay: duration("start_delay").unwrap_or_default(),
        download_error: text("download_error"),
        validation_error: text("validation_error"),
        disk_limit: number("disk_limit"),
        failed_sibling: text("failed_sibling"),
        vault_error: text("vault_renewal_error"),
        task_signal_reason: text("task_signal_reason"),
        task_signal: text("task_signal"),
        driver_message: text("driver_message"),
        generic_source: if event.kind == Kind::AllocUnhealthy {
            event.kind.as_str().to_owned()
        } else {
            String::new()
        },
        details,
    }
}

/// The stored details of an event, and its text under Nomad's key for this kind of event.
fn details(event: &Event) -> BTreeMap<String, String> {
    let text = || event.message.clone();
    let entries: Vec<(&str, String)> = match event.kind {
        Kind::TaskSetup
        | Kind::HookFailed
        | Kind::HookMessage
        | Kind::Template
        | Kind::PluginHealthy
        | Kind::PluginUnhealthy
        | Kind::AllocUnhealthy => Vec::from([("message", text())]),
        Kind::SetupFailure => Vec::from([("setup_error", text()), ("fails_task", "true".to_owned())]),
        Kind::FailedValidation => {
            Vec::from([("validation_error", text()), ("fails_task", "true".to_owned())])
        }
        Kind::FailedArtifactDownload => Vec::from([("download_error", text())]),
        Kind::DriverFailure => Vec::from([("driver_error", text())]),
        Kind::Driver => Vec::from([("driver_message", text())]),
        Kind::NotRestarting => Vec::from([("restart_reason", text()), ("fails_task", "true".to_owned())]),
        Kind::RestartSignaled => Vec::from([("restart_reason", text())]),
        Kind::SiblingFailed => {
            let sibling = event.message.split('"').nth(1);
            sibling.map(|sibling| ("failed_sibling", sibling.to_owned())).into_iter().collect()
        }
        Kind::Received
        | Kind::DownloadingArtifacts
        | Kind::Started
        | Kind::Terminated
        | Kind::Restarting
        | Kind::Signaling
        | Kind::Killing
        | Kind::Killed
        | Kind::LeaderDead
        | Kind::MainDead
        | Kind::WaitingShutdownDelay
        | Kind::Reconnected => Vec::new(),
    };
    let mut details = event.details.clone();
    for (key, text) in entries {
        details.entry(key.to_owned()).or_insert(text);
    }
    details
}
