//! Writes a task's limits to the kernel.

use std::path::Path;

use herdlet_driver::limits::{CPU_SHARES, Controller, CpuQuota, Limits};

use super::{CgroupError, files};

/// Writes the limits of `controller` into a v2 cgroup.
pub(super) fn write_v2(limits: &Limits, controller: Controller, dir: &Path) -> Result<(), CgroupError> {
    match controller {
        Controller::Memory => {
            put(dir, "memory.max", limits.memory_bytes)?;
            put(dir, "memory.low", limits.memory_low_bytes)
        }
        Controller::Cpu => {
            put(dir, "cpu.weight", limits.cpu_shares.map(weight))?;
            match limits.cpu_quota {
                Some(CpuQuota { quota_us, period_us }) => {
                    files::write(&dir.join("cpu.max"), &format!("{quota_us} {period_us}"))
                }
                None => Ok(()),
            }
        }
        Controller::Pids => put(dir, "pids.max", limits.processes),
    }
}

/// Writes the limits of `controller` into a v1 cgroup.
pub(super) fn write_v1(limits: &Limits, controller: Controller, dir: &Path) -> Result<(), CgroupError> {
    match controller {
        Controller::Memory => {
            // A task that swaps escapes its limit. Not every kernel allows setting this.
            let _ = put(dir, "memory.swappiness", Some(0));
            put(dir, "memory.limit_in_bytes", limits.memory_bytes)?;
            put(dir, "memory.soft_limit_in_bytes", limits.memory_low_bytes)
        }
        Controller::Cpu => {
            put(dir, "cpu.shares", limits.cpu_shares)?;
            put(dir, "cpu.cfs_period_us", limits.cpu_quota.map(|quota| quota.period_us))?;
            put(dir, "cpu.cfs_quota_us", limits.cpu_quota.map(|quota| quota.quota_us))
        }
        Controller::Pids => put(dir, "pids.max", limits.processes),
    }
}
/// Converts v1 shares 2..262144 to v2 weight 1..10000, as the OCI runtimes and Nomad do.
fn weight(shares: u64) -> u64 {
    1 + (shares - CPU_SHARES.start()) * 9999 / (CPU_SHARES.end() - CPU_SHARES.start())
}

fn put(dir: &Path, file: &str, value: Option<u64>) -> Result<(), CgroupError> {
    match value {
        Some(value) => files::write(&dir.join(file), &value.to_string()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weights() {
        assert_eq!([2, 1024, 262_144].map(weight), [1, 39, 10_000]);
    }
}
