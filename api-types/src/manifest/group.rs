//! `groups[]`: tasks that live together on one machine, their ports, volumes and services.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::unused::{NO_SERVERS, NO_VAULT, OLD, ONE_MACHINE, consul, migrate, vault};
use super::{Affinity, Constraint, Service, Span, Spread, TaskSpec, Text};
use crate::job::{DelayFunction, HealthCheck, RestartMode};

block! {
    /// A group: its tasks start, run and stop together; each of its `count` copies is an allocation.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["consul", "secret", "secrets", "vault"], "x-no-effect" = {
        "disconnect": NO_SERVERS,
        "max_client_disconnect": NO_SERVERS,
        "migrate": ONE_MACHINE,
        "prevent_reschedule_on_lost": NO_SERVERS,
        "stop_after_client_disconnect": NO_SERVERS,
    }, "x-default" = { "consul": [consul()], "migrate": [migrate()], "vault": [vault()] }, "x-default-warning" = {
        "vault": NO_VAULT,
    }, "x-misplaced" = {
        "replicas": "did you mean `count`?",
    })))]
    pub struct GroupSpec {
        /// Unique in the job: 1 to 128 bytes without `/`, `\\` and control characters.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-name" = "part")))]
        pub name: String,
        /// The number of copies; default 1, or `scaling.min` if set; at most 10000, and 0 or 1 for `system` and `sysbatch` jobs.
        #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
        pub count: u32,
        /// The range in which this group may be scaled; without it any count is allowed.
        pub scaling: Scaling,
        /// How a new version replaces the old one; overrides individual fields of the job's `update`.
        pub update: Update,
        /// When and how often tasks of this group are restarted; a task's `restart` overrides individual fields.
        pub restart: Restart,
        /// When a permanently failed allocation is replaced; overrides individual fields of the job's `reschedule`. Default without both: never.
        pub reschedule: Reschedule,
        /// Ports of this group.
        pub network: Network,
        /// Volumes that tasks of this group may mount, by the name they use.
        pub volumes: BTreeMap<String, VolumeRequest>,
        /// Services, registered when the group starts and deregistered before it stops.
        pub services: Vec<Service>,
        /// The tasks: at least one without `lifecycle`.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub tasks: Vec<TaskSpec>,
        /// Delay between deregistering the services and stopping the tasks, also when all tasks restart.
        pub shutdown_delay: Span,
        /// Stop an allocation this long after its creation, as complete; only in `batch` and `sysbatch` jobs. Default no limit.
        pub max_run_duration: Span,
        /// Values for `NOMAD_META_<key>`; override the job's.
        pub meta: BTreeMap<String, Text>,
        /// The disk space that this group is expected to need.
        pub ephemeral_disk: EphemeralDisk,
        /// Requirements that the machine must meet for this group to run there.
        pub constraints: Vec<Constraint>,
        /// Preferences for the machine.
        pub affinities: Vec<Affinity>,
        /// Distribution of allocations over machines; has no effect on a single one.
        pub spreads: Vec<Spread>,
    }
}

block! {
    /// The range in which a group may be scaled.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["type"], "x-default" = { "type": ["horizontal"] })))]
    pub struct Scaling {
        /// Whether an autoscaler should act; only passed on to it. Default true.
        pub enabled: bool,
        /// The minimum count; default `count`.
        #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
        pub min: u32,
        /// The maximum count.
        #[cfg_attr(feature = "schema", schemars(required, range(max = 10_000)))]
        pub max: u32,
        /// The rules of an autoscaler; only passed on to it.
        pub policy: serde_json::Map<String, serde_json::Value>,
    }
}

block! {
    /// How a new version replaces the old one.
    pub struct Update {
        /// The number of allocations replaced at the same time; default 1. With 0 all change at once, as without `update`.
        #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
        pub max_parallel: u32,
        /// How long an allocation must be continuously healthy to count as healthy; default 10s.
        pub min_healthy_time: Span,
        /// Time limit for becoming healthy; default 5m.
        pub healthy_deadline: Span,
        /// Time limit of a deployment for each further healthy allocation; default 10m. With 0 the first unhealthy one fails it.
        pub progress_deadline: Span,
        /// How health is determined: `checks` (the default), `task_states` or `manual`.
        pub health_check: HealthCheck,
        /// Return to the last stable version if a deployment fails.
        pub auto_revert: bool,
        /// Promote the canaries once all of them are healthy.
        pub auto_promote: bool,
        /// The number of allocations of the new version beside the old ones until promotion; default 0.
        #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
        pub canary: u32,
        /// Time between two rounds; default 30s. Stored, but not implemented yet.
        pub stagger: Span,
    }
}

