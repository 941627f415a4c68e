//! The variables of a state directory: one encrypted file for each.
//!
//! In: requests, keys. Out: variables, and an index that grows with every change. A change is on disk, also after a power cut,
//! before its call returns; after a crash between any two steps, each variable has its old or its new version. Metadata is
//! in memory, items only while a call needs them. All calls block.
//!
//! ```text
//! <state>/variables/NAMESPACE%2FPATH   one variable (`record`)
//! <state>/variables/index              an index that was reached, such as that of the last removal, and one that none has
//!                                      exceeded; those of other changes are in the files
//! <state>/damaged/                     files that could not be read
//! ```
//!
//! A file that cannot be decrypted is never replaced or removed, except by a request to remove that variable. While keys
//! are missing, nothing is written: a wrong key file would otherwise be noticed only when it is replaced by the right one.

mod change;
mod keys;
mod scan;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use herdlet_api_types::variable::{Variable, VariableItems, VariableKey, VariableLock, VariableMetadata};
use herdlet_base::{
    durable::{self, Steps},
    paths::file_name,
};
use rustix::fs::OFlags;
use tokio::sync::{broadcast, watch};

use crate::{
    error::VariableError,
    key_file::KeySource,
    keyring::Keyring,
    record::{self, Entry, FILE_MAX, Locked},
};

pub use change::{Check, LockRequest};
pub use keys::KeyInfo;
pub use scan::{Examination, examine};

/// The directory of variables, in the state directory.
const DIR: &str = "variables";
/// See the module.
const INDEX: &str = "index";
/// The directory of damaged files, in the state directory.
const SET_ASIDE: &str = "damaged";

/// Indexes are reserved in steps of this size: as many changes cost one more write, and a damaged file raises the index by
/// at most so much.
const INDEX_STEP: u64 = 1_024;

/// What is added to the index if the reservation is lost too: more removals in a row than an agent ever makes. All other
/// changes have left a file.
const INDEX_GAP: u64 = 1 << 20;

/// Changes that a slow subscriber may be behind. It then reads everything again.
const CHANGES_MAX: usize = 1_024;

/// The variables of a state directory.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    source: KeySource,
    /// Held during a change, including its writes.
    writer: Mutex<()>,
    /// Held for moments only.
    known: Mutex<Known>,
    index: watch::Sender<u64>,
    /// No index is higher; changed by the holder of `writer` only.
    reserved: AtomicU64,
    changes: broadcast::Sender<VariableKey>,
    steps: Steps,
}

#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<VariableKey, Entry>,
    /// Files that a newer release wrote.
    newer: BTreeSet<PathBuf>,
    keys: Keyring,
}

