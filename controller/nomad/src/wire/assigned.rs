//! Resources that servers have assigned to an allocation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::resources::NetworkResource;

/// All resources of an allocation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedResources {
    /// By task.
    pub tasks: BTreeMap<String, TaskResources>,
    /// The lifecycle of each task; `None` for main tasks.
    pub task_lifecycles: BTreeMap<String, Option<TaskLifecycle>>,
    /// Resources that its tasks share.
    pub shared: SharedResources,
}

/// Resources of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskResources {
    /// Processors.
    pub cpu: AllocatedCpu,
    /// Memory.
    pub memory: AllocatedMemory,
    /// Used by jobs from before groups had networks.
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
    /// Whole processors reserved for this task.
    pub reserved_cores: Vec<u16>,
}

/// Memory of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedMemory {
    /// Reserved MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// Maximum MiB; zero for the reserved amount.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
}

/// Devices of one kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocatedDevices {
    /// The manufacturer.
    pub vendor: String,
    /// For example `gpu`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The model.
    pub name: String,
    /// The devices' ids.
    #[serde(rename = "DeviceIDs")]
    pub device_ids: Vec<String>,
}

/// When a task runs relative to the main tasks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskLifecycle {
    /// `prestart`, `poststart` or `poststop`.
    pub hook: String,
    /// Runs beside the main tasks until they end.
    pub sidecar: bool,
}

/// Resources that tasks share.
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
    /// The port on the host.
    pub value: i64,
    /// The port within the network namespace; zero for the same one.
    pub to: i64,
    /// The host's address.
    #[serde(rename = "HostIP")]
    pub host_ip: String,
    /// Whether several allocations may have it (1.9 and later).
    pub ignore_collision: bool,
}
