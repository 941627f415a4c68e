//! Task state: the coarse status, events, the result of an attempt.

use core::fmt;
use std_alloc::{collections::BTreeMap, string::String, sync::Arc, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::UnixNanos;

/// Nomad's three task states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// Not started yet, between two starts, or waiting for its `shutdown_delay`.
    #[default]
    Pending,
    /// Its process is running.
    Running,
    /// It has ended and will not restart by itself.
    Dead,
}

impl TaskStatus {
    /// Nomad's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Dead => "dead",
        }
    }
}

/// What a task is currently doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskPhase {
    /// Waiting for other tasks or for its parts.
    #[default]
    Waiting,
    /// Waiting for a restart.
    BackingOff,
    /// Starting its process.
    Starting,
    /// Its process is running.
    Running,
    /// Stopping.
    Stopping,
    /// It has ended and will not restart by itself.
    Dead,
}

impl TaskPhase {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::BackingOff => "backing-off",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Dead => "dead",
        }
    }
}

impl fmt::Display for TaskPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitResult {
    /// Exit code; 128 + n if signal n ended it.
    pub code: i32,
    /// The signal that ended it; 0 for none.
    pub signal: i32,
    /// Whether the kernel killed it for lack of memory.
    pub oom_killed: bool,
    /// Why there is no regular result; empty if there is one.
    #[serde(default)]
    pub error: String,
    /// When it ended; 0 if unknown.
    pub at: UnixNanos,
}

impl ExitResult {
    /// Whether it has code 0, no signal and no error.
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.signal == 0 && self.error.is_empty()
    }
}

/// An entry of a task's history; the names are Nomad's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Nomad's event type, for instance `Started`.
    #[serde(rename = "type")]
    pub kind: TaskEventKind,
    /// The time.
    pub time: UnixNanos,
    /// A sentence for people.
    pub message: String,
    /// Nomad's detail keys, for instance `exit_code`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

/// The latest events of a task, oldest first. Copies share their events: a state, its record and its views store each
/// event once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History(Arc<Vec<Arc<TaskEvent>>>);

impl History {
    /// Adds an event and keeps at most `max`.
    pub fn remember(&mut self, event: TaskEvent, max: usize) {
        let events = Arc::make_mut(&mut self.0);
        if events.len() >= max.max(1) {
            events.remove(0);
        }
        events.push(Arc::new(event));
    }

    /// The newest event.
    pub fn last(&self) -> Option<&TaskEvent> {
        self.0.last().map(|event| &**event)
    }

    /// All events, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &TaskEvent> {
        self.0.iter().map(|event| &**event)
    }
}

impl FromIterator<TaskEvent> for History {
    fn from_iter<I: IntoIterator<Item = TaskEvent>>(events: I) -> Self {
        Self(Arc::new(events.into_iter().map(Arc::new).collect()))
    }
}

macro_rules! event_kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Nomad's task event types that occur here.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum TaskEventKind {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl TaskEventKind {
            /// Nomad's name.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

event_kinds! {
    /// The task was accepted.
    Received = "Received",
    /// Its directory is being created.
    TaskSetup = "Task Setup",
    /// A part of the allocation could not be set up.
    SetupFailure = "Setup Failure",
    /// The driver configuration is invalid.
    FailedValidation = "Failed Validation",
    /// Its artifacts are being fetched.
    DownloadingArtifacts = "Downloading Artifacts",
    /// An artifact could not be fetched.
    FailedArtifactDownload = "Failed Artifact Download",
    /// The driver could not start it.
    DriverFailure = "Driver Failure",
    /// A message from the driver.
    Driver = "Driver",
    /// Its process is running.
    Started = "Started",
    /// Its process ended.
    Terminated = "Terminated",
    /// It will be restarted.
    Restarting = "Restarting",
    /// It will not be restarted.
    NotRestarting = "Not Restarting",
    /// A restart was requested.
    RestartSignaled = "Restart Signaled",
    /// A signal is being sent.
    Signaling = "Signaling",
    /// It is being stopped.
    Killing = "Killing",
    /// It was stopped.
    Killed = "Killed",
    /// Another task of the group failed.
    SiblingFailed = "Sibling Task Failed",
    /// The leader ended.
    LeaderDead = "Leader Task Dead",
    /// Only sidecars are left.
    MainDead = "Main Tasks Dead",
    /// The task's `shutdown_delay` has begun.
    WaitingShutdownDelay = "Waiting for shutdown delay",
    /// A part of the task could not be set up.
    HookFailed = "Task hook failed",
    /// A template waits for data.
    Template = "Template",
    /// A message from a part of the task.
    HookMessage = "Task hook message",
    /// The task is a CSI plugin, and is ready.
    PluginHealthy = "Plugin became healthy",
    /// The task is a CSI plugin, and does not respond, or was not ready in time.
    PluginUnhealthy = "Plugin became unhealthy",
    /// The allocation did not become healthy in time.
    AllocUnhealthy = "Alloc Unhealthy",
    /// Servers had considered the node lost, and it has reconnected.
    Reconnected = "Reconnected",
}
