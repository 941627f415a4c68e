//! A task's limits as the kernel takes them.

use std::path::Path;

use herdlet_api_types::job::Resources;

use super::{CgroupError, Controller, files};

const MIB: u64 = 1024 * 1024;
/// What the kernel accepts as v1 `cpu.shares`.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

/// Limits of one attempt. Nothing written means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Beyond this many bytes the task is killed.
    pub memory_bytes: Option<u64>,
    /// Up to this many bytes its memory is the last to be reclaimed.
    pub memory_low_bytes: Option<u64>,
    /// Share of processor time, in v1 units (1024 is the kernel's default).
    pub cpu_shares: Option<u64>,
    /// At this many processes and threads no further one begins.
    pub processes: Option<u64>,
}

impl Limits {
    /// Nomad's reading of a task's resources: `memory_max` is the limit and `memory` the reservation; without `memory_max`,
    /// `memory` is the limit. MHz are shares.
    pub fn of(resources: &Resources) -> Self {
        let bytes = |mib: u64| mib.saturating_mul(MIB);
        let limit =
            resources.memory_mib.max(resources.memory_max_mib).filter(|most| *most != Resources::ALL_MEMORY);
        let low = resources.memory_max_mib.and(resources.memory_mib);
        Self {
            memory_bytes: limit.map(bytes),
            memory_low_bytes: low.map(bytes),
            cpu_shares: resources.cpu_mhz.map(|mhz| mhz.clamp(*SHARES.start(), *SHARES.end())),
            processes: None,
        }
    }

    /// Whether this controller has anything to do.
    pub(super) fn needs(&self, controller: Controller) -> bool {
        match controller {
            Controller::Memory => self.memory_bytes.is_some() || self.memory_low_bytes.is_some(),
            Controller::Cpu => self.cpu_shares.is_some(),
            Controller::Pids => self.processes.is_some(),
        }
    }

    /// Writes what concerns `controller` into a v2 cgroup.
    pub(super) fn write_v2(&self, controller: Controller, dir: &Path) -> Result<(), CgroupError> {
        match controller {
            Controller::Memory => {
                put(dir, "memory.max", self.memory_bytes)?;
                put(dir, "memory.low", self.memory_low_bytes)
            }
            Controller::Cpu => put(dir, "cpu.weight", self.cpu_shares.map(weight)),
            Controller::Pids => put(dir, "pids.max", self.processes),
        }
    }

    /// Writes what concerns `controller` into a v1 cgroup.
    pub(super) fn write_v1(&self, controller: Controller, dir: &Path) -> Result<(), CgroupError> {
        match controller {
            Controller::Memory => {
                // A task that swaps escapes its limit. Not every kernel lets this be set.
                let _ = put(dir, "memory.swappiness", Some(0));
                put(dir, "memory.limit_in_bytes", self.memory_bytes)?;
                put(dir, "memory.soft_limit_in_bytes", self.memory_low_bytes)
            }
            Controller::Cpu => put(dir, "cpu.shares", self.cpu_shares),
            Controller::Pids => put(dir, "pids.max", self.processes),
        }
    }
}

/// v1 shares 2..262144 as v2 weight 1..10000, as the OCI runtimes and Nomad do it.
fn weight(shares: u64) -> u64 {
    1 + (shares - SHARES.start()) * 9999 / (SHARES.end() - SHARES.start())
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
    fn nothing_written_means_no_limit() {
        assert_eq!(Limits::of(&Resources::default()), Limits::default());
    }

    #[test]
    fn memory_max_is_the_limit_and_memory_the_reservation() {
        let of = |memory_mib, memory_max_mib| {
            let limits = Limits::of(&Resources { memory_mib, memory_max_mib, ..Resources::default() });
            (limits.memory_bytes.map(|b| b / MIB), limits.memory_low_bytes.map(|b| b / MIB))
        };
        assert_eq!(of(Some(64), None), (Some(64), None));
        assert_eq!(of(Some(64), Some(256)), (Some(256), Some(64)));
        assert_eq!(of(Some(64), Some(32)), (Some(64), Some(64)));
        assert_eq!(of(None, Some(32)), (Some(32), None));
        assert_eq!(of(Some(64), Some(Resources::ALL_MEMORY)), (None, Some(64)));
        assert_eq!(of(Some(u64::MAX - 1), None).0, Some(u64::MAX / MIB));
    }

    #[test]
    fn shares_become_weights() {
        assert_eq!([2, 1024, 262_144].map(weight), [1, 39, 10_000]);
        let shares = |mhz| Limits::of(&Resources { cpu_mhz: Some(mhz), ..Resources::default() }).cpu_shares;
        assert_eq!([0, 100, u64::MAX].map(shares), [Some(2), Some(100), Some(262_144)]);
    }
}
