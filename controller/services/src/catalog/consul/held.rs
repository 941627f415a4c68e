//! What a Consul agent should hold for each owner, and what is known of how much of it is there.
//!
//! In: what is wanted of the agent, and what was seen in a listing. Out: what to compare, and numbers. It asks nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::{AllocId, service::Registration};
use tokio::sync::{Notify, watch};

use crate::catalog::{CatalogError, ServiceOwner};

/// What should be there.
#[derive(Debug)]
pub(super) struct Held {
    owners: Mutex<Owners>,
    /// How many owners should have something there.
    count: watch::Sender<usize>,
    /// What is known has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Owners {
    /// What should be there.
    pub(super) wanted: BTreeMap<ServiceOwner, Wanted>,
    /// How many services are wanted there once Consul has answered for the first time.
    asked: BTreeMap<ServiceOwner, usize>,
    /// How many services are no longer wanted and not known to be gone.
    leaving: BTreeMap<ServiceOwner, usize>,
}

/// What should be there of one owner.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) registrations: Vec<Registration>,
    pub(super) known: Known,
    /// Ids of those that are not known to be there as they should.
    missing: BTreeSet<String>,
    /// What its checks say is told once more: whoever registers them has forgotten what he heard before.
    pub(super) tell_again: bool,
}

/// What is known of an owner's services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Somebody is about to change them.
    Nothing,
    /// They were there as they should be in the listing of this number; a difference in a later one is news.
    Settled(u64),
    /// They are not as they should be, and it was told: whoever heard it tries again.
    Differs,
}

/// How many services are in what state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// As they should be.
    pub registered: u64,
    /// Wanted, and not known to be there as they should.
    pub pending: u64,
    /// No longer wanted, and not known to be gone.
    pub leaving: u64,
}

impl Owners {
    /// Whether somebody wants something of this owner there, or is taking it back.
    pub(super) fn knows(&self, owner: &ServiceOwner) -> bool {
        self.wanted.contains_key(owner) || self.leaving.contains_key(owner)
    }
}

impl Default for Held {
    fn default() -> Self {
        let (count, _) = watch::channel(0);
        Self { owners: Mutex::default(), count, changed: Notify::new() }
    }
}

impl Held {
    pub(super) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something of `owner` should be there, or is not known to be gone.
    pub(super) fn holds(&self, owner: &ServiceOwner) -> bool {
        self.owners().knows(owner)
    }

    /// It is no longer waited for Consul's first answer.
    pub(super) fn forget_asked(&self, owner: &ServiceOwner) {
        self.owners().asked.remove(owner);
    }

    /// Exactly these should be there from now on. `tell_again` stays set until it was done.
    pub(super) fn want(&self, owner: &ServiceOwner, registrations: &[Registration], tell_again: bool) {
        let mut owners = self.owners();
        owners.asked.remove(owner);
        if registrations.is_empty() {
            // Until that was confirmed they may be there.
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
            let tell_again = tell_again || before.is_some_and(|before| before.tell_again);
            let registrations = registrations.to_vec();
            let wanted = Wanted { registrations, known: Known::Nothing, missing, tell_again };
            owners.wanted.insert(owner.clone(), wanted);
        }
        self.count.send_replace(owners.wanted.len());
    }

    /// They were seen in the listing of this number, but for those in `missing`.
    pub(super) fn seen(&self, owner: &ServiceOwner, number: u64, missing: BTreeSet<String>) {
        if let Some(wanted) = self.owners().wanted.get_mut(owner) {
            wanted.known = if missing.is_empty() { Known::Settled(number) } else { Known::Differs };
            wanted.missing = missing;
        }
        self.changed.notify_one();
    }

    /// Nobody changes them any more, and they could not be seen as they should be.
    pub(super) fn unseen(&self, owner: &ServiceOwner) {
        if let Some(wanted) = self.owners().wanted.get_mut(owner)
            && wanted.known == Known::Nothing
        {
            wanted.known = Known::Differs;
        }
    }

    /// Owner, id and name of each service that is there as it should be.
    pub(super) fn settled(&self) -> Vec<(ServiceOwner, String, String)> {
        let owners = self.owners();
        let settled = owners.wanted.iter().filter(|(_, wanted)| matches!(wanted.known, Known::Settled(_)));
        settled
            .flat_map(|(owner, wanted)| {
                wanted.registrations.iter().map(|one| (owner.clone(), one.id.clone(), one.name.clone()))
            })
            .collect()
    }

    /// So many services are wanted there once Consul has answered.
    pub(super) fn ask(&self, owner: &ServiceOwner, count: usize) {
        self.owners().asked.insert(owner.clone(), count);
    }

    /// Nothing should be there from now on.
    pub(super) fn release(&self, owner: &ServiceOwner, known: usize) {
        self.want(owner, &[], false);
        self.owners().leaving.insert(owner.clone(), known);
    }

    /// Whether it is gone.
    pub(super) fn released(&self, owner: &ServiceOwner, result: &Result<(), CatalogError>) {
        if result.is_ok() {
            self.owners().leaving.remove(owner);
        }
    }

    /// Whether something should be there, or is not known to be gone.
    pub(super) fn is_any(&self) -> bool {
        let Owners { wanted, asked, leaving } = &*self.owners();
        !(wanted.is_empty() && asked.is_empty() && leaving.is_empty())
    }

    /// Waits until something should be there.
    pub(super) async fn until_any(&self) {
        // The sender lives in `self`.
        let _ = self.count.subscribe().wait_for(|count| *count > 0).await;
    }

    /// Waits until what is known has changed.
    pub(super) async fn until_changed(&self) {
        self.changed.notified().await;
    }

    /// How many services are in what state. What was asked for allocations that nobody knows any more is forgotten.
    pub(super) fn counts(&self, is_known: impl Fn(&AllocId) -> bool) -> ServiceCounts {
        let mut owners = self.owners();
        owners.asked.retain(|owner, _| is_known(&owner.alloc));
        let pending = |wanted: &Wanted| {
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
