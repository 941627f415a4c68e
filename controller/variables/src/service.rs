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
use leases::{Leases, Renewal};

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
    reads: Semaphore,
    leases: Leases,
    /// Something to maintain has changed.
    wake: Notify,
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
            leases.hold(&metadata);
        }
        Self {
            store: Arc::new(store),
            turn: Arc::default(),
            reads: Semaphore::new(READS_MAX),
            leases,
            wake: Notify::new(),
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

    /// Reads a variable; none if there is none.
    ///
    /// # Errors
    /// If it can't be decrypted or read.
    pub async fn read(&self, actor: &Actor, key: VariableKey) -> Result<Option<Variable>, VariableError> {
        let (store, of) = (Arc::clone(&self.store), key.clone());
        // The semaphore is never closed.
        let _place = self.reads.acquire().await;
        let found = off_thread(move || store.get(&of)).await.map_err(|_| VariableError::Down)?;
        audit::read(actor, &key, &found);
        found
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
        let of = key.clone();
        let written = self.change(move |store| store.put(&of, items, check, &lock)).await;
        audit::changed(actor, "write", &key, written.as_ref().map(|variable| variable.metadata.modify_index));
        written
    }

    /// Removes a variable. Returns the index afterwards.
    ///
    /// # Errors
    /// [`VariableError`].
    pub async fn delete(&self, actor: &Actor, key: VariableKey, check: Check) -> Result<u64, VariableError> {
        let of = key.clone();
        let removed = self.change(move |store| store.delete(&of, check).map(|_| store.index())).await;
        audit::changed(actor, "remove", &key, removed.as_ref().copied());
        removed
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
        let of = key.clone();
        let acquired = match rules::lock_times(&requested).map_err(VariableError::Invalid) {
            Ok((ttl, delay)) => {
                let id = Uuid::new_v4().to_string();
                self.change(move |store| store.acquire(&of, items, LockRequest { id: &id, ttl, delay })).await
            }
            Err(error) => Err(error),
        };
        if let Ok(variable) = &acquired {
            self.leases.hold(&variable.metadata);
            self.wake.notify_one();
        }
        audit::changed(actor, "lock", &key, acquired.as_ref().map(|variable| variable.metadata.modify_index));
        acquired
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
        let held = self.store.held(&key, &id).and_then(|metadata| match self.leases.renew(&metadata) {
            Renewal::Renewed => Ok(metadata),
            // Waits out its delay.
            Renewal::Lost => self.store.held(&key, "").map(|_| metadata),
        });
        audit::changed(actor, "renew lock", &key, held.as_ref().map(|metadata| metadata.modify_index));
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
        let of = key.clone();
        let released = self.change(move |store| store.release(&of, &id)).await;
        if released.is_ok() {
            self.leases.forget(&key);
        }
        audit::changed(actor, "release lock", &key, released.as_ref().map(|metadata| metadata.modify_index));
        released
    }

    /// Creates a key. All variables are then encrypted again, in the background.
    ///
    /// # Errors
    /// If the operator provides the keys, or keys are missing.
    pub async fn rotate(&self, actor: &Actor) -> Result<KeyInfo, VariableError> {
        let rotated = self.change(Store::rotate).await;
        audit::rotated(actor, rotated.as_ref().map(|key| key.id));
        self.wake.notify_one();
        rotated
    }

    /// Removes a key that no variable needs.
    ///
    /// # Errors
    /// If it is in use, unknown, or provided by the operator.
    pub async fn remove_key(&self, actor: &Actor, id: KeyId) -> Result<(), VariableError> {
        let removed = self.change(move |store| store.remove_key(id)).await;
        audit::key_removed(actor, id, &removed);
        removed
    }

    /// Reads the keys again. Blocking.
    ///
    /// # Errors
    /// [`KeyError`]; the previous keys stay in use.
    pub fn reload(&self) -> Result<(), KeyError> {
        self.store.load_keys().inspect(|()| self.wake.notify_one())
    }

    /// Makes changes one after the other, each to its end.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Store) -> Result<T, VariableError> + Send + 'static,
    ) -> Result<T, VariableError> {
        let (turn, store) = (Arc::clone(&self.turn).lock_owned().await, Arc::clone(&self.store));
        let done = off_thread(move || {
            let _turn = turn;
            change(&store)
        });
        done.await.map_err(|_| VariableError::Down)?
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
            match self.change(move |store| store.encrypt_again(&of)).await {
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
            match self.change(move |store| store.release(&of, &id)).await {
                Ok(metadata) => {
                    self.leases.forget(&key);
                    audit::changed(&Actor::agent(), "expire lock", &key, Ok(metadata.modify_index));
                }
                // The holder has released it, or the variable is gone.
                Err(VariableError::Conflict { .. } | VariableError::NotFound) => self.leases.forget(&key),
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
