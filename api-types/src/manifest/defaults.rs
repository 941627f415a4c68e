//! What holds where a manifest says nothing.
//!
//! The values are Nomad's (job specification), except what the YAML format decides otherwise: services go to the built-in
//! catalogue, and resources that aren't written are not limited.

use std_alloc::{format, string::String};

use crate::{
    Duration,
    job::{
        DelayFunction, HealthCheck, JobType, LogMode, Logs, ReschedulePolicy, RestartMode, RestartPolicy,
        Update,
    },
};

pub use crate::job::NODE_POOL;

/// The namespace of a job that names none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// The name of the identity that every task has.
pub const DEFAULT_IDENTITY: &str = "default";
/// Where artifacts go.
pub const ARTIFACT_DESTINATION: &str = "local/";
/// `priority` where none is written.
pub const PRIORITY: u8 = 50;
/// `region` where none is written.
pub const REGION: &str = "global";
/// `periodic.time_zone` where none is written.
pub const TIME_ZONE: &str = "UTC";
/// `ephemeral_disk.size` in MiB where none is written.
pub const DISK_MIB: u64 = 300;
/// `kill_timeout` where none is written.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// `grace` of a `check_restart`.
pub const CHECK_GRACE: Duration = Duration::from_secs(1);
/// `prestop.timeout` where none is written: as long as a task has for its own end.
pub const PRESTOP_TIMEOUT: Duration = Duration::from_secs(5);
/// `logs` where nothing is written.
pub const LOGS: Logs = Logs { max_files: 10, max_file_size_mib: 10, disabled: false, mode: LogMode::Drop };
/// Where an `update` block leaves something out.
pub const UPDATE: Update = Update {
    max_parallel: 1,
    min_healthy_time: Duration::from_secs(10),
    healthy_deadline: Duration::from_secs(5 * 60),
    progress_deadline: Duration::from_secs(10 * 60),
    health_check: HealthCheck::Checks,
    auto_revert: false,
    auto_promote: false,
    canary: 0,
    stagger: Duration::from_secs(30),
};
/// `parameters.mode` of a volume where none is written.
pub const MKDIR_MODE: u32 = 0o700;

/// `restart` where nothing is written.
pub const fn default_restart(kind: JobType) -> RestartPolicy {
    let (attempts, interval) = match kind {
        JobType::Service | JobType::System => (2, Duration::from_secs(30 * 60)),
        JobType::Batch | JobType::Sysbatch => (3, Duration::from_secs(24 * 3600)),
    };
    RestartPolicy { attempts, interval, delay: Duration::from_secs(15), mode: RestartMode::Fail }
}

/// Where a `reschedule` block leaves something out.
pub const fn default_reschedule(kind: JobType) -> ReschedulePolicy {
    match kind {
        JobType::Service => ReschedulePolicy {
            attempts: 0,
            interval: Duration::ZERO,
            delay: Duration::from_secs(30),
            delay_function: DelayFunction::Exponential,
            max_delay: Duration::from_secs(3600),
            unlimited: true,
        },
        JobType::Batch => ReschedulePolicy {
            attempts: 1,
            interval: Duration::from_secs(24 * 3600),
            delay: Duration::from_secs(5),
            delay_function: DelayFunction::Constant,
            max_delay: Duration::ZERO,
            unlimited: false,
        },
        // There is no other machine to go to, so Nomad has none.
        JobType::System | JobType::Sysbatch => ReschedulePolicy {
            attempts: 0,
            interval: Duration::ZERO,
            delay: Duration::ZERO,
            delay_function: DelayFunction::Constant,
            max_delay: Duration::ZERO,
            unlimited: false,
        },
    }
}

/// The name of a check that has none, as Nomad makes it.
pub fn check_name(service: &str) -> String {
    format!("service: {service:?} check")
}
