//! Growing delays between tries, without randomness: the jitter is a hash of the object that waits.

use core::hash::{Hash, Hasher};

use herdlet_api_types::Duration;

use crate::limits::{RETRY_DELAY, RETRY_DELAY_MAX};

/// Delay before try `attempt + 1` after `attempt` failures in a row (from 1): doubles from 250 ms to 30 s, minus up to
/// a quarter of jitter, so that objects that fail together don't retry together.
pub fn retry_delay(attempt: u32, who: impl Hash) -> Duration {
    let doubled = RETRY_DELAY.as_nanos().saturating_mul(1 << attempt.saturating_sub(1).min(16));
    let full = doubled.min(RETRY_DELAY_MAX.as_nanos());
    Duration(full - fraction(full / 4, (who, attempt)))
}

/// A deterministic fraction of `range`, spread evenly over all values of `seed`.
pub fn fraction(range: i64, seed: impl Hash) -> i64 {
    if range <= 0 {
        return 0;
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    seed.hash(&mut hasher);
    i64::try_from(mix(hasher.finish()) % range.unsigned_abs()).unwrap_or(0)
}

/// FNV-1a: stable over releases and machines, unlike the standard hasher.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Spreads the weak low bits of FNV (the finalizer of SplitMix64).
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_their_limit_and_differ_between_objects() {
        let delays: std_alloc::vec::Vec<i64> = (1..12).map(|n| retry_delay(n, "a").as_nanos()).collect();
        assert!(delays[0] > 187_000_000 && delays[0] <= 250_000_000);
        assert!(delays.iter().all(|delay| *delay <= 30_000_000_000));
        assert!(delays[10] > 22_000_000_000);
        assert_ne!(retry_delay(5, "a"), retry_delay(5, "b"));
        assert_eq!(retry_delay(5, "a"), retry_delay(5, "a"));
    }
}
