//! Variables and services of a cluster's servers, for the tasks of their allocations; in the same way, data of a Consul.
//!
//! In: reads of tasks, each with its own token. Out: answers, or the reason why there is none; and, through
//! [`crate::watches::Watches`], the tasks to render again. Each task reads for itself, but all tasks with the same data share one
//! blocking query ([`watch`](self)). While servers are away, only the blocking queries try to reach them.

mod watch;

pub use watch::Following;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
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

/// Reads of servers at a time: a change of data that many tasks use must not occupy the connection to them.
const READS: usize = 16;

/// The same for Consul, which accepts 200 connections from one address: herdlet makes at most 100, services included.
const READS_OF_CONSUL: usize = 8;

/// How long the loss of content counts as an outage if an index has gone back: Consul has lost its data, which is
/// restored, or registered again.
const RESTORATION: Duration = Duration::from_secs(300);

/// After a failure, reads fail without a call for this long: each would wait for servers that do not answer.
const AWAY: Duration = Duration::from_secs(5);

/// Whom data is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// The servers of the node's cluster.
    Servers,
    /// A Consul, by its name in the config.
    Consul(String),
}

/// The servers, or a Consul, as a source of data.
pub struct Servers {
    peer: Peer,
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
    /// The last answer of a Consul, for all tasks with the same token.
    latest: Option<Latest>,
    /// The last answer had content.
    has_content: bool,
    /// The index of the content in the outputs of an earlier agent; 0 once there is content, or it counts as deleted.
    recalled: u64,
    /// Since when there is less content with an older index.
    lost_at: Option<Instant>,
    /// Ends the wait of the watch.
    wake: Arc<Notify>,
}

/// An answer, and the token that it was given to. Has no `Debug`: answers are secrets.
#[derive(Clone)]
struct Latest {
    token: AccessToken,
    found: RegionAnswer,
}

impl fmt::Debug for Latest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latest({})", self.found.index)
    }
}

/// A task that reads.
pub struct ServerReader<'r> {
    pub key: TaskKey,
    /// Its name.
    pub task: &'r str,
    pub token: &'r AccessToken,
    /// The index of the data in the task's last outputs; 0 if it is unknown.
    pub recalled: u64,
}

