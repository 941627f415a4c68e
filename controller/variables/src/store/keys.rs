//! The keys of the store: reading them, rotation, and encrypting variables again.

use std::{collections::BTreeMap, path::Path};

use herdlet_api_types::variable::VariableKey;
use herdlet_base::clock;

use super::Store;
use crate::{
    error::{KeyError, VariableError},
    keyring::{KeyId, Keyring},
    record::{self, Entry},
};

/// A key, without the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    pub id: KeyId,
    /// Whether it encrypts.
    pub is_active: bool,
    /// Whether it can be used; it is missing otherwise.
    pub is_present: bool,
    /// Seconds since 1970; 0 if unknown.
    pub created_s: u64,
    /// Variables that are encrypted with it.
    pub variables: usize,
}

impl Store {
    /// Reads the keys again. If they can't be used, the previous keys stay in use.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn load_keys(&self) -> Result<(), KeyError> {
        self.adopt(self.source.load()?).map_or(Ok(()), Err)
    }

    /// Uses other keys, unless only the present ones decrypt all variables. Returns why the others don't.
    fn adopt(&self, keys: Keyring) -> Option<KeyError> {
        let mut known = self.known();
        let why = |keys: &Keyring| missing(keys, known.entries.values(), self.source.path());
        let (new, present) = (why(&keys), why(&known.keys));
        if new.is_none() || present.is_some() || known.entries.is_empty() {
            known.keys = keys;
        }
        new
    }

    /// Why some variables can't be decrypted, for people; none if all can. While a key is missing, it reads the key file again:
    /// the file may have been repaired, or be unusable for another reason. Blocking then.
    pub fn trouble(&self) -> Option<String> {
        let is_missing = {
            let known = self.known();
            missing(&known.keys, known.entries.values(), self.source.path()).is_some()
        };
        if !is_missing {
            return None;
        }
        let why = self.load_keys().err()?;
        Some(format!("variables can't be decrypted, and none can be changed: {why}"))
    }

    /// Keys that include those of these entries. Reads the file again if one is missing, so that a repaired file needs no
    /// restart.
    pub(super) fn keys_of<'e>(
        &self,
        entries: impl IntoIterator<Item = &'e Entry> + Clone,
    ) -> Result<Keyring, KeyError> {
        let lacks = |keys: &Keyring| entries.clone().into_iter().any(|entry| !keys.contains(entry.key));
        let keys = self.known().keys.clone();
        if !lacks(&keys) {
            return Ok(keys);
        }
        let keys = self.source.load()?;
        let why = self.adopt(keys.clone());
        if lacks(&keys) {
            return Err(why.unwrap_or(KeyError::Missing { path: self.source.path().to_owned() }));
        }
        Ok(keys)
    }

    /// Keys for a change: those of all variables, and one that encrypts, which is generated if there are no variables.
    pub(super) fn keys_to_write(&self) -> Result<Keyring, KeyError> {
        let entries: Vec<Entry> = self.known().entries.values().cloned().collect();
        let keys = self.keys_of(&entries)?;
        if keys.active().is_some() {
            return Ok(keys);
        }
        let keys = self.source.load()?;
        if keys.active().is_none() {
            self.source.generate(now_s())?;
            tracing::info!(path = %self.source.path().display(), "generated a key for variables: include it in backups");
        }
        let keys = self.source.load()?;
        self.known().keys = keys.clone();
        Ok(keys)
    }

    /// All keys that are there or needed, the active one first.
    pub fn key_infos(&self) -> Vec<KeyInfo> {
        let known = self.known();
        let mut used: BTreeMap<KeyId, usize> = BTreeMap::new();
        for entry in known.entries.values() {
            *used.entry(entry.key).or_default() += 1;
        }
        let info = |id: KeyId, variables: usize| KeyInfo {
            id,
            is_active: known.keys.active() == Some(id),
            is_present: known.keys.contains(id),
            created_s: known.keys.created(id),
            variables,
        };
        let mut infos: Vec<KeyInfo> =
            known.keys.ids().map(|id| info(id, used.remove(&id).unwrap_or_default())).collect();
        infos.extend(used.into_iter().map(|(id, variables)| info(id, variables)));
        infos
    }

    /// Adds a key, which encrypts from now on. The variables are not changed yet: see [`Store::encrypt_again`].
    ///
    /// # Errors
    /// If the operator provides the keys, or one of them is missing.
    pub fn rotate(&self) -> Result<KeyInfo, VariableError> {
        let _writer = self.writing();
        self.keys_to_write()?;
        self.source.generate(now_s())?;
        self.load_keys()?;
        self.key_infos().into_iter().next().ok_or(KeyError::Random.into())
    }

    /// Removes a key that is no longer needed.
    ///
    /// # Errors
    /// If it is in use, unknown, or provided by the operator.
    pub fn remove_key(&self, id: KeyId) -> Result<(), VariableError> {
        let _writer = self.writing();
        let infos = self.key_infos();
        let in_use = |why: String| KeyError::InUse { id: id.to_string(), why };
        match infos.iter().find(|info| info.id == id) {
            None => return Err(KeyError::NoSuchKey { id: id.to_string() }.into()),
            Some(info) if info.is_active => return Err(in_use("it encrypts; rotate first".to_owned()).into()),
            Some(info) if info.variables > 0 => {
                let why = format!(
                    "{} variables are encrypted with it; they are encrypted again in the background",
                    info.variables
                );
                return Err(in_use(why).into());
            }
            Some(_) => {}
        }
        self.source.remove(id)?;
        self.load_keys()?;
        Ok(())
    }

    /// The first variable after `after` that is encrypted with an old key that is there.
    pub(crate) fn next_outdated(&self, after: Option<&VariableKey>) -> Option<VariableKey> {
        use std::ops::Bound::{Excluded, Unbounded};
        let known = self.known();
        let active = known.keys.active()?;
        let from = after.map_or(Unbounded, Excluded);
        let mut rest = known.entries.range((from, Unbounded));
        let is_outdated = |entry: &Entry| entry.key != active && known.keys.contains(entry.key);
        rest.find(|(_, entry)| is_outdated(entry)).map(|(key, _)| key.clone())
    }

    /// Encrypts a variable with the active key, if it isn't. Neither its metadata nor the index changes.
    ///
    /// # Errors
    /// If it can't be decrypted or written; it then has its old or its new encryption.
    pub(crate) fn encrypt_again(&self, key: &VariableKey) -> Result<(), VariableError> {
        let _writer = self.writing();
        let Some((entry, items)) = self.decrypted(key)? else { return Ok(()) };
        let keys = self.keys_of([&entry])?;
        if keys.active() == Some(entry.key) {
            return Ok(());
        }
        let (entry, bytes) = record::encode(&entry.metadata, &items, &keys).ok_or(KeyError::Random)?;
        self.write_file(&self.path(key), &bytes).inspect_err(|_| self.read_back(key))?;
        self.known().entries.insert(key.clone(), entry);
        Ok(())
    }
}

fn now_s() -> u64 {
    u64::try_from(clock::wall_now().0 / 1_000_000_000).unwrap_or_default()
}

/// Why the variables can't be decrypted with these keys; none if they can.
pub(super) fn missing<'e>(
    keys: &Keyring,
    entries: impl Iterator<Item = &'e Entry>,
    path: &Path,
) -> Option<KeyError> {
    let mut lacking = entries.filter(|entry| !keys.contains(entry.key));
    let id = lacking.next()?.key;
    if keys.active().is_none() {
        return Some(KeyError::Missing { path: path.to_owned() });
    }
    let count = 1 + lacking.filter(|entry| entry.key == id).count();
    Some(KeyError::Unknown { path: path.to_owned(), id: id.to_string(), count })
}
