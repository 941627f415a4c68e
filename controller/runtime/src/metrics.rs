//! Metrics of the runtime, as plain atomics that a metrics exporter reads on each scrape.
//!
//! The exporter defines names, help texts and formats; nothing here depends on a metrics library.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::nanos;

/// The work of one turn, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Events applied.
    pub events: usize,
    /// Keys reconciled.
    pub keys: usize,
    /// Wakes that were due.
    pub wakes: usize,
    /// Panics caught.
    pub panics: usize,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// The sum so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that may rise and fall.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Sets the value to a length.
    pub fn set_len(&self, len: usize) {
        self.set(i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of a histogram's buckets in nanoseconds, 100 µs to 50 min; one more bucket holds the rest.
pub const BOUNDS_NS: [u64; 16] = [
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
    100_000_000_000,
    300_000_000_000,
    1_000_000_000_000,
    3_000_000_000_000,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistogramReading {
    /// The number of durations in each bucket (not cumulative): at most [`BOUNDS_NS`], the last one above all bounds.
    pub buckets: [u64; BOUNDS_NS.len() + 1],
    /// The sum of all durations in nanoseconds.
    pub sum_ns: u64,
    /// The number of durations.
    pub count: u64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let ns = nanos(duration);
        let bucket = BOUNDS_NS.partition_point(|bound_ns| *bound_ns < ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Reads the current values.
    #[must_use]
    pub fn read(&self) -> HistogramReading {
        let buckets = std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed));
        HistogramReading { buckets, sum_ns: self.sum_ns.load(Ordering::Relaxed), count: buckets.iter().sum() }
    }
}

/// The metrics of one runtime. Operations keep their own, by kind: [`crate::Operations::figures`].
#[derive(Debug, Default)]
pub struct Metrics {
    /// Turns taken.
    pub turns: Counter,
    /// Events applied.
    pub events: Counter,
    /// Keys reconciled.
    pub keys: Counter,
    /// Wakes that fell due.
    pub wakes: Counter,
    /// Panics of the world that were caught.
    pub panics: Counter,
    /// Keys in quarantine.
    pub quarantined: Gauge,
    /// Keys with a pending wake.
    pub wakes_pending: Gauge,
    /// Events left in the inbox when the last turn had taken its chunk.
    pub inbox_depth: Gauge,
    /// How long events waited in the inbox.
    pub inbox_wait: Histogram,
    /// How long turns took.
    pub turn_duration: Histogram,
    /// When the last turn was taken, in nanoseconds since the Unix epoch; 0 before the first.
    pub turn_wall_ns: Gauge,
    /// Commits that succeeded.
    pub commits: Counter,
    /// Commits that failed.
    pub commit_failures: Counter,
    /// Records committed.
    pub records: Counter,
    /// How long single commit attempts took.
    pub commit_duration: Histogram,
    /// How long turns waited for their release.
    pub release_wait: Histogram,
    /// Turns that wait for a commit.
    pub turns_pending: Gauge,
    /// Stops that were released without a commit because it took too long.
    pub stops_ahead: Counter,
    /// Caught panics of the executor, the publisher and replies while a turn was released.
    pub release_panics: Counter,
}

impl Metrics {
    pub(crate) fn count_turn(&self, counts: Counts) {
        self.turns.add(1);
        self.events.add(counts.events);
        self.keys.add(counts.keys);
        self.wakes.add(counts.wakes);
        self.panics.add(counts.panics);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_their_buckets() {
        let histogram = Histogram::default();
        for duration in
            [Duration::ZERO, Duration::from_micros(100), Duration::from_micros(101), Duration::MAX]
        {
            histogram.observe(duration);
        }
        let reading = histogram.read();
        assert_eq!(reading.buckets[..2], [2, 1]);
        assert_eq!(reading.buckets[BOUNDS_NS.len()], 1);
        assert_eq!(reading.count, 4);
    }
}
