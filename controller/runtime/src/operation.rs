//! Operations: the work that actions stand for, each in a task of its own, with a permit, a deadline and a token.
//!
//! In goes a [`Request`] and a future, out come [`Report`]s as events in the inbox. At most one operation per key is
//! alive. None is ever cancelled by dropping it: past its deadline it is reported as overdue and asked to end through
//! its token, its slot and its permit stay taken until it truly ends, and then its real outcome is reported.
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

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<K, N> {
    /// What it works on, such as `(object, part, item)`.
    pub key: K,
    /// Comes back in the reports, so that an outcome of an earlier wish can be told from one of the present.
    pub generation: u64,
    /// The kind of work, which decides about permits.
    pub kind: N,
    /// Of those that wait for a permit the highest comes first.
    pub priority: u8,
    /// How long it may take once it has its permit.
    pub deadline: Duration,
}

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report<K, T> {
    /// The key of the request.
    pub key: K,
    /// The generation of the request.
    pub generation: u64,
    /// What happened.
    pub outcome: Outcome<T>,
    /// How long it has run, without the wait for its permit.
    pub ran: Duration,
}

/// What happened to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It ended by itself, in time or late, with what it returned.
    Done(T),
    /// It is past its deadline and still alive; comes once, before the real outcome.
    Overdue,
    /// It panicked, with this message.
    Panicked(String),
    /// It was cancelled before it began: nothing was done.
    Cancelled,
    /// It was not begun because another one with its key is alive, which goes on undisturbed: a defect of the world.
    Refused,
}

type Deliver<K, T> = dyn Fn(Report<K, T>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Starts operations and remembers the live ones; cheap to clone.
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
    /// Operations that report to `inbox`.
    #[must_use]
    pub fn new<E>(inbox: Inbox<E>, permits: Permits<N>) -> Self
    where
        E: From<Report<K, T>> + Send + 'static,
    {
        let deliver = move |report: Report<K, T>| -> Pin<Box<dyn Future<Output = ()> + Send>> {
            let inbox = inbox.clone();
            Box::pin(async move {
                // A closed inbox means that the agent goes down; the next start looks at what was done.
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

    /// Starts `work` as soon as it has a permit. Returns at once; everything else is told by reports. `work` gets the
    /// token by which it is asked to end. Must be called inside a tokio runtime.
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

    /// Asks the operation of `key` to end; `false` when there is none. Its outcome still comes; one that has not begun won't.
    pub fn cancel(&self, key: &K) -> bool {
        self.slots().live.get(key).inspect(|slot| slot.token.cancel()).is_some()
    }

    /// Whether an operation of `key` is alive.
    #[must_use]
    pub fn is_live(&self, key: &K) -> bool {
        self.slots().live.contains_key(key)
    }

    /// Waits until no operation is alive, at most `within`; `false` when some still are.
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
        // A task of its own: work that blocks its thread must not keep the deadline from being noticed.
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
                // Nobody aborts it: the async runtime is going down, and with it this task.
                Err(_) => return,
            },
        };
        let ran = began.elapsed();
        // Free before it is told: whoever hears the outcome may start the next one.
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
