//! The registrations that a Consul agent should hold for each owner, and what is known about their state.
//!
//! In: wanted registrations, and results of listings. Out: registrations to compare, and counts. Sends no requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::{AllocId, service::Registration};
use tokio::sync::{Notify, watch};

use crate::catalog::{CatalogError, ServiceOwner};

#[derive(Debug)]
pub(super) struct DesiredServices {
    owners: Mutex<Owners>,
    /// The number of owners that should have services there.
    count: watch::Sender<usize>,
    /// Notified when the known state changes.
    changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The wanted services.
    pub(super) wanted: BTreeMap<ServiceOwner, OwnerServices>,
    /// The number of services waiting for Consul's first answer.
    asked: BTreeMap<ServiceOwner, usize>,
    /// The number of services no longer wanted and not known to be removed.
    leaving: BTreeMap<ServiceOwner, usize>,
}

/// The wanted services of one owner.
#[derive(Debug)]
pub(super) struct OwnerServices {
    pub(super) registrations: Vec<Registration>,
    pub(super) known: SyncState,
    /// Ids of services that are not known to be correct.
    missing: BTreeSet<String>,
    /// Report check results again: they may have been lost with a new registration.
    pub(super) tell_again: bool,
}

/// Whether the results of checks are reported again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckResults {
    /// They are, because a new registration may lose them.
    ReportAgain,
    /// They are not: nothing is registered.
    Leave,
}

/// What is known of an owner's services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncState {
    /// An operation on them is in progress.
    Nothing,
    /// They were correct in the listing with this number; a difference in a later one must be reported.
    Settled(u64),
    /// They differ, and this was reported: the receiver retries.
    Differs,
}

/// The number of services in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    pub registered: u64,
    /// Wanted, but not known to be correct.
    pub pending: u64,
    /// No longer wanted, and not known to be removed.
    pub leaving: u64,
}

impl Owners {
    /// Whether services of this owner are wanted or being removed.
    pub(super) fn contains(&self, owner: &ServiceOwner) -> bool {
        self.wanted.contains_key(owner) || self.leaving.contains_key(owner)
    }

    /// Forgets the waiting services of unknown allocations.
    fn forget_waiting(&mut self, is_known: impl Fn(&AllocId) -> bool) {
        self.asked.retain(|owner, _| is_known(&owner.alloc));
    }
}

impl Default for DesiredServices {
    fn default() -> Self {
        let (count, _) = watch::channel(0);
        Self { owners: Mutex::default(), count, changed: Notify::new() }
    }
}

impl DesiredServices {
    pub(super) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether services of `owner` are wanted, or not known to be removed.
    pub(super) fn holds(&self, owner: &ServiceOwner) -> bool {
        self.owners().contains(owner)
    }

    /// Stops waiting for Consul's first answer.
    pub(super) fn stop_waiting_for(&self, owner: &ServiceOwner) {
        self.owners().asked.remove(owner);
    }

    /// Sets the wanted registrations. A report that is due stays due until it has been made.
    pub(super) fn want(&self, owner: &ServiceOwner, registrations: &[Registration], results: CheckResults) {
        let mut owners = self.owners();
        owners.asked.remove(owner);
        if registrations.is_empty() {
            // Until the removal is confirmed they may still be there.
            if let Some(before) = owners.wanted.remove(owner) {
                owners.leaving.insert(owner.clone(), before.registrations.len());
            }
        } else {
            owners.leaving.remove(owner);
            let before = owners.wanted.get(owner);
            let is_missing = |id: &String| {
                before.is_none_or(|before| {
                    before.missing.contains(id) || !before.registrations.iter().any(|known| known.id == *id)
                })
            };
            let missing = registrations.iter().map(|wanted| wanted.id.clone()).filter(is_missing).collect();
            let tell_again =
                results == CheckResults::ReportAgain || before.is_some_and(|before| before.tell_again);
            let registrations = registrations.to_vec();
            let wanted = OwnerServices { registrations, known: SyncState::Nothing, missing, tell_again };
            owners.wanted.insert(owner.clone(), wanted);
        }
        self.count.send_replace(owners.wanted.len());
    }