impl Servers {
    pub fn new(peer: Peer, following: Following) -> Self {
        let reads = match peer {
            Peer::Servers => READS,
            Peer::Consul(_) => READS_OF_CONSUL,
        };
        Self {
            blocking: Semaphore::new(watch::blocking(&peer)),
            peer,
            following,
            region: channel::Sender::new(None),
            reads: Semaphore::new(reads),
            away: Mutex::default(),
            shared: Mutex::default(),
            tokens: Mutex::default(),
            changed: Notify::new(),
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
        self.recall(data, reader.recalled);
        if let Some(answer) = self.latest(data, reader.token) {
            return Ok(answer);
        }
        let result = self.read_if_in_reach(data, reader.token).await;
        let result = result.and_then(|found| self.confirm(data, found));
        self.note(data, (&result, reader.token));
        result.map(|found| found.answer).map_err(|error| match &error {
            RegionError::Away(_) => self.reason().unwrap_or_else(|| error.to_string()),
            RegionError::Denied(why) => {
                format!("{} {} to task {:?}: {why}", self.peer.refuses(), data.query, reader.task)
            }
            RegionError::TooOld(_) | RegionError::Failed(_) => {
                format!("{} {}: {error}", self.peer.fails(), data.query)
            }
        })
    }

    /// The index of data that has content, for the next agent.
    pub fn index_of(&self, data: &Data) -> Option<u64> {
        let shared = lock(&self.shared);
        shared.get(data).filter(|known| known.has_content).map(|known| known.index)
    }

    /// Data of a Consul had content with this index before the agent has started.
    fn recall(&self, data: &Data, index: u64) {
        if index == 0 || self.peer == Peer::Servers {
            return;
        }
        let mut shared = lock(&self.shared);
        if !shared.contains_key(data) {
            self.changed.notify_one();
        }
        let known = shared.entry(data.clone()).or_default();
        if known.index == 0 {
            known.recalled = known.recalled.max(index);
        }
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
        // Another task may have read it meanwhile.
        if let Some(Latest { found, .. }) = self.shared_answer(data, token) {
            return Ok(found);
        }
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
        Some(format!("{} cannot be reached since {since}: {why}", self.peer))
    }

    fn latest(&self, data: &Data, token: &AccessToken) -> Option<Answer> {
        self.shared_answer(data, token).map(|latest| latest.found.answer)
    }

    /// The last answer to another task with the same token, as long as the watch would notice a newer one.
    fn shared_answer(&self, data: &Data, token: &AccessToken) -> Option<Latest> {
        let shared = lock(&self.shared);
        let known = shared.get(data).filter(|known| !known.is_failing && !known.is_owed)?;
        known.latest.clone().filter(|latest| latest.token == *token)
    }

    /// An answer of a Consul that may have lost its data counts as an outage for some time.
    fn confirm(&self, data: &Data, found: RegionAnswer) -> Result<RegionAnswer, RegionError> {
        let mut shared = lock(&self.shared);
        let (Peer::Consul(_), Some(known)) = (&self.peer, shared.get_mut(data)) else { return Ok(found) };
        let last = if known.has_content { known.index.max(known.recalled) } else { known.recalled };
        let is_lost = found.index < last && !has_content(&found.answer);
        if !is_lost {
            (known.lost_at, known.recalled) = (None, 0);
            return Ok(found);
        }
        let lost_at = *known.lost_at.get_or_insert_with(Instant::now);
        if lost_at.elapsed() >= RESTORATION {
            known.recalled = 0;
            return Ok(found);
        }
        let why = format!("it has an older state without {}; it may have lost its data", data.query);
        Err(RegionError::Failed(why))
    }

    /// Compares what a task has read with what the watch knows.
    fn note(&self, data: &Data, (result, token): (&Result<RegionAnswer, RegionError>, &AccessToken)) {
        let mut shared = lock(&self.shared);
        if !shared.contains_key(data) {
            self.changed.notify_one();
        }
        let known = shared.entry(data.clone()).or_default();
        let is_behind = match result {
            Ok(found) if known.index == 0 => {
                known.keep(&self.peer, found, token);
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

impl Shared {
    /// Keeps what is known from an answer.
    fn keep(&mut self, peer: &Peer, found: &RegionAnswer, token: &AccessToken) {
        // An index of 0 would not block.
        (self.index, self.mark) = (found.index.max(1), mark(found));
        self.has_content = has_content(&found.answer);
        self.latest = match peer {
            // Each task has a token of its own.
            Peer::Servers => None,
            Peer::Consul(_) => Some(Latest { token: token.clone(), found: found.clone() }),
        };
    }
}

impl Peer {
    /// Whether it has this data.
    fn has(&self, data: &Data) -> bool {
        match (self, &data.origin) {
            (Self::Servers, Origin::Servers { .. }) => true,
            (Self::Consul(name), Origin::Consul { cluster, .. }) => name == cluster,
            (Self::Servers | Self::Consul(_), _) => false,
        }
    }

    fn refuses(&self) -> String {
        format!("{self} {}", if *self == Self::Servers { "refuse" } else { "refuses" })
    }

    fn fails(&self) -> String {
        format!("{self} {} not answer", if *self == Self::Servers { "do" } else { "does" })
    }
}

/// The subject of a sentence.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Servers => f.write_str("servers"),
            Self::Consul(name) if name == "default" => f.write_str("Consul"),
            Self::Consul(name) => write!(f, "Consul `{name}`"),
        }
    }
}

/// Whether an answer has data.
fn has_content(answer: &Answer) -> bool {
    match answer {
        Answer::Pending | Answer::Absent | Answer::Failed(_) => false,
        Answer::Json(value) => value.as_array().is_none_or(|list| !list.is_empty()),
        Answer::Text(_) | Answer::Addresses(_) | Answer::Variable(_) => true,
        Answer::Variables(list) => !list.is_empty(),
        Answer::Services(list) => !list.is_empty(),
        Answer::ServiceNames(list) => !list.is_empty(),
    }
}

fn request(data: &Data, token: &AccessToken, newer: Newer) -> RegionRequest {
    let (namespace, partition) = match &data.origin {
        Origin::Servers { namespace } => (namespace.clone(), String::new()),
        Origin::Consul { namespace, partition, .. } => (namespace.clone(), partition.clone()),
        Origin::Agent => (String::new(), String::new()),
    };
    RegionRequest { query: data.query.clone(), namespace, partition, token: token.clone(), newer }
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
        Answer::Text(text) => (1, text).hash(&mut hasher),
        Answer::Json(value) => (2, value).hash(&mut hasher),
        Answer::Pending | Answer::Absent | Answer::Failed(_) | Answer::Addresses(_) => {}
    }
    hasher.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
