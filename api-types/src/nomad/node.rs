//! This machine as a node, as in `GET /v1/node/ID` and `GET /v1/nodes`.

use std_alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use serde_json::{Map, Value, json};

use crate::{
    UnixNanos,
    rfc3339::rfc3339,
    view::{DrainView, LastDrain, NodeView, VolumeView},
    volume::{VolumeKind, VolumeStatus},
};

use super::{legacy::Amounts, map};

/// Information about this machine.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Node id.
    pub id: String,
    /// Node name.
    pub name: String,
    /// Datacenter.
    pub datacenter: String,
    /// Node class; may be empty.
    pub class: String,
    /// Node pool; empty for `default`.
    pub pool: String,
    /// The agent's version.
    pub version: String,
    /// Fingerprint attributes by name.
    pub attributes: BTreeMap<String, String>,
    /// The node's own meta.
    pub meta: BTreeMap<String, String>,
    /// Task drivers by name.
    pub drivers: Vec<String>,
    /// Volumes of the machine.
    pub volumes: Vec<Arc<VolumeView>>,
    /// `ready`, or the status of a cluster's node with its servers.
    pub status: &'static str,
    /// `eligible` for new work, or `ineligible`.
    pub eligibility: &'static str,
    /// Its drain, and the last one.
    pub scheduling: Arc<NodeView>,
    /// Why it can't work; `None` if it can.
    pub problem: Option<String>,
    /// The start time of the agent.
    pub started_at: UnixNanos,
    /// The range of dynamic ports.
    pub dynamic_ports: (u16, u16),
    /// Ports that no allocation gets, in Nomad's notation.
    pub reserved_ports: String,
    /// CPU, memory and disk.
    pub capacity: Capacity,
}

/// The machine's capacity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// The number of cores that this process may use.
    pub cores: u64,
    /// Their total compute capacity in MHz.
    pub cpu_mhz: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Disk space for allocations in MiB.
    pub disk_mib: u64,
    /// The reserved part of the three amounts.
    pub reserved: [u64; 3],
}

/// Nomad's representation of an unset time.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// Converts a node.
pub fn node(machine: &Machine) -> Value {
    let mut shown = common(machine);
    shown.extend(object(json!({
        "SecretID": "", "CgroupParent": "", "HTTPAddr": "", "TLSEnabled": false,
        "Attributes": map(&machine.attributes), "Resources": total(machine).to_json(),
        "Reserved": set_aside(machine).to_json(), "Links": null,
        "Meta": map(&machine.meta), "ComputedClass": "",
        "DrainStrategy": machine.scheduling.drain.as_ref().map(drain_strategy),
        "StatusUpdatedAt": machine.started_at.0 / 1_000_000_000, "Events": null,
        "CSIControllerPlugins": null, "CSINodePlugins": null, "HostNetworks": null, "GCVolumesOnNodeGC": false,
        "NodeMaxAllocs": 0, "IdentitySigningKeyID": "", "LastMissedHeartbeatIndex": 0, "LastAllocUpdateIndex": 0,
        "NodeResources": resources(machine), "ReservedResources": reserved(machine),
    })));
    Value::Object(shown)
}

/// A node in Nomad's list; `os` and `resources` are parameters of the query.
pub fn node_stub(machine: &Machine, os: Inclusion, with_resources: Inclusion) -> Value {
    let mut shown = common(machine);
    let attributes = match os {
        Inclusion::Yes => {
            let name = machine.attributes.get("os.name").cloned().unwrap_or_default();
            json!({ "os.name": name })
        }
        Inclusion::No => Value::Null,
    };
    let (resources, reserved) = match with_resources {
        Inclusion::Yes => (resources(machine), reserved(machine)),
        Inclusion::No => (Value::Null, Value::Null),
    };
    shown.extend(object(json!({
        "Address": "127.0.0.1", "Attributes": attributes, "Version": machine.version,
        "NodeResources": resources, "ReservedResources": reserved,
    })));
    Value::Object(shown)
}

/// Whether to include a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inclusion {
    /// Include it.
    Yes,
    /// Leave it out.
    No,
}

