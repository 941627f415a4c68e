//! Until when locks are held. In memory only.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::variable::{VariableKey, VariableMetadata};
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    /// The lock.
    id: String,
    /// The holder has to renew it before.
    until: Instant,
    /// Another holder can acquire the lock from then on.
    free: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<BTreeMap<VariableKey, Lease>>);

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewal {
    Renewed,
    /// It came too late.
    Lost,
}

impl Leases {
    /// Begins the lease of a lock.
    pub(super) fn hold(&self, metadata: &VariableMetadata) {
        let Some(lock) = &metadata.lock else { return };
        let span = |nanos: i64| Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
        let until = Instant::now() + span(lock.ttl_ns);
        let lease = Lease { id: lock.id.clone(), until, free: until + span(lock.delay_ns) };
        self.held().insert(metadata.key(), lease);
    }

    /// Begins the lease again, if it has not ended.
    pub(super) fn renew(&self, metadata: &VariableMetadata) -> Renewal {
        let is_held = self.held().get(&metadata.key()).is_some_and(|lease| lease.until > Instant::now());
        if !is_held {
            return Renewal::Lost;
        }
        self.hold(metadata);
        Renewal::Renewed
    }

    pub(super) fn forget(&self, key: &VariableKey) {
        self.held().remove(key);
    }

    /// Tries later to release a lock.
    pub(super) fn postpone(&self, key: &VariableKey, by: Duration) {
        if let Some(lease) = self.held().get_mut(key) {
            lease.free = Instant::now() + by;
        }
    }

    /// The locks to release, and their ids.
    pub(super) fn lost(&self) -> Vec<(VariableKey, String)> {
        let now = Instant::now();
        let held = self.held();
        let lost = held.iter().filter(|(_, lease)| lease.free <= now);
        lost.map(|(key, lease)| (key.clone(), lease.id.clone())).collect()
    }

    /// Waits until a lock has to be released. Cancel-safe.
    pub(super) async fn next_lost(&self) {
        let next = self.held().values().map(|lease| lease.free).min();
        match next {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<VariableKey, Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
