//! `tasks[]`: one program each.

use core::fmt;
use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

#[cfg(feature = "schema")]
use super::unused::{OLD, VERTICAL};
use super::{
    Affinity, Constraint, Consul, CsiPlugin, Network, RestartRule, Secret, Service, Signal, Span, Template,
    Text, Vault,
};
use crate::job::{ArtifactMode, ChangeMode, DependencyCondition, LogMode, MountPropagation};

block! {
    /// A task: one program.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "kind", "schedule",
    ], "x-no-effect" = {
        "scaling": VERTICAL,
        "scalings": VERTICAL,
    }, "x-misplaced" = {
        "args": "it belongs to `config`",
        "env_files": "did you mean `env_file`?",
        "command": "it belongs to `config`",
        "enviroment": "did you mean `env`?",
        "environment": "did you mean `env`?",
        "image": "`image` belongs to `config` of the docker driver",
        "ports": "ports belong to the group: network: {ports: {http: {static: 8080}}}",
        "volumes": "volumes belong to the group; a task mounts them by `volume_mounts`",
    })))]
    pub struct TaskSpec {
        /// Unique in the group: 1 to 128 bytes without `/`, `\\` and control characters.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-name" = "part")))]
        pub name: String,
        /// The driver that runs it, for instance `raw_exec`.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub driver: String,
        /// The user to run as; default the agent's user.
        pub user: Text,
        /// The driver's configuration.
        pub config: serde_json::Map<String, serde_json::Value>,
        /// Environment; values may contain `${…}`.
        #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = {"x-name": "variable"})))]
        pub env: BTreeMap<String, Text>,
        /// Files of variables for `env`, which has priority: lines `KEY=VALUE` by the rules of Compose. Relative to the manifest's directory.
        pub env_file: EnvFiles,
        /// Values for `NOMAD_META_<key>`; override the group's and the job's.
        pub meta: BTreeMap<String, Text>,
        /// When this task ends, the others of its group are stopped.
        pub leader: bool,
        /// Makes this a task that runs before, beside or after the main tasks.
        pub lifecycle: Lifecycle,
        /// Tasks of the same group to wait for before the start; they are stopped after this one. A plain name waits until the task has started.
        #[cfg_attr(feature = "schema", schemars(extend(
            "x-hint" = "write depends_on: [cache], or depends_on: [{task: cache, condition: healthy}]",
        )))]
        pub depends_on: Vec<Dependency>,
        /// A command to run inside the task before its kill signal.
        pub prestop: Prestop,
        /// Commands that `herdlet action` runs in the running task.
        pub actions: Vec<Action>,
        /// When and how often this task is restarted; overrides individual fields of the group's `restart`. Also in one word, as in Compose: `always`, `unless-stopped`, `on-failure`, `on-failure:3`, `no`.
        pub restart: RestartRule,
        /// Services, registered while this task's process is running.
        pub services: Vec<Service>,
        /// Mounts of the group's volumes.
        pub volume_mounts: Vec<VolumeMount>,
        /// Files to fetch into the task's directory before it starts.
        pub artifacts: Vec<Artifact>,
        /// Files to render from data before it starts, and again when their data changes.
        pub templates: Vec<Template>,
        /// Values to fetch before it starts, for `${secret.NAME.KEY}`.
        pub secrets: Vec<Secret>,
        /// A token of Vault or OpenBao; overrides the group's and the job's block.
        pub vault: Vault,
        /// The Consul of this task; overrides the group's block.
        pub consul: Consul,
        /// Makes this task a plugin for storage.
        pub csi_plugin: CsiPlugin,
        /// The file that receives the payload of a dispatch.
        pub dispatch_payload: DispatchPayload,
        /// Signed tokens that identify this task.
        pub identities: Vec<Identity>,
        /// Resource limits; absent ones are unlimited.
        pub resources: Resources,
        /// Collection of the task's output.
        pub logs: Logs,
        /// The signal that asks the task to end; default `SIGINT`, for containers the image's or `SIGTERM`. Also `SIGRTMIN+3` and `SIGRTMAX-1`.
        pub kill_signal: Signal,
        /// Time between that signal and the forced end; default 5s. The agent limits it.
        pub kill_timeout: Span,
        /// Delay between deregistering this task's services and the kill signal, also when the task restarts.
        pub shutdown_delay: Span,
        /// Requirements that the machine must meet for the group to run there.
        pub constraints: Vec<Constraint>,
        /// Preferences for the machine.
        pub affinities: Vec<Affinity>,
    }
}

