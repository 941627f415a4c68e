//! Task drivers as other code sees them: their names, the schemas of their configs, their abilities, and the results of their operations.
//!
//! Data only. A driver hands out its [`DriverInfo`]; manifests, the agent's config, the node's description and the registry read it.
//! [`built_in`] is the only list of drivers. A new driver is added there.

use core::fmt;
use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

#[cfg(feature = "schema")]
use std_alloc::{borrow::ToOwned, format};

#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};

use crate::task::ExitResult;

#[cfg(feature = "schema")]
use crate::manifest::driver::{MockConfig, RawExecConfig};

/// Name of the driver that runs processes of the machine.
pub const RAW_EXEC: &str = "raw_exec";

/// Name of the driver that pretends to run tasks.
pub const MOCK: &str = "mock";

/// What is known of a driver before anything is asked of it.
#[cfg(feature = "schema")]
#[derive(Debug, Clone, PartialEq)]
pub struct DriverInfo {
    /// Its name in job files.
    pub name: String,
    /// Schema of a task's `config`.
    pub schema: Schema,
    /// Schema of what the agent's config says about it (`drivers.NAME`); `enabled` is one of its keys.
    pub options: Schema,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Attributes of a node where it is detected.
    pub attributes: BTreeMap<String, String>,
}

/// What a driver can do (Nomad's `drivers.Capabilities`), and for whom.
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
    /// Whether the limits of a task are enforced.
    pub limits: Limiting,
    /// Whether jobs of servers may use it.
    pub servers: ServerJobs,
}

/// What a task sees of the machine's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsIsolation {
    /// All of it.
    None,
    /// A directory tree that is prepared for it.
    Chroot,
    /// An image.
    Image,
}

/// Whether a driver mounts volumes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountSupport {
    /// It can't: volumes are put into the task directory before the start.
    None,
    /// It can: it finds them in the task's mounts.
    All,
}

/// Whether the limits of a task are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limiting {
    /// They mean nothing: its tasks are no processes.
    None,
    /// By the agent's cgroups.
    Cgroups,
}

/// Whether jobs of servers may use a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerJobs {
    /// Never: servers are not told that it exists.
    Never,
    /// Only where the agent's config enables it.
    WhereEnabled,
}

/// What the agent's config says about a driver that has no options of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DriverOptions {
    /// Whether it is offered.
    pub enabled: Option<bool>,
}

/// A network that a driver made for one task, for instance a container's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverNetwork {
    /// Its address.
    pub ip: String,
    /// Ports as the task sees them, by label.
    pub port_map: BTreeMap<String, u16>,
    /// Services in mode `auto` are registered with this address.
    pub auto_advertise: bool,
}

/// A driver's own note about an attempt, given back to it when the attempt is recovered.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// Version of the note's format, by the driver.
    pub version: u32,
    /// The note, opaque to everyone else.
    pub state: Vec<u8>,
}

/// The note may hold anything, secrets too.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle {{ version: {}, {} bytes }}", self.version, self.state.len())
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// It never began; it is safe to start it.
    NotStarted,
    /// Its process lives.
    Running,
    /// It ended.
    Exited(ExitResult),
    /// It is gone and nobody knows how it ended.
    Lost {
        /// Why.
        why: String,
    },
}

/// How an operation failed, and what may be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// It may work later: tried again with growing delays.
    Retry,
    /// It will not work as specified: the task fails, or its restart policy decides for a start.
    Fatal,
    /// As `Fatal`, for a start: there is no such program.
    NoProgram,
    /// A start failed in a way that the restart policy counts as an attempt.
    Recoverable,
}

/// The drivers that are built into this program.
#[cfg(feature = "schema")]
pub fn built_in() -> Vec<DriverInfo> {
    Vec::from([DriverInfo::raw_exec(), DriverInfo::mock()])
}

#[cfg(feature = "schema")]
impl DriverInfo {
    /// A driver whose tasks' `config` is a `C`, and whose options are an `O`.
    pub fn of<C: JsonSchema, O: JsonSchema>(name: &str, capabilities: Capabilities) -> Self {
        Self {
            name: name.to_owned(),
            schema: schema::<C>(),
            options: schema::<O>(),
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
            limits: Limiting::Cgroups,
            servers: ServerJobs::WhereEnabled,
        };
        Self::of::<RawExecConfig, DriverOptions>(RAW_EXEC, capabilities)
    }

    /// Pretended tasks.
    pub fn mock() -> Self {
        let capabilities = Capabilities {
            signals: true,
            exec: true,
            fs_isolation: FsIsolation::None,
            mounts: MountSupport::None,
            limits: Limiting::None,
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
            assert_eq!(info.attributes[&format!("driver.{}", info.name)], "1");
        }
    }
}
