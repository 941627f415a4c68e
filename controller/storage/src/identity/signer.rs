//! All signing keys of this machine: the active one signs, all verify.
//!
//! In: the directory of keys, the time. Out: signed tokens, the claims of our tokens, the public keys. The keys are in one
//! file that is replaced as a whole, so that a crash leaves either the old keys or the new ones. A damaged file is an
//! error until an operator repairs or removes it; it is never replaced. The first key is generated when one is needed.

use std::{
    ffi::OsStr,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use herdlet_base::{
    clock,
    safe_fs::{Dir, Outlives, Rights},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{
    IdentityError, Token,
    key::{SigningAlgorithm, SigningKey},
};

/// The keys of this machine.
pub struct Signer {
    dir: PathBuf,
    /// None until they have been read.
    current: RwLock<Option<Keys>>,
    /// Serializes reads and changes of the file.
    turn: Mutex<()>,
}

/// In the order in which they begin to sign.
type Keys = Arc<Vec<Arc<SigningKey>>>;

/// A key, without the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKeyInfo {
    pub kid: String,
    pub algorithm: SigningAlgorithm,
    /// Seconds since 1970; 0 if unknown.
    pub created_s: u64,
    /// When it begins to sign.
    pub active_from_s: u64,
    pub state: KeyState,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// It will sign, and is published.
    Prepublished,
    /// It signs.
    Active,
    /// It has signed until this time, in seconds since 1970, and verifies.
    Inactive { until_s: u64 },
}

impl Signer {
    /// The keys in this directory. Reads nothing yet.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, current: RwLock::default(), turn: Mutex::default() }
    }

    /// Reads the keys, unless that was done.
    ///
    /// # Errors
    ///
    /// If they can't be read, for instance because a file is damaged. Every call tries again.
    pub fn check(&self) -> Result<(), IdentityError> {
        self.keys().map(drop)
    }

    /// Signs `claims` with the active key, which is generated if there is none.
    ///
    /// # Errors
    ///
    /// If the keys can't be read or generated.
    pub fn sign(&self, claims: &impl Serialize) -> Result<Token, IdentityError> {
        self.active()?.sign(claims)
    }

    /// Checks a token's signature and returns its claims. The caller must check time and audience.
    ///
    /// # Errors
    ///
    /// If none of the keys signed it.
    pub fn verify(&self, token: &str) -> Result<Value, IdentityError> {
        let header = jsonwebtoken::decode_header(token).map_err(IdentityError::Verify)?;
        let keys = self.keys()?;
        let key = header.kid.and_then(|kid| keys.iter().find(|key| key.kid == kid));
        key.ok_or(IdentityError::OtherKey)?.verify(token)
    }

    /// The public keys as a JWK set (RFC 7517), as served at `/.well-known/jwks.json`. Generates the first key.
    ///
    /// # Errors
    ///
    /// If the keys can't be read or generated.
    pub fn jwks(&self) -> Result<Value, IdentityError> {
        self.active()?;
        let keys: Vec<Value> = self.keys()?.iter().map(|key| key.jwk()).collect();
        Ok(json!({ "keys": keys }))
    }

    /// All keys, the newest first.
    ///
    /// # Errors
    ///
    /// If they can't be read.
    pub fn infos(&self) -> Result<Vec<SigningKeyInfo>, IdentityError> {
        Ok(infos(&self.keys()?, now_s()))
    }

    /// Adds a key, which signs from `active_from_s` on, but not before now. It is on disk before the call returns.
    ///
    /// # Errors
    ///
    /// If it can't be generated or written; then nothing has changed.
    pub fn rotate(
        &self,
        algorithm: SigningAlgorithm,
        active_from_s: u64,
    ) -> Result<SigningKeyInfo, IdentityError> {
        // Outside of the lock, because it takes a while.
        let now = now_s();
        let new = SigningKey::generate(algorithm, now, active_from_s.max(now))?;
        let turn = self.turn();
        let mut keys = self.keys_in(&turn)?.to_vec();
        if keys.len() >= KEYS_MAX {
            return Err(IdentityError::TooMany { count: keys.len() });
        }
        let kid = new.kid.clone();
        keys.push(Arc::new(new));
        let keys = self.keep(&turn, keys)?;
        let added = infos(&keys, now).into_iter().find(|info| info.kid == kid);
        added.ok_or(IdentityError::NoSuchKey { kid })
    }

    /// Removes a key that does not sign. Tokens that it has signed are no longer valid.
    ///
    /// # Errors
    ///
    /// If it signs, is unknown, or the file can't be written.
    pub fn remove(&self, kid: &str) -> Result<(), IdentityError> {
        let turn = self.turn();
        let keys = self.keys_in(&turn)?;
        let info = infos(&keys, now_s()).into_iter().find(|info| info.kid == kid);
        match info.map(|info| info.state) {
            None => return Err(IdentityError::NoSuchKey { kid: kid.to_owned() }),
            Some(KeyState::Active) => {
                return Err(IdentityError::InUse {
                    kid: kid.to_owned(),
                    why: "it signs; rotate first".to_owned(),
                });
            }
            Some(KeyState::Prepublished | KeyState::Inactive { .. }) => {}
        }
        let kept = keys.iter().filter(|key| key.kid != kid).cloned().collect();
        self.keep(&turn, kept)?;
        // Otherwise the next agent would find it there again.
        let dir = self.open()?;
        if read_first(&dir)?.is_some_and(|key| key.kid == kid) {
            dir.unlink(OsStr::new(FIRST_KEY_FILE)).map_err(IdentityError::Key)?;
        }
        Ok(())
    }

    /// The key that signs now. Generates the first one.
    fn active(&self) -> Result<Arc<SigningKey>, IdentityError> {
        let mut keys = self.keys()?;
        if keys.is_empty() {
            let turn = self.turn();
            keys = self.keys_in(&turn)?;
            if keys.is_empty() {
                let now = now_s();
                let first = SigningKey::generate(SigningAlgorithm::default(), now, now)?;
                keys = self.keep(&turn, vec![Arc::new(first)])?;
                tracing::info!(path = %self.path(KEYS_FILE).display(), "generated a key for identities: include it in backups");
            }
        }
        let at = active_at(&keys, now_s());
        keys.get(at).cloned().ok_or(IdentityError::Generate)
    }

    fn keys(&self) -> Result<Keys, IdentityError> {
        if let Some(keys) = &*self.current.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(keys));
        }
        self.keys_in(&self.turn())
    }

    fn keys_in(&self, _turn: &MutexGuard<'_, ()>) -> Result<Keys, IdentityError> {
        if let Some(keys) = &*self.current.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(keys));
        }
        let dir = self.open()?;
        let mut keys = read_keys(&dir)?;
        if let Some(first) = read_first(&dir)?
            && keys.iter().all(|key| key.kid != first.kid)
        {
            keys.insert(0, Arc::new(first));
        }
        Ok(self.publish(keys))
    }

    /// Writes the keys, then uses them.
    fn keep(
        &self,
        _turn: &MutexGuard<'_, ()>,
        mut keys: Vec<Arc<SigningKey>>,
    ) -> Result<Keys, IdentityError> {
        keys.sort_by_key(|key| key.active_from_s);
        let stored = StoredKeys { keys: keys.iter().map(|key| StoredKey::of(key)).collect() };
        let text = Zeroizing::new(serde_json::to_vec(&stored).map_err(IdentityError::Claims)?);
        let rights = Rights::Exact { mode: 0o600, owner: None };
        self.open()?
            .write_file(OsStr::new(KEYS_FILE), &text, rights, Outlives::PowerCuts)
            .map_err(IdentityError::Key)?;
        Ok(self.publish(keys))
    }

    fn publish(&self, keys: Vec<Arc<SigningKey>>) -> Keys {
        let keys = Arc::new(keys);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&keys));
        keys
    }

    fn open(&self) -> Result<Dir, IdentityError> {
        let dir = Dir::open_or_make(&self.dir, 0o700).map_err(IdentityError::Key)?;
        dir.set_rights(Rights::Exact { mode: 0o700, owner: None }).map_err(IdentityError::Key)?;
        Ok(dir)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Reads the keys in a directory without changing anything, and returns their number. For `herdlet doctor`.
///
/// # Errors
///
/// If a file is damaged or can't be read.
pub fn examine(keys: &Path) -> Result<usize, IdentityError> {
    if !keys.is_dir() {
        return Ok(0);
    }
    let dir = Dir::open(keys).map_err(IdentityError::Key)?;
    let first = read_first(&dir)?;
    let others = read_keys(&dir)?;
    let is_new = first.is_some_and(|first| others.iter().all(|key| key.kid != first.kid));
    Ok(others.len() + usize::from(is_new))
}

/// The keys.
const KEYS_FILE: &str = "identity.json";

/// The only key of releases without rotation, and the first one after an upgrade from them.
const FIRST_KEY_FILE: &str = "identity.p8";

/// Rotation is rare, and unused keys are removed.
const KEYS_MAX: usize = 64;

/// An RSA key takes about 1,700 bytes in base64.
const FILE_BYTES_MAX: u64 = 256 * 1024;

#[derive(Serialize, Deserialize)]
struct StoredKeys {
    keys: Vec<StoredKey>,
}

#[derive(Serialize, Deserialize)]
struct StoredKey {
    kid: String,
    algorithm: SigningAlgorithm,
    created_s: u64,
    active_from_s: u64,
    /// PKCS #8 in base64.
    #[serde(serialize_with = "write_wiped", deserialize_with = "read_wiped")]
    pkcs8: Zeroizing<String>,
}

fn write_wiped<S: Serializer>(text: &Zeroizing<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn read_wiped<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

impl StoredKey {
    fn of(key: &SigningKey) -> Self {
        Self {
            kid: key.kid.clone(),
            algorithm: key.algorithm,
            created_s: key.created_s,
            active_from_s: key.active_from_s,
            pkcs8: Zeroizing::new(STANDARD.encode(&*key.pkcs8)),
        }
    }

    fn read(self) -> Option<SigningKey> {
        let pkcs8 = Zeroizing::new(STANDARD.decode(&*self.pkcs8).ok()?);
        let key = SigningKey::from_pkcs8(self.algorithm, Some(self.kid), pkcs8)?;
        Some(key.with_times(self.created_s, self.active_from_s))
    }
}

fn read_keys(dir: &Dir) -> Result<Vec<Arc<SigningKey>>, IdentityError> {
    let Some(bytes) = read(dir, KEYS_FILE)? else { return Ok(Vec::new()) };
    let damaged = |why: String| IdentityError::Damaged { path: dir.path().join(KEYS_FILE), why };
    // The parser's message would show what it found instead, which may be a part of a key.
    let place = |error: &serde_json::Error| format!("line {}, column {}", error.line(), error.column());
    let stored: StoredKeys = serde_json::from_slice(&bytes).map_err(|error| damaged(place(&error)))?;
    let mut keys = Vec::new();
    for (number, key) in (1..).zip(stored.keys) {
        let key = key.read().ok_or_else(|| damaged(format!("key {number} is not usable")))?;
        keys.push(Arc::new(key));
    }
    if keys.is_empty() {
        return Err(damaged("it contains no key".to_owned()));
    }
    keys.sort_by_key(|key| key.active_from_s);
    Ok(keys)
}

fn read_first(dir: &Dir) -> Result<Option<SigningKey>, IdentityError> {
    let Some(bytes) = read(dir, FIRST_KEY_FILE)? else { return Ok(None) };
    let key = SigningKey::from_pkcs8(SigningAlgorithm::EdDsa, None, bytes);
    let path = || dir.path().join(FIRST_KEY_FILE);
    let why = || "it is not an Ed25519 key".to_owned();
    key.map(Some).ok_or_else(|| IdentityError::Damaged { path: path(), why: why() })
}

fn read(dir: &Dir, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, IdentityError> {
    let bytes = dir.read_file(OsStr::new(name), FILE_BYTES_MAX).map_err(IdentityError::Key)?;
    Ok(bytes.map(Zeroizing::new))
}

/// The index of the key that signs at this time. Before the first one begins, after the clock was set back, it is the first.
fn active_at(keys: &[Arc<SigningKey>], now_s: u64) -> usize {
    keys.iter().rposition(|key| key.active_from_s <= now_s).unwrap_or_default()
}

fn infos(keys: &[Arc<SigningKey>], now_s: u64) -> Vec<SigningKeyInfo> {
    let active = active_at(keys, now_s);
    let info = |(at, key): (usize, &Arc<SigningKey>)| SigningKeyInfo {
        kid: key.kid.clone(),
        algorithm: key.algorithm,
        created_s: key.created_s,
        active_from_s: key.active_from_s,
        state: match at.cmp(&active) {
            std::cmp::Ordering::Less => {
                KeyState::Inactive { until_s: keys.get(at + 1).map_or(now_s, |next| next.active_from_s) }
            }
            std::cmp::Ordering::Equal => KeyState::Active,
            std::cmp::Ordering::Greater => KeyState::Prepublished,
        },
    };
    keys.iter().enumerate().map(info).rev().collect()
}

fn now_s() -> u64 {
    u64::try_from(clock::wall_now().0 / 1_000_000_000).unwrap_or_default()
}

#[cfg(test)]
mod tests;