block! {
    /// A download by http or https.
    pub struct Artifact {
        /// The address. Its query may contain `checksum`, `archive` and `filename`; after `//` the path names a folder of an archive.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub source: Text,
        /// The options of the query: `checksum` (`sha256:…`, `file:URL`), `archive` (`false`, or its format), `filename`; others go to the server.
        pub options: BTreeMap<String, Text>,
        /// Header fields of the requests.
        pub headers: BTreeMap<String, Text>,
        /// `any` (the default) unpacks archives, `file` creates a single file, `dir` requires an archive.
        pub mode: ArtifactMode,
        /// Accept any certificate.
        pub insecure: bool,
        /// The destination: a directory, with `mode: file` a file; relative to the task's directory. Default `local/`.
        pub destination: Text,
        /// Nomad's option to give the files to the task's user; here they always belong to that user.
        pub chown: bool,
    }
}

block! {
    /// The file that receives the payload of a dispatch.
    pub struct DispatchPayload {
        /// A file, relative to the task's `local`; written before the task starts.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub file: String,
    }
}

block! {
    /// When a task runs; a task without it is a main task.
    pub struct Lifecycle {
        /// The stage: before the main tasks, after their start, or after the end of all others.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub hook: Hook,
        /// Keep it running beside the main tasks instead of waiting for its end.
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
    /// After the main tasks have started.
    Poststart,
    /// After all other tasks have ended.
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

/// `env_file`: a path, or a list of paths and files that may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct EnvFiles(pub Vec<EnvFile>);

block! {
    /// A file of variables.
    pub struct EnvFile {
        /// The file, relative to the directory of the manifest.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub path: String,
        /// Whether it must exist; default true.
        pub required: bool,
    }
}

block! {
    /// A task to wait for.
    pub struct DependencyBlock {
        /// A task of the same group.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub task: String,
        /// The condition to wait for; default `started`.
        pub condition: DependencyCondition,
    }
}

block! {
    /// A named command that users may run in the running task.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-hint" = "write actions: [{name: clear-cache, command: /bin/rm, args: [-r, local/cache]}]",
    )))]
    pub struct Action {
        /// Its name, unique in the task: 1 to 128 letters, digits and `-`.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub name: String,
        /// The program.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-command" = true)))]
        pub command: String,
        /// Its arguments.
        pub args: Vec<Text>,
    }
}

block! {
    /// A command to run inside the task before its kill signal.
    pub struct Prestop {
        /// The program.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-command" = true)))]
        pub command: String,
        /// Its arguments.
        pub args: Vec<Text>,
        /// The task is stopped anyway after this time; default 5s.
        pub timeout: Span,
    }
}

block! {
    /// A mount of a volume in a task.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["selinux_label"],
    )))]
    pub struct VolumeMount {
        /// Name of a volume of the group.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub volume: String,
        /// The mount point; for drivers without file system isolation relative to the task directory.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub destination: String,
        /// This task may only read.
        pub read_only: bool,
        /// Where mounts appear that are made below it later: those of the machine in the task (`host-to-task`), or also those of the
        /// task on the machine (`bidirectional`); default `private`.
        pub propagation_mode: MountPropagation,
    }
}

