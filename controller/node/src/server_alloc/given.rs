//! What servers have assigned to an allocation: ports, and resource limits of tasks. The limits may be lower than the job asks for: memory
//! oversubscription is granted only if the cluster allows it.

use std::collections::BTreeMap;

use herdlet_api_types::{
    alloc::{AssignedCores, AssignedPort, CoreSet, Ports},
    job::{Job, Resources},
};
use herdlet_nomad::wire::{
    assigned::{AllocatedResources, TaskResources},
    resources::NetworkResource,
};

/// Servers' value for unlimited memory.
const NO_BOUND: i64 = -1;

/// The group's ports by label. Up to 0.12 they are only in its networks.
pub(super) fn ports(given: &AllocatedResources) -> Ports {
    let of_group = given.shared.ports.iter().map(|port| {
        let given =
            AssignedPort { host_ip: port.host_ip.clone(), value: number(port.value), to: number(port.to) };
        (port.label.clone(), given)
    });
    of_networks(&given.shared.networks).chain(of_group).collect()
}

/// Ports of task networks, from jobs in the format before 0.12.
pub(super) fn task_ports(given: &AllocatedResources) -> BTreeMap<String, Ports> {
    let of_tasks = given
        .tasks
        .iter()
        .map(|(task, given)| (task.clone(), of_networks(&given.networks).collect::<Ports>()));
    of_tasks.filter(|(_, ports)| !ports.is_empty()).collect()
}

/// Cores of single tasks.
pub(super) fn task_cores(given: &AllocatedResources) -> BTreeMap<String, AssignedCores> {
    let of_task = |(task, given): (&String, &TaskResources)| {
        let cores = CoreSet(given.cpu.reserved_cores.iter().copied().collect());
        let cpu_mhz = u64::try_from(given.cpu.cpu_shares).unwrap_or_default();
        (!cores.is_empty()).then(|| (task.clone(), AssignedCores { cores, cpu_mhz }))
    };
    given.tasks.iter().filter_map(of_task).collect()
}

fn of_networks(networks: &[NetworkResource]) -> impl Iterator<Item = (String, AssignedPort)> {
    networks.iter().flat_map(|network| {
        let both = network.reserved_ports.iter().chain(&network.dynamic_ports);
        both.map(|port| {
            let given =
                AssignedPort { host_ip: network.ip.clone(), value: number(port.value), to: number(port.to) };
            (port.label.clone(), given)
        })
    })
}

fn number(value: i64) -> u16 {
    u16::try_from(value).unwrap_or_default()
}

/// Resource limits by task.
pub(super) type Limits = BTreeMap<String, Resources>;

pub(super) fn limits(given: &AllocatedResources) -> Limits {
    given.tasks.iter().map(|(task, given)| (task.clone(), limits_of(given))).collect()
}

fn limits_of(given: &TaskResources) -> Resources {
    let counted = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
    let memory_max_mib = match given.memory.memory_max_mb {
        NO_BOUND => Some(Resources::ALL_MEMORY),
        most => counted(most),
    };
    let memory_mib = counted(given.memory.memory_mb);
    Resources { cpu_mhz: counted(given.cpu.cpu_shares), memory_mib, memory_max_mib, ..Resources::default() }
}

/// Applies the limits to a job's tasks. Tasks without limits keep what they ask for.
pub(super) fn limited(mut job: Job, limits: &Limits) -> Job {
    for task in job.groups.iter_mut().flat_map(|group| &mut group.tasks) {
        if let Some(limits) = limits.get(&task.name) {
            // Servers add the size of `secrets` to the memory and its maximum (Nomad's `scheduler/feasible/rank.go`), and send it only in
            // the job. A task that wants no maximum has none, also if a release adds to 0.
            let Resources { cores, secrets_mib, .. } = task.resources;
            let without_secrets = |mib: u64| mib.saturating_sub(secrets_mib.unwrap_or_default());
            let wants_max = task.resources.memory_max_mib.is_some() || secrets_mib.is_none();
            let memory_max_mib = match limits.memory_max_mib {
                Some(Resources::ALL_MEMORY) => Some(Resources::ALL_MEMORY),
                given => given.filter(|_| wants_max).map(without_secrets),
            };
            task.resources = Resources {
                cpu_mhz: limits.cpu_mhz,
                cores,
                memory_mib: limits.memory_mib.map(without_secrets),
                memory_max_mib,
                secrets_mib,
            };
        }
    }
    job
}
