//! The calls of the agent: off the runtime's threads, in order, each with an audit line.
//!
//! In: who calls, and what. Out: variables and events. [`Variables::maintain`] releases locks whose holder did not renew
//! them, and encrypts variables again after a rotation of the key. It must not know the callers' protocols.
//!
//! A lock is held for its TTL after its last renewal, then kept for its delay, in which nobody can acquire it, and then
//! released. Renewals are not stored: after a restart every lock has its whole TTL again.

mod audit;
mod leases;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use herdlet_api_types::variable::{Variable, VariableItems, VariableKey, VariableLock, VariableMetadata};
use herdlet_runtime::off_thread;
use tokio::sync::{Mutex, Notify, Semaphore, broadcast};
use uuid::Uuid;

use crate::{
    error::{KeyError, VariableError},
    keyring::KeyId,
    rules,
    store::{Check, KeyInfo, LockRequest, Store},
};
use audit::Access;
use leases::{Followed, Leases, Renewal};

pub use audit::Actor;

/// Reads at the same time; each has a thread and the items of a variable.
const READS_MAX: usize = 8;

/// After a failure, the agent tries again to encrypt variables with a new key or to release a lock.
const RETRY: Duration = Duration::from_secs(60);

/// The variables of an agent.
pub struct Variables {
    store: Arc<Store>,
    /// The change that is being made. Held until its end, even if its caller is gone.
    turn: Arc<Mutex<()>>,
    reads: Arc<Semaphore>,
    leases: Arc<Leases>,
    /// Something to maintain has changed.
    wake: Arc<Notify>,
}

/// The changes of variables from a moment on.
pub struct Changes(broadcast::Receiver<VariableKey>);

/// What a subscriber is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// This variable was created, changed or removed.
    Of(VariableKey),
    /// The subscriber was too slow: any variable may have changed.
    Any,
}

