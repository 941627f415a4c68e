//! The committer: what a turn decided takes effect only after its records are durable.
//!
//! In go turns, in order; out go, in the same order, actions to an [`Executor`], statuses to a [`Publisher`] and
//! replies to those who wait. One commit is in flight on a blocking thread; turns that pile up meanwhile share the next
//! one. A turn without records needs no commit of its own but does not overtake earlier turns. It must not know what a
//! record says.
//!
//! ```text
//!   offer ──► waiting ──► batch ──(Store::commit ok)──► released
//!                │          │ ▲
//!                │          └─┘ failed: Degraded, again after a growing delay, later turns join
//!                └── a stop that has waited for the grace is released ahead
//! ```
//!
//! Commits run on tokio's blocking pool, not on a thread of our own, because paused time stands still while one runs.

mod outlet;

use std::collections::VecDeque;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};

use crate::clock::{Clock, Now};
use crate::off_thread::{OffThread, off_thread};
use crate::panic::message;
use crate::ready::GateOpener;
use crate::settings::Settings;
use crate::world::{CommitIndex, Turn, World};

pub(crate) use outlet::Outlet;

/// So many turns share a commit at most, which bounds its size (a turn has at most 1,024 events).
const BATCH_TURNS_MAX: usize = 1_024;

/// So many turns wait at most; further ones melt into the last.
const WAITING_TURNS_MAX: usize = 1_024;

/// A melted turn is compacted when it has so many records or statuses, and again whenever they have doubled.
const COMPACT_LEN_MIN: usize = 4_096;

/// Where records become durable. Used from a blocking thread, by one call at a time.
pub trait Store: Send + 'static {
    /// What is stored.
    type Record: Send + 'static;
    /// Why a commit failed.
    type Error: Error + Send + 'static;

    /// Makes all of `batch` durable, in its order, or nothing of it. After an error (which may hide a success) the same
    /// records are offered again, possibly with more behind them: committing a record twice must equal once.
    ///
    /// # Errors
    /// Whatever kept the batch from becoming durable.
    fn commit(&mut self, batch: &[Self::Record]) -> Result<CommitIndex, Self::Error>;

    /// The index of the last commit.
    fn index(&self) -> CommitIndex;

    /// Drops records that later ones of `records` make superfluous. Called before each commit, and when much has piled up, so
    /// that a store which hangs or fails for hours does not fill memory. Does nothing by default.
    fn compact(records: &mut Vec<Self::Record>) {
        let _ = records;
    }
}

/// Starts actions. Must neither block nor wait.
pub trait Executor<A>: Send + 'static {
    /// Starts `actions`, in order; never empty.
    fn start(&mut self, actions: Vec<A>);
}

/// Takes statuses. Must neither block nor wait.
pub trait Publisher<S>: Send + 'static {
    /// Everything up to `index` is durable, and `statuses` (never empty) became true with it.
    fn offer(&mut self, index: CommitIndex, statuses: Vec<S>);

    /// Drops statuses that later ones of `statuses` make superfluous, as [`Store::compact`] does with records.
    fn compact(statuses: &mut Vec<S>) {
        let _ = statuses;
    }
}

/// Whether records become durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreHealth {
    /// They do.
    Ok,
    /// They do not: no new starts and no statuses; it is being tried.
    Degraded {
        /// Since when.
        since: Now,
        /// How often the present batch has failed; 0 while its first commit hangs.
        failures: u32,
        /// What the last try said.
        error: String,
    },
}

/// In a box, since channels and queues keep room for whatever they have held, or may hold.
pub(crate) type Offer<W> = Box<Offered<W>>;

/// A turn on its way to its release.
pub(crate) struct Offered<W: World> {
    turn: Turn<W>,
    at: Instant,
    /// Counts turns, from 1; 0 before the committer has taken it.
    number: u64,
    /// Opens when the turn is released.
    gate: Option<GateOpener>,
    /// Compacted when records and statuses together are more than this.
    compact_len: usize,
}

impl<W: World> Offered<W> {
    /// A turn that waits from now on.
    pub(crate) fn new(turn: Turn<W>, gate: Option<GateOpener>) -> Offer<W> {
        Box::new(Self { turn, at: Instant::now(), number: 0, gate, compact_len: COMPACT_LEN_MIN })
    }

    /// Takes a later turn into this one: both are released together, as the later one.
    fn melt(&mut self, later: Self) {
        let Self { mut turn, number, gate, at: _, compact_len: _ } = later;
        self.turn.actions.append(&mut turn.actions);
        self.turn.records.append(&mut turn.records);
        self.turn.statuses.append(&mut turn.statuses);
        self.turn.replies.append(&mut turn.replies);
        self.number = number;
        self.gate = self.gate.take().or(gate);
    }
}

