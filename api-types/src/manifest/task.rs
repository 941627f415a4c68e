//! `tasks[]`: one program each.

use core::fmt;
use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{Affinity, Constraint, Restart, Service, Signal, Span, Text};
use crate::job::{ArtifactMode, ChangeMode, DependencyCondition, LogMode};

block! {
    /// A task: one program.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "action", "actions", "consul", "csi_plugin", "kind", "scaling", "scalings", "schedule",
        "secret", "secrets", "template", "templates", "vault",
    ], "x-misplaced" = {
        "args": "it belongs to `config`",
        "command": "it belongs to `config`",
        "enviroment": "did you mean `env`?",
        "environment": "did you mean `env`?",
        "image": "it belongs to `config`",
        "volumes": "volumes belong to the group; a task mounts them by `volume_mounts`",
    })))]
    pub struct TaskSpec {
        /// Unique in the group; a lower-case DNS label.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-name" = "dns-label")))]
        pub name: String,
        /// What runs it, for instance `raw_exec`.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub driver: String,
        /// The user to run as; the agent's own unless written.
        pub user: Text,
        /// The driver's own settings.
        pub config: serde_json::Map<String, serde_json::Value>,
        /// Environment; values may hold `${…}`.
        #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = {"x-name": "variable"})))]
        pub env: BTreeMap<String, Text>,
        /// Values for `NOMAD_META_<key>`, above the group's and the job's.
        pub meta: BTreeMap<String, Text>,
        /// When this task ends, the others of its group are stopped.
        pub leader: bool,
        /// Makes this a task that runs before, beside or after the main tasks.
        pub lifecycle: Lifecycle,
        /// Tasks of the same group that this one waits for; it is stopped before them. A plain name waits until the task was started.
        pub depends_on: Vec<Dependency>,
        /// A command that runs inside the task before its kill signal.
        pub prestop: Prestop,
        /// When and how often this task is restarted; overrides single fields of the group's `restart`.
        pub restart: Restart,
        /// Services, registered while this task's process runs.
        pub services: Vec<Service>,
        /// Where volumes of the group appear.
        pub volume_mounts: Vec<VolumeMount>,
        /// What is fetched into the task's directory before it starts.
        pub artifacts: Vec<Artifact>,
        /// Where the payload goes with which the job was dispatched.
        pub dispatch_payload: DispatchPayload,
        /// Signed tokens that say who this task is.
        pub identities: Vec<Identity>,
        /// Limits; what is not written is not limited.
        pub resources: Resources,
        /// How output is kept.
        pub logs: Logs,
        /// The signal that asks the task to end; the driver's default (`SIGINT`) unless written.
        pub kill_signal: Signal,
        /// Time between that signal and the forced end; default 5s. The agent caps it.
        pub kill_timeout: Span,
        /// Wait between taking back this task's services and the kill signal.
        pub shutdown_delay: Span,
        /// What must hold on the machine for the group to run there.
        pub constraints: Vec<Constraint>,
        /// What is preferred of the machine.
        pub affinities: Vec<Affinity>,
    }
}

block! {
    /// Something that is fetched by http or https.
    pub struct Artifact {
        /// The address. Its query may hold `checksum`, `archive` and `filename`; after `//` in its path stands a folder of an archive.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub source: Text,
        /// The same as in the query: `checksum` (`sha256:…`, `file:URL`), `archive` (`false`, or its format), `filename`; others go to the server.
        pub options: BTreeMap<String, Text>,
        /// Header fields of the requests.
        pub headers: BTreeMap<String, Text>,
        /// `any` (the default) unpacks archives, `file` makes one file of it, `dir` wants an archive.
        pub mode: ArtifactMode,
        /// Accept any certificate.
        pub insecure: bool,
        /// Where it goes: a directory, with `mode: file` a file; relative to the task's directory. Default `local/`.
        pub destination: Text,
        /// As in Nomad: the files belong to the task's user. Here they always do.
        pub chown: bool,
    }
}

block! {
    /// Where the payload of a dispatch goes.
    pub struct DispatchPayload {
        /// A file, relative to the task's `local`; it is written before the task starts.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub file: String,
    }
}

block! {
    /// When a task runs; a task without it is a main task.
    pub struct Lifecycle {
        /// Before the main tasks, once they run, or after all others ended.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub hook: Hook,
        /// Keeps running beside the main tasks instead of ending.
        pub sidecar: bool,
    }
}

