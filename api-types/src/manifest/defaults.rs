//! Default values of manifests.
//!
//! The values are Nomad's (job specification), except where the YAML format differs: services go to the built-in
//! catalogue, and absent resources are not limited.

use std_alloc::{format, string::String};

use crate::{
    Duration,
    job::{
        DelayFunction, HealthCheck, JobType, LogMode, Logs, ReschedulePolicy, RestartMode, RestartPolicy,
        Update,
    },
};

pub use crate::job::NODE_POOL;

/// The default namespace of jobs.
pub const DEFAULT_NAMESPACE: &str = "default";
/// The name of every task's default identity.
pub const DEFAULT_IDENTITY: &str = "default";
/// The default destination of artifacts.
pub const ARTIFACT_DESTINATION: &str = "local/";
/// The default of `priority`.
pub const PRIORITY: u8 = 50;
/// The default of `region`.
pub const REGION: &str = "global";
/// The default of `periodic.time_zone`.
pub const TIME_ZONE: &str = "UTC";
/// The default of `ephemeral_disk.size` in MiB.
pub const DISK_MIB: u64 = 300;
/// The default of `kill_timeout`.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The default of `check_restart.grace`.
pub const CHECK_GRACE: Duration = Duration::from_secs(1);
/// The default of `prestop.timeout`: the same as `kill_timeout`.
pub const PRESTOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The default of `csi_plugin.mount_dir`.
pub const CSI_MOUNT_DIR: &str = "/csi";
/// The default of `csi_plugin.stage_publish_base_dir`.
pub const CSI_STAGE_PUBLISH_BASE_DIR: &str = "/local/csi";
/// The default of `csi_plugin.health_timeout`.
pub const CSI_HEALTH_TIMEOUT: Duration = Duration::from_secs(30);
/// The defaults of `logs`.
pub const LOGS: Logs = Logs { max_files: 10, max_file_size_mib: 10, disabled: false, mode: LogMode::Drop };
/// The defaults of an `update` block.
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
/// The default of a volume's `parameters.mode`.
pub const MKDIR_MODE: u32 = 0o700;

/// The default of `restart`.
pub const fn default_restart(kind: JobType) -> RestartPolicy {
    let (attempts, interval) = match kind {
        JobType::Service | JobType::System => (2, Duration::from_secs(30 * 60)),
        JobType::Batch | JobType::Sysbatch => (3, Duration::from_secs(24 * 3600)),
    };
    RestartPolicy {
        attempts,
        interval,
        delay: Duration::from_secs(15),
        mode: RestartMode::Fail,
        render_templates: false,
    }
}

/// The defaults of a `reschedule` block.
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
        // There is no other machine to use, so Nomad has none.
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

/// The default name of a check, as in Nomad.
pub fn check_name(service: &str) -> String {
    format!("service: {service:?} check")
}
