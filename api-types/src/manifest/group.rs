//! `groups[]`: tasks that live together on one machine, their ports, volumes and services.

use core::fmt;
use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

#[cfg(feature = "schema")]
use super::unused::{NO_SERVERS, OLD, ONE_AT_A_TIME, ONE_MACHINE, migrate};
use super::{Affinity, Constraint, Consul, NetworkMode, Service, Span, Spread, TaskSpec, Text, Vault};
use crate::{
    Duration,
    job::{DelayFunction, DependencyCondition, HealthCheck, RestartMode},
};

/// What replaces a volume of Compose.
#[cfg(feature = "schema")]
const VOLUMES: &str = "write volumes: {data: {type: host, source: NAME}}, a document with `kind: Volume` of that name, and \
                       `volume_mounts` in the task";

block! {
    /// A group: its tasks start, run and stop together; each of its `count` copies is an allocation.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["secret", "secrets"], "x-no-effect" = {
        "disconnect": NO_SERVERS,
        "max_client_disconnect": NO_SERVERS,
        "migrate": ONE_AT_A_TIME,
        "prevent_reschedule_on_lost": NO_SERVERS,
        "stop_after_client_disconnect": NO_SERVERS,
    }, "x-default" = { "migrate": [migrate()] }, "x-misplaced" = {
        "environment": "did you mean `env` of a task?",
        "image": "`image` belongs to `config` of a task with the docker driver",
        "ports": "ports belong to `network`: network: {ports: {http: {static: 8080}}}",
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
        /// When and how often tasks of this group are restarted; a task's `restart` overrides individual fields. Also in one word, as in Compose: `always`, `unless-stopped`, `on-failure`, `on-failure:3`, `no`.
        pub restart: RestartRule,
        /// When a permanently failed allocation is replaced; overrides individual fields of the job's `reschedule`. Default without both: never.
        pub reschedule: Reschedule,
        /// Groups and jobs to wait for before this group's first allocations start. A plain name is a group of this job and waits until it is healthy.
        #[cfg_attr(feature = "schema", schemars(extend(
            "x-hint" = "write depends_on: [cache], or depends_on: [{group: cache, condition: healthy}]",
        )))]
        pub depends_on: Vec<GroupDependency>,
        /// The network of the group's tasks: its mode, ports, name servers.
        pub network: Network,
        /// Volumes that tasks of this group may mount, by the name they use.
        #[cfg_attr(feature = "schema", schemars(extend("x-hint" = VOLUMES)))]
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
        /// A token of Vault or OpenBao for each task that has no `vault` block of its own.
        pub vault: Vault,
        /// The Consul of the group's services, and of each task that has no `consul` block of its own. A block with nothing but defaults has
        /// no effect.
        pub consul: Consul,
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

/// An entry of a group's `depends_on`: the name of a group, or a group or job with a condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupDependency {
    /// A job of the same namespace.
    pub job: Option<String>,
    /// A group of that job, or of this one.
    pub group: Option<String>,
    /// The condition to wait for.
    pub condition: Option<DependencyCondition>,
}

block! {
    /// A group or a job to wait for.
    pub struct GroupDependencyBlock {
        /// A job of the same namespace; without `group` all its groups.
        pub job: String,
        /// A group of that job; without `job` of this one.
        pub group: String,
        /// The condition: its allocations are `started`, `healthy` (the default), or `completed` with exit code 0.
        pub condition: DependencyCondition,
    }
}

impl Serialize for GroupDependency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { job, group, condition } = self.clone();
        match (&job, &group, condition) {
            (None, Some(group), None | Some(DependencyCondition::Healthy)) => serializer.serialize_str(group),
            (_, _, condition) => GroupDependencyBlock { job, group, condition }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for GroupDependency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GroupDependencyVisitor)
    }
}

struct GroupDependencyVisitor;

impl<'de> Visitor<'de> for GroupDependencyVisitor {
    type Value = GroupDependency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a group, or {job, group, condition}")
    }

    fn visit_str<E>(self, group: &str) -> Result<GroupDependency, E> {
        Ok(GroupDependency { job: None, group: Some(String::from(group)), condition: None })
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<GroupDependency, M::Error> {
        let GroupDependencyBlock { job, group, condition } =
            GroupDependencyBlock::deserialize(MapAccessDeserializer::new(map))?;
        Ok(GroupDependency { job, group, condition })
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for GroupDependency {
    fn schema_name() -> std_alloc::borrow::Cow<'static, str> {
        "GroupDependency".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The name of a group of this job, or a group or job with a condition.",
            "anyOf": [{ "type": "string" }, generator.subschema_for::<GroupDependencyBlock>()],
        })
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

/// `restart`: its fields, or a word of Compose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestartRule {
    /// The fields, also those that the word stands for.
    pub fields: Restart,
    /// The word, if there is one.
    pub word: Option<RestartWord>,
}

/// A restart policy of Compose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartWord {
    /// `no`: a task that ends is not restarted.
    No,
    /// `always` and `unless-stopped`: also after success, without an end. A stopped job stays stopped with both.
    Always,
    /// `on-failure`: only after a failure, at most so many times.
    OnFailure(Option<u32>),
}

/// Restarts of `always` and `on-failure` that follow each other quickly: then the next minute is waited for.
const QUICK_RESTARTS: u32 = 10;
/// The period of these restarts.
const QUICK_INTERVAL: Duration = Duration::from_secs(60);
/// The delay before each.
const QUICK_DELAY: Duration = Duration::from_secs(1);

