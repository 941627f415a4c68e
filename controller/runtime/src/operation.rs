//! Operations: the work of actions, each in a task of its own, with a permit, a deadline and a cancellation token.
//!
//! In: a [`Request`] and a future. Out: [`Report`]s as events in the inbox. At most one operation per key is alive.
//! Operations are never cancelled by dropping them: past its deadline, one is reported as overdue and asked to end
//! through its token. It keeps its slot and its permit until it has ended, and then its real outcome is reported.
//!
//! ```text
//!             ┌── token cancelled ─────────────────────────────────────────► Cancelled
//!   Waiting ──┴─ permit ─► Running ──┬─ ends ──────────────────────────────► Done | Panicked
//!   (slot taken)                     └─ deadline ─► Overdue (reported) ─ ends ─► Done | Panicked (late)
//! ```

mod figures;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::inbox::Inbox;
use crate::panic::message;
use crate::permit::Permits;

use figures::OperationFigures;

pub use figures::KindFigures;

/// The description of an operation to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<K, N> {
    /// The object of the work, such as `(object, part, item)`.
    pub key: K,
    /// Returned in the reports, so that the receiver can tell outcomes of earlier requests from current ones.
    pub generation: u64,
    /// The kind of work, which selects the permits.
    pub kind: N,
    /// The priority among operations that wait for a permit; the highest is served first.
    pub priority: u8,
    /// The time limit, counted from when the permit is granted.
    pub deadline: Duration,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report<K, T> {
    /// The key of the request.
    pub key: K,
    /// The generation of the request.
    pub generation: u64,
    /// The outcome.
    pub outcome: Outcome<T>,
    /// How long it has run, without the wait for its permit.
    pub ran: Duration,
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It returned this value, in time or late.
    Done(T),
    /// It is past its deadline and still running; reported once, before the real outcome.
    Overdue,
    /// It panicked, with this message.
    Panicked(String),
    /// It was cancelled before it began; no work was done.
    Cancelled,
    /// It was not started because another operation with its key is alive. That one continues undisturbed. This is a
    /// bug in the world.
    Refused,
}

