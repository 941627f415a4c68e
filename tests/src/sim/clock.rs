//! The wall clock of a simulated machine, which can be set forward and back.
//!
//! In: changes of the clock, restarts of the machine. Out: the displayed time, and the true time since a displayed time. The
//! agent sees only the former.

use herdlet_api_types::UnixNanos;

pub(super) const SECOND: u64 = 1_000_000_000;

/// The displayed time when a simulation starts, one second after the machine's boot.
const BEGINNING: i64 = 1_700_000_000_000_000_000;

/// A wall clock.
#[derive(Debug)]
pub struct Clock {
    /// The time from the machine's first boot to its current one.
    booted: i64,
    /// Periods with a constant offset from the true time.
    stretches: Vec<Stretch>,
    /// Whether the machine has restarted: deadlines of earlier boots can then be converted by the wall clock only.
    rebooted: bool,
}

#[derive(Debug, Clone, Copy)]
struct Stretch {
    from: i64,
    ahead: i64,
}

impl Clock {
    /// A clock without offset.
    pub fn new() -> Self {
        Self { booted: 0, stretches: vec![Stretch { from: i64::MIN, ahead: 0 }], rebooted: false }
    }

    /// The displayed time at this time since the boot.
    pub fn wall(&self, boot_ns: u64) -> UnixNanos {
        UnixNanos(BEGINNING + self.age(boot_ns) + self.ahead())
    }

    /// Changes the clock.
    pub fn jump(&mut self, boot_ns: u64, by: i64) {
        self.stretches.push(Stretch { from: self.age(boot_ns), ahead: self.ahead() + by });
    }

    /// Restarts the machine at this time since its last boot, after it was off for `off_ns`.
    pub fn reboot(&mut self, boot_ns: u64, off_ns: u64) {
        self.booted = self.age(boot_ns + off_ns);
        self.rebooted = true;
    }

    /// The longest time that may have passed since the clock displayed `shown`; none if even a correct agent may be wrong.
    pub fn since(&self, shown: UnixNanos, boot_ns: u64) -> Option<i64> {
        if self.rebooted && self.stretches.len() > 1 {
            return None;
        }
        let now = self.age(boot_ns);
        let until = self.stretches.iter().skip(1).map(|next| next.from).chain([i64::MAX]);
        let shown_in = |(stretch, until): (&Stretch, i64)| {
            let age = shown.0 - BEGINNING - stretch.ahead;
            (stretch.from <= age && age <= until).then_some(now - age)
        };
        self.stretches.iter().zip(until).filter_map(shown_in).max()
    }

    fn age(&self, boot_ns: u64) -> i64 {
        self.booted + boot_ns as i64
    }

    fn ahead(&self) -> i64 {
        self.stretches.last().map_or(0, |stretch| stretch.ahead)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
