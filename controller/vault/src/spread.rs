//! Random parts of waits, so that many tasks do not ask one server at once. Not for secrets.
//!
//! In: chance. Out: a share of a duration. Rules take a [`Spread`] as an argument, and so draw none themselves.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// A share between 0 (inclusive) and 1 (exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread(u32);

impl Spread {
    /// A random share.
    #[must_use]
    pub fn random() -> Self {
        Self((RandomState::new().hash_one(0) >> 32) as u32)
    }

    /// The share `parts` / 2³².
    #[must_use]
    pub fn of_parts(parts: u32) -> Self {
        Self(parts)
    }

    /// This share of `max`; less than `max`, unless that is 0.
    #[must_use]
    pub fn share_of(self, max: Duration) -> Duration {
        let nanos = (max.as_nanos() * u128::from(self.0)) >> 32;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_below_the_whole() {
        let second = Duration::from_secs(1);
        assert_eq!(Spread::of_parts(0).share_of(second), Duration::ZERO);
        assert_eq!(Spread::of_parts(1 << 31).share_of(second), second / 2);
        assert!(Spread::of_parts(u32::MAX).share_of(second) < second);
        assert_eq!(Spread::of_parts(u32::MAX).share_of(Duration::ZERO), Duration::ZERO);
        let shares: Vec<_> = (0..8).map(|_| Spread::random()).collect();
        assert!(shares.iter().any(|share| *share != shares[0]), "{shares:?}");
    }
}
