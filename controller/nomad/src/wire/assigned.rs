//! What servers have given to an allocation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::resources::NetworkResource;

/// All that it has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedResources {
    /// By task.
    pub tasks: BTreeMap<String, TaskResources>,
    /// When each task runs; none: with the others.
    pub task_lifecycles: BTreeMap<String, Option<TaskLifecycle>>,
    /// What its tasks share.
    pub shared: SharedResources,
}

/// What a task has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskResources {
    /// Processors.
    pub cpu: AllocatedCpu,
    /// Memory.
    pub memory: AllocatedMemory,
    /// Of jobs of before groups had networks.
    pub networks: Vec<NetworkResource>,
    /// Devices.
    pub devices: Vec<AllocatedDevices>,
}

/// Processors of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedCpu {
    /// MHz.
    pub cpu_shares: i64,
    /// Whole ones, for it alone.
    pub reserved_cores: Vec<u16>,
}

/// Memory of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedMemory {
    /// MiB that are counted.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// MiB at most; zero: as many as are counted.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
}

/// Devices of one kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedDevices {
    /// Who makes them.
    pub vendor: String,
    /// Such as `gpu`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The model.
    pub name: String,
    /// Which ones.
    #[serde(rename = "DeviceIDs")]
    pub device_ids: Vec<String>,
}

/// When a task runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskLifecycle {
    /// `prestart`, `poststart` or `poststop`.
    pub hook: String,
    /// Beside the main tasks, to their end.
    pub sidecar: bool,
}

/// What tasks share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SharedResources {
    /// Networks.
    pub networks: Vec<NetworkResource>,
    /// MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mb: i64,
    /// All ports of the group's network.
    pub ports: Vec<PortMapping>,
}

/// A port of the group's network.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PortMapping {
    /// Its name.
    pub label: String,
    /// On the host.
    pub value: i64,
    /// Within the network namespace; zero: the same one.
    pub to: i64,
    /// The host's address.
    #[serde(rename = "HostIP")]
    pub host_ip: String,
    /// Others may have it too (1.9 and later).
    pub ignore_collision: bool,
}
