//! Task states and events.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::codec::{self, Time};

use super::{RunState, omit_empty};

/// Maximum number of events per task, as in stock clients: the newest are kept.
pub const EVENTS_MAX: usize = 10;

omit_empty! {
    /// A task's state.
    pub struct TaskState {
        /// The run state.
        pub state: RunState,
        /// Whether it has failed, and the allocation with it.
        pub failed: bool,
        /// Number of restarts.
        pub restarts: u64,
        /// When the last restart was.
        pub last_restart: Time,
        /// When it first started.
        pub started_at: Time,
        /// When it ended for good.
        pub finished_at: Time,
        /// Oldest first, at most [`EVENTS_MAX`].
        pub events: Vec<TaskEvent>,
        /// Empty, `force_run`, `scheduled_pause`, `force_pause` or `schedule_resume` (1.8 and later).
        pub paused: String,
    }
}

omit_empty! {
    /// An event of a task. The data is in `details`, and for older readers also in a field.
    pub struct TaskEvent {
        /// The type, such as `Started`.
        #[serde(rename = "Type")]
        pub kind: String,
        /// The time, in nanoseconds since 1970.
        pub time: i64,
        /// A text.
        pub message: String,
        /// The text shown to users.
        pub display_message: String,
        /// Whether the event fails the task.
        pub fails_task: bool,
        /// Why the task restarts, or does not.
        pub restart_reason: String,
        /// Why the setup failed.
        pub setup_error: String,
        /// Why the start failed.
        pub driver_error: String,
        /// The exit code.
        pub exit_code: i64,
        /// The number of the signal that ended it.
        pub signal: i64,
        /// How long the task has to end by itself.
        #[serde(with = "codec::duration")]
        pub kill_timeout: Duration,
        /// Why killing failed.
        pub kill_error: String,
        /// Why the task is killed.
        pub kill_reason: String,
        /// Nanoseconds until the restart.
        pub start_delay: i64,
        /// Why the download of an artifact failed.
        pub download_error: String,
        /// Why the validation failed.
        pub validation_error: String,
        /// The disk limit in bytes.
        pub disk_limit: i64,
        /// The sibling task that failed.
        pub failed_sibling: String,
        /// Why the Vault token could not be renewed.
        pub vault_error: String,
        /// Why the task gets a signal.
        pub task_signal_reason: String,
        /// The signal.
        pub task_signal: String,
        /// A message from the driver.
        pub driver_message: String,
        /// The source of the event, if none of the above fits.
        pub generic_source: String,
    } and always {
        /// Names and values. Always sent, even if empty: servers return null for a missing map.
        pub details: BTreeMap<String, String>,
    }
}
