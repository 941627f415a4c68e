//! The resources of an allocation in Nomad's form: processor, memory, disk, ports.
//!
//! In: an allocation's specification. Out: [`AllocatedResources`].
//!
//! Source of the names: Nomad's `nomad/structs/structs.go`.

use std_alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    alloc::{Allocation, AssignedPort, Ports},
    job::{self, Lifecycle, PortRequest, Task},
    nomad::dns::dns,
};

/// The resources of an allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedResources {
    pub tasks: BTreeMap<String, AllocatedTask>,
    pub task_lifecycles: BTreeMap<String, Option<TaskLifecycle>>,
    pub shared: AllocatedShared,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedTask {
    pub cpu: AllocatedCpu,
    pub memory: AllocatedMemory,
    pub networks: Option<Vec<Network>>,
    pub devices: Option<Vec<Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedCpu {
    pub cpu_shares: u64,
    pub reserved_cores: Option<Vec<u16>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedMemory {
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct TaskLifecycle {
    pub hook: String,
    pub sidecar: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedShared {
    pub networks: Option<Vec<Network>>,
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    pub ports: Option<Vec<PortMapping>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct Network {
    pub mode: String,
    pub device: String,
    #[serde(rename = "CIDR")]
    pub cidr: String,
    #[serde(rename = "IP")]
    pub ip: String,
    #[serde(rename = "DNS")]
    pub dns: Option<Value>,
    #[serde(rename = "MBits")]
    pub mbits: u64,
    pub reserved_ports: Option<Vec<Port>>,
    pub dynamic_ports: Option<Vec<Port>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct Port {
    pub label: String,
    pub value: u16,
    pub to: u16,
    pub host_network: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct PortMapping {
    pub label: String,
    pub value: u16,
    pub to: u16,
    #[serde(rename = "HostIP")]
    pub host_ip: String,
}

pub(super) fn resources(spec: &Allocation) -> AllocatedResources {
    let Some(group) = spec.group() else { return AllocatedResources::default() };
    let ports: Vec<_> = spec
        .ports
        .iter()
        .map(|(label, port)| PortMapping {
            label: label.clone(),
            value: port.value,
            to: port.to,
            host_ip: port.host_ip.clone(),
        })
        .collect();
    let network = group.network.as_ref().map(|network| Vec::from([network_of(&spec.ports, network)]));
    AllocatedResources {
        tasks: group.tasks.iter().map(|task| (task.name.clone(), task_resources(spec, task))).collect(),
        task_lifecycles: group
            .tasks
            .iter()
            .map(|task| (task.name.clone(), lifecycle(task.lifecycle)))
            .collect(),
        shared: AllocatedShared { networks: network, disk_mb: group.disk_mib, ports: non_empty(ports) },
    }
}

fn task_resources(spec: &Allocation, task: &Task) -> AllocatedTask {
    let allocated = spec.resources_of(task).allocated();
    let cores = spec.task_cores.get(&task.name).map(|assigned| assigned.cores.0.iter().copied().collect());
    AllocatedTask {
        cpu: AllocatedCpu { cpu_shares: allocated.cpu_mhz.unwrap_or_default(), reserved_cores: cores },
        memory: AllocatedMemory {
            memory_mb: allocated.memory_mib.unwrap_or_default(),
            memory_max_mb: allocated.memory_max_mb(),
        },
        networks: spec.task_ports.get(&task.name).map(|ports| Vec::from([ports_of(ports, &task.ports)])),
        devices: None,
    }
}

fn network_of(ports: &Ports, network: &job::Network) -> Network {
    let dns = Some(dns(&network.dns)).filter(|dns| !dns.is_null());
    let mut shown = Network { mode: network.mode.to_string(), dns, ..ports_of(ports, &network.ports) };
    for port in [&mut shown.reserved_ports, &mut shown.dynamic_ports].into_iter().flatten().flatten() {
        network.host_network(&port.label).clone_into(&mut port.host_network);
    }
    shown
}

/// The ports of a group or of a task, as a network in mode `host`; the requests distinguish static ports from dynamic ones.
fn ports_of(ports: &Ports, requests: &BTreeMap<String, PortRequest>) -> Network {
    let port = |(label, port): (&String, &AssignedPort)| Port {
        label: label.clone(),
        value: port.value,
        to: port.to,
        host_network: job::Network::DEFAULT_HOST_NETWORK.to_owned(),
    };
    let is_fixed = |port: &Port| requests.get(&port.label).is_some_and(|request| request.fixed.is_some());
    let (reserved, dynamic): (Vec<_>, Vec<_>) = ports.iter().map(port).partition(is_fixed);
    Network {
        mode: job::NetworkMode::Host.to_string(),
        ip: ports.values().next().map(|port| port.host_ip.clone()).unwrap_or_default(),
        reserved_ports: non_empty(reserved),
        dynamic_ports: non_empty(dynamic),
        ..Network::default()
    }
}

/// Nomad's hook for a lifecycle; `None` for main tasks.
pub(super) fn lifecycle(lifecycle: Lifecycle) -> Option<TaskLifecycle> {
    let hook = match lifecycle {
        Lifecycle::Main => return None,
        Lifecycle::Prestart | Lifecycle::PrestartSidecar => "prestart",
        Lifecycle::Poststart | Lifecycle::PoststartSidecar => "poststart",
        Lifecycle::Poststop => "poststop",
    };
    Some(TaskLifecycle { hook: hook.to_owned(), sidecar: lifecycle.is_sidecar() })
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}
