//! Task drivers as data: names, config schemas, capabilities, and results of their operations.
//!
//! A driver returns its [`DriverInfo`]; manifests, the agent's config, the node's description and the registry read it.
//! [`built_in`] is the only list of drivers. Add new drivers there.

use core::fmt;
use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

#[cfg(feature = "schema")]
use std_alloc::{borrow::ToOwned, format};

#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};

use crate::{AllocId, UnixNanos, task::ExitResult};

#[cfg(feature = "schema")]
use crate::manifest::driver::{
    DockerConfig, ExecConfig, JavaConfig, MockConfig, PodmanConfig, QemuConfig, RawExecConfig,
};

mod check;
mod docker_options;
mod exec_options;
mod qemu_options;

pub use check::{ConfigCheck, ConfigFinding, Planned, Sharing, Verdict};
pub use docker_options::{
    AllowedModes, AuthSources, Collection, Dangling, DockerOptions, EngineChoice, EngineTls, HostPaths,
    RegistryOptions,
};
pub use exec_options::{AllowedNamespaces, ExecOptions};
pub use qemu_options::QemuOptions;

/// Name of the driver that runs tasks as processes of the machine.
pub const RAW_EXEC: &str = "raw_exec";

/// Name of the driver that runs tasks as processes in namespaces and a root of their own.
pub const EXEC: &str = "exec";

/// Name of the driver that runs Java programs like tasks of [`EXEC`].
pub const JAVA: &str = "java";

/// Name of the driver that runs virtual machines.
pub const QEMU: &str = "qemu";

/// Name of the driver that runs tasks as containers of Docker, or of Podman through the same API.
pub const DOCKER: &str = "docker";

/// Name of the driver that runs tasks as containers of Podman, with the config of Nomad's Podman driver.
pub const PODMAN: &str = "podman";

/// Name of the driver that simulates tasks.
pub const MOCK: &str = "mock";

/// Whether the tasks of a driver have the file system of an image, in which it mounts their volumes.
pub fn runs_images(driver: &str) -> bool {
    matches!(driver, DOCKER | PODMAN)
}

/// Whether the tasks of a driver have a root of their own, at whose directories they find what the agent has made for them. Its
/// users need not be users of the machine.
pub fn has_own_root(driver: &str) -> bool {
    matches!(driver, EXEC | JAVA) || runs_images(driver)
}

/// The user of the machine as which a task runs; none for the agent's own user, and for users of an image, which the machine does
/// not know. `user` is the one that the task names.
pub fn machine_user<'t>(driver: &str, user: Option<&'t str>) -> Option<&'t str> {
    let named = user.filter(|user| !user.is_empty() && !runs_images(driver));
    named.or_else(|| matches!(driver, EXEC | JAVA | QEMU).then_some("nobody"))
}

/// The attribute `driver.NAME.…` of an engine that gives the users of its containers other numbers on the machine.
pub const REMAPS_USERS: &str = "userns_remap";

/// The static description of a driver.
#[cfg(feature = "schema")]
#[derive(Debug, Clone, PartialEq)]
pub struct DriverInfo {
    /// Its name in job files.
    pub name: String,
    /// The schema of a task's `config`.
    pub schema: Schema,
    /// The schema of its options in the agent's config (`drivers.NAME`); `enabled` is one of its keys.
    pub options: Schema,
    /// Its own check of a task's `config`, beyond the schema; [`built_in`] has none, as it knows no driver's code.
    pub check: Option<ConfigCheck>,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Attributes of a node on which it is detected.
    pub attributes: BTreeMap<String, String>,
}

/// What a driver can do (Nomad's `drivers.Capabilities`), and which jobs may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It can send signals.
    pub signals: bool,
    /// It can execute commands in a running task.
    pub exec: bool,
    /// What a task sees of the machine's file system.
    pub fs_isolation: FsIsolation,
    /// Whether it can mount volumes and devices by itself.
    pub mounts: MountSupport,
    /// Whether a start needs something that takes long to fetch.
    pub preparation: Preparation,
    /// Whether the limits of a task are enforced.
    pub limits: Limiting,
    /// Whether its tasks can use the network of their group.
    pub networks: Networking,
    /// Whether jobs of servers may use it.
    pub servers: ServerJobs,
}

/// Whether the tasks of a driver can use a network that their group shares, instead of the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Networking {
    /// They join it.
    Joins,
    /// They use the machine's network, or one that the driver makes for each of them.
    Own,
}

/// What a task sees of the machine's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsIsolation {
    /// All of it.
    None,
    /// A directory tree prepared for the task.
    Chroot,
    /// A container image.
    Image,
}

