//! Limits of a container: memory, processor, processes, `ulimit`.
//!
//! In: the task's resources and config. Out: fields of the request. Rules are Nomad's (`drivers/docker/driver.go`).

use bollard::models::{HostConfig, ResourcesUlimits};
use herdlet_api_types::job::Resources;
use herdlet_driver::limits::CPU_SHARES;

use super::Material;
use crate::config::{ContainerConfig, FieldError};

const MIB: i64 = 1024 * 1024;
/// The kernel's default period in microseconds.
const PERIOD_US: i64 = 100_000;

/// What this machine computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Compute {
    /// Of all cores, in MHz.
    pub(crate) mhz: u64,
    pub(crate) cores: u64,
}

impl Compute {
    /// The shares of a task that reserves this many MHz. On a machine with more MHz than the kernel has shares, all are scaled down, as
    /// in Nomad from 1.10.2 on: otherwise the largest tasks would be equal.
    fn shares(self, mhz: u64) -> u64 {
        let most = *CPU_SHARES.end();
        let scaled = match self.mhz < most {
            true => mhz,
            false => {
                let share = u128::from(mhz) * u128::from(most) / u128::from(self.mhz);
                u64::try_from(share).unwrap_or(most)
            }
        };
        scaled.clamp(*CPU_SHARES.start(), most)
    }
}

/// Limits of the memory, in bytes.
struct MemoryLimits {
    limit: Option<i64>,
    reserved: Option<i64>,
    swap: Option<i64>,
}

pub(super) fn set(host: &mut HostConfig, material: &Material<'_>) -> Result<(), FieldError> {
    memory(host, material)?;
    processor(host, material)?;
    processes(host, material)?;
    host.ulimits = super::some(ulimits(material.config).collect::<Result<_, _>>()?);
    Ok(())
}

/// What is wrong on every machine.
pub(super) fn refusals(config: &ContainerConfig, resources: &Resources) -> Vec<FieldError> {
    let found = ulimits(config).filter_map(Result::err);
    found.chain(memory_limits(config, resources).err()).chain(hard_limit(config, resources).err()).collect()
}

/// Without `memory_max`, `memory` is the limit; with it, or with `memory_hard_limit`, the larger one is, and `memory` is reserved.
fn memory_limits(config: &ContainerConfig, resources: &Resources) -> Result<MemoryLimits, FieldError> {
    let bytes = |mib: u64| i64::try_from(mib).unwrap_or(i64::MAX).saturating_mul(MIB);
    let resources = resources.allocated();
    let max = [resources.memory_max_mib, config.docker.memory_hard_limit].into_iter().flatten().max();
    let (limit, reserved) = match (resources.memory_mib, max) {
        (memory, None) => (memory, None),
        (memory, Some(Resources::ALL_MEMORY)) => (None, memory),
        (memory, Some(max)) => (memory.max(Some(max)), memory.filter(|memory| *memory <= max)),
    };
    let limit = limit.map(bytes);
    let reserved = config.podman.memory_reservation_bytes.or(reserved.map(bytes));
    let swap = config.podman.memory_swap_bytes.or(limit);
    if let (Some(swap), Some(memory)) = (swap, limit)
        && swap < memory
        && swap >= 0
    {
        return Err(FieldError::new("memory_swap", "must not be less than the memory limit"));
    }
    Ok(MemoryLimits { limit, reserved, swap })
}

fn memory(
    host: &mut HostConfig,
    Material { task, config, about, .. }: &Material<'_>,
) -> Result<(), FieldError> {
    let limits = memory_limits(config, &task.resources)?;
    (host.memory, host.memory_reservation, host.memory_swap) = (limits.limit, limits.reserved, limits.swap);
    let is_v1 = about.cgroup_version == 1 && about.is_docker();
    host.memory_swappiness =
        config.podman.memory_swappiness.or((is_v1 && host.memory.is_some()).then_some(0));
    Ok(())
}

fn processor(host: &mut HostConfig, material: &Material<'_>) -> Result<(), FieldError> {
    let Material { task, config, compute, .. } = material;
    let shares = task.resources.cpu_mhz.map(|mhz| compute.shares(mhz));
    host.cpu_shares = shares.and_then(|shares| i64::try_from(shares).ok());
    host.cpuset_cpus = Some(task.cores.to_string()).filter(|cores| !cores.is_empty());
    let Some(mhz) = hard_limit(config, &task.resources)? else { return Ok(()) };
    if compute.mhz == 0 {
        return Err(FieldError::new(
            "cpu_hard_limit",
            "the clock rate of this machine is unknown; set `cpu_total_compute` in the agent's config",
        ));
    }
    let period = config.docker.cpu_cfs_period.filter(|period| *period > 0).map_or(PERIOD_US, i64::from);
    let whole = u128::from(mhz) * u128::try_from(period).unwrap_or_default() * u128::from(compute.cores);
    let quota = i64::try_from(whole / u128::from(compute.mhz)).unwrap_or(i64::MAX);
    host.cpu_period = Some(period);
    // The kernel's minimum is one millisecond.
    host.cpu_quota = Some(quota.max(1_000));
    Ok(())
}

/// The hard limit of the processor in MHz, if the task asks for one.
fn hard_limit(config: &ContainerConfig, resources: &Resources) -> Result<Option<u64>, FieldError> {
    if !config.docker.cpu_hard_limit {
        return Ok(None);
    }
    match (resources.cpu_mhz, resources.cores) {
        (Some(mhz), _) => Ok(Some(mhz)),
        // The cores are the limit.
        (None, Some(_)) => Ok(None),
        (None, None) => Err(FieldError::new("cpu_hard_limit", "needs `resources.cpu`, the limit in MHz")),
    }
}

fn processes(
    host: &mut HostConfig,
    Material { config, policy, .. }: &Material<'_>,
) -> Result<(), FieldError> {
    let own = config.docker.pids_limit.filter(|limit| *limit > 0);
    if let (Some(own), Some(most)) = (own, policy.pids_limit)
        && own > most
    {
        return Err(FieldError::new(
            "pids_limit",
            format!("pids_limit cannot be greater than nomad plugin config pids_limit: {most}"),
        ));
    }
    host.pids_limit = own.or(policy.pids_limit);
    Ok(())
}

fn ulimits(config: &ContainerConfig) -> impl Iterator<Item = Result<ResourcesUlimits, FieldError>> {
    let read = |(name, text): (&String, &String)| {
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| {
            text.trim().parse::<i64>().map_err(|_| {
                FieldError::new(
                    format!("ulimit.{name}"),
                    format!("expected SOFT[:HARD] in whole numbers, found {text:?}"),
                )
            })
        };
        Ok(ResourcesUlimits {
            name: Some(name.clone()),
            soft: Some(number(soft)?),
            hard: Some(number(hard)?),
        })
    };
    config.docker.ulimit.0.iter().map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `cpuResources` in Nomad's `drivers/docker/driver.go`.
    #[test]
    fn shares_are_scaled_on_large_machines() {
        let shares = |mhz, task| Compute { mhz, cores: 1 }.shares(task);
        assert_eq!(shares(0, 500), 500, "an unknown machine");
        assert_eq!((shares(100_000, 90_000), shares(100_000, 1)), (90_000, 2));
        assert_eq!((shares(300_000, 300_000), shares(300_000, 150_000)), (262_144, 131_072));
        assert_eq!((shares(600_000, 1_000), shares(600_000, 1)), (436, 2));
    }
}