/// The committer, to be run in a task of its own. It ends when the loop has dropped its sender and all is committed.
pub(crate) struct Committer<W: World, S: Store<Record = W::Record>, X, P, C> {
    offered: mpsc::UnboundedReceiver<Offer<W>>,
    /// Turns behind the batch.
    waiting: VecDeque<Offer<W>>,
    /// Turns that share the present commit; empty while idle.
    batch: Vec<Offer<W>>,
    stage: Stage<S>,
    /// How often the batch has failed.
    failures: u32,
    index: CommitIndex,
    outlet: Outlet<W, X, P>,
    health: watch::Sender<StoreHealth>,
    clock: C,
    settings: Settings,
}

enum Stage<S: Store> {
    /// Nothing to commit.
    Idle(S),
    /// A commit has the store and the records.
    InFlight { commit: OffThread<Tried<S>>, since: Instant },
    /// The commit failed; the same records are tried again.
    Retry { store: S, records: Vec<S::Record>, at: Instant },
    /// The async runtime went down with a commit in flight.
    Lost,
}

/// What a try to commit brings back from its thread.
struct Tried<S: Store> {
    store: S,
    records: Vec<S::Record>,
    result: Result<CommitIndex, String>,
    took: Duration,
}

/// What the committer waits for.
enum Arrival<W: World, S: Store> {
    Turn(Offer<W>),
    LoopEnded,
    Tried(Result<Tried<S>, JoinError>),
    Alarm,
}