impl Store {
    /// Opens the variables of the state directory `state`. Damaged files are moved to its folder `damaged`. Keys are
    /// not needed yet.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn open(state: &Path, source: KeySource) -> Result<Self, VariableError> {
        Self::open_in_steps(state, source, Steps::default())
    }

    pub(crate) fn open_in_steps(
        state: &Path,
        source: KeySource,
        steps: Steps,
    ) -> Result<Self, VariableError> {
        let dir = state.join(DIR);
        let scan::Scan { entries, newer, damaged, unreadable, unfinished, index, reserved, is_index_lost } =
            scan::scan(&dir)?;
        for path in unfinished {
            // A crash left it; its write was never acknowledged.
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "a temporary file can't be removed");
            }
        }
        for path in &newer {
            tracing::error!(path = %path.display(), "a newer release wrote this variable: it can't be read, and no variable is changed");
        }
        // A reservation that is lower is not of these files.
        let reserved = reserved.filter(|reserved| *reserved >= index);
        let index = match reserved {
            _ if !is_index_lost => index,
            Some(reserved) => reserved,
            None => index + INDEX_GAP,
        };
        let known = Mutex::new(Known { entries, newer, keys: Keyring::default() });
        let (index, changes) = (watch::Sender::new(index), broadcast::Sender::new(CHANGES_MAX));
        let reserved = AtomicU64::new(reserved.unwrap_or_default());
        let store = Self { dir, source, writer: Mutex::default(), known, index, reserved, changes, steps };
        if !is_index_lost || store.keep_index() {
            let damaged = damaged.iter().map(|(path, why)| (path, why as &dyn std::fmt::Display));
            let unreadable = unreadable.iter().map(|(path, error)| (path, error as &dyn std::fmt::Display));
            // The index has been replaced.
            let is_variable = |(path, _): &(&PathBuf, _)| path.file_name().is_none_or(|name| name != INDEX);
            for (path, why) in damaged.chain(unreadable).filter(is_variable) {
                scan::set_aside(path, &state.join(SET_ASIDE), why);
            }
        }
        if let Err(error) = store.load_keys()
            && !store.known().entries.is_empty()
        {
            tracing::error!(error = %error, "variables can't be decrypted");
        }
        Ok(store)
    }

    /// Writes the index before the files are moved away that it may depend on. Otherwise they stay until the next start.
    fn keep_index(&self) -> bool {
        let path = self.dir.join(INDEX);
        // What is there, such as a directory, may prevent it.
        if !path.is_file() && path.exists() {
            scan::set_aside(&path, &self.dir.with_file_name(SET_ASIDE), &"it is not an index");
        }
        let written = self.write_index(self.index());
        written.inspect_err(|error| tracing::error!(%error, "damaged variables are not moved away")).is_ok()
    }

    /// The index of the last change. It never decreases, also over restarts.
    pub fn index(&self) -> u64 {
        *self.index.borrow()
    }

    /// Waits until the index is greater than `index`. Cancel-safe.
    pub async fn changed(&self, index: u64) {
        // The wait fails only when the store is dropped.
        let _ = self.index.subscribe().wait_for(|now| *now > index).await;
    }

    /// The callers of [`Store::changed`] that wait.
    pub fn waiting(&self) -> usize {
        self.index.receiver_count()
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<VariableKey> {
        self.changes.subscribe()
    }

    /// Sends the event of a change that did not happen.
    #[cfg(test)]
    pub(crate) fn announce_for_tests(&self, key: &VariableKey) {
        let _ = self.changes.send(key.clone());
    }

    /// All variables, by namespace and path, without items and without ids of locks.
    pub fn list(&self) -> Vec<VariableMetadata> {
        self.known().entries.values().map(|entry| entry.metadata.clone().without_lock_id()).collect()
    }

    /// Those of these variables that exist. Visits no other one.
    pub fn list_of(&self, keys: &[VariableKey]) -> Vec<VariableMetadata> {
        keys.iter().filter_map(|key| self.metadata(key)).collect()
    }

    /// Everything about a variable but its items.
    pub fn metadata(&self, key: &VariableKey) -> Option<VariableMetadata> {
        self.entry(key).map(|entry| entry.metadata.without_lock_id())
    }

    /// The locks that are held, with their ids.
    pub(crate) fn locked(&self) -> Vec<VariableMetadata> {
        let known = self.known();
        let locked = known.entries.values().filter(|entry| entry.metadata.lock.is_some());
        locked.map(|entry| entry.metadata.clone()).collect()
    }

    /// The lock of a variable, with its id.
    pub(crate) fn lock(&self, key: &VariableKey) -> Option<VariableLock> {
        self.entry(key)?.metadata.lock
    }

    /// Reads and decrypts a variable; none if there is none. The id of a lock is left out.
    ///
    /// # Errors
    /// If it can't be decrypted or read.
    pub fn get(&self, key: &VariableKey) -> Result<Option<Variable>, VariableError> {
        let found = self.decrypted(key)?;
        Ok(found.map(|(entry, items)| Variable {
            metadata: entry.metadata.without_lock_id(),
            items: Some(items),
        }))
    }

    /// The variable as its file has it, with the id of a lock.
    fn decrypted(&self, key: &VariableKey) -> Result<Option<(Entry, VariableItems)>, VariableError> {
        let path = self.path(key);
        let damaged = |why| VariableError::Damaged { key: key.clone(), path: path.clone(), why };
        loop {
            let Some(entry) = self.entry(key) else {
                let is_newer = self.known().newer.contains(&path);
                return if is_newer { Err(VariableError::Newer { path }) } else { Ok(None) };
            };
            let keys = self.keys_of([&entry])?;
            let file = match read_bounded(&path, FILE_MAX) {
                Ok(file) => file,
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.entry(key).is_none() => {
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged("is missing")),
                Err(source) => return Err(VariableError::Read { path, source }),
            };
            match record::decode(&file, &keys) {
                Ok((found, _)) if found.metadata.key() != *key => {
                    return Err(damaged("is of another variable"));
                }
                Ok((found, _)) if found.metadata.modify_index < entry.metadata.modify_index => {
                    return Err(damaged("is older than the agent left it"));
                }
                Ok(found) => return Ok(Some(found)),
                // It was encrypted with another key meanwhile.
                Err(Locked::NoKey) if self.entry(key).is_some_and(|now| now.key != entry.key) => {}
                Err(Locked::NoKey) => {
                    return Err(damaged("was encrypted with another key than the agent used"));
                }
                Err(Locked::Damaged(why)) => return Err(damaged(why)),
            }
        }
    }

    fn entry(&self, key: &VariableKey) -> Option<Entry> {
        self.known().entries.get(key).cloned()
    }

    fn path(&self, key: &VariableKey) -> PathBuf {
        self.dir.join(name_of(key))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves an index before it is given out.
    fn reserve(&self, index: u64) -> Result<(), VariableError> {
        if index <= self.reserved.load(Ordering::Relaxed) { Ok(()) } else { self.write_index(self.index()) }
    }

    /// Writes that an index is reached, with a reservation beyond it.
    fn write_index(&self, index: u64) -> Result<(), VariableError> {
        let known = self.reserved.load(Ordering::Relaxed);
        let reserved = if known > index { known } else { index + INDEX_STEP };
        self.write_file(&self.dir.join(INDEX), format!("{index} {reserved}").as_bytes())?;
        self.reserved.store(reserved, Ordering::Relaxed);
        Ok(())
    }

    /// Writes a file durably. After a failure, a temporary file is removed: it takes space on a full disk.
    fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), VariableError> {
        let failed = |source| VariableError::Write { path: path.to_owned(), source };
        durable::make_dir(&self.dir).map_err(failed)?;
        let written = durable::write_in_steps(path, bytes, durable::Outlives::PowerCuts, &self.steps);
        written.map_err(|source| {
            if self.steps.pass().is_ok() {
                let _ = durable::discard(path);
            }
            failed(source)
        })
    }
}

/// The name of a variable's file.
fn name_of(key: &VariableKey) -> String {
    file_name(&format!("{}/{}", key.namespace, key.path))
}

/// Reads the beginning of a regular file. Does not wait, as for a FIFO.
fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, most), &mut bytes)?;
    Ok(bytes)
}
