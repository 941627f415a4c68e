//! The wall clock of a life, which somebody may set back and forth.
//!
//! In: jumps and restarts of the machine. Out: what the clock shows, and how much time has truly passed since it showed
//! something. The agent sees only the former.

use herdlet_api_types::UnixNanos;

/// What the clock shows when a life begins, a second after the machine's start.
const BEGINNING: i64 = 1_700_000_000_000_000_000;

/// A wall clock.
#[derive(Debug)]
pub struct Clock {
    /// What the machine's boot is later than its first one.
    booted: i64,
    /// What the clock is ahead of the truth, since when.
    stretches: Vec<Stretch>,
    /// The machine has restarted: since then deadlines of its earlier boots are known by the clock alone.
    rebooted: bool,
}

#[derive(Debug, Clone, Copy)]
struct Stretch {
    from: i64,
    ahead: i64,
}

impl Clock {
    /// A clock that is right.
    pub fn new() -> Self {
        Self { booted: 0, stretches: vec![Stretch { from: i64::MIN, ahead: 0 }], rebooted: false }
    }

    /// What it shows so long after the boot.
    pub fn wall(&self, boot_ns: u64) -> UnixNanos {
        UnixNanos(BEGINNING + self.age(boot_ns) + self.ahead())
    }

    /// Somebody sets it.
    pub fn jump(&mut self, boot_ns: u64, by: i64) {
        self.stretches.push(Stretch { from: self.age(boot_ns), ahead: self.ahead() + by });
    }

    /// The machine restarts, so long after its last boot, and is off for so long.
    pub fn reboot(&mut self, boot_ns: u64, off_ns: u64) {
        self.booted = self.age(boot_ns + off_ns);
        self.rebooted = true;
    }

    /// How much time has passed at most since the clock showed this; none where an agent that does all it can may be wrong too.
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