type Deliver<K, T> = dyn Fn(Report<K, T>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Starts operations and tracks the live ones; cheap to clone.
pub struct Operations<K, N, T> {
    slots: Arc<Mutex<Slots<K, N>>>,
    permits: Permits<N>,
    deliver: Arc<Deliver<K, T>>,
    tracker: TaskTracker,
}

struct Slots<K, N> {
    live: BTreeMap<K, Slot<N>>,
    ended: BTreeMap<N, OperationFigures>,
}

struct Slot<N> {
    kind: N,
    token: CancellationToken,
    asked_at: Instant,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Overdue,
}

impl<K, N, T> Clone for Operations<K, N, T> {
    fn clone(&self) -> Self {
        Self {
            slots: Arc::clone(&self.slots),
            permits: self.permits.clone(),
            deliver: Arc::clone(&self.deliver),
            tracker: self.tracker.clone(),
        }
    }
}

impl<K, N, T> Operations<K, N, T>
where
    K: Ord + Clone + Debug + Send + Sync + 'static,
    N: Ord + Copy + Debug + Send + Sync + 'static,
    T: Send + 'static,
{
    /// Creates operations that report to `inbox`.
    #[must_use]
    pub fn new<E>(inbox: Inbox<E>, permits: Permits<N>) -> Self
    where
        E: From<Report<K, T>> + Send + 'static,
    {
        let deliver = move |report: Report<K, T>| -> Pin<Box<dyn Future<Output = ()> + Send>> {
            let inbox = inbox.clone();
            Box::pin(async move {
                // The inbox is closed when the agent shuts down; the next start inspects the results.
                let _ = inbox.send(E::from(report)).await;
            })
        };
        Self {
            slots: Arc::new(Mutex::new(Slots { live: BTreeMap::new(), ended: BTreeMap::new() })),
            permits,
            deliver: Arc::new(deliver),
            tracker: TaskTracker::new(),
        }
    }

    /// Starts `work` as soon as it has a permit. Returns at once; everything else arrives in reports. `work` receives
    /// the token that asks it to end. Must be called inside a tokio runtime.
    pub fn start<F, W>(&self, request: Request<K, N>, work: W)
    where
        W: FnOnce(CancellationToken) -> F + Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let operations = self.clone();
        match self.take_slot(&request) {
            Some(token) => {
                self.tracker.spawn(async move { operations.run(request, token, work).await });
            }
            None => {
                tracing::error!(key = ?request.key, kind = ?request.kind, "operation refused: its key is taken");
                self.tracker.spawn(async move {
                    operations.report(&request, Outcome::Refused, Duration::ZERO).await
                });
            }
        }
    }

    /// Asks the operation of `key` to end; returns `false` if there is none. Its outcome is still reported. If it has
    /// not begun, it never will.
    pub fn cancel(&self, key: &K) -> bool {
        self.slots().live.get(key).inspect(|slot| slot.token.cancel()).is_some()
    }

    /// Whether an operation of `key` is alive.
    #[must_use]
    pub fn is_live(&self, key: &K) -> bool {
        self.slots().live.contains_key(key)
    }

    /// Waits until no operation is alive, at most for `within`; returns `false` if some still are.
    pub async fn settled(&self, within: Duration) -> bool {
        self.tracker.close();
        let settled = tokio::time::timeout(within, self.tracker.wait()).await.is_ok();
        self.tracker.reopen();
        settled
    }

    /// The figures of every kind seen so far, in order.
    #[must_use]
    pub fn figures(&self) -> Vec<(N, KindFigures)> {
        let mut figures = self.slots().figures();
        for (kind, figures) in &mut figures {
            figures.paced_total = self.permits.paced_total(*kind);
        }
        figures
    }

    async fn run<F, W>(&self, request: Request<K, N>, token: CancellationToken, work: W)
    where
        W: FnOnce(CancellationToken) -> F + Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let permit = tokio::select! {
            biased;
            () = token.cancelled() => None,
            permit = self.permits.acquire(request.kind, request.priority) => Some(permit),
        };
        let Some(permit) = permit else {
            self.free_slot(&request, &Outcome::<T>::Cancelled, Duration::ZERO);
            return self.report(&request, Outcome::Cancelled, Duration::ZERO).await;
        };
        self.enter(&request.key, Phase::Running);
        let began = Instant::now();
        // A separate task: work that blocks its thread must not delay the deadline.
        let ask_to_end = token.clone();
        let mut live = tokio::spawn(async move { work(token).await });
        let ended = tokio::select! {
            biased;
            ended = &mut live => ended,
            () = sleep(request.deadline) => {
                self.enter(&request.key, Phase::Overdue);
                ask_to_end.cancel();
                let overdue = self.report(&request, Outcome::Overdue, began.elapsed());
                tokio::join!(&mut live, overdue).0
            }
        };
        let outcome = match ended {
            Ok(done) => Outcome::Done(done),
            Err(error) => match error.try_into_panic() {
                Ok(payload) => Outcome::Panicked(message(&*payload)),
                // Nothing aborts the task: the async runtime is shutting down, and this task with it.
                Err(_) => return,
            },
        };
        let ran = began.elapsed();
        // Free the slot before reporting: the receiver may start the next operation.
        drop(permit);
        self.free_slot(&request, &outcome, ran);
        self.report(&request, outcome, ran).await;
    }

    async fn report(&self, request: &Request<K, N>, outcome: Outcome<T>, ran: Duration) {
        let (key, generation) = (request.key.clone(), request.generation);
        (self.deliver)(Report { key, generation, outcome, ran }).await;
    }

    fn take_slot(&self, request: &Request<K, N>) -> Option<CancellationToken> {
        let mut slots = self.slots();
        let Slots { live, ended } = &mut *slots;
        let figures = ended.entry(request.kind).or_default();
        match live.entry(request.key.clone()) {
            Entry::Occupied(_) => {
                figures.refused += 1;
                None
            }
            Entry::Vacant(entry) => {
                figures.asked += 1;
                let token = CancellationToken::new();
                let slot = Slot {
                    kind: request.kind,
                    token: token.clone(),
                    asked_at: Instant::now(),
                    phase: Phase::Waiting,
                };
                entry.insert(slot);
                Some(token)
            }
        }
    }

    fn enter(&self, key: &K, phase: Phase) {
        let mut slots = self.slots();
        let Slots { live, ended } = &mut *slots;
        if let Some(slot) = live.get_mut(key) {
            slot.phase = phase;
            if phase == Phase::Overdue {
                ended.entry(slot.kind).or_default().overdue += 1;
            }
        }
    }

    fn free_slot(&self, request: &Request<K, N>, outcome: &Outcome<T>, ran: Duration) {
        let mut slots = self.slots();
        slots.live.remove(&request.key);
        slots.ended.entry(request.kind).or_default().count(outcome, ran);
    }

    fn slots(&self) -> MutexGuard<'_, Slots<K, N>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
