//! Variables and services of a cluster's servers, for the tasks of their allocations.
//!
//! In: reads of tasks, each with its own token. Out: answers, or the reason why there is none; and, through
//! [`crate::watches::Watches`], the tasks to render again. Each task reads for itself, but all tasks with the same data share one
//! blocking query ([`watch`](self)). While servers are away, only the blocking queries try to reach them.

mod watch;

pub use watch::Following;

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicUsize},
    time::Duration,
};

use herdlet_api_types::{AllocId, UnixNanos, rfc3339::rfc3339};
use herdlet_base::clock::wall_now;
use herdlet_template::Answer;
use tokio::{
    sync::{Notify, Semaphore, watch as channel},
    time::Instant,
};

use crate::{
    data::{Data, Origin},
    region::{AccessToken, Newer, Region, RegionAnswer, RegionError, RegionRequest},
    watches::{TaskKey, keys_of},
};

/// Reads at a time: a change of data that many tasks use must not occupy the connection to the servers.
const READS: usize = 16;

/// After a failure, reads fail without a call for this long: each would wait for servers that do not answer.
const AWAY: Duration = Duration::from_secs(5);

/// The servers as a source of data.
pub struct Servers {
    following: Following,
    region: channel::Sender<Option<Arc<dyn Region>>>,
    reads: Semaphore,
    away: Mutex<Option<Away>>,
    shared: Mutex<HashMap<Data, Shared>>,
    tokens: Mutex<BTreeMap<TaskKey, AccessToken>>,
    /// Data has got its first user, or may have lost its last one.
    changed: Notify,
    blocking: Semaphore,
    watched: AtomicUsize,
}

/// Servers do not answer.
#[derive(Debug, Clone)]
struct Away {
    since: UnixNanos,
    why: String,
    /// When the next read tries again.
    retry_at: Instant,
}

/// What is known of data.
#[derive(Debug, Default)]
struct Shared {
    /// The index of the last answer; 0 before the first one.
    index: u64,
    /// Identifies the content of the last answer.
    mark: u64,
    /// A task may have read something older, or nothing: it has to read once more.
    is_owed: bool,
    /// The last question of the watch has failed.
    is_failing: bool,
    /// Ends the wait of the watch.
    wake: Arc<Notify>,
}

/// A task that reads.
pub struct ServerReader<'r> {
    pub key: TaskKey,
    /// Its name.
    pub task: &'r str,
    pub token: &'r AccessToken,
}

impl Servers {
    pub fn new(following: Following) -> Self {
        Self {
            following,
            region: channel::Sender::new(None),
            reads: Semaphore::new(READS),
            away: Mutex::default(),
            shared: Mutex::default(),
            tokens: Mutex::default(),
            changed: Notify::new(),
            blocking: Semaphore::new(watch::BLOCKING),
            watched: AtomicUsize::new(0),
        }
    }

    /// Sets the servers, once the node has joined their cluster.
    pub fn join(&self, region: Arc<dyn Region>) {
        self.region.send_replace(Some(region));
    }

    /// Reads data for a task, which must be known to [`Watches`](crate::watches::Watches) already: no change is missed.
    ///
    /// # Errors
    /// Why there is no answer, for people.
    pub async fn read(&self, data: &Data, reader: ServerReader<'_>) -> Result<Answer, String> {
        lock(&self.tokens).insert(reader.key, reader.token.clone());
        let result = self.read_if_in_reach(data, reader.token).await;
        self.note(data, &result);
        result.map(|found| found.answer).map_err(|error| match &error {
            RegionError::Away(_) => self.reason().unwrap_or_else(|| error.to_string()),
            RegionError::Denied(why) => {
                format!("servers refuse {} to task {:?}: {why}", data.query, reader.task)
            }
            RegionError::TooOld(_) | RegionError::Failed(_) => {
                format!("servers do not answer {}: {error}", data.query)
            }
        })
    }