impl<W, S, X, P, C> Committer<W, S, X, P, C>
where
    W: World,
    S: Store<Record = W::Record>,
    X: Executor<W::Action>,
    P: Publisher<W::Status>,
    C: Clock,
{
    pub(crate) fn new(
        offered: mpsc::UnboundedReceiver<Offer<W>>,
        store: S,
        outlet: Outlet<W, X, P>,
        clock: C,
        settings: Settings,
    ) -> Self {
        Self {
            offered,
            waiting: VecDeque::new(),
            batch: Vec::new(),
            failures: 0,
            index: store.index(),
            stage: Stage::Idle(store),
            outlet,
            health: watch::Sender::new(StoreHealth::Ok),
            clock,
            settings,
        }
    }

    /// Follows the state of the store.
    pub(crate) fn health(&self) -> watch::Receiver<StoreHealth> {
        self.health.subscribe()
    }

    /// Runs until every turn is released after the loop has ended. Gives the store back, unless the async runtime went
    /// down under a commit.
    pub(crate) async fn run(mut self) -> Option<S> {
        let mut loop_ended = None;
        loop {
            self.go_on();
            self.outlet.metrics.turns_pending.set_len(self.waiting.len() + self.batch.len());
            match (self.stage, loop_ended) {
                (Stage::Idle(store), Some(())) => return Some(store),
                (Stage::Lost, _) => return None,
                (stage, _) => self.stage = stage,
            }
            let alarm = self.alarm_at();
            let arrival = tokio::select! {
                biased;
                tried = self.stage.tried() => Arrival::Tried(tried),
                offered = self.offered.recv(), if loop_ended.is_none() => {
                    offered.map_or(Arrival::LoopEnded, Arrival::Turn)
                }
                () = sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => Arrival::Alarm,
            };
            match arrival {
                Arrival::Turn(offered) => self.queue(offered),
                Arrival::LoopEnded => loop_ended = Some(()),
                Arrival::Tried(tried) => self.tried(tried),
                Arrival::Alarm => self.alarmed(),
            }
        }
    }

    /// Puts a turn behind the others, bounded: with a store that is stuck turns keep coming, and the loop never waits.
    fn queue(&mut self, offered: Offer<W>) {
        let offered = self.outlet.take(self.index, offered);
        if self.waiting.len() < WAITING_TURNS_MAX {
            return self.waiting.push_back(offered);
        }
        if let Some(last) = self.waiting.back_mut() {
            last.melt(*offered);
            if last.turn.records.len() + last.turn.statuses.len() > last.compact_len {
                S::compact(&mut last.turn.records);
                P::compact(&mut last.turn.statuses);
                let len = last.turn.records.len() + last.turn.statuses.len();
                last.compact_len = COMPACT_LEN_MIN.max(len.saturating_mul(2));
            }
        }
    }

    /// While idle: releases what needs no commit, and starts the commit of what comes behind it.
    fn go_on(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Lost) {
            Stage::Idle(store) => {
                while let Some(offered) = self.waiting.pop_front_if(|offered| offered.turn.records.is_empty())
                {
                    self.outlet.release(self.index, offered);
                }
                if self.waiting.is_empty() { Stage::Idle(store) } else { self.commit(store, Vec::new()) }
            }
            stage @ (Stage::InFlight { .. } | Stage::Retry { .. } | Stage::Lost) => stage,
        };
    }

    /// Starts a commit of `records`, if any, and of what waits behind them.
    fn commit(&mut self, mut store: S, mut records: Vec<S::Record>) -> Stage<S> {
        let joining = self.waiting.len().min(BATCH_TURNS_MAX.saturating_sub(self.batch.len()));
        for mut offered in self.waiting.drain(..joining) {
            records.append(&mut offered.turn.records);
            self.batch.push(offered);
        }
        S::compact(&mut records);
        let since = Instant::now();
        let commit = off_thread(move || {
            let caught = catch_unwind(AssertUnwindSafe(|| store.commit(&records)));
            let result = match caught {
                Ok(result) => result.map_err(|error| describe(&error)),
                Err(payload) => Err(format!("the store panicked: {}", message(&*payload))),
            };
            Tried { store, records, result, took: since.elapsed() }
        });
        Stage::InFlight { commit, since }
    }

    fn tried(&mut self, tried: Result<Tried<S>, JoinError>) {
        self.stage = match tried {
            Ok(Tried { store, records, result: Ok(index), took }) => {
                self.committed(index, records.len(), took);
                Stage::Idle(store)
            }
            Ok(Tried { store, records, result: Err(error), took }) => {
                self.failed(error, took);
                let delay = self.settings.commit_retry.delay(self.failures, self.index.0);
                Stage::Retry { store, records, at: Instant::now() + delay }
            }
            Err(error) => {
                tracing::error!(%error, "a commit was cut off by the end of the async runtime");
                Stage::Lost
            }
        };
    }

    fn committed(&mut self, index: CommitIndex, records: usize, took: Duration) {
        let metrics = &self.outlet.metrics;
        metrics.commits.add(1);
        metrics.records.add(records);
        metrics.commit_duration.observe(took);
        self.index = index;
        self.failures = 0;
        if self
            .health
            .send_if_modified(|health| std::mem::replace(health, StoreHealth::Ok) != StoreHealth::Ok)
        {
            tracing::info!(%index, "the store takes commits again");
        }
        for offered in self.batch.drain(..) {
            self.outlet.release(index, offered);
        }
    }

    fn failed(&mut self, error: String, took: Duration) {
        self.outlet.metrics.commit_failures.add(1);
        self.outlet.metrics.commit_duration.observe(took);
        self.failures = self.failures.saturating_add(1);
        self.degrade(error);
    }

    fn degrade(&mut self, error: String) {
        let (now, failures) = (self.clock.now(), self.failures);
        self.health.send_modify(|health| {
            let since = match health {
                StoreHealth::Ok => {
                    tracing::error!(error, "records cannot be made durable: no starts until they can");
                    now
                }
                StoreHealth::Degraded { since, .. } => *since,
            };
            *health = StoreHealth::Degraded { since, failures, error };
        });
    }

    /// When something is due that no turn and no commit announces.
    fn alarm_at(&self) -> Option<Instant> {
        let stage_at = match &self.stage {
            Stage::InFlight { since, .. } if *self.health.borrow() == StoreHealth::Ok => {
                Some(*since + self.settings.commit_slow)
            }
            Stage::Retry { at, .. } => Some(*at),
            Stage::InFlight { .. } | Stage::Idle(_) | Stage::Lost => None,
        };
        stage_at.into_iter().chain(self.outlet.next_stop_at()).min()
    }

    fn alarmed(&mut self) {
        let now = Instant::now();
        self.outlet.release_stops_ahead(now);
        self.stage = match std::mem::replace(&mut self.stage, Stage::Lost) {
            Stage::Retry { store, records, at } if at <= now => self.commit(store, records),
            Stage::InFlight { commit, since } => {
                if since + self.settings.commit_slow <= now && *self.health.borrow() == StoreHealth::Ok {
                    self.degrade(format!("a commit has been running for {:?}", self.settings.commit_slow));
                }
                Stage::InFlight { commit, since }
            }
            stage @ (Stage::Idle(_) | Stage::Retry { .. } | Stage::Lost) => stage,
        };
    }
}

impl<S: Store> Stage<S> {
    /// Waits for the commit in flight; for ever when there is none. May be dropped while waiting.
    async fn tried(&mut self) -> Result<Tried<S>, JoinError> {
        match self {
            Self::InFlight { commit, .. } => commit.await,
            Self::Idle(_) | Self::Retry { .. } | Self::Lost => std::future::pending().await,
        }
    }
}

/// An error with its causes, in one line.
fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
