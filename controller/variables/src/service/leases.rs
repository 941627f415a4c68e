//! Until when locks are held. In memory only.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::variable::{VariableKey, VariableLock};
use tokio::time::{Instant, sleep_until};

struct Lease {
    /// The id of the lock, which only its holder knows.
    id: String,
    /// The holder has to renew it before.
    until: Instant,
    /// Another holder can acquire the lock from then on.
    free: Instant,
}

impl Lease {
    fn begin(lock: &VariableLock) -> Self {
        let span = |nanos: i64| Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
        let until = Instant::now() + span(lock.ttl_ns);
        Self { id: lock.id.clone(), until, free: until + span(lock.delay_ns) }
    }

    fn is_held_with(&self, id: &str) -> bool {
        self.id == id && self.until > Instant::now()
    }
}

/// Whether a lease has begun or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    Same,
    Changed,
}

#[derive(Default)]
pub(super) struct Leases(Mutex<BTreeMap<VariableKey, Lease>>);

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewal {
    Renewed,
    /// It came too late.
    Lost,
}

impl Leases {
    /// Makes the lease of a variable that of its lock, after any change: another lock begins a lease, none ends it.
    pub(super) fn follow(&self, key: &VariableKey, lock: Option<&VariableLock>) -> Followed {
        let mut held = self.held();
        match (lock, held.get(key)) {
            (Some(lock), Some(lease)) if lease.id == lock.id => return Followed::Same,
            (Some(lock), _) => drop(held.insert(key.clone(), Lease::begin(lock))),
            (None, _) => drop(held.remove(key)),
        }
        Followed::Changed
    }

    /// Begins the lease of this lock again, if it has not ended.
    pub(super) fn renew(&self, key: &VariableKey, lock: &VariableLock) -> Renewal {
        let mut held = self.held();
        match held.get_mut(key) {
            Some(lease) if lease.is_held_with(&lock.id) => {
                *lease = Lease::begin(lock);
                Renewal::Renewed
            }
            Some(_) | None => Renewal::Lost,
        }
    }

    /// Whether the lease of the lock with this id has not ended.
    pub(super) fn has(&self, key: &VariableKey, id: &str) -> bool {
        self.held().get(key).is_some_and(|lease| lease.is_held_with(id))
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
