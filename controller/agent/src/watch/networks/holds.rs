//! Repairs that another program undoes at once are not repeated without end: each further one waits longer.
//!
//! In: what was found damaged or could not be inspected, and when. Out: when it may be inspected again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::super::drift::INSPECTION_PERIOD;

/// The wait after the first repair or failure. A few follow each other within two seconds.
const FIRST: Duration = Duration::from_millis(250);

/// What was sound for this many times its last wait has no longer wait.
const CALM: u32 = 4;

#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Instant,
    wait: Duration,
}

/// The waits, by subject.
#[derive(Debug)]
pub(super) struct Holds<S>(BTreeMap<S, Hold>);

impl<S> Default for Holds<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Ord + Copy> Holds<S> {
    /// Until when the subject must not be inspected because of a report; `None` if it may be now.
    pub(super) fn until(&self, subject: &S, now: Instant) -> Option<Instant> {
        self.0.get(subject).map(|hold| hold.until).filter(|until| *until > now)
    }

    /// It was damaged and is repaired now, or could not be inspected.
    pub(super) fn extend(&mut self, subject: S, now: Instant) {
        self.0.retain(|_, hold| hold.until + hold.wait.saturating_mul(CALM) > now);
        let wait = self.0.get(&subject).map_or(FIRST, |hold| hold.wait.saturating_mul(2));
        let wait = wait.min(INSPECTION_PERIOD);
        self.0.insert(subject, Hold { until: now + wait, wait });
    }

    pub(super) fn forget(&mut self, subject: &S) {
        self.0.remove(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_without_end_is_repaired_ever_less_often() {
        let mut holds = Holds::default();
        let begun = Instant::now();
        let mut now = begun;
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert_eq!(holds.until(&"a", now), None);
            assert_eq!(holds.until(&"b", now), None, "another one");
            holds.extend("a", now);
            let until = holds.until(&"a", now).unwrap();
            waits.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        now += INSPECTION_PERIOD * CALM;
        holds.extend("a", now);
        assert_eq!(holds.until(&"a", now), Some(now + FIRST), "it was sound for a while");
        holds.forget(&"a");
        assert_eq!(holds.until(&"a", now), None);
    }
}
