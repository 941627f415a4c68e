//! When what has ended is collected.

use herdlet_api_types::Duration;

/// When what has ended is collected, under Nomad's names. Its defaults for the disk, 80 and 70 %, would take the logs of all that has just
/// ended from whoever has a disk that is well used; when it is nearly full, they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// So long a job stays that is over.
    pub job_gc_threshold: Duration,
    /// So many allocations that have ended keep their directories.
    pub gc_max_allocs: u32,
    /// Above so many percent of the disk, directories go.
    pub gc_disk_usage_threshold: u8,
    /// Above so many percent of its inodes, too.
    pub gc_inode_usage_threshold: u8,
    /// So often the disk is looked at while there is something to collect.
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