impl Changes {
    /// The next change; none once the store is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change> {
        match self.0.recv().await {
            Ok(key) => Some(Change::Of(key)),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Change::Any),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Variables {
    /// Takes over a store. Its locks have their whole TTL.
    #[must_use]
    pub fn new(store: Store) -> Self {
        let leases = Leases::default();
        for metadata in store.locked() {
            leases.follow(&metadata.key(), metadata.lock.as_ref());
        }
        Self {
            store: Arc::new(store),
            turn: Arc::default(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            leases: Arc::new(leases),
            wake: Arc::default(),
        }
    }

    /// Metadata, the index and the keys, without waiting.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Changes from now on, one event for each changed variable.
    pub fn subscribe(&self) -> Changes {
        Changes(self.store.subscribe())
    }

    /// Records that a caller lists the variables whose paths begin with `prefix`.
    pub fn listed(&self, actor: &Actor, namespace: &str, prefix: &str) {
        audit::listed(actor, namespace, prefix);
    }

    /// Records that a request was refused before it reached the variables: because of its form, or because the caller
    /// has no right. `why` has no value of the request.
    pub fn refused(&self, actor: &Actor, operation: &str, key: &VariableKey, why: &'static str) {
        audit::refused(actor, operation, key, why);
    }

    /// Records a request to remove a key whose id has not the form of one.
    pub fn key_refused(&self, actor: &Actor, id: &str) {
        audit::key_refused(actor, id);
    }

    /// Reads a variable; none if there is none.
    ///
    /// # Errors
    /// If it can't be decrypted or read.
    pub async fn read(&self, actor: &Actor, key: VariableKey) -> Result<Option<Variable>, VariableError> {
        let access = Access::begin(actor, "read", &key);
        // The semaphore is never closed.
        let place = Arc::clone(&self.reads).acquire_owned().await;
        let store = Arc::clone(&self.store);
        let reading = tokio::spawn(async move {
            let _place = place;
            let found = off_thread(move || store.get(&key)).await.unwrap_or(Err(VariableError::Down));
            access.end_read(&found);
            found
        });
        reading.await.unwrap_or(Err(VariableError::Down))
    }

    /// Creates a variable, or replaces its items. `lock` is the id of a lock that the caller holds, or empty.
    ///
    /// # Errors
    /// [`VariableError`].
    pub async fn put(
        &self,
        actor: &Actor,
        key: VariableKey,
        items: VariableItems,
        (check, lock): (Check, String),
    ) -> Result<Variable, VariableError> {
        let leases = Arc::clone(&self.leases);
        let access = Access::begin(actor, "write", &key);
        let put = move |store: &Store| {
            // During its delay the lock is in the store, but nobody holds it.
            if !lock.is_empty() && !leases.has(&key, &lock) {
                store.held(&key, "")?;
            }
            store.put(&key, items, check, &lock)
        };
        self.change(access, |variable: &Variable| variable.metadata.modify_index, put).await
    }

    /// Removes a variable. Returns the index afterwards.
    ///
    /// # Errors
    /// [`VariableError`].
    pub async fn delete(&self, actor: &Actor, key: VariableKey, check: Check) -> Result<u64, VariableError> {
        let access = Access::begin(actor, "remove", &key);
        self.change(
            access,
            |index: &u64| *index,
            move |store| store.delete(&key, check).map(|_| store.index()),
        )
        .await
    }

    /// Locks a variable, and creates it if there is none. The answer has the id of the lock. A request with the id of
    /// the present lock renews it.
    ///
    /// # Errors
    /// [`VariableError`].
    pub async fn acquire(
        &self,
        actor: &Actor,
        key: VariableKey,
        (items, requested): (Option<VariableItems>, VariableLock),
    ) -> Result<Variable, VariableError> {
        if !requested.id.is_empty()
            && let Ok(metadata) = self.renew(actor, key.clone(), requested.id.clone()).await
        {
            return Ok(Variable { metadata, items: None });
        }
        let access = Access::begin(actor, "lock", &key);
        let acquire = move |store: &Store| {
            let (ttl, delay) = rules::lock_times(&requested).map_err(VariableError::Invalid)?;
            let id = Uuid::new_v4().to_string();
            store.acquire(&key, items, LockRequest { id: &id, ttl, delay })
        };
        self.change(access, |variable: &Variable| variable.metadata.modify_index, acquire).await
    }

    /// Renews a lock for its TTL. The answer has its id.
    ///
    /// # Errors
    /// [`VariableError::Conflict`] if the lock is lost.
    pub async fn renew(
        &self,
        actor: &Actor,
        key: VariableKey,
        id: String,
    ) -> Result<VariableMetadata, VariableError> {
        let access = Access::begin(actor, "renew lock", &key);
        let held = self.store.held(&key, &id).and_then(|metadata| {
            let lock = metadata.lock.clone().unwrap_or_default();
            match self.leases.renew(&key, &lock) {
                Renewal::Renewed => Ok(metadata),
                // Waits out its delay.
                Renewal::Lost => self.store.held(&key, "").map(|_| metadata),
            }
        });
        access.end(held.as_ref().map(|metadata| metadata.modify_index));
        held
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// [`VariableError::Conflict`] if it is not held with this id.
    pub async fn release(
        &self,
        actor: &Actor,
        key: VariableKey,
        id: String,
    ) -> Result<VariableMetadata, VariableError> {
        let access = Access::begin(actor, "release lock", &key);
        let release = move |store: &Store| store.release(&key, &id);
        self.change(access, |metadata: &VariableMetadata| metadata.modify_index, release).await
    }

    /// Creates a key. All variables are then encrypted again, in the background.
    ///
    /// # Errors
    /// If the operator provides the keys, or keys are missing.
    pub async fn rotate(&self, actor: &Actor) -> Result<KeyInfo, VariableError> {
        let (actor, wake) = (actor.clone(), Arc::clone(&self.wake));
        let end = move |rotated: &Result<KeyInfo, VariableError>| {
            audit::rotated(&actor, rotated.as_ref().map(|key| key.id));
            wake.notify_one();
        };
        self.in_turn(Store::rotate, end).await
    }

    /// Removes a key that no variable needs.
    ///
    /// # Errors
    /// If it is in use, unknown, or provided by the operator.
    pub async fn remove_key(&self, actor: &Actor, id: KeyId) -> Result<(), VariableError> {
        let actor = actor.clone();
        let end = move |removed: &Result<(), VariableError>| audit::key_removed(&actor, id, removed);
        self.in_turn(move |store| store.remove_key(id), end).await
    }

    /// Reads the keys again. Blocking.
    ///
    /// # Errors
    /// [`KeyError`]; the previous keys stay in use.
    pub fn reload(&self) -> Result<(), KeyError> {
        self.store.load_keys().inspect(|()| self.wake.notify_one())
    }

    /// Changes a variable. Its lease and its audit line follow the change, also if the caller is gone meanwhile.
    async fn change<T: Send + 'static>(
        &self,
        access: Access,
        index: fn(&T) -> u64,
        change: impl FnOnce(&Store) -> Result<T, VariableError> + Send + 'static,
    ) -> Result<T, VariableError> {
        let (store, leases, wake) =
            (Arc::clone(&self.store), Arc::clone(&self.leases), Arc::clone(&self.wake));
        let end = move |done: &Result<T, VariableError>| {
            // What is stored counts: after a failed write, either version may be there.
            let lock = store.lock(access.key());
            if leases.follow(access.key(), lock.as_ref()) == Followed::Changed {
                wake.notify_one();
            }
            access.end(done.as_ref().map(index));
        };
        self.in_turn(change, end).await
    }

    /// Makes changes one after the other, each to its end.
    async fn in_turn<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Store) -> Result<T, VariableError> + Send + 'static,
        end: impl FnOnce(&Result<T, VariableError>) + Send + 'static,
    ) -> Result<T, VariableError> {
        let (turn, store) = (Arc::clone(&self.turn).lock_owned().await, Arc::clone(&self.store));
        let made = tokio::spawn(async move {
            let _turn = turn;
            let done = off_thread(move || change(&store)).await.unwrap_or(Err(VariableError::Down));
            end(&done);
            done
        });
        made.await.unwrap_or(Err(VariableError::Down))
    }