    /// They were correct in the listing with this number, except those in `missing`.
    pub(super) fn seen(&self, owner: &ServiceOwner, number: u64, missing: BTreeSet<String>) {
        if let Some(wanted) = self.owners().wanted.get_mut(owner) {
            wanted.known = if missing.is_empty() { SyncState::Settled(number) } else { SyncState::Differs };
            wanted.missing = missing;
        }
        self.changed.notify_one();
    }

    /// The operation on them has ended without finding them correct.
    pub(super) fn unseen(&self, owner: &ServiceOwner) {
        if let Some(wanted) = self.owners().wanted.get_mut(owner)
            && wanted.known == SyncState::Nothing
        {
            wanted.known = SyncState::Differs;
        }
    }

    /// Owner, id and name of each service that is known to be correct.
    pub(super) fn settled(&self) -> Vec<(ServiceOwner, String, String)> {
        let owners = self.owners();
        let settled =
            owners.wanted.iter().filter(|(_, wanted)| matches!(wanted.known, SyncState::Settled(_)));
        settled
            .flat_map(|(owner, wanted)| {
                wanted.registrations.iter().map(|one| (owner.clone(), one.id.clone(), one.name.clone()))
            })
            .collect()
    }

    /// This many services are wanted once Consul answers.
    pub(super) fn ask(&self, owner: &ServiceOwner, count: usize) {
        self.owners().asked.insert(owner.clone(), count);
    }

    /// No registrations are wanted any more.
    pub(super) fn release(&self, owner: &ServiceOwner, known: usize) {
        self.want(owner, &[], CheckResults::Leave);
        self.owners().leaving.insert(owner.clone(), known);
    }

    /// Services of an earlier agent may be there. Changes nothing for an owner that is known.
    pub(super) fn may_hold(&self, owner: &ServiceOwner, count: usize) {
        let mut owners = self.owners();
        if !owners.contains(owner) {
            owners.leaving.insert(owner.clone(), count);
        }
    }

    /// Records the result of a removal.
    pub(super) fn released(&self, owner: &ServiceOwner, result: &Result<(), CatalogError>) {
        if result.is_ok() {
            self.owners().leaving.remove(owner);
        }
    }

    /// Whether any services are wanted, also those that wait for Consul's first answer. Forgets the waiting services of
    /// unknown allocations. Removals that Consul has not confirmed are shown by the metric of services, and need
    /// nobody: no job depends on Consul any more.
    pub(super) fn is_wanted(&self, is_known: impl Fn(&AllocId) -> bool) -> bool {
        let mut owners = self.owners();
        owners.forget_waiting(is_known);
        !(owners.wanted.is_empty() && owners.asked.is_empty())
    }

    /// Waits until services are wanted.
    pub(super) async fn until_any(&self) {
        // The sender lives as long as `self`.
        let _ = self.count.subscribe().wait_for(|count| *count > 0).await;
    }

    /// Waits until the known state changes.
    pub(super) async fn until_changed(&self) {
        self.changed.notified().await;
    }

    /// The number of services in each state. Forgets waiting services of unknown allocations.
    pub(super) fn counts(&self, is_known: impl Fn(&AllocId) -> bool) -> ServiceCounts {
        let mut owners = self.owners();
        owners.forget_waiting(is_known);
        let pending = |wanted: &OwnerServices| {
            wanted.registrations.iter().filter(|wanted_one| wanted.missing.contains(&wanted_one.id)).count()
        };
        let held: usize = owners.wanted.values().map(|wanted| wanted.registrations.len()).sum();
        let missing: usize = owners.wanted.values().map(pending).sum();
        let asked: usize = owners.asked.values().sum();
        let leaving: usize = owners.leaving.values().sum();
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        ServiceCounts {
            registered: number(held - missing),
            pending: number(missing + asked),
            leaving: number(leaving),
        }
    }
}