/// Whether a driver mounts volumes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountSupport {
    /// No: the agent mounts volumes into the task directory before the start.
    None,
    /// Yes: it mounts the task's `mounts`.
    All,
}

/// Whether a start needs something that takes long to fetch, such as an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// No.
    None,
    /// Yes: the driver is prepared before each start, and only then does the start take its turn among others.
    Fetches,
}

/// Whether the limits of a task are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limiting {
    /// Not enforced: its tasks are not processes.
    None,
    /// Enforced by the agent's cgroups.
    Cgroups,
    /// Enforced by the engine that runs its tasks.
    Engine,
}

/// Whether jobs of servers may use a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerJobs {
    /// Never: it is not reported to servers.
    Never,
    /// Only if the agent's config enables it.
    WhereEnabled,
    /// Unless the agent's config disables it.
    UnlessDisabled,
}

/// The options of a driver that has none of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DriverOptions {
    /// Whether the driver is enabled.
    pub enabled: Option<bool>,
}

/// The options of `raw_exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RawExecOptions {
    /// Whether the driver is enabled.
    pub enabled: Option<bool>,
    /// User ids as which no task runs, such as `0,100-199`.
    pub denied_host_uids: Option<String>,
    /// Group ids as which no task runs.
    pub denied_host_gids: Option<String>,
    /// Environment variables to withhold from all tasks; `*` is a wildcard.
    pub denied_envvars: Vec<String>,
}

/// A network that a driver created for one task, for instance a container's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverNetwork {
    /// Its address.
    pub ip: String,
    /// Ports inside the task, by label.
    pub port_map: BTreeMap<String, u16>,
    /// Whether services with address mode `auto` are registered with this address.
    pub auto_advertise: bool,
}

/// An image that tasks of a driver use or have used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageView {
    /// The driver.
    pub driver: String,
    /// Its name, as tasks write it.
    pub name: String,
    /// Its content: a digest; empty if it is not there any more.
    pub digest: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When a task used it last.
    pub last_used: UnixNanos,
    /// The tasks that use it now.
    pub used_by: Vec<ImageUse>,
    /// Who else keeps it: other agents of this machine, by the ids of their instances, and `kept` for people who have pulled or
    /// loaded it.
    #[serde(default)]
    pub claimed_by: Vec<String>,
}

/// A task that uses an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUse {
    /// The allocation.
    pub alloc: AllocId,
    /// Its name, `job.group[index]`; empty if it is unknown.
    pub alloc_name: String,
    /// The task.
    pub task: String,
    /// What it has written into its container's own layer, in bytes; none if the engine does not say.
    pub writable_bytes: Option<u64>,
}

/// A driver's own state of an attempt, passed back to it when it recovers the attempt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// Version of the state's format, set by the driver.
    pub version: u32,
    /// The state, opaque to all others.
    pub state: Vec<u8>,
}

/// Omits the state, which may hold secrets.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle {{ version: {}, {} bytes }}", self.version, self.state.len())
    }
}

/// A started attempt: what its driver reports about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// State that the driver needs to recover the attempt; none if the id is enough.
    pub handle: Option<Handle>,
    /// The task's network, if the driver created one.
    pub network: Option<DriverNetwork>,
}

/// The state of a recovered attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// It never started; it is safe to start.
    NotStarted,
    /// Its process runs. Repeats what its start returned: an agent may have died before it stored that.
    Running(Started),
    /// It exited.
    Exited(ExitResult),
    /// It is gone, and its exit is unknown.
    Lost {
        /// Why.
        why: String,
    },
}

/// The class of an operation's failure, which determines the reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// A later retry may succeed: retried with growing delays.
    Retry,
    /// It can't succeed as specified: the task fails, or for a start its restart policy decides.
    Fatal,
    /// Like `Fatal`, for a start: the program does not exist.
    NoProgram,
    /// A start failed, and the restart policy counts it as an attempt.
    Recoverable,
}

/// The drivers built into this program.
#[cfg(feature = "schema")]
pub fn built_in() -> Vec<DriverInfo> {
    Vec::from([
        DriverInfo::raw_exec(),
        DriverInfo::exec(),
        DriverInfo::java(),
        DriverInfo::qemu(),
        DriverInfo::mock(),
        DriverInfo::docker(),
        DriverInfo::podman(),
    ])
}

/// What drivers of containers can do.
#[cfg(feature = "schema")]
const CONTAINERS: Capabilities = Capabilities {
    signals: true,
    exec: true,
    fs_isolation: FsIsolation::Image,
    mounts: MountSupport::All,
    preparation: Preparation::Fetches,
    limits: Limiting::Engine,
    networks: Networking::Joins,
    servers: ServerJobs::UnlessDisabled,
};

