//! The committer: a turn's decisions take effect only after its records are durable.
//!
//! In: turns, in order. Out, in the same order: actions to an [`Executor`], statuses to a [`Publisher`], and replies
//! to the callers that wait. One commit is in flight on a blocking thread; turns that arrive meanwhile share the next
//! commit. A turn without records needs no commit of its own but does not overtake earlier turns. The committer must
//! not know the content of a record.
//!
//! ```text
//!   offer ──► waiting ──► batch ──(Store::commit ok)──► released
//!                │          │ ▲
//!                │          └─┘ failed: Degraded, retried after a growing delay, later turns join
//!                └── a stop that has waited for the grace period is released early
//! ```
//!
//! Commits run on tokio's blocking pool instead of a dedicated thread, because tokio does not advance paused time
//! while such a task runs.

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

/// The most turns that share a commit. It bounds the commit's size (a turn has at most 1,024 events).
const BATCH_TURNS_MAX: usize = 1_024;

/// The most turns that wait for a commit; further ones are merged into the last.
const WAITING_TURNS_MAX: usize = 1_024;

/// The number of records and statuses at which a merged turn is first compacted; it is compacted again whenever they
/// have doubled.
const COMPACT_LEN_MIN: usize = 4_096;

/// Makes records durable. Called from a blocking thread, one call at a time.
pub trait Store: Send + 'static {
    /// The type of a record.
    type Record: Send + 'static;
    /// Why a commit failed.
    type Error: Error + Send + 'static;

    /// Makes all of `batch` durable, in order, or none of it. After an error (which may hide a success) the same
    /// records are offered again, possibly with more behind them, so commits must be idempotent.
    ///
    /// # Errors
    /// When the batch could not be made durable.
    fn commit(&mut self, batch: &[Self::Record]) -> Result<CommitIndex, Self::Error>;

    /// The index of the last commit.
    fn index(&self) -> CommitIndex;

    /// Drops records that later records in `records` supersede. Called before each commit, and when many have
    /// accumulated, so that a store that hangs or fails for hours does not fill memory. Does nothing by default.
    fn compact(records: &mut Vec<Self::Record>) {
        let _ = records;
    }
}

/// Starts actions. Must not block.
pub trait Executor<A>: Send + 'static {
    /// Starts `actions` (never empty) in order.
    fn start(&mut self, actions: Vec<A>);
}

/// Publishes statuses. Must not block.
pub trait Publisher<S>: Send + 'static {
    /// Publishes `statuses` (never empty), which became true with the commit `index`; everything up to it is durable.
    fn offer(&mut self, index: CommitIndex, statuses: Vec<S>);

    /// Drops statuses that later statuses in `statuses` supersede, as [`Store::compact`] does with records.
    fn compact(statuses: &mut Vec<S>) {
        let _ = statuses;
    }
}

/// Whether the store makes records durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreHealth {
    /// Commits succeed.
    Ok,
    /// Commits fail or hang: nothing is started and no status published; the committer keeps retrying.
    Degraded {
        /// Since when.
        since: Now,
        /// How many times the current batch has failed; 0 while its first commit hangs.
        failures: u32,
        /// The error of the last attempt.
        error: String,
    },
}

/// Boxed, because channels and queues keep capacity for the most items they have held.
pub(crate) type Offer<W> = Box<Offered<W>>;

/// A turn that waits for its release.
pub(crate) struct Offered<W: World> {
    turn: Turn<W>,
    at: Instant,
    /// The turn's sequence number, from 1; 0 until the committer has taken it.
    number: u64,
    /// Opened when the turn is released.
    gate: Option<GateOpener>,
    /// The turn is compacted when it has more records and statuses than this.
    compact_len: usize,
}

impl<W: World> Offered<W> {
    /// Wraps a turn that starts waiting now.
    pub(crate) fn new(turn: Turn<W>, gate: Option<GateOpener>) -> Offer<W> {
        Box::new(Self { turn, at: Instant::now(), number: 0, gate, compact_len: COMPACT_LEN_MIN })
    }

    /// Merges a later turn into this one: both are released together, with the later one's number.
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

/// The committer, to be run in a task of its own. It ends when the loop has dropped its sender and all turns are
/// committed.
pub(crate) struct Committer<W: World, S: Store<Record = W::Record>, X, P, C> {
    offered: mpsc::UnboundedReceiver<Offer<W>>,
    /// Turns queued behind the batch.
    waiting: VecDeque<Offer<W>>,
    /// Turns that share the current commit; empty while idle.
    batch: Vec<Offer<W>>,
    stage: Stage<S>,
    /// How many times the batch has failed.
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
    /// A commit is running with the store and the records.
    InFlight { commit: OffThread<Tried<S>>, since: Instant },
    /// The commit failed; the same records are retried.
    Retry { store: S, records: Vec<S::Record>, at: Instant },
    /// The async runtime shut down with a commit in flight.
    Lost,
}

/// The result of one commit attempt, with the store and the records that its thread returns.
struct Tried<S: Store> {
    store: S,
    records: Vec<S::Record>,
    result: Result<CommitIndex, String>,
    took: Duration,
}

/// An event that the committer waits for.
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

    /// Subscribes to the store's health.
    pub(crate) fn health(&self) -> watch::Receiver<StoreHealth> {
        self.health.subscribe()
    }

    /// Runs until the loop has ended and every turn is released. Returns the store, unless the async runtime shut
    /// down during a commit.
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

    /// Appends a turn to the queue, which is bounded: turns keep arriving while the store hangs, and the loop never
    /// waits.
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

    /// If idle, releases the turns that need no commit and starts the commit of the ones behind them.
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

    /// Starts a commit of `records`, if any, and of the waiting turns' records.
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
                tracing::error!(%error, "the async runtime ended during a commit");
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
            tracing::info!(%index, "commits succeed again");
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
                    tracing::error!(error, "commits to the state fail or hang; nothing is started until one succeeds: check the disk of the state directory");
                    now
                }
                StoreHealth::Degraded { since, .. } => *since,
            };
            *health = StoreHealth::Degraded { since, failures, error };
        });
    }

    /// The time at which the committer must act without a new turn or a commit's result.
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
    /// Waits for the commit in flight; never resolves if there is none. Cancel safe.
    async fn tried(&mut self) -> Result<Tried<S>, JoinError> {
        match self {
            Self::InFlight { commit, .. } => commit.await,
            Self::Idle(_) | Self::Retry { .. } | Self::Lost => std::future::pending().await,
        }
    }
}

/// Formats an error and its sources on one line.
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