    /// Releases lost locks, and encrypts variables with the active key, until it is dropped. Cancel-safe.
    pub async fn maintain(self: Arc<Self>) {
        loop {
            let mut is_done = self.encrypt_again().await;
            is_done &= self.release_lost().await;
            let retry = async {
                if is_done { std::future::pending().await } else { tokio::time::sleep(RETRY).await }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = self.leases.next_lost() => {}
                () = retry => {}
            }
        }
    }

    /// Returns whether all variables have the active key, as far as their own key is there.
    async fn encrypt_again(&self) -> bool {
        let (mut after, mut is_done, mut count) = (None, true, 0u32);
        while let Some(key) = self.store.next_outdated(after.as_ref()) {
            let of = key.clone();
            match self.in_turn(move |store| store.encrypt_again(&of), |_| ()).await {
                Ok(()) => count += 1,
                Err(error) => {
                    is_done = false;
                    tracing::warn!(variable = %key, %error, "a variable can't be encrypted with the new key");
                }
            }
            after = Some(key);
        }
        if count > 0 {
            tracing::info!(count, "variables were encrypted with the active key");
        }
        is_done
    }

    /// Returns whether every lost lock is released.
    async fn release_lost(&self) -> bool {
        let mut is_done = true;
        for (key, id) in self.leases.lost() {
            let of = key.clone();
            let access = Access::begin(&Actor::agent(), "expire lock", &key);
            let expire = move |store: &Store| store.release(&of, &id);
            let index = |metadata: &VariableMetadata| metadata.modify_index;
            match self.change(access, index, expire).await {
                // Or the holder has released it, or the variable is gone.
                Ok(_) | Err(VariableError::Conflict { .. } | VariableError::NotFound) => {}
                Err(error) => {
                    is_done = false;
                    self.leases.postpone(&key, RETRY);
                    tracing::warn!(variable = %key, %error, "a lost lock can't be released");
                }
            }
        }
        is_done
    }
}
