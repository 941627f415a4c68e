//! Randomness to spread events that would otherwise coincide. Not for secrets.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// A pseudorandom sequence (SplitMix64); the same for the same seed.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// A sequence with a random seed.
    #[must_use]
    pub fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }

    /// The sequence of this seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A uniform duration in `0..max`.
    pub fn below(&mut self, max: Duration) -> Duration {
        let nanos = u128::from(u64::try_from(max.as_nanos()).unwrap_or(u64::MAX));
        Duration::from_nanos(u64::try_from((u128::from(self.next()) * nanos) >> 64).unwrap_or_default())
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            let at = (u128::from(self.next()) * (end as u128 + 1)) >> 64;
            list.swap(end, usize::try_from(at).unwrap_or_default());
        }
    }
}

impl Default for Chance {
    fn default() -> Self {
        Self::new()
    }
}

/// `base` plus a random part of up to `base`: how Nomad spreads intervals (`helper.RandomStagger`).
pub fn jitter(base: Duration, chance: &mut Chance) -> Duration {
    base + chance.below(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_keeps_within_its_bounds_and_uses_them() {
        let mut chance = Chance::of(1);
        let times: Vec<_> = (0..1_000).map(|_| chance.below(Duration::from_secs(10))).collect();
        assert!(times.iter().all(|time| time.as_secs() < 10));
        assert!(times.iter().any(|time| time.as_secs() == 0) && times.iter().any(|time| time.as_secs() == 9));
        assert_eq!(chance.below(Duration::ZERO), Duration::ZERO);
        let mut firsts = [0; 4];
        for _ in 0..1_000 {
            let mut list = [0, 1, 2, 3];
            chance.shuffle(&mut list);
            firsts[list[0]] += 1;
        }
        assert!(firsts.iter().all(|&times| (150..350).contains(&times)), "{firsts:?}");
    }
}
