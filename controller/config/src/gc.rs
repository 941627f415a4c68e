//! Rules for collecting ended jobs and allocations.

use herdlet_api_types::Duration;

/// Rules for garbage collection, under Nomad's names. Nomad's thresholds for the disk, 80 and 70 %, would
/// remove the logs of newly ended allocations on any well-filled disk, so these defaults only apply to a
/// nearly full one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long an ended job is kept.
    pub job_gc_threshold: Duration,
    /// How many ended allocations keep their directories.
    pub gc_max_allocs: u32,
    /// Disk usage in percent above which directories of ended allocations are removed.
    pub gc_disk_usage_threshold: u8,
    /// Inode usage in percent above which they are removed.
    pub gc_inode_usage_threshold: u8,
    /// Interval between checks of the disk while there is something to collect.
    pub gc_interval: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            job_gc_threshold: Duration::from_secs(4 * 3_600),
            gc_max_allocs: 50,
            gc_disk_usage_threshold: 95,
            gc_inode_usage_threshold: 95,
            gc_interval: Duration::from_secs(60),
        }
    }
}
