//! Figures of operations by kind: the live ones, and sums over the others.

use std::time::Duration;

use tokio::time::Instant;

use super::{Outcome, Phase, Slots};
use crate::metrics::{Histogram, HistogramReading};

/// The figures of one kind of operation at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KindFigures {
    /// Operations that wait for a permit.
    pub waiting: usize,
    /// Operations that run, including those past their deadline.
    pub running: usize,
    /// Operations that run past their deadline.
    pub overdue: usize,
    /// How long ago the oldest live operation was requested; zero if none is alive.
    pub oldest: Duration,
    /// Operations requested so far, without the refused ones.
    pub asked_total: u64,
    /// Operations that have returned so far.
    pub done_total: u64,
    /// Operations that exceeded their deadline so far.
    pub overdue_total: u64,
    /// Operations that panicked so far.
    pub panicked_total: u64,
    /// Operations that were cancelled before they began.
    pub cancelled_total: u64,
    /// Operations that the pace of their kind has delayed so far.
    pub paced_total: u64,
    /// Operations that were refused because their key was taken.
    pub refused_total: u64,
    /// How long the ended operations had run.
    pub duration: HistogramReading,
}

/// Sums over the operations of one kind.
#[derive(Debug, Default)]
pub(super) struct OperationFigures {
    pub(super) asked: u64,
    pub(super) overdue: u64,
    pub(super) refused: u64,
    done: u64,
    panicked: u64,
    cancelled: u64,
    duration: Histogram,
}

impl OperationFigures {
    /// Counts the end of an operation.
    pub(super) fn count<T>(&mut self, outcome: &Outcome<T>, ran: Duration) {
        match outcome {
            Outcome::Done(_) => self.done += 1,
            Outcome::Panicked(_) => self.panicked += 1,
            Outcome::Cancelled => {
                self.cancelled += 1;
                return;
            }
            // Neither ends an operation.
            Outcome::Overdue | Outcome::Refused => return,
        }
        self.duration.observe(ran);
    }
}

impl<K, N: Ord + Copy> Slots<K, N> {
    /// The figures of every kind.
    pub(super) fn figures(&self) -> Vec<(N, KindFigures)> {
        let now = Instant::now();
        let mut kinds: std::collections::BTreeMap<N, KindFigures> = self
            .ended
            .iter()
            .map(|(kind, sums)| {
                let figures = KindFigures {
                    asked_total: sums.asked,
                    done_total: sums.done,
                    overdue_total: sums.overdue,
                    panicked_total: sums.panicked,
                    cancelled_total: sums.cancelled,
                    refused_total: sums.refused,
                    duration: sums.duration.read(),
                    ..KindFigures::default()
                };
                (*kind, figures)
            })
            .collect();
        for slot in self.live.values() {
            let figures = kinds.entry(slot.kind).or_default();
            figures.oldest = figures.oldest.max(now.saturating_duration_since(slot.asked_at));
            match slot.phase {
                Phase::Waiting => figures.waiting += 1,
                Phase::Running => figures.running += 1,
                Phase::Overdue => {
                    figures.running += 1;
                    figures.overdue += 1;
                }
            }
        }
        kinds.into_iter().collect()
    }
}
