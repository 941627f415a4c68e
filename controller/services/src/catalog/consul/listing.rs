//! Lists a Consul agent's entries of this instance, with one request for all concurrent callers.
//!
//! In: two responses of the agent (services, checks). Out: a [`Listing`] by owner. Each caller gets a listing that
//! began after its call, so it shows everything done before. This module does not know what is wanted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use tokio::{sync::Mutex, time::Instant};

use super::entry::{CheckEntry, Entry};
use crate::catalog::{CatalogFailure, ServiceOwner};

/// Entries by id.
pub(super) type Entries = BTreeMap<String, Entry>;

/// Checks by id.
pub(super) type Checks = BTreeMap<String, CheckEntry>;

/// An agent's entries of this instance.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Numbers listings in the order in which they began.
    pub(super) number: u64,
    owners: BTreeMap<ServiceOwner, Entries>,
    /// Entries without an owner mark.
    stray: Entries,
    /// Ids of entries that can't be parsed. They exist, but nothing else is known about them.
    strange: BTreeSet<String>,
    checks: BTreeMap<String, Checks>,
}

/// Items of an agent's list, parsed separately: an invalid one does not affect the others.
#[derive(Debug)]
pub(super) struct Items<T> {
    known: BTreeMap<String, T>,
    strange: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Item<T> {
    Known(T),
    Strange(IgnoredAny),
}

impl<T: DeserializeOwned> Items<T> {
    /// Parses an agent's list.
    pub(super) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let items: BTreeMap<String, Item<T>> = serde_json::from_slice(body)?;
        let mut read = Self::default();
        for (id, item) in items {
            match item {
                Item::Known(item) => drop(read.known.insert(id, item)),
                Item::Strange(IgnoredAny) => drop(read.strange.insert(id)),
            }
        }
        Ok(read)
    }

    /// The same, without the parsed items for which `is_kept` is false.
    pub(super) fn filtered(mut self, is_kept: impl Fn(&T) -> bool) -> Self {
        self.known.retain(|_, item| is_kept(item));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.strange.is_empty()
    }
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), strange: BTreeSet::new() }
    }
}

impl Listing {
    /// Combines the two responses.
    pub(super) fn of(services: Items<Entry>, checks: Items<CheckEntry>) -> Self {
        let mut listing = Self { strange: services.strange, ..Self::default() };
        for (id, entry) in services.known {
            let of =
                entry.owner().map_or(&mut listing.stray, |owner| listing.owners.entry(owner).or_default());
            of.insert(id, entry);
        }
        for (id, check) in checks.known {
            listing.checks.entry(check.service_id.clone()).or_default().insert(id, check);
        }
        listing
    }

    /// The entries with the mark of `owner`.
    pub(super) fn entries(&self, owner: &ServiceOwner) -> &Entries {
        static NONE: Entries = Entries::new();
        self.owners.get(owner).unwrap_or(&NONE)
    }

    /// The checks of a service.
    pub(super) fn checks(&self, service: &str) -> &Checks {
        static NONE: Checks = Checks::new();
        self.checks.get(service).unwrap_or(&NONE)
    }

    /// All entries that could be parsed.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.owners.values().flatten().chain(&self.stray)
    }

    /// Whether there is an entry with this id, parsed or not.
    pub(super) fn has(&self, id: &str) -> bool {
        self.strange.contains(id) || self.all().any(|(known, _)| known == id)
    }
}

/// Shares listings between concurrent callers.
#[derive(Debug, Default)]
pub(super) struct Shared {
    begun: AtomicU64,
    waiting: AtomicUsize,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The latest answer, kept while others wait that may use it.
    answer: Option<(u64, Answer)>,
    /// The earliest time of the next request.
    next: Option<Instant>,
}

type Answer = Result<Arc<Listing>, CatalogFailure>;

