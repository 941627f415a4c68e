//! Changes of variables: each is checked, written and then published.

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::variable::{Variable, VariableItems, VariableKey, VariableLock, VariableMetadata};
use herdlet_base::{clock, durable};

use super::{Store, read_bounded};
use crate::{
    error::{KeyError, VariableError},
    keyring::Keyring,
    record::{self, Entry, HEADER_MAX},
    rules::{self, Empty, VARIABLES_MAX},
};

/// What a change expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    Nothing,
    /// The variable was last changed at this index; 0: there is none.
    Index(u64),
}

/// A lock that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest<'r> {
    /// The id of the new lock.
    pub id: &'r str,
    pub ttl: Duration,
    pub delay: Duration,
}

const EXISTS: &str = "there is a variable with this path already";
const CHANGED: &str = "the variable has another index than the request expects";
const ABSENT: &str = "there is no variable with this path";
const LOCKED: &str = "the variable is locked by another holder";
const NOT_HELD: &str = "the variable is not locked with this id: the lock was lost";

impl Store {
    /// Creates a variable, or replaces its items. `lock` is the id of the lock that the caller holds, or empty.
    ///
    /// # Errors
    /// [`VariableError`]; nothing was changed, except that [`VariableError::Write`] leaves that open.
    pub fn put(
        &self,
        key: &VariableKey,
        items: VariableItems,
        check: Check,
        lock: &str,
    ) -> Result<Variable, VariableError> {
        check_request(key, &items, Empty::Refused)?;
        let _writer = self.writing();
        let keys = self.keys_to_write()?;
        let present = self.admitted(key, check, lock)?;
        let lock = present.as_ref().and_then(|entry| entry.metadata.lock.clone());
        self.write(self.next(key, present, lock)?, items, &keys)
    }

    /// Removes a variable. Needs no key. Returns whether there was one.
    ///
    /// # Errors
    /// [`VariableError`], as [`Store::put`].
    pub fn delete(&self, key: &VariableKey, check: Check) -> Result<bool, VariableError> {
        let _writer = self.writing();
        self.refuse_newer()?;
        if self.admitted(key, check, "")?.is_none() {
            return Ok(false);
        }
        // First the index: after a restart it could otherwise be lower than before.
        let index = self.index() + 1;
        self.write_index(index)?;
        let path = self.path(key);
        let removed = durable::remove_in_steps(&path, durable::Outlives::PowerCuts, &self.steps);
        removed.map_err(|source| {
            self.read_back(key);
            VariableError::Write { path, source }
        })?;
        self.publish(key, None, index);
        Ok(true)
    }

    /// Locks a variable, and creates it if there is none. Without `items` it keeps its own.
    ///
    /// # Errors
    /// [`VariableError`], as [`Store::put`].
    pub fn acquire(
        &self,
        key: &VariableKey,
        items: Option<VariableItems>,
        request: LockRequest<'_>,
    ) -> Result<Variable, VariableError> {
        check_request(key, items.as_ref().unwrap_or(&VariableItems::default()), Empty::Accepted)?;
        let _writer = self.writing();
        let keys = self.keys_to_write()?;
        let present = self.admitted(key, Check::Nothing, "")?;
        let items = match items {
            Some(items) => items,
            None => self.decrypted(key)?.map(|(_, items)| items).unwrap_or_default(),
        };
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let LockRequest { id, ttl, delay } = request;
        let lock = VariableLock { id: id.to_owned(), ttl_ns: nanos(ttl), delay_ns: nanos(delay) };
        self.write(self.next(key, present, Some(lock))?, items, &keys)
    }

    /// Releases a lock. The items stay.
    ///
    /// # Errors
    /// [`VariableError`], as [`Store::put`].
    pub fn release(&self, key: &VariableKey, id: &str) -> Result<VariableMetadata, VariableError> {
        let _writer = self.writing();
        let entry = self.holder(key, id)?;
        let keys = self.keys_to_write()?;
        let items = self.decrypted(key)?.map(|(_, items)| items).unwrap_or_default();
        Ok(self.write(self.next(key, Some(entry), None)?, items, &keys)?.metadata)
    }