    /// Forgets an allocation that is gone.
    pub fn forget(&self, alloc: AllocId) {
        let mut tokens = lock(&self.tokens);
        let gone: Vec<TaskKey> = tokens.range(keys_of(alloc)).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| drop(tokens.remove(key)));
        drop(tokens);
        self.users_changed();
    }

    /// Tasks may have stopped using data.
    pub fn users_changed(&self) {
        if !lock(&self.shared).is_empty() {
            self.changed.notify_one();
        }
    }

    async fn read_if_in_reach(&self, data: &Data, token: &AccessToken) -> Result<RegionAnswer, RegionError> {
        // The semaphore is never closed.
        let _permit = self.reads.acquire().await;
        let away = lock(&self.away).clone().filter(|away| Instant::now() < away.retry_at);
        if let Some(away) = away {
            return Err(RegionError::Away(away.why));
        }
        let region = self.region.borrow().clone();
        let Some(region) = region else {
            return Err(RegionError::Away("this agent has not joined their cluster yet".to_owned()));
        };
        self.ask(&*region, request(data, token, Newer::Now)).await
    }

    /// Asks, and notes whether servers answer.
    async fn ask(&self, region: &dyn Region, request: RegionRequest) -> Result<RegionAnswer, RegionError> {
        let result = region.read(request).await;
        let mut away = lock(&self.away);
        match &result {
            Err(RegionError::Away(why)) => {
                let retry_at = Instant::now() + AWAY;
                let known =
                    away.get_or_insert_with(|| Away { since: wall_now(), why: why.clone(), retry_at });
                known.retry_at = retry_at;
            }
            Ok(_) | Err(RegionError::Denied(_) | RegionError::TooOld(_) | RegionError::Failed(_)) => {
                *away = None;
            }
        }
        result
    }

    /// Since when servers are away. The text stays the same meanwhile, so that it is one event.
    fn reason(&self) -> Option<String> {
        let Away { since, why, .. } = lock(&self.away).clone()?;
        let since = rfc3339(since).unwrap_or_default();
        Some(format!("servers cannot be reached since {since}: {why}"))
    }

    /// Compares what a task has read with what the watch knows.
    fn note(&self, data: &Data, result: &Result<RegionAnswer, RegionError>) {
        let mut shared = lock(&self.shared);
        if !shared.contains_key(data) {
            self.changed.notify_one();
        }
        let known = shared.entry(data.clone()).or_default();
        let is_behind = match result {
            Ok(found) if known.index == 0 => {
                (known.index, known.mark) = (found.index.max(1), mark(found));
                false
            }
            // The watch gets newer data by itself. Older data means that two reads have crossed, or that servers were
            // restored from an older state.
            Ok(found) => found.index < known.index && mark(found) != known.mark,
            Err(RegionError::Away(_)) => true,
            Err(RegionError::Denied(_) | RegionError::TooOld(_) | RegionError::Failed(_)) => false,
        };
        known.is_owed |= is_behind;
        if (is_behind && !known.is_failing) || (result.is_ok() && known.is_failing) {
            known.wake.notify_one();
        }
    }
}

fn request(data: &Data, token: &AccessToken, newer: Newer) -> RegionRequest {
    let namespace = match &data.origin {
        Origin::Servers { namespace } => namespace.clone(),
        Origin::Agent => String::new(),
    };
    RegionRequest { query: data.query.clone(), namespace, token: token.clone(), newer }
}

/// Identifies the content of an answer. A list of variables has only those that the token may list, so that tasks see
/// different ones: each change of the index counts.
fn mark(found: &RegionAnswer) -> u64 {
    let mut hasher = DefaultHasher::new();
    match &found.answer {
        Answer::Variable(variable) => variable.meta.hash(&mut hasher),
        Answer::Services(list) => list.hash(&mut hasher),
        Answer::ServiceNames(list) => list.hash(&mut hasher),
        Answer::Variables(_) => found.index.hash(&mut hasher),
        Answer::Pending
        | Answer::Absent
        | Answer::Failed(_)
        | Answer::Text(_)
        | Answer::Addresses(_)
        | Answer::Json(_) => {}
    }
    hasher.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
