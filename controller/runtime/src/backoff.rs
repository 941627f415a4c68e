//! Growing delays between retries: a pure function of the attempt number and a seed, and a map of consecutive
//! failures by key.
//!
//! In: how many times in a row something failed. Out: how long to wait. It reads no clock and draws no random number:
//! the jitter is a hash, so a replayed run waits for the same times.

use std::collections::BTreeMap;
use std::time::Duration;

/// How the delay grows. Delays never exceed `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub base: Duration,
    /// The factor by which each further failure multiplies the delay; with 0 or 1 it does not grow.
    pub factor: u32,
    /// The longest delay.
    pub max: Duration,
    /// The largest share of a delay that the jitter may remove, in percent (0–100).
    pub jitter_percent: u8,
}

impl Backoff {
    /// The delay after failure number `attempt` in a row (the first is 1; 0 counts as 1). `seed`, usually a hash of
    /// the key, spreads the retries of keys that fail together.
    #[must_use]
    pub fn delay(&self, attempt: u32, seed: u64) -> Duration {
        let mut delay = self.base.min(self.max);
        for _ in 1..attempt {
            if self.factor <= 1 || delay.is_zero() || delay >= self.max {
                break;
            }
            delay = delay.saturating_mul(self.factor).min(self.max);
        }
        let taken_max = delay.as_nanos() * u128::from(self.jitter_percent.min(100)) / 100;
        let share = u128::from(mix(seed ^ u64::from(attempt).rotate_left(32)));
        // The cap keeps the product within 128 bits. It limits the jitter to 584 years.
        let taken = (taken_max.min(u128::from(u64::MAX)) * share) >> 64;
        delay.saturating_sub(Duration::from_nanos(u64::try_from(taken).unwrap_or(0)))
    }
}

/// The number of consecutive failures of each key.
#[derive(Debug, Clone)]
pub struct Attempts<K> {
    backoff: Backoff,
    failed: BTreeMap<K, u32>,
}

impl<K: Ord> Attempts<K> {
    /// Creates the map with no failures.
    #[must_use]
    pub fn new(backoff: Backoff) -> Self {
        Self { backoff, failed: BTreeMap::new() }
    }

    /// Counts a failure of `key` and returns how long to wait; `seed` as in [`Backoff::delay`].
    pub fn failed(&mut self, key: K, seed: u64) -> Duration {
        let attempt = self.failed.entry(key).or_insert(0);
        *attempt = attempt.saturating_add(1);
        self.backoff.delay(*attempt, seed)
    }

    /// Forgets the failures of `key`, because it succeeded or no longer exists.
    pub fn succeeded(&mut self, key: &K) {
        self.failed.remove(key);
    }

    /// The number of keys that have failed and not yet succeeded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.failed.len()
    }

    /// Whether no key is failing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.failed.is_empty()
    }
}

/// The finishing step of splitmix64: spreads neighbouring inputs over all of u64.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Backoff = Backoff {
        base: Duration::from_millis(100),
        factor: 2,
        max: Duration::from_secs(1),
        jitter_percent: 0,
    };

    #[test]
    fn grows_to_its_maximum_and_stays_there() {
        let delays: Vec<u128> = (0..7).map(|attempt| PLAIN.delay(attempt, 9).as_millis()).collect();
        assert_eq!(delays, [100, 100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(PLAIN.delay(u32::MAX, 0), Duration::from_secs(1));
        let endless = Backoff { max: Duration::MAX, factor: u32::MAX, ..PLAIN };
        assert_eq!(endless.delay(u32::MAX, 0), Duration::MAX);
        assert!(Backoff { jitter_percent: 100, ..endless }.delay(u32::MAX, 0) > Duration::from_secs(1));
        let flat = Backoff { factor: 0, ..PLAIN };
        assert_eq!(flat.delay(u32::MAX, 0), Duration::from_millis(100));
    }

    #[test]
    fn jitter_is_a_function_of_the_seed_and_only_shortens() {
        let jittered = Backoff { jitter_percent: 50, ..PLAIN };
        let mut different = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let delay = jittered.delay(3, seed);
            assert_eq!(delay, jittered.delay(3, seed));
            assert!(delay >= Duration::from_millis(200) && delay <= Duration::from_millis(400));
            different.insert(delay);
        }
        assert!(different.len() > 90);
        assert!(Backoff { jitter_percent: 255, ..PLAIN }.delay(1, 3) <= Duration::from_millis(100));
    }

    #[test]
    fn success_is_a_fresh_start_for_its_key_only() {
        let mut attempts = Attempts::new(PLAIN);
        assert_eq!(attempts.failed("a", 0).as_millis(), 100);
        assert_eq!(attempts.failed("a", 0).as_millis(), 200);
        assert_eq!(attempts.failed("b", 0).as_millis(), 100);
        attempts.succeeded(&"a");
        assert_eq!(attempts.failed("a", 0).as_millis(), 100);
        assert_eq!(attempts.failed("b", 0).as_millis(), 200);
        assert_eq!(attempts.len(), 2);
        assert!(!attempts.is_empty());
    }
}
