//! Limits of the planner, each with its reason.

use herdlet_api_types::Duration;

/// Timeout of operations on directories, mounts and tokens, and of inspections. Local file systems respond in
/// milliseconds; ten seconds mean a hung disk.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of setting up a network: CNI plugins are tried three times, and a driver may create a container for it.
pub const NETWORK_TIMEOUT: Duration = Duration::from_secs(120);

/// Timeout of the removal of a network: each CNI plugin of its network runs once.
pub const NETWORK_DOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout of a request to a catalogue, for all its items together.
pub const CATALOG_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a start. Nomad has no limit; a start that takes longer is shown as overdue and not cancelled.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout of all of a task's artifacts together. The fetcher has shorter limits for each one.
pub const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Extra time of a stop beyond its grace period: the kernel needs a moment to end a killed process.
pub const STOP_MARGIN: Duration = Duration::from_secs(15);

/// Events kept per task, as Nomad.
pub const EVENTS_MAX: usize = 10;

/// First delay after a failed operation; doubles up to [`RETRY_DELAY_MAX`].
pub const RETRY_DELAY: Duration = Duration::from_millis(250);

/// Longest delay between two tries of a failing operation.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Rounds of planning one key within one turn. A plan settles in a handful; the bound keeps a mistake from hanging the loop.
pub const ROUNDS_MAX: usize = 64;

/// Versions of a job kept for reverts, including the current one; as Nomad's `job_tracked_versions`.
pub const VERSIONS_KEPT: usize = 6;

/// Deployments of a job that are kept: as many as versions.
pub const DEPLOYMENTS_KEPT: usize = VERSIONS_KEPT;

/// Scaling events kept per group, as Nomad's `job_tracked_scaling_events`.
pub const SCALING_EVENTS_KEPT: usize = 20;

/// Dynamic ports, as Nomad's default.
pub const DYNAMIC_PORTS: core::ops::RangeInclusive<u16> = 20_000..=32_000;

/// How long after its time limit a `prestop` command may report its end, before the task gets its signal.
pub const PRESTOP_REPORT: Duration = Duration::from_secs(5);

/// How long an attempt after a failed one has to live at least before it counts: process starts vary by milliseconds, and a task that
/// fails at once fails within seconds.
pub const PROOF_MIN: Duration = Duration::from_secs(5);

/// After a single failure, a lifetime of the failed attempt above this has no effect: nobody waits longer for a task that has
/// failed once.
pub const PROOF_SINGLE_MAX: Duration = Duration::from_secs(60);

/// After several failures in a row, an attempt counts after this time at the latest, or after the interval of the restart policy
/// if that is longer.
pub const PROOF_ROW_MAX: Duration = Duration::from_secs(3_600);

/// How long after its time limit the script of a template may report its end.
pub const SCRIPT_REPORT: Duration = Duration::from_secs(5);

/// Delay after a script of a template that a driver could not run. Most scripts may take only a few seconds in all.
pub const SCRIPT_RETRY: Duration = Duration::from_secs(1);

/// Delay after a signal of a notification that a driver could not send: a driver that is away is back within seconds, or
/// stays away for long.
pub const SIGNAL_RETRY: Duration = Duration::from_secs(5);
