//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use herdlet_api_types::UnixNanos;
/// The current wall-clock time, which people may set; 0 before 1970.
#[must_use]
pub fn wall_now() -> UnixNanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// The kernel's id of this boot, as a number.
#[must_use]
pub fn boot_id() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&hex, 16).unwrap_or(0)
}
