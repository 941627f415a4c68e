//! Releases turns: starts and stops to the executor, statuses to the publisher, replies to their callers.
//!
//! In: each turn when it is offered, and again when it is durable. Out: its effects. Stops are queued separately,
//! because they are released ahead of their turn if its commit takes too long. It must not know how commits work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Executor, Offer, Offered, Publisher};
use crate::metrics::Metrics;
use crate::panic::message;
use crate::settings::Settings;
use crate::world::{Action, CommitIndex, Release, Reply, World};

/// The release side of a committer.
pub(crate) struct Outlet<W: World, X, P> {
    executor: X,
    publisher: P,
    stops: VecDeque<Stops<W>>,
    /// The number of turns taken so far, which is the number of the last one.
    taken: u64,
    settings: Settings,
    closing: CancellationToken,
    pub(crate) metrics: Arc<Metrics>,
}

/// The stops of one turn that is not yet durable.
struct Stops<W: World> {
    turn: u64,
    until: Instant,
    actions: Vec<W::Action>,
}

impl<W: World, X: Executor<W::Action>, P: Publisher<W::Status>> Outlet<W, X, P> {
    /// Once `closing` is cancelled, no further action is started. To the world this looks like a crash at that point;
    /// the next start recovers by inspecting the machine.
    pub(crate) fn new(
        executor: X,
        publisher: P,
        settings: Settings,
        closing: CancellationToken,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { executor, publisher, stops: VecDeque::new(), taken: 0, settings, closing, metrics }
    }

    /// Takes a turn that begins to wait; `index` is the last commit. Starts the actions and sends the replies that
    /// need no commit, and sets a deadline for its stops.
    pub(crate) fn take(&mut self, index: CommitIndex, mut offered: Offer<W>) -> Offer<W> {
        self.taken += 1;
        offered.number = self.taken;
        let (mut at_once, mut stops, mut after_commit) = (Vec::new(), Vec::new(), Vec::new());
        for action in offered.turn.actions.drain(..) {
            match action.release() {
                Release::AtOnce => at_once.push(action),
                Release::Stop => stops.push(action),
                Release::AfterCommit => after_commit.push(action),
            }
        }
        offered.turn.actions = after_commit;
        if !stops.is_empty() {
            let until = offered.at + self.settings.stop_grace;
            self.stops.push_back(Stops { turn: offered.number, until, actions: stops });
        }
        self.start(at_once);
        let (at_once, after_commit): (Vec<_>, Vec<_>) =
            offered.turn.replies.drain(..).partition(|reply| reply.release_when() == Release::AtOnce);
        offered.turn.replies = after_commit;
        self.answer(index, at_once);
        offered
    }

    /// When the oldest pending stops may be released without a commit.
    pub(crate) fn next_stop_at(&self) -> Option<Instant> {
        self.stops.front().map(|stops| stops.until)
    }

    /// Releases the stops that have waited for the grace period.
    pub(crate) fn release_stops_ahead(&mut self, now: Instant) {
        while let Some(stops) = self.stops.pop_front_if(|stops| stops.until <= now) {
            tracing::warn!(stops = stops.actions.len(), "stopping before the commit, which takes too long");
            self.metrics.stops_ahead.add(stops.actions.len());
            self.start(stops.actions);
        }
    }

    /// Releases a turn that is durable at `index`: its stops first, then its other effects in order.
    pub(crate) fn release(&mut self, index: CommitIndex, offered: Offer<W>) {
        let Offered { turn, at, number, gate, compact_len: _ } = *offered;
        self.metrics.release_wait.observe(at.elapsed());
        while let Some(stops) = self.stops.pop_front_if(|stops| stops.turn <= number) {
            self.start(stops.actions);
        }
        self.start(turn.actions);
        if !turn.statuses.is_empty() {
            guard(&self.metrics, || self.publisher.offer(index, turn.statuses));
        }
        self.answer(index, turn.replies);
        if let Some(gate) = gate {
            gate.open();
        }
    }

    fn answer(&self, index: CommitIndex, replies: Vec<W::Reply>) {
        for reply in replies {
            guard(&self.metrics, || reply.release(index));
        }
    }

    fn start(&mut self, actions: Vec<W::Action>) {
        if !actions.is_empty() && !self.closing.is_cancelled() {
            guard(&self.metrics, || self.executor.start(actions));
        }
    }
}

/// Catches a panic of the executor, the publisher or a reply, so that it does not end the committer.
fn guard(metrics: &Metrics, release: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(release)) {
        metrics.release_panics.add(1);
        tracing::error!(panic = message(&*payload), "a panic while a turn was released");
    }
}
