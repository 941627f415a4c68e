//! The loop: awaits the inbox and the alarm, takes a turn, passes it to the committer.
//!
//! In: a [`Shell`] (a world and its environment). Out: a [`Runtime`] to run and a [`Handle`] to observe it. The loop
//! awaits nothing else, so no slow disk, driver or server delays a decision.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::{Alarm, Clock};
use crate::committer::{Committer, Executor, Offer, Offered, Outlet, Publisher, Store, StoreHealth};
use crate::inbox::Arrivals;
use crate::metrics::Metrics;
use crate::ready::{Gate, GateOpener};
use crate::settings::Settings;
use crate::turn::Reconciler;
use crate::world::World;

/// A world and its environment.
pub struct Shell<W: World, S, X, P, C> {
    /// Makes the decisions.
    pub world: W,
    /// The source of events: [`crate::Inbox::with_capacity`].
    pub arrivals: Arrivals<W::Event>,
    /// Stores the records.
    pub store: S,
    /// Starts the actions.
    pub executor: X,
    /// Publishes the statuses.
    pub publisher: P,
    /// Provides the time.
    pub clock: C,
    /// Limits and delays.
    pub settings: Settings,
}

/// Observes and ends a runtime; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Whether the store makes records durable.
    pub store_health: watch::Receiver<StoreHealth>,
    /// Opens once the first turn, which begins the world, is durable and released.
    pub first_turn: Gate,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Cancelling it shuts the runtime down.
    pub shutdown: CancellationToken,
}

/// A runtime, to be run in one task.
pub struct Runtime<W: World, S: Store<Record = W::Record>, X, P, C: Clock> {
    reconciler: Reconciler<W>,
    arrivals: Arrivals<W::Event>,
    committer: Committer<W, S, X, P, C>,
    offers: mpsc::UnboundedSender<Offer<W>>,
    first_turn: Option<GateOpener>,
    clock: C,
    settings: Settings,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
}

/// The remains of a runtime that has ended.
pub struct FinishedRuntime<W, S> {
    /// The world after the last turn.
    pub world: W,
    /// The store, if everything was flushed to it; `None` if the last commits did not finish in time.
    pub store: Option<S>,
}

impl<W, S, X, P, C> Runtime<W, S, X, P, C>
where
    W: World,
    S: Store<Record = W::Record>,
    X: Executor<W::Action>,
    P: Publisher<W::Status>,
    C: Clock,
{
    /// Creates a runtime; nothing happens before [`Runtime::run`].
    #[must_use]
    pub fn new(shell: Shell<W, S, X, P, C>) -> (Self, Handle) {
        let Shell { world, arrivals, store, executor, publisher, clock, settings } = shell;
        let metrics = Arc::new(Metrics::default());
        let shutdown = CancellationToken::new();
        let (offers, offered) = offers();
        let outlet = Outlet::new(executor, publisher, settings, shutdown.clone(), Arc::clone(&metrics));
        let committer = Committer::new(offered, store, outlet, clock.clone(), settings);
        let (opener, first_turn) = Gate::closed();
        let handle = Handle {
            store_health: committer.health(),
            first_turn,
            metrics: Arc::clone(&metrics),
            shutdown: shutdown.clone(),
        };
        let runtime = Self {
            reconciler: Reconciler::new(world),
            arrivals,
            committer,
            offers,
            first_turn: Some(opener),
            clock,
            settings,
            metrics,
            shutdown,
        };
        (runtime, handle)
    }

    /// Runs until the shutdown token is cancelled, all senders of the inbox are gone, or the committer fails. Then it
    /// takes the events already accepted, waits for the last commits (at most [`Settings::flush_max`]) and starts no
    /// further action; running operations are left alone.
    pub async fn run(self) -> FinishedRuntime<W, S> {
        let Self {
            reconciler,
            mut arrivals,
            committer,
            offers,
            first_turn,
            clock,
            settings,
            metrics,
            shutdown,
        } = self;
        let mut committing = tokio::spawn(committer.run());
        let mut alarm = clock.alarm();
        let mut turns = Turns { reconciler, offers, first_turn, clock, metrics };
        turns.take(&mut arrivals);
        let mut committer_ended = None;
        loop {
            let next_at = turns.reconciler.next_at();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                // A bug: no further decision would become durable, and no request would be answered.
                ended = &mut committing => {
                    committer_ended = Some(ended);
                    break;
                }
                events = arrivals.ready_chunk(settings.chunk_max) => if events == 0 { break },
                () = alarm.until(next_at.unwrap_or(u64::MAX)), if next_at.is_some() => {
                    if !turns.reconciler.is_due(turns.clock.now()) {
                        continue;
                    }
                    // Keys that are due again at once must not starve the other tasks of this thread.
                    tokio::task::yield_now().await;
                }
            }
            turns.take(&mut arrivals);
        }
        arrivals.close();
        while arrivals.rest_chunk(settings.chunk_max) > 0 {
            turns.take(&mut arrivals);
        }
        let Turns { reconciler, offers, .. } = turns;
        // Ends the committer once it has caught up.
        drop(offers);
        let flushed = match committer_ended {
            Some(ended) => Ok(ended),
            None => tokio::time::timeout(settings.flush_max, &mut committing).await,
        };
        let store = match flushed {
            Ok(Ok(store)) => store,
            Ok(Err(error)) => {
                tracing::error!(%error, "the committer failed");
                None
            }
            Err(_) => {
                tracing::error!("shutting down without the last commits, which take too long");
                committing.abort();
                None
            }
        };
        FinishedRuntime { world: reconciler.into_world(), store }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the loop never waits; the committer empties the channel at once and bounds its own queue"
)]
fn offers<W: World>() -> (mpsc::UnboundedSender<Offer<W>>, mpsc::UnboundedReceiver<Offer<W>>) {
    mpsc::unbounded_channel()
}

/// The part of the loop that does not wait.
struct Turns<W: World, C> {
    reconciler: Reconciler<W>,
    offers: mpsc::UnboundedSender<Offer<W>>,
    first_turn: Option<GateOpener>,
    clock: C,
    metrics: Arc<Metrics>,
}

impl<W: World, C: Clock> Turns<W, C> {
    /// Takes one turn with the events of the current chunk.
    fn take(&mut self, arrivals: &mut Arrivals<W::Event>) {
        let now = self.clock.now();
        let metrics = &self.metrics;
        metrics.inbox_depth.set_len(arrivals.depth());
        let events = arrivals.drain().map(|(waited, event)| {
            metrics.inbox_wait.observe(waited);
            event
        });
        let turn = self.reconciler.turn(now, events);
        metrics.count_turn(turn.counts);
        metrics.quarantined.set_len(self.reconciler.quarantine().len());
        metrics.wakes_pending.set_len(self.reconciler.wakes().len());
        metrics.turn_wall_ns.set(now.wall_ns);
        metrics.turn_duration.observe(self.clock.now().since(now.boot_ns));
        if turn.is_quiet() && self.first_turn.is_none() {
            return;
        }
        // Fails only if the committer is gone; then the loop ends and nothing is answered.
        let _ = self.offers.send(Offered::new(turn, self.first_turn.take()));
    }
}
