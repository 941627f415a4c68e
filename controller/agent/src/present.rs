//! The present, as the planner wants it: by the machine's clocks, with the boot that they belong to.

use herdlet_api_types::UnixNanos;
use herdlet_base::clock::boot_id;
use herdlet_plan::time::{BootId, Now};
use herdlet_runtime::{self as runtime, BootClock, Clock};

/// The present, by the machine's clocks.
pub fn now() -> Now {
    by(BootClock.now())
}

/// A reading of the clocks in this boot.
pub fn by(now: runtime::Now) -> Now {
    Now { boot: BootId(boot_id()), boot_ns: now.boot_ns, wall: UnixNanos(now.wall_ns) }
}