fn common(machine: &Machine) -> Map<String, Value> {
    let drivers: Map<String, Value> =
        machine.drivers.iter().map(|name| (name.clone(), driver(machine, name))).collect();
    let volumes: Map<String, Value> = machine
        .volumes
        .iter()
        .filter_map(|view| {
            let path = match (&view.spec.kind, &view.status) {
                (VolumeKind::HostPath { path }, _)
                | (VolumeKind::Mkdir { .. }, VolumeStatus::Ready { path }) => path,
                (VolumeKind::Mkdir { .. }, VolumeStatus::Pending | VolumeStatus::Failed { .. }) => {
                    return None;
                }
            };
            let name = &view.spec.name;
            Some((
                name.clone(),
                json!({ "Name": name, "Path": path, "ReadOnly": view.spec.read_only, "ID": "" }),
            ))
        })
        .collect();
    let pool = if machine.pool.is_empty() { "default" } else { &machine.pool };
    // Existing tasks are kept whatever the problem; the description reports it.
    object(json!({
        "ID": machine.id, "Datacenter": machine.datacenter, "Name": machine.name, "NodePool": pool,
        "NodeClass": machine.class, "Drain": machine.scheduling.drain.is_some(), "SchedulingEligibility": machine.eligibility, "Status": machine.status,
        "StatusDescription": machine.problem.clone().unwrap_or_default(), "Drivers": drivers,
        "HostVolumes": if volumes.is_empty() { Value::Null } else { Value::Object(volumes) },
        "LastDrain": machine.scheduling.last_drain.as_ref().map(last_drain), "CreateIndex": 1,
        "ModifyIndex": machine.scheduling.modify_index.max(1),
    }))
}

fn drain_strategy(drain: &DrainView) -> Value {
    json!({
        "Deadline": drain.deadline, "IgnoreSystemJobs": drain.ignore_system,
        "ForceDeadline": drain.force_at.and_then(rfc3339).unwrap_or_else(|| String::from(NO_TIME)),
        "StartedAt": rfc3339(drain.started_at),
    })
}

fn last_drain(last: &LastDrain) -> Value {
    json!({
        "StartedAt": rfc3339(last.started_at), "UpdatedAt": rfc3339(last.updated_at), "Status": last.status.as_str(),
        "AccessorID": "", "Meta": map(&last.meta),
    })
}

fn driver(machine: &Machine, name: &str) -> Value {
    let prefix = format!("driver.{name}");
    let own = |(key, _): &(&String, &String)| **key == prefix || key.starts_with(&format!("{prefix}."));
    let attributes: BTreeMap<String, String> = machine
        .attributes
        .iter()
        .filter(own)
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    json!({
        "Attributes": map(&attributes), "Detected": true, "Healthy": true, "HealthDescription": "Healthy",
        "UpdateTime": rfc3339(machine.started_at),
    })
}

fn total(machine: &Machine) -> Amounts {
    let Capacity { cpu_mhz, memory_mib, disk_mib, .. } = machine.capacity;
    Amounts { cpu_mhz, memory_mib, disk_mib, ..Amounts::default() }
}

fn set_aside(machine: &Machine) -> Amounts {
    let [cpu_mhz, memory_mib, disk_mib] = machine.capacity.reserved;
    Amounts { cpu_mhz, memory_mib, disk_mib, ..Amounts::default() }
}

fn resources(machine: &Machine) -> Value {
    let Capacity { cores, cpu_mhz, memory_mib, disk_mib, .. } = machine.capacity;
    let (first, last) = machine.dynamic_ports;
    json!({
        "Cpu": { "CpuShares": cpu_mhz, "TotalCpuCores": cores, "ReservableCpuCores": null },
        "Processors": null, "Memory": { "MemoryMB": memory_mib }, "Disk": { "DiskMB": disk_mib },
        "Devices": null, "NodeNetworks": null, "Networks": null, "MinDynamicPort": first, "MaxDynamicPort": last,
    })
}

/// The reserved resources.
fn reserved(machine: &Machine) -> Value {
    let [cpu, memory, disk] = machine.capacity.reserved;
    json!({
        "Cpu": { "CpuShares": cpu, "ReservedCpuCores": null }, "Memory": { "MemoryMB": memory },
        "Disk": { "DiskMB": disk }, "Networks": { "ReservedHostPorts": machine.reserved_ports },
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}
