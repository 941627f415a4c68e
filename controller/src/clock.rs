//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use herdlet_api_types::UnixNanos;

/// The present by the wall clock, which people may set; 0 before 1970.
#[must_use]
pub fn wall_now() -> UnixNanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