/// The pause after a listing, in multiples of its duration: limits the share of time spent on listings when a thousand
/// services change one after the other.
const PAUSE_TIMES: u32 = 9;
/// The maximum pause before a listing begins.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Shared {
    /// Returns the result of `ask`, which began after this call; other callers may get the same.
    pub(super) async fn get(&self, ask: impl Future<Output = Result<Listing, CatalogFailure>>) -> Answer {
        let before = self.begun.load(Ordering::SeqCst);
        let _waiting = Waiting::new(&self.waiting);
        let mut last = self.last.lock().await;
        let known = last.answer.take().filter(|(number, _)| *number > before);
        let (number, answer) = match known {
            Some(known) => known,
            None => {
                if let Some(next) = last.next {
                    tokio::time::sleep_until(next).await;
                }
                let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
                let began = Instant::now();
                let answer = ask.await.map(|listing| Arc::new(Listing { number, ..listing }));
                let pause = began.elapsed().saturating_mul(PAUSE_TIMES).min(PAUSE_MAX);
                last.next = Some(Instant::now() + pause);
                (number, answer)
            }
        };
        if self.waiting.load(Ordering::SeqCst) > 1 {
            last.answer = Some((number, answer.clone()));
        }
        answer
    }
}

/// Counts a waiting caller until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_readers_share_two_listings() {
        let (shared, asked, done) = (Shared::default(), AtomicUsize::new(0), AtomicU64::new(0));
        let ask = || async {
            asked.fetch_add(1, Ordering::SeqCst);
            // It shows what was done when it began.
            let number = done.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(Listing { strange: BTreeSet::from([number.to_string()]), ..Listing::default() })
        };
        let shown =
            |listing: &Listing| listing.strange.first().and_then(|text| text.parse::<u64>().ok()).unwrap();
        let one = |n: u64| {
            let (shared, ask, done) = (&shared, &ask, &done);
            async move {
                tokio::time::sleep(Duration::from_micros(n * 10)).await;
                let mine = done.fetch_add(1, Ordering::SeqCst) + 1;
                let listing = shared.get(ask()).await.unwrap();
                assert!(shown(&listing) >= mine, "{} before {mine}", shown(&listing));
                listing.number
            }
        };
        let numbers = futures_util::future::join_all((0..1_000).map(one)).await;
        assert!(numbers.iter().max() <= Some(&3) && asked.load(Ordering::SeqCst) <= 3, "{numbers:?}");
        assert!(
            shared.last.lock().await.answer.is_none(),
            "the listing is dropped when nothing waits for it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn listing_failure_is_shared_and_cancelling_blocks_none() {
        let shared = Shared::default();
        let fail = || async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let class = herdlet_base::observation::Class::Retry;
            Err(CatalogFailure { class, why: "request from Consul: it hangs".to_owned() })
        };
        let began = Instant::now();
        let impatient = tokio::time::timeout(Duration::from_secs(2), shared.get(fail()));
        let others = futures_util::future::join_all((0..100).map(|_| shared.get(fail())));
        let (gone, answers) = tokio::join!(impatient, others);
        assert!(gone.is_err() && answers.iter().all(Result::is_err));
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    }

    #[test]
    fn invalid_item_affects_no_other() {
        let alloc = herdlet_api_types::AllocId::from_hash([1; 16]);
        let meta = json!({ "herdlet-instance": "i", "herdlet-alloc": alloc.to_string() });
        let body = json!({
            "a": { "ID": "a", "Service": "web", "Port": 1, "Meta": meta },
            "b": { "ID": "b", "Service": "web", "Port": 70000, "Meta": meta },
            "c": 5,
            "d": { "ID": "d", "Service": "web" },
        });
        let services = Items::read(body.to_string().as_bytes()).unwrap();
        let checks = json!({ "x": { "CheckID": "x", "ServiceID": "a", "Status": "passing" }, "y": [] });
        let listing = Listing::of(services, Items::read(checks.to_string().as_bytes()).unwrap());
        let owner = ServiceOwner { alloc, task: None };
        assert_eq!(listing.entries(&owner).keys().collect::<Vec<_>>(), ["a"]);
        assert!(["a", "b", "c", "d"].into_iter().all(|id| listing.has(id)) && !listing.has("e"));
        assert_eq!(listing.checks("a").len(), 1);
        assert!(Items::<Entry>::read(b"[]").is_err() && Items::<Entry>::read(b"{\"a\": {").is_err());
    }
}
