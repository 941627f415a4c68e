//! Keys: encryption and decryption, and the text of a key file.
//!
//! In: the text of a key file, bytes. Out: sealed and opened bytes. The cipher is AES-256-GCM with a random nonce for each
//! call, as in Nomad. A key's id is derived from the key, so a file of keys needs no ids, and a wrong key is noticed
//! before anything is decrypted. Keys are wiped when they are dropped, and never shown.

use std::{fmt, str::FromStr, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    digest::{SHA256, digest},
    rand,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use uuid::Uuid;
use zeroize::Zeroizing;

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Distinguishes the hash of a key that is its id from any other hash of it.
const ID_CONTEXT: &[u8] = b"herdlet variables: id of a key\0";

/// The most keys in a file: one for each rotation since the last clean-up.
const KEYS_MAX: usize = 64;

/// Names a key. It reveals nothing about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(Uuid);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for KeyId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        text.parse().map(Self)
    }
}

struct Key {
    id: KeyId,
    cipher: RandomizedNonceKey,
    /// Seconds since 1970; 0 if the file does not say.
    created: u64,
}

/// The keys of a file. The first one encrypts; all decrypt. Clones share them.
#[derive(Clone, Default)]
pub struct Keyring(Vec<Arc<Key>>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

/// Bytes that were encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub nonce: [u8; NONCE_LEN],
    /// With the authentication tag at the end.
    pub bytes: Vec<u8>,
}

/// The bytes were not encrypted with this key and this associated data, or were changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAuthentic;

impl Keyring {
    /// Parses the text of a key file: in each line a key in base64, optionally followed by the time of its creation in
    /// seconds since 1970. Empty lines and those that begin with `#` are ignored.
    ///
    /// # Errors
    /// The number of the first invalid line, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = Key::parse(line).map_err(|why| (number, why))?;
            if keys.len() == KEYS_MAX {
                return Err((number, "the file has more than 64 keys; remove old ones"));
            }
            if keys.iter().all(|known| known.id != key.id) {
                keys.push(Arc::new(key));
            }
        }
        Ok(Self(keys))
    }

    /// The keys of this ring, then those of another.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let new = other.0.iter().filter(|key| self.0.iter().all(|known| known.id != key.id));
        let new: Vec<_> = new.cloned().collect();
        self.0.extend(new);
        self
    }

    pub fn ids(&self) -> impl Iterator<Item = KeyId> {
        self.0.iter().map(|key| key.id)
    }

    /// The key that encrypts.
    pub fn active(&self) -> Option<KeyId> {
        self.ids().next()
    }

    pub fn contains(&self, id: KeyId) -> bool {
        self.ids().any(|known| known == id)
    }

    /// When the key was created, in seconds since 1970; 0 if unknown.
    pub fn created(&self, id: KeyId) -> u64 {
        self.find(id).map_or(0, |key| key.created)
    }

    /// Encrypts with the first key. None if there is no key.
    pub fn seal(&self, mut bytes: Vec<u8>, associated: &[u8]) -> Option<Sealed> {
        let key = self.0.first()?;
        let nonce = key.cipher.seal_in_place_append_tag(Aad::from(associated), &mut bytes).ok()?;
        Some(Sealed { nonce: *nonce.as_ref(), bytes })
    }

    /// Decrypts. None if the key is not in this ring.
    ///
    /// # Errors
    /// [`NotAuthentic`].
    pub fn open(
        &self,
        id: KeyId,
        sealed: Sealed,
        associated: &[u8],
    ) -> Option<Result<Zeroizing<Vec<u8>>, NotAuthentic>> {
        let key = self.find(id)?;
        let mut bytes = Zeroizing::new(sealed.bytes);
        let nonce = Nonce::assume_unique_for_key(sealed.nonce);
        let opened = key.cipher.open_in_place(nonce, Aad::from(associated), &mut bytes);
        let length = opened.map(|plain| plain.len()).map_err(|_| NotAuthentic);
        Some(length.map(|length| {
            bytes.truncate(length);
            bytes
        }))
    }

    fn find(&self, id: KeyId) -> Option<&Key> {
        self.0.iter().find(|key| key.id == id).map(|key| &**key)
    }
}