/// `lifecycle.hook`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// Before the main tasks.
    Prestart,
    /// Once the main tasks run.
    Poststart,
    /// After all other tasks ended.
    Poststop,
}

/// An entry of `depends_on`: the name of a task, or a task with a condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dependency {
    /// A task of the same group.
    pub task: Option<String>,
    /// The condition to wait for.
    pub condition: Option<DependencyCondition>,
}

block! {
    /// A task to wait for.
    pub struct DependencyBlock {
        /// A task of the same group.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub task: String,
        /// What it must have reached; default `started`.
        pub condition: DependencyCondition,
    }
}

block! {
    /// A command that runs inside the task before its kill signal.
    pub struct Prestop {
        /// The program.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-command" = true)))]
        pub command: String,
        /// Its arguments.
        pub args: Vec<Text>,
        /// After this the task is stopped anyway; default 5s.
        pub timeout: Span,
    }
}

block! {
    /// Where a volume appears in a task.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["propagation_mode", "selinux_label"])))]
    pub struct VolumeMount {
        /// Name of a volume of the group.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub volume: String,
        /// Where it appears: for drivers without a file system of their own a path relative to the task directory.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub destination: String,
        /// This task may not write.
        pub read_only: bool,
    }
}

block! {
    /// A signed token (JWT) that says who the task is.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["extra_claims"])))]
    pub struct Identity {
        /// `default` unless written; else letters, digits, `-` and `_`.
        pub name: String,
        /// Who the token is for; required except for the default identity.
        pub aud: Vec<String>,
        /// How long a token is valid before it is replaced; without it, for ever.
        pub ttl: Span,
        /// Set `NOMAD_TOKEN_<name>` (`NOMAD_TOKEN` for the default identity).
        pub env: bool,
        /// Write `secrets/nomad_<name>.jwt` (`secrets/nomad_token` for the default identity).
        pub file: bool,
        /// With `file`: the file to write instead, relative to the task's directory.
        pub filepath: String,
        /// What happens to the task when the token was replaced; default `noop`.
        pub change_mode: ChangeMode,
        /// The signal for `change_mode: signal`.
        pub change_signal: Signal,
    }
}

block! {
    /// Limits of a task; what is not written is not limited.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "cores", "device", "devices", "disk", "iops", "network", "networks", "numa", "secrets",
    ])))]
    pub struct Resources {
        /// CPU share in MHz.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000_000), extend("x-mhz" = true)))]
        pub cpu: u64,
        /// Memory in MiB, at least 10.
        #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 1_073_741_824), extend("x-mib" = true)))]
        pub memory: u64,
        /// Memory in MiB that the task may use while the machine has it; at least `memory`.
        #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 1_073_741_824), extend("x-mib" = true)))]
        pub memory_max: u64,
    }
}

block! {
    /// How output is kept.
    pub struct Logs {
        /// Files kept per stream; default 10.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
        pub max_files: u32,
        /// Size of one file in MiB; default 10.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_048_576), extend("x-mib" = true)))]
        pub max_file_size: u64,
        /// Keep nothing.
        pub disabled: bool,
        /// When the disk can't keep up: `drop` output and count it (the default), or `block` the task.
        pub mode: LogMode,
    }
}

impl Serialize for Dependency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.task, self.condition) {
            (Some(task), None | Some(DependencyCondition::Started)) => serializer.serialize_str(task),
            (task, condition) => DependencyBlock { task: task.clone(), condition }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Dependency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DependencyVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Dependency {
    fn schema_name() -> std_alloc::borrow::Cow<'static, str> {
        "Dependency".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The name of a task of the same group, or a task with a condition.",
            "anyOf": [{ "type": "string" }, generator.subschema_for::<DependencyBlock>()],
        })
    }
}

struct DependencyVisitor;

impl<'de> Visitor<'de> for DependencyVisitor {
    type Value = Dependency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a task, or {task, condition}")
    }

    fn visit_str<E>(self, task: &str) -> Result<Dependency, E> {
        Ok(Dependency { task: Some(task.to_owned()), condition: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Dependency, A::Error> {
        let DependencyBlock { task, condition } =
            DependencyBlock::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Dependency { task, condition })
    }
}
