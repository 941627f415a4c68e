//! `groups[]`: tasks that live together on one machine, their ports, volumes and services.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{Affinity, Constraint, Service, Span, Spread, TaskSpec, Text};
use crate::job::{DelayFunction, HealthCheck, RestartMode};

block! {
    /// A group: its tasks start, run and stop together; each of its `count` copies is an allocation.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "consul", "disconnect", "max_client_disconnect", "migrate", "prevent_reschedule_on_lost",
        "stop_after_client_disconnect", "vault",
    ], "x-misplaced" = {
        "replicas": "did you mean `count`?",
    })))]
    pub struct GroupSpec {
        /// Unique in the job; a lower-case DNS label.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-name" = "dns-label")))]
        pub name: String,
        /// How many copies run; default 1, or `scaling.min` where that is written; at most 10000; of a `system` or `sysbatch` job 1
        /// or 0.
        #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
        pub count: u32,
        /// Between which counts this group may be scaled; without it any count may be asked for.
        pub scaling: Scaling,
        /// How a new version replaces the old one; overrides single fields of the job's `update`.
        pub update: Update,
        /// When and how often tasks of this group are restarted; a task's own `restart` overrides single fields.
        pub restart: Restart,
        /// When another allocation follows one that has failed for good; overrides single fields of the job's `reschedule`. Without either none does.
        pub reschedule: Reschedule,
        /// Ports of this group.
        pub network: Network,
        /// Volumes that tasks of this group may mount, by the name they mount them by.
        pub volumes: BTreeMap<String, VolumeRequest>,
        /// Services, registered when the group starts and taken back before it stops.
        pub services: Vec<Service>,
        /// The tasks: at least one without `lifecycle`.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub tasks: Vec<TaskSpec>,
        /// How long to wait between taking back the services and stopping the tasks.
        pub shutdown_delay: Span,
        /// Values for `NOMAD_META_<key>`, above the job's.
        pub meta: BTreeMap<String, Text>,
        /// The disk this group is expected to need.
        pub ephemeral_disk: EphemeralDisk,
        /// What must hold on the machine for this group to run there.
        pub constraints: Vec<Constraint>,
        /// What is preferred of the machine.
        pub affinities: Vec<Affinity>,
        /// How allocations are shared out among machines; on one it changes nothing.
        pub spreads: Vec<Spread>,
    }
}

block! {
    /// Between which counts a group may be scaled.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["policy", "type"])))]
    pub struct Scaling {
        /// Whether an autoscaler should act, for its eyes only; default true.
        pub enabled: bool,
        /// The least count; default `count`.
        #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
        pub min: u32,
        /// The greatest count.
        #[cfg_attr(feature = "schema", schemars(required, range(max = 10_000)))]
        pub max: u32,
    }
}

block! {
    /// How a new version replaces the old one.
    pub struct Update {
        /// Allocations replaced at the same time; default 1.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
        pub max_parallel: u32,
        /// How long an allocation must be healthy without a break; default 10s.
        pub min_healthy_time: Span,
        /// How long it may take to become healthy; default 5m.
        pub healthy_deadline: Span,
        /// How long a deployment may take until one more allocation is healthy; default 10m. With 0 the first unhealthy one fails it.
        pub progress_deadline: Span,
        /// What health means; default `checks`. Stored, but doesn't act yet.
        pub health_check: HealthCheck,
        /// Go back to the last stable version when a deployment fails.
        pub auto_revert: bool,
        /// Promote the canaries once all of them are healthy.
        pub auto_promote: bool,
        /// Allocations of the new version that stand beside the old ones until they are promoted; default 0.
        #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
        pub canary: u32,
        /// Time between two rounds; default 30s. Stored, but doesn't act yet.
        pub stagger: Span,
    }
}

block! {
    /// What happens when a task ends.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["render_templates"])))]
    pub struct Restart {
        /// Restarts allowed within `interval`; default 2 where tasks run on, 3 in `batch` and `sysbatch` jobs.
        #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
        pub attempts: u32,
        /// Length of the window in which attempts are counted, at least 5s; default 30m where tasks run on, 24h in `batch` and `sysbatch` jobs.
        pub interval: Span,
        /// Wait before a restart, to which up to a quarter is added; default 15s.
        pub delay: Span,
        /// After the last attempt the task fails (`fail`, the default) or waits for the next window (`delay`).
        pub mode: RestartMode,
    }
}

block! {
    /// When another allocation follows one that has failed for good.
    pub struct Reschedule {
        /// So many follow within `interval`; default 1 for a batch job. A service's are not counted unless this is written.
        #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
        pub attempts: u32,
        /// How long each attempt counts, at least 15s; default 24h for a batch job.
        pub interval: Span,
        /// How long the first one waits, at least 5s; default 30s for a service, 5s for a batch job.
        pub delay: Span,
        /// How the delay grows: `constant` (default for a batch job), `exponential` (for a service) or `fibonacci`.
        pub delay_function: DelayFunction,
        /// The longest delay; default 1h for a service. Once one has run for longer, delays begin anew.
        pub max_delay: Span,
        /// Attempts are not counted; default true for a service, unless `attempts` is written. With false and 0 attempts none follows.
        pub unlimited: bool,
    }
}

block! {
    /// Ports of a group.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "cni", "dns", "hostname", "mbits", "reserved_ports", "dynamic_ports",
    ])))]
    pub struct Network {
        /// `host`: tasks use the machine's own network.
        #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["bridge", "none", "cni/*"])))]
        pub mode: NetworkMode,
        /// Ports by label: `{}` takes a free one (`NOMAD_PORT_<label>`).
        pub ports: BTreeMap<String, Port>,
    }
}

/// `network.mode`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// The machine's own network.
    #[default]
    Host,
}

block! {
    /// One port.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["host_network", "ignore_collision"],
        "x-port" = true,
    )))]
    pub struct Port {
        /// The host port to take; without it a free one from 20000 to 32000.
        #[serde(rename = "static")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub fixed: u16,
        /// The port the task listens on, where it differs from the host's.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub to: u16,
    }
}

block! {
    /// A volume that tasks of the group may mount.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "access_mode", "attachment_mode", "mount_options", "sticky",
    ])))]
    pub struct VolumeRequest {
        /// `host`: a directory of this machine.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required, extend("x-not-built" = ["csi"])))]
        pub kind: VolumeType,
        /// Name of the volume: of a `Volume` document or of the agent's config.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub source: String,
        /// No task of this group may write.
        pub read_only: bool,
        /// Each allocation has a volume of its own: `source[0]`, `source[1]`, …
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
    /// The disk a group is expected to need.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["migrate", "sticky"])))]
    pub struct EphemeralDisk {
        /// In MiB, at least 10; default 300. Stored for Nomad's sake, not enforced.
        #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 1_073_741_824), extend("x-mib" = true)))]
        pub size: u64,
    }
}