block! {
    /// What happens when a task ends.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["render_templates"],
        "x-hint" = "write {mode: delay} to restart without end, or {attempts: 0, mode: fail} for never",
    )))]
    pub struct Restart {
        /// Restarts allowed within `interval`; default 2, in `batch` and `sysbatch` jobs 3.
        #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
        pub attempts: u32,
        /// The period in which attempts are counted, at least 5s; default 30m, in `batch` and `sysbatch` jobs 24h.
        pub interval: Span,
        /// Delay before a restart, increased randomly by up to a quarter; default 15s.
        pub delay: Span,
        /// What follows the last attempt: the task fails (`fail`, the default) or waits for the next period (`delay`).
        pub mode: RestartMode,
    }
}

block! {
    /// When a permanently failed allocation is replaced.
    pub struct Reschedule {
        /// Replacements allowed within `interval`; default 1 for a batch job, unlimited for a service.
        #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
        pub attempts: u32,
        /// How long each attempt counts, at least 15s; default 24h for a batch job.
        pub interval: Span,
        /// Delay before the first replacement, at least 5s; default 30s for a service, 5s for a batch job.
        pub delay: Span,
        /// How the delay grows: `constant` (default for a batch job), `exponential` (default for a service) or `fibonacci`.
        pub delay_function: DelayFunction,
        /// The maximum delay; default 1h for a service. Delays start again once a replacement has run for longer.
        pub max_delay: Span,
        /// Don't limit the attempts; default true for a service, unless `attempts` is set. With false and 0 attempts there is no replacement.
        pub unlimited: bool,
    }
}

block! {
    /// Ports of a group.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["cni", "dns", "hostname", "reserved_ports", "dynamic_ports"],
        "x-no-effect" = { "cidr": OLD, "device": OLD, "ip": OLD, "mbits": OLD },
        "x-default" = { "cni": [{}], "dns": [{}] },
    )))]
    pub struct Network {
        /// `host`: tasks use the machine's network.
        #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["bridge", "none", "cni/*"])))]
        pub mode: NetworkMode,
        /// Ports by label: `{}` assigns a free one (`NOMAD_PORT_<label>`).
        pub ports: BTreeMap<String, Port>,
    }
}

/// `network.mode`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// The machine's network.
    #[default]
    Host,
}

block! {
    /// A port.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["host_network", "ignore_collision"],
        "x-default" = { "host_network": ["default"] },
        "x-port" = true,
    )))]
    pub struct Port {
        /// The static host port; without it a free one from 20000 to 32000.
        #[serde(rename = "static")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub fixed: u16,
        /// The port that the task listens on, if it differs from the host port.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub to: u16,
    }
}

block! {
    /// A volume that tasks of the group may mount.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["access_mode", "attachment_mode", "mount_options"],
        "x-no-effect" = { "sticky": ONE_MACHINE },
        "x-default" = {
            "access_mode": ["single-node-writer", "single-node-multi-writer"],
            "attachment_mode": ["file-system"],
            "mount_options": [{}],
        },
    )))]
    pub struct VolumeRequest {
        /// `host`: a directory of this machine.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required, extend("x-not-built" = ["csi"])))]
        pub kind: VolumeType,
        /// Name of the volume, from a `Volume` document or the agent's config.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub source: String,
        /// Tasks of this group may only read.
        pub read_only: bool,
        /// Each allocation has its own volume: `source[0]`, `source[1]`, …
        pub per_alloc: bool,
    }
}

/// `type` of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum VolumeType {
    /// A directory of this machine.
    #[default]
    Host,
}

block! {
    /// The disk space that a group is expected to need.
    pub struct EphemeralDisk {
        /// In MiB, at least 10; default 300. Stored for compatibility with Nomad, not enforced.
        #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 1_073_741_824), extend("x-mib" = true)))]
        pub size: u64,
        /// An allocation takes over `alloc/data` and its tasks' `local` from the one that it replaces; a canary does not. Default false.
        pub sticky: bool,
        /// On one machine the same as `sticky`.
        pub migrate: bool,
    }
}
