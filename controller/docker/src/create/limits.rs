//! Limits of a container: memory, processor, processes, `ulimit`.
//!
//! In: the task's resources and config. Out: fields of the request. Rules are Nomad's (`drivers/docker/driver.go`).

use bollard::models::{HostConfig, ResourcesUlimits};
use herdlet_api_types::job::Resources;
use herdlet_driver::limits::CPU_SHARES;

use super::Material;
use crate::config::FieldError;

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

pub(super) fn set(host: &mut HostConfig, material: &Material<'_>) -> Result<(), FieldError> {
    memory(host, material)?;
    processor(host, material)?;
    processes(host, material)?;
    host.ulimits = super::some(ulimits(material)?);
    Ok(())
}

/// Without `memory_max`, `memory` is the limit; with it, or with `memory_hard_limit`, the larger one is, and `memory` is reserved.
fn memory(
    host: &mut HostConfig,
    Material { task, config, about, .. }: &Material<'_>,
) -> Result<(), FieldError> {
    let bytes = |mib: u64| i64::try_from(mib).unwrap_or(i64::MAX).saturating_mul(MIB);
    let resources = &task.resources;
    let max = [resources.memory_max_mib, config.docker.memory_hard_limit].into_iter().flatten().max();
    let (limit, reserved) = match (resources.memory_mib, max) {
        (memory, None) => (memory, None),
        (memory, Some(Resources::ALL_MEMORY)) => (None, memory),
        (memory, Some(max)) => (memory.max(Some(max)), memory.filter(|memory| *memory <= max)),
    };
    host.memory = limit.map(bytes);
    host.memory_reservation = config.podman.memory_reservation_bytes.or(reserved.map(bytes));
    host.memory_swap = config.podman.memory_swap_bytes.or(host.memory);
    if let (Some(swap), Some(memory)) = (host.memory_swap, host.memory)
        && swap < memory
        && swap >= 0
    {
        return Err(FieldError::new("memory_swap", "must not be less than the memory limit"));
    }
    let is_v1 = about.cgroup_version == 1 && about.is_docker();
    host.memory_swappiness =
        config.podman.memory_swappiness.or((is_v1 && host.memory.is_some()).then_some(0));
    Ok(())
}

fn processor(host: &mut HostConfig, material: &Material<'_>) -> Result<(), FieldError> {
    let Material { task, config, compute, .. } = material;
    let shares = task.resources.cpu_mhz.map(|mhz| mhz.clamp(*CPU_SHARES.start(), *CPU_SHARES.end()));
    host.cpu_shares = shares.and_then(|shares| i64::try_from(shares).ok());
    let docker = &config.docker;
    if !docker.cpu_hard_limit {
        return Ok(());
    }
    let Some(mhz) = task.resources.cpu_mhz else {
        return Err(FieldError::new("cpu_hard_limit", "needs `resources.cpu`, the limit in MHz"));
    };
    if compute.mhz == 0 {
        return Err(FieldError::new(
            "cpu_hard_limit",
            "the clock rate of this machine is unknown; set `cpu_total_compute` in the agent's config",
        ));
    }
    let period = docker.cpu_cfs_period.filter(|period| *period > 0).map_or(PERIOD_US, i64::from);
    let whole = u128::from(mhz) * u128::try_from(period).unwrap_or_default() * u128::from(compute.cores);
    let quota = i64::try_from(whole / u128::from(compute.mhz)).unwrap_or(i64::MAX);
    host.cpu_period = Some(period);
    // The kernel's minimum is one millisecond.
    host.cpu_quota = Some(quota.max(1_000));
    Ok(())
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

fn ulimits(Material { config, .. }: &Material<'_>) -> Result<Vec<ResourcesUlimits>, FieldError> {
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
    config.docker.ulimit.0.iter().map(read).collect()
}
