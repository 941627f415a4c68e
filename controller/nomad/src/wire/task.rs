//! How tasks are, and what has happened to them.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::codec::{self, Time};

use super::{RunState, omit_empty};

/// How many events of a task are kept at most, as stock clients have it: the newest.
pub const EVENTS_MAX: usize = 10;

omit_empty! {
    /// How a task is.
    pub struct TaskState {
        /// What it does.
        pub state: RunState,
        /// It has failed, and its allocation with it.
        pub failed: bool,
        /// How often it was started again.
        pub restarts: u64,
        /// When that was last.
        pub last_restart: Time,
        /// When it started first.
        pub started_at: Time,
        /// When it ended for good.
        pub finished_at: Time,
        /// The oldest first, [`EVENTS_MAX`] at most.
        pub events: Vec<TaskEvent>,
        /// Empty, `force_run`, `scheduled_pause`, `force_pause` or `schedule_resume` (1.8 and later).
        pub paused: String,
    }
}

omit_empty! {
    /// Something that has happened to a task. What is said stands in `details`, and for older readers in a field too.
    pub struct TaskEvent {
        /// What, such as `Started`.
        #[serde(rename = "Type")]
        pub kind: String,
        /// When, in nanoseconds since 1970.
        pub time: i64,
        /// A text.
        pub message: String,
        /// The text that people see.
        pub display_message: String,
        /// The task has failed by it.
        pub fails_task: bool,
        /// Why it starts again, or doesn't.
        pub restart_reason: String,
        /// Why it can't be set up.
        pub setup_error: String,
        /// Why it can't be started.
        pub driver_error: String,
        /// Its exit code.
        pub exit_code: i64,
        /// The number of the signal that ended it.
        pub signal: i64,
        /// How long it has to end by itself.
        #[serde(with = "codec::duration")]
        pub kill_timeout: Duration,
        /// Why it can't be killed.
        pub kill_error: String,
        /// Why it is killed.
        pub kill_reason: String,
        /// Nanoseconds until it starts again.
        pub start_delay: i64,
        /// Why an artifact can't be had.
        pub download_error: String,
        /// What is wrong with it.
        pub validation_error: String,
        /// Bytes that it may have on disk.
        pub disk_limit: i64,
        /// Which other task has failed.
        pub failed_sibling: String,
        /// Why its Vault token can't be renewed.
        pub vault_error: String,
        /// Why it gets a signal.
        pub task_signal_reason: String,
        /// Which one.
        pub task_signal: String,
        /// What its driver says.
        pub driver_message: String,
        /// Who says so, where it is nobody of the above.
        pub generic_source: String,
    } and always {
        /// Names and values: servers show none as a map without entries only where they got one.
        pub details: BTreeMap<String, String>,
    }
}
