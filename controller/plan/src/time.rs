//! Time in the planner: an argument, never a clock.

use herdlet_api_types::{Duration, Moment, UnixNanos};
use serde::{Deserialize, Serialize};

/// Identifies one boot of the machine: a hash of the kernel's `boot_id`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub u64);

/// The current time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The current boot.
    pub boot: BootId,
    /// `CLOCK_BOOTTIME` in nanoseconds: for deadlines.
    pub boot_ns: u64,
    /// Wall clock, for display.
    pub wall: UnixNanos,
}

impl Now {
    /// The current moment.
    pub fn moment(self) -> Moment {
        Moment { wall: self.wall, boot_ns: self.boot_ns }
    }

    /// Another moment of this boot, by the current clocks.
    pub fn moment_at(self, boot_ns: u64) -> Moment {
        let ahead = i64::try_from(i128::from(boot_ns) - i128::from(self.boot_ns)).unwrap_or(0);
        Moment { wall: UnixNanos(self.wall.0.saturating_add(ahead)), boot_ns }
    }
}

/// A point in the future that survives a restart of the agent and, by the wall clock, a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// The boot that `boot_ns` belongs to.
    pub boot: BootId,
    /// When, by `CLOCK_BOOTTIME`.
    pub boot_ns: u64,
    /// When, by the wall clock.
    pub wall: UnixNanos,
    /// Original length of the wait; the remainder after a reboot is never longer.
    pub length: Duration,
}

impl Deadline {
    /// `length` from now; a negative length counts as zero.
    pub fn after(now: Now, length: Duration) -> Self {
        let nanos = length.as_nanos().max(0);
        Self {
            boot: now.boot,
            boot_ns: now.boot_ns.saturating_add(nanos.unsigned_abs()),
            wall: UnixNanos(now.wall.0.saturating_add(nanos)),
            length: Duration(nanos),
        }
    }

    /// The deadline, extended by this much.
    #[must_use]
    pub fn extended(&self, by: Duration) -> Self {
        let nanos = by.as_nanos().max(0);
        Self {
            boot: self.boot,
            boot_ns: self.boot_ns.saturating_add(nanos.unsigned_abs()),
            wall: UnixNanos(self.wall.0.saturating_add(nanos)),
            length: Duration(self.length.as_nanos().saturating_add(nanos)),
        }
    }

    /// When it is due by this boot's `CLOCK_BOOTTIME`. After a reboot: `clamp(wall deadline − wall, 0, length)` from
    /// now.
    pub fn due_ns(&self, now: Now) -> u64 {
        if self.boot == now.boot {
            self.boot_ns
        } else {
            now.boot_ns.saturating_add(self.remaining(now).as_nanos().unsigned_abs())
        }
    }

    /// Whether it has passed.
    pub fn is_due(&self, now: Now) -> bool {
        self.due_ns(now) <= now.boot_ns
    }

    /// The remaining time, never negative.
    pub fn remaining(&self, now: Now) -> Duration {
        let left = if self.boot == now.boot {
            i64::try_from(self.boot_ns.saturating_sub(now.boot_ns)).unwrap_or(i64::MAX)
        } else {
            self.wall.0.saturating_sub(now.wall.0)
        };
        Duration(left.clamp(0, self.length.as_nanos()))
    }

    /// The same deadline bound to this boot. Done once when state is restored, so that a deadline of an earlier boot
    /// does not move with the present.
    pub fn rebased(&self, now: Now) -> Self {
        Self { boot: now.boot, boot_ns: self.due_ns(now), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::at;

    /// The wall clock counts only after a reboot.
    #[test]
    fn remaining_time_uses_the_wall_clock_after_a_reboot() {
        let deadline = Deadline::after(at(100), Duration::from_secs(10));
        let now_at = |boot_s: u64, wall_s: u64| Now { wall: at(wall_s).wall, ..at(boot_s) };
        let rebooted = |boot_s, wall_s| Now { boot: BootId(2), ..now_at(boot_s, wall_s) };
        for (name, now, left) in [
            ("four seconds later", now_at(104, 104), 6),
            ("the wall clock was set forward", now_at(104, 9_000), 6),
            ("and back", now_at(104, 3), 6),
            ("it is over", now_at(111, 111), 0),
            ("four seconds later, after a reboot", rebooted(1, 104), 6),
            ("an hour after a reboot, none has passed by the wall clock", rebooted(3_600, 100), 10),
            ("the wall clock was set back: never more than all of it", rebooted(1, 3), 10),
            ("it was over before the reboot ended", rebooted(1, 9_000), 0),
        ] {
            assert_eq!(deadline.remaining(now), Duration::from_secs(left), "{name}");
            let due = now.boot_ns + left as u64 * 1_000_000_000;
            assert_eq!(deadline.due_ns(now).max(now.boot_ns), due, "{name}");
            assert_eq!(deadline.is_due(now), left == 0, "{name}");
            let bound = deadline.rebased(now);
            assert_eq!((bound.boot, bound.remaining(now)), (now.boot, deadline.remaining(now)), "{name}");
        }
    }
}
