//! The current time in the planner's form: both clocks, with the boot that they belong to.

use herdlet_api_types::UnixNanos;
use herdlet_base::clock::boot_id;
use herdlet_plan::time::{BootId, Now};
use herdlet_runtime::{self as runtime, BootClock, Clock};

/// The current time, by the machine's clocks.
pub fn now() -> Now {
    by(BootClock.now())
}

/// Attaches the current boot to a reading of the clocks.
pub fn by(now: runtime::Now) -> Now {
    Now { boot: BootId(boot_id()), boot_ns: now.boot_ns, wall: UnixNanos(now.wall_ns) }
}
