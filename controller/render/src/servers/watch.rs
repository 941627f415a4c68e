//! One blocking query for all data that tasks share.
//!
//! ```text
//!   index ──► blocking query ──► newer, differs: users read again
//!                            ├─► newer, equal: next one
//!                            ├─► older: a server lags behind, or was restored: ask the leader, whose answer counts
//!                            ├─► refused: the token of another user; of none: users learn it, and a pause
//!                            └─► away: a pause; then the leader's present answer
//! ```
//!
//! The query has the token of one of the users. It ends with the last user.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    ops::RangeInclusive,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{
    StreamExt as _,
    future::{AbortHandle, Abortable},
    stream::FuturesUnordered,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{Latest, Peer, Servers, Shared, lock, mark, request};
use herdlet_template::Answer;

use crate::{
    data::Data,
    region::{AccessToken, Newer, Region, RegionAnswer, RegionError},
    watches::Watches,
};

/// Blocking queries of servers at a time: half of what the node may make, so that others get theirs.
pub(super) const BLOCKING: usize = 64;

/// Blocking queries of a Consul at a time: see [`super::READS_OF_CONSUL`].
const BLOCKING_OF_CONSUL: usize = 32;

/// Blocking queries of a peer at a time.
pub(super) const fn blocking(peer: &Peer) -> usize {
    match peer {
        Peer::Servers => BLOCKING,
        Peer::Consul(_) => BLOCKING_OF_CONSUL,
    }
}

/// How long servers may block a query: at most their own maximum, and long enough that they are not polled.
const BLOCK: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);

/// The same if there is more data than queries: they take turns.
const BLOCK_IN_TURN: Duration = Duration::from_secs(10);

/// Between two questions about the same data: services may change all the time.
const PACE: Duration = Duration::from_secs(1);

/// Between two questions to the leader because a task has read something else.
const CONFIRM: Duration = Duration::from_secs(5);

/// The shortest and the longest pause that can be configured: servers are not polled, and are asked again some day.
const RETRY: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 3_600);

/// More doublings of the shortest pause exceed the longest.
const DOUBLINGS_MAX: u32 = 20;

/// The pause after a refusal or an error: a policy or the servers' release may change, which nothing reports.
const REFUSED: Duration = Duration::from_secs(60);

/// An outage of a Consul that is shorter concerns nobody: it may be a restart.
const OUTAGE: Duration = Duration::from_secs(30);

/// Settings of the watches.
#[derive(Debug, Clone)]
pub struct Following {
    /// How long servers may block a query.
    pub block: Duration,
    /// The first pause while servers are away; each further one is twice as long.
    pub retry_first: Duration,
    /// The longest of these pauses; zero for no limit.
    pub retry_longest: Duration,
    /// The leader is asked if a server that answers has had no contact with it for longer than this.
    pub max_stale: Duration,
    /// The first and the longest pause while Consul is away.
    pub retry_of_consul: (Duration, Duration),
}

