//! Resources in their form before Nomad 0.9. Command lines of all releases still compute with them: a null value ends them.

use std_alloc::{collections::BTreeMap, string::String};

use serde_json::{Value, json};

use super::{AllocatedResources, AllocatedTask, Network, to_value};

/// Amounts of resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub cpu_mhz: u64,
    pub cores: usize,
    pub memory_mib: u64,
    pub disk_mib: u64,
}

impl Amounts {
    pub(super) fn to_json(self) -> Value {
        shown(self, 0, None)
    }
}

fn shown(amounts: Amounts, memory_max_mib: i64, networks: Option<&[Network]>) -> Value {
    json!({
        "CPU": amounts.cpu_mhz, "Cores": amounts.cores, "MemoryMB": amounts.memory_mib, "MemoryMaxMB": memory_max_mib,
        "DiskMB": amounts.disk_mib, "IOPS": 0, "Networks": networks.map(|networks| to_value(&networks)), "Devices": null,
        "NUMA": null, "SecretsMB": null,
    })
}

fn of_task(task: &AllocatedTask) -> Value {
    let amounts = Amounts {
        cpu_mhz: task.cpu.cpu_shares,
        cores: reserved_cores(task),
        memory_mib: task.memory.memory_mb,
        disk_mib: 0,
    };
    shown(amounts, task.memory.memory_max_mb, task.networks.as_deref())
}

fn reserved_cores(task: &AllocatedTask) -> usize {
    task.cpu.reserved_cores.as_ref().map_or(0, std_alloc::vec::Vec::len)
}

/// `Resources`, `SharedResources` and `TaskResources` of an allocation.
pub(super) fn of_alloc(resources: &AllocatedResources) -> [Value; 3] {
    let sum = |get: fn(&AllocatedTask) -> u64| resources.tasks.values().map(get).sum();
    let disk_mib = resources.shared.disk_mb;
    let all = Amounts {
        cpu_mhz: sum(|task| task.cpu.cpu_shares),
        cores: resources.tasks.values().map(reserved_cores).sum(),
        memory_mib: sum(|task| task.memory.memory_mb),
        disk_mib,
    };
    let networks = resources.shared.networks.as_deref();
    let tasks: BTreeMap<&String, Value> =
        resources.tasks.iter().map(|(name, task)| (name, of_task(task))).collect();
    [
        shown(all, 0, networks),
        shown(Amounts { disk_mib, ..Amounts::default() }, 0, networks),
        to_value(&tasks),
    ]
}
