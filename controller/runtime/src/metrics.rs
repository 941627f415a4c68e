//! Figures of the runtime, as plain atomics which whoever serves metrics reads on a scrape.
//!
//! Names, help texts and formats belong to the reader; nothing here depends on a metrics library.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::nanos;

/// What a turn was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Events applied.
    pub events: usize,
    /// Keys reconciled.
    pub keys: usize,
    /// Wakes that had fallen due.
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

/// A number that shows the present.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Shows `value` from now on.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Shows a count from now on.
    pub fn set_len(&self, len: usize) {
        self.set(i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// The present value.
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

/// How long things took.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistogramReading {
    /// How many fell into each bucket (not cumulative): at most [`BOUNDS_NS`], the last one above all bounds.
    pub buckets: [u64; BOUNDS_NS.len() + 1],
    /// The sum of all durations in nanoseconds.
    pub sum_ns: u64,
    /// How many there were.
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

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> HistogramReading {
        let buckets = std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed));
        HistogramReading { buckets, sum_ns: self.sum_ns.load(Ordering::Relaxed), count: buckets.iter().sum() }
    }
}

/// The figures of one runtime. Operations keep their own, by kind: [`crate::Operations::figures`].
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
    /// Keys in quarantine now.
    pub quarantined: Gauge,
    /// Keys that wait for a wake now.
    pub wakes_pending: Gauge,
    /// Events that waited in the inbox when the last turn had taken its chunk.
    pub inbox_depth: Gauge,
    /// How long events waited in the inbox.
    pub inbox_wait: Histogram,
    /// How long turns took.
    pub turn_duration: Histogram,
    /// When the last turn was taken, in nanoseconds since the Unix epoch; 0 before the first.
    pub turn_wall_ns: Gauge,
    /// Commits that succeeded.
    pub commits: Counter,
    /// Commits that failed and were tried again.
    pub commit_failures: Counter,
    /// Records committed.
    pub records: Counter,
    /// How long single tries to commit took.
    pub commit_duration: Histogram,
    /// How long turns waited for being released.
    pub release_wait: Histogram,
    /// Turns that wait for a commit now.
    pub turns_pending: Gauge,
    /// Stops that were released without a commit because none came in time.
    pub stops_ahead: Counter,
    /// Panics of executor, publisher or replies that were caught while a turn was released.
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