    /// The metadata of a variable that is locked with this id, with the id.
    ///
    /// # Errors
    /// [`VariableError::NotFound`], [`VariableError::Conflict`].
    pub fn held(&self, key: &VariableKey, id: &str) -> Result<VariableMetadata, VariableError> {
        self.holder(key, id).map(|entry| entry.metadata)
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holder(&self, key: &VariableKey, id: &str) -> Result<Entry, VariableError> {
        let entry = self.entry(key).ok_or(VariableError::NotFound)?;
        match &entry.metadata.lock {
            Some(lock) if lock.id == id && !id.is_empty() => Ok(entry),
            Some(_) | None => Err(conflict(NOT_HELD, Some(entry.metadata.without_lock_id()), key)),
        }
    }

    /// The variable as it is, if the change may be made.
    fn admitted(&self, key: &VariableKey, check: Check, lock: &str) -> Result<Option<Entry>, VariableError> {
        let present = self.entry(key);
        let why = match (check, &present) {
            (Check::Index(0), Some(_)) => Some(EXISTS),
            (Check::Index(1..), None) => Some(ABSENT),
            (Check::Index(index), Some(entry)) if index != entry.metadata.modify_index => Some(CHANGED),
            (Check::Nothing | Check::Index(_), _) => None,
        };
        if let Some(why) = why {
            // The items too, as in Nomad; if they can't be decrypted, without.
            let present = self.get(key).ok().flatten().map(Box::new);
            let none = || Box::new(Variable { metadata: absent(key), items: None });
            return Err(VariableError::Conflict { why, present: present.unwrap_or_else(none) });
        }
        let why = match present.as_ref().and_then(|entry| entry.metadata.lock.as_ref()) {
            Some(held) if held.id != lock => LOCKED,
            // It was lost, and perhaps another holder has changed the variable meanwhile.
            None if !lock.is_empty() => NOT_HELD,
            Some(_) | None => return Ok(present),
        };
        Err(conflict(why, present.map(|entry| entry.metadata.without_lock_id()), key))
    }

    /// The metadata after a change.
    fn next(
        &self,
        key: &VariableKey,
        present: Option<Entry>,
        lock: Option<VariableLock>,
    ) -> Result<VariableMetadata, VariableError> {
        self.refuse_newer()?;
        let (index, now) = (self.index() + 1, clock::wall_now().0);
        let VariableKey { namespace, path } = key.clone();
        let (create_index, create_time) = match present {
            Some(Entry { metadata, .. }) => (metadata.create_index, metadata.create_time),
            None if self.known().entries.len() >= VARIABLES_MAX => {
                return Err(VariableError::Invalid(format!(
                    "there are {VARIABLES_MAX} variables, the most that the agent stores; purge some"
                )));
            }
            None => (index, now),
        };
        Ok(VariableMetadata {
            namespace,
            path,
            create_index,
            modify_index: index,
            create_time,
            modify_time: now,
            lock,
        })
    }

    fn write(
        &self,
        metadata: VariableMetadata,
        items: VariableItems,
        keys: &Keyring,
    ) -> Result<Variable, VariableError> {
        let key = metadata.key();
        let (entry, bytes) = record::encode(&metadata, &items, keys).ok_or(KeyError::Random)?;
        self.reserve(metadata.modify_index)?;
        self.write_file(&self.path(&key), &bytes).inspect_err(|_| self.read_back(&key))?;
        self.publish(&key, Some(entry), metadata.modify_index);
        Ok(Variable { metadata, items: Some(items) })
    }

    fn publish(&self, key: &VariableKey, entry: Option<Entry>, index: u64) {
        let mut known = self.known();
        match entry {
            Some(entry) => drop(known.entries.insert(key.clone(), entry)),
            None => drop(known.entries.remove(key)),
        }
        drop(known);
        self.index.send_if_modified(|now| {
            let is_new = index > *now;
            *now = index.max(*now);
            is_new
        });
        // Nobody may be subscribed.
        let _ = self.changes.send(key.clone());
    }

    /// After a failed write: whether the file is the old or the new one is open, so it is read.
    pub(super) fn read_back(&self, key: &VariableKey) {
        let head = read_bounded(&self.path(key), HEADER_MAX as u64);
        let entry = match head.map(|head| record::decode_header(&head)) {
            Ok(Ok(entry)) => Some(entry),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            // What is known stays, and the next read reports it.
            Ok(Err(_)) | Err(_) => return,
        };
        if entry != self.entry(key) {
            let index = entry.as_ref().map_or(self.index() + 1, |entry| entry.metadata.modify_index);
            self.publish(key, entry, index);
        }
    }

    /// Nothing is written beside files that only a newer release can read.
    fn refuse_newer(&self) -> Result<(), VariableError> {
        let newer = self.known().newer.first().cloned();
        newer.map_or(Ok(()), |path| Err(VariableError::Newer { path }))
    }
}

fn check_request(key: &VariableKey, items: &VariableItems, empty: Empty) -> Result<(), VariableError> {
    rules::check_key(key).and_then(|()| rules::check_items(items, empty)).map_err(VariableError::Invalid)
}

fn absent(key: &VariableKey) -> VariableMetadata {
    let VariableKey { namespace, path } = key.clone();
    VariableMetadata { namespace, path, ..VariableMetadata::default() }
}

fn conflict(why: &'static str, present: Option<VariableMetadata>, key: &VariableKey) -> VariableError {
    let metadata = present.unwrap_or_else(|| absent(key));
    VariableError::Conflict { why, present: Box::new(Variable { metadata, items: None }) }
}