impl Default for Following {
    /// Nomad's defaults, except for a longer first pause: many nodes lose a server at the same time.
    fn default() -> Self {
        Self {
            block: *BLOCK.end(),
            retry_first: Duration::from_secs(1),
            retry_longest: Duration::from_secs(60),
            max_stale: Duration::from_secs(87_600 * 3_600),
            retry_of_consul: (Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

impl Following {
    /// The same with the pauses of Consul.
    pub(crate) fn of_consul(&self) -> Self {
        let (retry_first, retry_longest) = self.retry_of_consul;
        Self { retry_first, retry_longest, ..self.clone() }
    }

    /// The pause after this many failures before.
    pub(super) fn retry(&self, failures: u32) -> Duration {
        let (shortest, end) = (*RETRY.start(), *RETRY.end());
        let longest =
            if self.retry_longest.is_zero() { end } else { self.retry_longest.clamp(shortest, end) };
        let first = self.retry_first.max(shortest);
        first.saturating_mul(1 << failures.min(DOUBLINGS_MAX)).min(longest)
    }
}

/// The state of one watch between its questions.
#[derive(Default)]
struct Asking {
    failures: u32,
    refused: Vec<AccessToken>,
    /// An answer was older than known, or too stale.
    is_doubtful: bool,
    confirmed_at: Option<Instant>,
    /// Since when questions fail; none once the users of the data know it.
    failing_since: Option<Instant>,
}

impl Servers {
    /// Watches all data of servers that tasks use. Does not end.
    pub async fn follow(&self, watches: &Watches) {
        let mut running: HashMap<Arc<Data>, AbortHandle> = HashMap::new();
        let mut asking = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = self.changed.notified() => {}
                // Only watches that were aborted end.
                Some(_) = asking.next(), if !asking.is_empty() => continue,
            }
            let used = {
                // With the lock: a task that begins to use data meanwhile finds it kept, or adds it again.
                let mut shared = lock(&self.shared);
                let used: HashSet<Arc<Data>> =
                    watches.matching(|data| self.peer.has(data)).into_iter().collect();
                shared.retain(|data, _| used.contains(data));
                used
            };
            running.retain(|data, handle| {
                let is_used = used.contains(data);
                if !is_used {
                    handle.abort();
                }
                is_used
            });
            let known: Vec<Arc<Data>> = {
                let shared = lock(&self.shared);
                used.into_iter().filter(|data| shared.contains_key(&**data)).collect()
            };
            for data in known {
                running.entry(data).or_insert_with_key(|data| {
                    let (handle, registration) = AbortHandle::new_pair();
                    asking.push(Abortable::new(self.watch(watches, Arc::clone(data)), registration));
                    handle
                });
            }
            self.share_queries(running.len());
        }
    }

    /// With more data than queries, those that block already must give way.
    fn share_queries(&self, watched: usize) {
        let before = self.watched.swap(watched, Ordering::Relaxed);
        let most = blocking(&self.peer);
        if watched > most && before <= most {
            lock(&self.shared).values().for_each(|known| known.wake.notify_one());
        }
    }

    async fn watch(&self, watches: &Watches, data: Arc<Data>) {
        let mut joined = self.region.subscribe();
        // The sender lives as long as this.
        let Ok(region) = joined.wait_for(Option::is_some).await.map(|region| region.clone()) else { return };
        let Some(region) = region else { return };
        let Some(wake) = self.with(&data, |known| Arc::clone(&known.wake)) else { return };
        let mut asking = Asking::default();
        loop {
            let began = Instant::now();
            let Some(token) = self.token(watches, &data, &asking.refused) else {
                self.refused_to_all(watches, &data, &mut asking);
                pause(jitter(REFUSED), &wake).await;
                continue;
            };
            let newer = self.question(&data, &mut asking);
            let answer = tokio::select! {
                answer = self.ask_in_turn(&*region, &data, (&token, newer)) => answer,
                () = wake.notified(), if newer != Newer::Now => {
                    sleep(PACE.saturating_sub(began.elapsed())).await;
                    continue;
                }
            };
            let wait = match answer.and_then(|found| self.confirm(&data, found)) {
                Ok(found) => {
                    (asking.failures, asking.failing_since) = (0, None);
                    let latest = Latest { token, found };
                    self.on_answer(watches, &data, (newer, &latest), &mut asking);
                    jitter(PACE).saturating_sub(began.elapsed())
                }
                Err(RegionError::Denied(_)) => {
                    asking.refused.push(token);
                    Duration::ZERO
                }
                Err(error) => self.on_failure(watches, &data, &error, &mut asking),
            };
            pause(wait, &wake).await;
        }
    }

    /// The next question: after failures and doubts the leader's present answer, as servers may have been restored.
    fn question(&self, data: &Data, asking: &mut Asking) -> Newer {
        let (index, is_owed) = self.with(data, |known| (known.index, known.is_owed)).unwrap_or_default();
        let may_confirm = asking.confirmed_at.is_none_or(|at| at.elapsed() >= CONFIRM);
        if index == 0 || asking.failures > 0 || (may_confirm && (is_owed || asking.is_doubtful)) {
            asking.confirmed_at = Some(Instant::now());
            return Newer::Now;
        }
        let is_in_turn =
            self.watched.load(Ordering::Relaxed) > blocking(&self.peer) || is_owed || asking.is_doubtful;
        let block = self.following.block.clamp(*BLOCK.start(), *BLOCK.end());
        Newer::Than { index, block: if is_in_turn { block.min(BLOCK_IN_TURN) } else { block } }
    }

    async fn ask_in_turn(
        &self,
        region: &dyn Region,
        data: &Data,
        (token, newer): (&AccessToken, Newer),
    ) -> Result<RegionAnswer, RegionError> {
        // The semaphores are never closed.
        let _permit = match newer {
            Newer::Now => self.reads.acquire().await,
            Newer::Than { .. } => self.blocking.acquire().await,
        };
        self.ask(region, request(data, token, newer)).await
    }

    fn on_answer(
        &self,
        watches: &Watches,
        data: &Data,
        (newer, Latest { token, found }): (Newer, &Latest),
        asking: &mut Asking,
    ) {
        let (index, mark) = (found.index.max(1), mark(found));
        // Tokens see different parts of a list: a change may concern another one than that of the watch.
        let is_partial =
            matches!(found.answer, Answer::Json(_)) && self.has_other_tokens(watches, data, token);
        asking.refused.clear();
        let is_stale = newer != Newer::Now && found.last_contact > self.following.max_stale;
        let is_news = self.with(data, |known| {
            known.is_failing = false;
            match newer {
                Newer::Than { .. } if index <= known.index => {
                    asking.is_doubtful = is_stale || index < known.index;
                    false
                }
                Newer::Than { .. } | Newer::Now => {
                    let is_owed = newer == Newer::Now && std::mem::take(&mut known.is_owed);
                    let is_news = is_owed || mark != known.mark || (is_partial && index != known.index);
                    known.keep(&self.peer, found, token);
                    asking.is_doubtful = is_stale;
                    is_news
                }
            }
        });
        if is_news == Some(true) {
            watches.changed(Instant::now(), |used| used == data);
        }
    }

    /// Returns how long to wait.
    fn on_failure(
        &self,
        watches: &Watches,
        data: &Data,
        error: &RegionError,
        asking: &mut Asking,
    ) -> Duration {
        if asking.failures == 0 {
            asking.failing_since = Some(Instant::now());
            tracing::warn!(query = %data.query, %error, "failed to watch data of templates; retrying");
        }
        let wait = match error {
            RegionError::Away(_) => self.following.retry(asking.failures),
            // Consul answers so in many states that pass.
            RegionError::Failed(_) if matches!(self.peer, Peer::Consul(_)) => {
                self.following.retry(asking.failures)
            }
            RegionError::Denied(_) | RegionError::TooOld(_) | RegionError::Failed(_) => REFUSED,
        };
        asking.failures = asking.failures.saturating_add(1);
        self.with(data, |known| known.is_failing = true);
        self.report_outage(watches, data, asking);
        jitter(wait)
    }

    /// The users of data of a Consul that does not answer for long show its age: they read it again, which fails, and keep
    /// what they have.
    fn report_outage(&self, watches: &Watches, data: &Data, asking: &mut Asking) {
        let is_long = asking.failing_since.is_some_and(|since| since.elapsed() >= OUTAGE);
        if is_long && matches!(self.peer, Peer::Consul(_)) {
            asking.failing_since = None;
            self.with(data, |known| known.is_owed = true);
            watches.changed(Instant::now(), |used| used == data);
        }
    }

    /// Whether tasks use data with other tokens than this one.
    fn has_other_tokens(&self, watches: &Watches, data: &Data, token: &AccessToken) -> bool {
        let tokens = lock(&self.tokens);
        let users = watches.users(|used| used == data);
        users.iter().filter_map(|user| tokens.get(user)).any(|other| other != token)
    }

    /// No user may read the data any more: they learn it once.
    fn refused_to_all(&self, watches: &Watches, data: &Data, asking: &mut Asking) {
        if asking.refused.is_empty() {
            // The last user is gone, and so is this watch in a moment.
            return;
        }
        asking.refused.clear();
        asking.failures = asking.failures.saturating_add(1);
        let was_failing = self.with(data, |known| {
            // Once it is allowed again, all read again.
            known.is_owed = true;
            std::mem::replace(&mut known.is_failing, true)
        });
        if was_failing == Some(false) {
            tracing::warn!(query = %data.query, peer = %self.peer, "data of templates is refused to all tasks that use it");
            watches.changed(Instant::now(), |used| used == data);
        }
    }

    /// The token of a user that was not refused.
    fn token(&self, watches: &Watches, data: &Data, refused: &[AccessToken]) -> Option<AccessToken> {
        let tokens = lock(&self.tokens);
        let users = watches.users(|used| used == data);
        let mut found = users.iter().filter_map(|user| tokens.get(user));
        found.find(|token| !refused.contains(token)).cloned()
    }

    fn with<T>(&self, data: &Data, change: impl FnOnce(&mut Shared) -> T) -> Option<T> {
        lock(&self.shared).get_mut(data).map(change)
    }
}

/// `base` plus a random part of up to `base`, so that nodes do not ask at the same time.
fn jitter(base: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_000;
    base + base.mul_f64(f64::from(u32::try_from(random).unwrap_or_default()) / 1_000.0)
}

async fn pause(wait: Duration, wake: &Notify) {
    if wait.is_zero() {
        return;
    }
    tokio::select! {
        () = sleep(wait) => {}
        () = wake.notified() => {}
    }
}