impl Key {
    fn parse(line: &str) -> Result<Self, &'static str> {
        let mut words = line.split_ascii_whitespace();
        let bytes = words.next().and_then(|text| STANDARD.decode(text).ok()).map(Zeroizing::new);
        let bytes = bytes.ok_or("expected a key in base64")?;
        if bytes.len() != KEY_BYTES {
            return Err("expected a key of 32 bytes in base64; create one with: openssl rand -base64 32");
        }
        let created = match words.next() {
            Some(text) => text.parse().map_err(|_| "after the key, expected seconds since 1970")?,
            None => 0,
        };
        if words.next().is_some() {
            return Err("expected a key, and optionally the time of its creation");
        }
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &bytes).map_err(|_| "the key is not usable")?;
        Ok(Self { id: id_of(&bytes), cipher, created })
    }
}

/// The id of the key in a line of a key file; none if the line has no key.
pub fn id_in(line: &str) -> Option<KeyId> {
    Keyring::parse(line).ok()?.active()
}

/// A line with a new random key, for a key file. None if the system provides no random data.
pub fn new_line(created: u64) -> Option<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    rand::fill(&mut *bytes).ok()?;
    let text = Zeroizing::new(STANDARD.encode(*bytes));
    Some(Zeroizing::new(format!("{} {created}\n", &*text)))
}

/// The first bytes of a hash of the key, as a UUID, which is what Nomad's clients expect.
fn id_of(key: &[u8]) -> KeyId {
    let hash = digest(&SHA256, &Zeroizing::new([ID_CONTEXT, key].concat()));
    let first = hash.as_ref().iter().take(16).fold(0u128, |id, byte| (id << 8) | u128::from(*byte));
    KeyId(uuid::Builder::from_custom_bytes(first.to_be_bytes()).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> String {
        new_line(7).unwrap().to_string()
    }

    #[test]
    fn sealed_bytes_open_with_their_key_and_data_only() {
        let (one, two) = (line(), line());
        let ring = Keyring::parse(&one).unwrap();
        let id = ring.active().unwrap();
        let sealed = ring.seal(b"secret".to_vec(), b"path").unwrap();
        assert!(!sealed.bytes.windows(6).any(|window| window == b"secret"));
        assert_eq!(ring.open(id, sealed.clone(), b"path").unwrap().unwrap().as_slice(), b"secret");
        assert_eq!(ring.open(id, sealed.clone(), b"other"), Some(Err(NotAuthentic)));
        for at in 0..sealed.bytes.len() {
            let mut changed = sealed.clone();
            changed.bytes[at] ^= 1;
            assert_eq!(ring.open(id, changed, b"path"), Some(Err(NotAuthentic)), "byte {at}");
        }
        let mut nonce = sealed.clone();
        nonce.nonce[0] ^= 1;
        assert_eq!(ring.open(id, nonce, b"path"), Some(Err(NotAuthentic)));
        let cut = Sealed { bytes: Vec::new(), ..sealed.clone() };
        assert_eq!(ring.open(id, cut, b"path"), Some(Err(NotAuthentic)));
        let other = Keyring::parse(&two).unwrap();
        assert_eq!(other.open(id, sealed.clone(), b"path"), None);
        let both = other.and(&ring);
        assert_eq!(both.open(id, sealed, b"path").unwrap().unwrap().as_slice(), b"secret");
        assert_ne!(both.active(), Some(id));
    }

    #[test]
    fn equal_bytes_are_sealed_differently() {
        let ring = Keyring::parse(&line()).unwrap();
        let seal = || ring.seal(b"x".to_vec(), b"").unwrap();
        assert_ne!(seal(), seal());
    }

    #[test]
    fn key_files_are_read_line_by_line() {
        let (one, two) = (line(), line());
        let bare = two.split(' ').next().unwrap();
        let text = format!("# keys\n\n{one}{bare}\n{one}");
        let ring = Keyring::parse(&text).unwrap();
        assert_eq!(ring.ids().collect::<Vec<_>>(), [id_in(&one).unwrap(), id_in(&two).unwrap()]);
        assert_eq!((ring.created(id_in(&one).unwrap()), ring.created(id_in(&two).unwrap())), (7, 0));
        assert_eq!(id_in(&one).unwrap().to_string().parse(), Ok(id_in(&one).unwrap()));
        for (bad, number) in
            [("x", 1), ("c2hvcnQ=", 1), (&*format!("{one}{bare} soon"), 2), (&*format!("{bare} 1 2"), 1)]
        {
            let (line, why) = Keyring::parse(bad).unwrap_err();
            assert_eq!(line, number, "{bad}");
            assert!(!why.contains(bare), "{why}");
        }
        let many: String = (0..=KEYS_MAX).map(|_| line()).collect();
        assert_eq!(Keyring::parse(&many).unwrap_err().0, KEYS_MAX + 1);
        assert!(!format!("{ring:?}").contains(bare));
    }
}