impl RestartWord {
    /// Reads a word.
    pub fn read(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None => match text {
                "no" => Some(Self::No),
                "always" | "unless-stopped" => Some(Self::Always),
                "on-failure" => Some(Self::OnFailure(None)),
                _ => None,
            },
            Some(("on-failure", count)) => {
                count.parse().ok().filter(|count| *count > 0).map(|count| Self::OnFailure(Some(count)))
            }
            Some(_) => None,
        }
    }

    /// The fields that it stands for.
    pub fn fields(self) -> Restart {
        let (attempts, interval, delay, mode) = match self {
            Self::No => (0, QUICK_INTERVAL, QUICK_DELAY, RestartMode::Fail),
            Self::Always | Self::OnFailure(None) => {
                (QUICK_RESTARTS, QUICK_INTERVAL, QUICK_DELAY, RestartMode::Delay)
            }
            // A day: Compose counts without a limit of time.
            Self::OnFailure(Some(count)) => {
                (count, Duration::from_secs(24 * 3600), QUICK_DELAY, RestartMode::Fail)
            }
        };
        Restart {
            attempts: Some(attempts),
            interval: Some(Span(interval)),
            delay: Some(Span(delay)),
            mode: Some(mode),
            render_templates: None,
        }
    }
}

impl From<Restart> for RestartRule {
    fn from(fields: Restart) -> Self {
        Self { fields, word: None }
    }
}

impl Serialize for RestartRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RestartRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RestartVisitor)
    }
}

struct RestartVisitor;

impl<'de> Visitor<'de> for RestartVisitor {
    type Value = RestartRule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`always`, `unless-stopped`, `on-failure`, `on-failure:COUNT`, `no`, or {attempts, interval, delay, mode}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RestartRule, E> {
        let word =
            RestartWord::read(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
        Ok(RestartRule { fields: word.fields(), word: Some(word) })
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RestartRule, M::Error> {
        Restart::deserialize(MapAccessDeserializer::new(map)).map(RestartRule::from)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for RestartRule {
    fn schema_name() -> std_alloc::borrow::Cow<'static, str> {
        "RestartRule".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "What happens when a task ends: a word of Compose, or fields.",
            "anyOf": [
                { "type": "string", "pattern": "^(no|always|unless-stopped|on-failure(:[1-9][0-9]*)?)$", "x-name": "restart" },
                generator.subschema_for::<Restart>(),
            ],
        })
    }
}

block! {
    /// What happens when a task ends.
    #[cfg_attr(feature = "schema", schemars(extend(
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
        /// Wait before a restart, as before the first start, until all data of the task's templates is there.
        pub render_templates: bool,
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
    /// Ports of a group, or of one task.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["reserved_ports", "dynamic_ports"],
        "x-no-effect" = { "cidr": OLD, "device": OLD, "ip": OLD, "mbits": OLD },
    )))]
    pub struct Network {
        /// `host`: tasks use the machine's network; `bridge`, `none`, `cni/NAME`: they share one of their own.
        pub mode: NetworkMode,
        /// Ports by label: `{}` assigns a free one (`NOMAD_PORT_<label>`).
        #[cfg_attr(feature = "schema", schemars(extend("x-hint" = "write {http: {static: 8080, to: 80}}")))]
        pub ports: BTreeMap<String, Port>,
        /// Settings of mode `cni/NAME`.
        pub cni: Cni,
        /// How tasks with an `/etc/resolv.conf` of their own (`exec`, `docker`, `podman`) resolve names. Only for a group.
        #[cfg_attr(feature = "schema", schemars(extend("x-hint" = "write {servers: [192.0.2.53]}")))]
        pub dns: Dns,
        /// The host name of tasks in a network of their own (`exec`, `java`, `docker`, `podman`); default the machine's. Only for a group.
        pub hostname: Text,
    }
}

block! {
    /// `dns` of a network. Each list replaces the machine's setting.
    pub struct Dns {
        /// Addresses of name servers.
        pub servers: Vec<Text>,
        /// Domains that are appended to short names.
        pub searches: Vec<Text>,
        /// Options of the resolver, as in resolv.conf(5).
        pub options: Vec<Text>,
    }
}

block! {
    /// `cni` of a network in mode `cni/NAME`.
    pub struct Cni {
        /// Arguments of its plugins (`CNI_ARGS`), without `;` and `=`. The agent adds `IgnoreUnknown` and `NOMAD_*`.
        pub args: BTreeMap<String, Text>,
    }
}

block! {
    /// A port.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["ignore_collision"],
        "x-port" = true,
    )))]
    pub struct Port {
        /// The static host port; without it a free one from 20000 to 32000.
        #[serde(rename = "static")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub fixed: u16,
        /// The port that the task listens on, if it differs from the host port: in mode `bridge` the host port leads there. Without effect for a port of one task.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub to: u16,
        /// The machine's network on whose address the port is, from `network.host_networks` of the agent's config; without it `host_ip`. Only for a port of a group.
        pub host_network: Text,
    }
}

block! {
    /// A volume that tasks of the group may mount.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["access_mode", "attachment_mode", "mount_options"],
        "x-no-effect" = { "sticky": ONE_MACHINE },
        "x-hint" = VOLUMES,
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
