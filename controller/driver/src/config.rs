//! The description of an attempt that a driver receives. All values are resolved.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use herdlet_api_types::{
    AllocId,
    alloc::{CoreSet, Ports},
    job::{Logs, MountPropagation, Resources},
};
use herdlet_base::paths;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{DriverError, DriverResult};

/// One start of one task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The allocation.
    pub alloc: AllocId,
    /// Name of the task.
    pub task: String,
    /// Number of the start, from 1.
    pub attempt: u32,
}

impl AttemptId {
    /// The name of the attempt's record and cgroup.
    pub fn name(&self) -> String {
        paths::attempt_name(&self.alloc, &self.task, self.attempt)
    }

    /// Parses such a name.
    pub fn parse(name: &str) -> Option<Self> {
        let (alloc, task, attempt) = paths::parse_attempt_name(name)?;
        Some(Self { alloc, task, attempt })
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.alloc.short(), self.task, self.attempt)
    }
}

/// Everything a driver needs to start one attempt. Strings are interpolated, paths absolute. Of these, `mounts` and `devices` come
/// from facts of the allocation's parts; they are set only for a start, and empty when an attempt is recovered.
#[derive(Clone)]
pub struct TaskConfig {
    /// Its id.
    pub id: AttemptId,
    /// Names of the enclosing objects, for drivers that set labels: `namespace`, `job`, `job_name`, `parent_job`, `group`, `node`,
    /// `node_id`, `instance`.
    pub labels: BTreeMap<String, String>,
    /// The whole environment, in the order the task receives it. Holds secrets.
    pub env: Vec<(String, String)>,
    /// The task's `config`. May hold secrets.
    pub config: serde_json::Value,
    /// The user to run as; the agent's own if absent.
    pub user: Option<String>,
    /// Names of the users who may write to the files that the tasks of the allocation share.
    pub users: Vec<String>,
    /// Resource limits.
    pub resources: Resources,
    /// The cores that it alone uses; empty if it has none of its own.
    pub cores: CoreSet,
    /// Directories of its files.
    pub dirs: TaskDirs,
    /// How much of its output is kept.
    pub logs: Logs,
    /// How to stop it if a stop request does not specify it.
    pub kill: KillDefaults,
    /// Mounts for drivers with [`MountSupport::All`](super::MountSupport::All).
    pub mounts: Vec<Mount>,
    /// Devices passed to the task by the same drivers.
    pub devices: Vec<Device>,
    /// Ports of the allocation on the machine, by label, for drivers that publish ports of tasks.
    pub ports: Ports,
    /// Ports of this task alone, in jobs from before groups had networks.
    pub own_ports: Ports,
    /// The network that it shares with the other tasks of its allocation; the machine's if absent.
    pub network: Option<NetworkSpace>,
}

impl fmt::Debug for TaskConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskConfig")
            .field("id", &self.id)
            .field("user", &self.user)
            .field("resources", &self.resources)
            .field("dirs", &self.dirs)
            .finish_non_exhaustive()
    }
}

/// A network namespace that tasks share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSpace {
    /// The file that keeps it: tasks and commands in them enter it.
    pub path: PathBuf,
    /// The host name of tasks in it; the machine's if absent. Drivers whose tasks see the machine's own name ignore it.
    pub hostname: Option<String>,
}

/// Directories of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDirs {
    /// The task's own directory.
    pub task: PathBuf,
    /// The directory that all tasks of the allocation share.
    pub shared: PathBuf,
    /// The directory of its log files.
    pub logs: PathBuf,
    /// Prefix of its log files, the task's name as a file name: `NAME.stdout.N`, `NAME.stderr.N`.
    pub log_name: String,
}

/// How a task is stopped by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KillDefaults {
    /// Name of the signal; the driver's default if absent.
    pub signal: Option<String>,
    /// Time between the signal and SIGKILL.
    pub timeout: Duration,
}

/// A mount in the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Path on the machine.
    pub host_path: PathBuf,
    /// Path in the task.
    pub task_path: PathBuf,
    /// Whether it is read-only for the task.
    pub readonly: bool,
    /// How mounts made below it later propagate.
    pub propagation: Propagation,
}

/// How mounts below a mount propagate between the machine and the task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// No propagation.
    #[default]
    Private,
    /// The machine's mounts appear in the task.
    HostToTask,
    /// Both directions.
    Bidirectional,
}

impl From<MountPropagation> for Propagation {
    fn from(wanted: MountPropagation) -> Self {
        match wanted {
            MountPropagation::Private => Self::Private,
            MountPropagation::HostToTask => Self::HostToTask,
            MountPropagation::Bidirectional => Self::Bidirectional,
        }
    }
}

/// A device of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Path on the machine.
    pub host_path: PathBuf,
    /// Path in the task.
    pub task_path: PathBuf,
    /// A combination of `r`, `w` and `m`.
    pub permissions: String,
}

impl Device {
    /// Whether these permissions allow reading and writing.
    pub fn allows_all(permissions: &str) -> bool {
        permissions.contains('r') && permissions.contains('w')
    }

    /// Requires that a task may use it in all ways, for drivers that can't limit them.
    ///
    /// # Errors
    /// It may only be read, or only be written to.
    pub fn require_all_rights(&self) -> DriverResult<()> {
        if Self::allows_all(&self.permissions) {
            return Ok(());
        }
        Err(DriverError::fatal(format!(
            "pass the device {} with the permissions {:?}: this driver gives devices to tasks with all rights or not at all",
            self.host_path.display(),
            self.permissions
        )))
    }
}

/// Parses a task's `config` into the driver's own type.
///
/// # Errors
/// The config does not match the type. The class is `Fatal`, the text Nomad's.
pub fn read_config<T: DeserializeOwned>(config: &serde_json::Value) -> DriverResult<T> {
    T::deserialize(config).map_err(|error| DriverError::fatal(format!("parse config: {error}")))
}
