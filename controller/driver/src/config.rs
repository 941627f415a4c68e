//! What a driver is told about an attempt: everything resolved, nothing to look up elsewhere.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, time::Duration};

use herdlet_api_types::{
    AllocId,
    job::{Logs, Resources},
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
    /// The name of its record and its cgroup.
    pub fn name(&self) -> String {
        paths::attempt_name(&self.alloc, &self.task, self.attempt)
    }

    /// Reads such a name back.
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

/// Everything a driver needs to start one attempt. Strings are interpolated, paths absolute.
#[derive(Clone)]
pub struct TaskConfig {
    /// Which attempt.
    pub id: AttemptId,
    /// Names of what it belongs to, for drivers that label things: `namespace`, `job`, `group`, `node`, ….
    pub labels: BTreeMap<String, String>,
    /// The whole environment, in the order it is given to the task. Holds secrets.
    pub env: Vec<(String, String)>,
    /// The task's `config`. May hold secrets.
    pub config: serde_json::Value,
    /// The user to run as; the agent's own where absent.
    pub user: Option<String>,
    /// Names of the users who may write to what the tasks of the allocation share.
    pub users: Vec<String>,
    /// Limits.
    pub resources: Resources,
    /// Where its files are.
    pub dirs: TaskDirs,
    /// What to keep of its output.
    pub logs: Logs,
    /// How it is stopped where a stop doesn't say.
    pub kill: KillDefaults,
    /// What a driver with [`MountSupport::All`](super::MountSupport::All) mounts.
    pub mounts: Vec<Mount>,
    /// Devices it gets.
    pub devices: Vec<Device>,
    /// The network it joins; the machine's own where absent.
    pub network: Option<NetworkIsolation>,
    /// Name resolution, where it isn't the machine's.
    pub dns: Option<Dns>,
    /// Entries of the task's hosts file beside those of its own network.
    pub hosts: Vec<HostEntry>,
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

/// Where the files of a task are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDirs {
    /// The task's own directory.
    pub task: PathBuf,
    /// The directory that all tasks of the allocation share.
    pub shared: PathBuf,
    /// Where its output goes.
    pub logs: PathBuf,
    /// What the names of its log files begin with, the task's name as a file name: `NAME.stdout.N`, `NAME.stderr.N`.
    pub log_name: String,
}

/// How a task is stopped unless said otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KillDefaults {
    /// Name of the signal; the driver's default where absent.
    pub signal: Option<String>,
    /// Time between signal and SIGKILL.
    pub timeout: Duration,
}

/// Something to mount in the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Path on the machine.
    pub host_path: PathBuf,
    /// Path in the task.
    pub task_path: PathBuf,
    /// The task can't write to it.
    pub readonly: bool,
    /// How mounts made below it later are shared.
    pub propagation: Propagation,
}

/// How mounts below a mount are shared between the machine and the task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// Not at all.
    #[default]
    Private,
    /// The machine's appear in the task.
    HostToTask,
    /// Both ways.
    Bidirectional,
}

/// A device of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Path on the machine.
    pub host_path: PathBuf,
    /// Path in the task.
    pub task_path: PathBuf,
    /// Of `r`, `w` and `m`.
    pub permissions: String,
}

/// A network to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkIsolation {
    /// Path of the network namespace.
    pub path: PathBuf,
    /// The driver's own notes about it.
    pub labels: BTreeMap<String, String>,
}

/// Name resolution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<IpAddr>,
    /// Domains searched.
    pub searches: Vec<String>,
    /// Options as in resolv.conf(5).
    pub options: Vec<String>,
}

/// A line of hosts(5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// The address.
    pub ip: IpAddr,
    /// Its names.
    pub names: Vec<String>,
}

/// A task's `config` as a driver's own type.
///
/// # Errors
/// When it isn't one; of class `Fatal`, with Nomad's words.
pub fn read_config<T: DeserializeOwned>(config: &serde_json::Value) -> DriverResult<T> {
    T::deserialize(config).map_err(|error| DriverError::fatal(format!("parse config: {error}")))
}