block! {
    /// A signed token (JWT) that identifies the task.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["service_name"],
    )))]
    pub struct Identity {
        /// Letters, digits, `-` and `_`; default `default`.
        pub name: String,
        /// The token's audiences; the default identity has its own.
        pub aud: Vec<String>,
        /// How long a token is valid before it is replaced; without it or with 0, forever.
        pub ttl: Span,
        /// Set `NOMAD_TOKEN_<name>` (`NOMAD_TOKEN` for the default identity).
        pub env: bool,
        /// Write `secrets/nomad_<name>.jwt` (`secrets/nomad_token` for the default identity).
        pub file: bool,
        /// With `file`: the file to write instead, relative to the task's directory.
        pub filepath: String,
        /// What to do with the task when the token is replaced; default `noop`.
        pub change_mode: ChangeMode,
        /// The signal for `change_mode: signal`.
        pub change_signal: Signal,
        /// Names of claims that the agent's config offers (`identities.optional_extra_claims`).
        pub extra_claims: Vec<String>,
    }
}

block! {
    /// Resource limits of a task; absent ones are unlimited.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["device", "devices", "numa"],
        "x-no-effect" = { "disk": OLD, "iops": OLD },
        "x-default" = { "numa": [{ "affinity": "none" }] },
    )))]
    pub struct Resources {
        /// CPU share in MHz. Without it, there is no limit and no reservation.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000_000), extend("x-mhz" = true)))]
        pub cpu: u64,
        /// The number of cores that this task alone uses, instead of `cpu`. 0, the default, for none.
        #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 4096)))]
        pub cores: u16,
        /// Memory in MiB, at least 10. Without it, there is no limit and no reservation.
        #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 1_073_741_824), extend("x-mib" = true)))]
        pub memory: u64,
        /// Memory in MiB that the task may use if the machine has it available; at least `memory`. −1 for no limit; 0, the default, for `memory`.
        #[cfg_attr(feature = "schema", schemars(range(min = -1, max = 1_073_741_824), extend("x-mib" = true)))]
        pub memory_max: i64,
        /// Size in MiB of the directory `secrets`, which is in memory; at most `memory`, to which it is added. 0, the default, for 1, which is not added.
        #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_048_576), extend("x-mib" = true)))]
        pub secrets: u64,
        /// Ports of this task alone, as in jobs from before Nomad 0.12. Their labels may repeat in other tasks of the group, and not in the group's `network`.
        pub network: Network,
    }
}

block! {
    /// Collection of a task's output.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-no-effect" = { "enabled": "has no effect: Nomad ignores it too; write `disabled`" },
        "x-default" = { "enabled": [true] },
    )))]
    pub struct Logs {
        /// The number of files kept for each stream; default 10.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
        pub max_files: u32,
        /// The maximum size of a file in MiB; default 10.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_048_576), extend("x-mib" = true)))]
        pub max_file_size: u64,
        /// Don't collect the output.
        pub disabled: bool,
        /// When the disk is too slow: `drop` output and count it (the default), or `block` the task.
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

/// One entry, or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum EnvFileForm {
    Path(String),
    File(EnvFile),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EnvFilesForm {
    One(EnvFileForm),
    Several(Vec<EnvFileForm>),
}

impl From<EnvFileForm> for EnvFile {
    fn from(form: EnvFileForm) -> Self {
        match form {
            EnvFileForm::Path(path) => Self { path: Some(path), required: None },
            EnvFileForm::File(file) => file,
        }
    }
}

impl<'de> Deserialize<'de> for EnvFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match EnvFilesForm::deserialize(deserializer)? {
            EnvFilesForm::One(one) => Vec::from([one.into()]),
            EnvFilesForm::Several(several) => several.into_iter().map(EnvFile::from).collect(),
        }))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for EnvFiles {
    fn schema_name() -> std_alloc::borrow::Cow<'static, str> {
        "EnvFiles".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let file = generator.subschema_for::<EnvFile>();
        schemars::json_schema!({
            "description": "A file of variables, or a list of them.",
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "anyOf": [{ "type": "string" }, file] } },
            ],
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