/// What drivers of isolated processes can do.
#[cfg(feature = "schema")]
const ISOLATED: Capabilities = Capabilities {
    signals: true,
    exec: true,
    fs_isolation: FsIsolation::Chroot,
    mounts: MountSupport::All,
    preparation: Preparation::None,
    limits: Limiting::Cgroups,
    networks: Networking::Joins,
    servers: ServerJobs::UnlessDisabled,
};

#[cfg(feature = "schema")]
impl DriverInfo {
    /// Describes a driver whose tasks' `config` is a `C` and whose options are an `O`.
    pub fn of<C: JsonSchema, O: JsonSchema>(name: &str, capabilities: Capabilities) -> Self {
        Self {
            name: name.to_owned(),
            schema: schema::<C>(),
            options: schema::<O>(),
            check: None,
            capabilities,
            attributes: BTreeMap::from([(format!("driver.{name}"), "1".to_owned())]),
        }
    }

    /// Processes of the machine, without isolation.
    pub fn raw_exec() -> Self {
        let capabilities = Capabilities {
            signals: true,
            exec: true,
            fs_isolation: FsIsolation::None,
            mounts: MountSupport::None,
            preparation: Preparation::None,
            limits: Limiting::Cgroups,
            networks: Networking::Joins,
            servers: ServerJobs::WhereEnabled,
        };
        Self::of::<RawExecConfig, RawExecOptions>(RAW_EXEC, capabilities)
    }

    /// Processes in namespaces and a root of their own.
    pub fn exec() -> Self {
        Self::of::<ExecConfig, ExecOptions>(EXEC, ISOLATED)
    }

    /// Java programs in namespaces and a root of their own.
    pub fn java() -> Self {
        Self::of::<JavaConfig, ExecOptions>(JAVA, ISOLATED)
    }

    /// Virtual machines. What a user would execute or signal is the guest, which a driver does not reach.
    pub fn qemu() -> Self {
        let capabilities = Capabilities {
            signals: false,
            exec: false,
            fs_isolation: FsIsolation::None,
            mounts: MountSupport::None,
            ..ISOLATED
        };
        Self::of::<QemuConfig, QemuOptions>(QEMU, capabilities)
    }

    /// Containers of Docker, or of Podman through the same API.
    pub fn docker() -> Self {
        Self::of::<DockerConfig, DockerOptions>(DOCKER, CONTAINERS)
    }

    /// Containers of Podman.
    pub fn podman() -> Self {
        Self::of::<PodmanConfig, DockerOptions>(PODMAN, CONTAINERS)
    }

    /// Simulated tasks.
    pub fn mock() -> Self {
        let capabilities = Capabilities {
            signals: true,
            exec: true,
            fs_isolation: FsIsolation::None,
            mounts: MountSupport::All,
            preparation: Preparation::Fetches,
            limits: Limiting::None,
            networks: Networking::Joins,
            servers: ServerJobs::Never,
        };
        Self::of::<MockConfig, DriverOptions>(MOCK, capabilities)
    }
}

#[cfg(feature = "schema")]
fn schema<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

#[cfg(all(test, feature = "schema"))]
mod tests {
    use super::*;

    #[test]
    fn each_built_in_driver_has_a_name_and_an_attribute_of_its_own() {
        let all = built_in();
        let names: BTreeMap<&str, &DriverInfo> = all.iter().map(|info| (&*info.name, info)).collect();
        assert_eq!(names.len(), all.len());
        for info in &all {
            assert_eq!(runs_images(&info.name), info.capabilities.fs_isolation == FsIsolation::Image);
            assert_eq!(has_own_root(&info.name), info.capabilities.fs_isolation != FsIsolation::None);
            assert_eq!(info.attributes[&format!("driver.{}", info.name)], "1");
        }
    }

    #[test]
    fn isolated_tasks_run_as_nobody_unless_they_name_a_user() {
        assert_eq!(machine_user(EXEC, None), Some("nobody"));
        assert_eq!(machine_user(EXEC, Some("")), Some("nobody"));
        assert_eq!((machine_user(JAVA, None), machine_user(QEMU, None)), (Some("nobody"), Some("nobody")));
        assert_eq!(machine_user(EXEC, Some("web")), Some("web"));
        assert_eq!((machine_user(RAW_EXEC, None), machine_user(RAW_EXEC, Some("web"))), (None, Some("web")));
        assert_eq!(machine_user(DOCKER, Some("web")), None);
    }
}
