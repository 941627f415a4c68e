//! The bytes of a variable's file.
//!
//! ```text
//!   format (1 byte) │ length of the header (4, little-endian) │ header (msgpack) │ nonce (12) │ items, encrypted
//!   ╰──────────────────────── associated data of the encryption ─────────────────╯
//! ```
//!
//! The header is readable without a key, and every byte before the nonce is authenticated: a file that was renamed,
//! exchanged with another or changed does not decrypt. Fields of the header are only ever added. It must not know where
//! files are.

use std::collections::BTreeMap;

use aws_lc_rs::aead::NONCE_LEN;
use herdlet_api_types::variable::{VariableItems, VariableLock, VariableMetadata};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::keyring::{KeyId, Keyring, Sealed};

/// The format that this release writes.
pub(crate) const FORMAT: u8 = 1;

/// Formats are counted. A file that begins with a higher byte, such as a text, is damaged.
const FORMAT_MAX: u8 = 31;

/// Format and length of the header.
const PREFIX: usize = 5;
/// A header is below 1 KiB.
pub(crate) const HEADER_MAX: usize = 8 * 1024;
/// The items of a variable with many short names take several times their own length.
pub(crate) const FILE_MAX: u64 = 2 * 1024 * 1024;

/// At most this much does msgpack add to the name and the value of an item, and the cipher to the whole.
const OVERHEAD: usize = 16;

/// The readable part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    namespace: String,
    path: String,
    create_index: u64,
    modify_index: u64,
    /// Nanoseconds since 1970.
    create_time: i64,
    modify_time: i64,
    /// Id of the key.
    key: String,
    #[serde(default)]
    lock: Option<StoredLock>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredLock {
    id: String,
    ttl_ns: i64,
    delay_ns: i64,
}

impl std::fmt::Debug for StoredLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredLock(…)")
    }
}

/// What is known about a variable from its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) metadata: VariableMetadata,
    /// The key that the items were encrypted with.
    pub(crate) key: KeyId,
}

/// Why bytes are not a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// A newer release wrote them.
    Newer(u8),
    Damaged(&'static str),
}

/// Why items can't be decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locked {
    /// The key is not in the ring.
    NoKey,
    Damaged(&'static str),
}

/// Encrypts a variable with the first key of the ring. None if there is no key.
pub(crate) fn encode(
    metadata: &VariableMetadata,
    items: &VariableItems,
    keys: &Keyring,
) -> Option<(Entry, Vec<u8>)> {
    let key = keys.active()?;
    let entry = Entry { metadata: metadata.clone(), key };
    let mut file = prefix(&Header::of(&entry))?;
    // With room for the tag too: a buffer that grows leaves copies behind.
    let size: usize = items.0.iter().map(|(name, value)| name.len() + value.len() + OVERHEAD).sum();
    let mut plain = Zeroizing::new(Vec::with_capacity(size + 2 * OVERHEAD));
    items.0.serialize(&mut rmp_serde::Serializer::new(&mut *plain)).ok()?;
    // The cipher works in place, so no plain copy is left.
    let sealed = keys.seal(std::mem::take(&mut *plain), &file)?;
    file.extend_from_slice(&sealed.nonce);
    file.extend_from_slice(&sealed.bytes);
    Some((entry, file))
}

/// Reads the header of a file, from its beginning.
pub(crate) fn decode_header(file: &[u8]) -> Result<Entry, Unreadable> {
    split(file)?.0.entry()
}

/// Decrypts a file.
pub(crate) fn decode(file: &[u8], keys: &Keyring) -> Result<(Entry, VariableItems), Locked> {
    let damaged = |unreadable| match unreadable {
        Unreadable::Newer(_) => Locked::Damaged("was written by a newer release"),
        Unreadable::Damaged(why) => Locked::Damaged(why),
    };
    let (header, associated, rest) = split(file).map_err(damaged)?;
    let entry = header.entry().map_err(damaged)?;
    let (nonce, bytes) = rest.split_at_checked(NONCE_LEN).ok_or(Locked::Damaged("is cut off"))?;
    let nonce = nonce.try_into().map_err(|_| Locked::Damaged("is cut off"))?;
    let plain =
        keys.open(entry.key, Sealed { nonce, bytes: bytes.to_vec() }, associated).ok_or(Locked::NoKey)?;
    let plain = plain.map_err(|_| Locked::Damaged("was changed, or exchanged with another file"))?;
    let items: BTreeMap<String, String> =
        rmp_serde::from_slice(&plain).map_err(|_| Locked::Damaged("has content that is not a variable's"))?;
    Ok((entry, VariableItems(items)))
}

fn prefix(header: &Header) -> Option<Vec<u8>> {
    let mut bytes = vec![FORMAT, 0, 0, 0, 0];
    header.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map()).ok()?;
    let length = u32::try_from(bytes.len() - PREFIX).ok()?;
    bytes.get_mut(1..PREFIX)?.copy_from_slice(&length.to_le_bytes());
    Some(bytes)
}

/// The header, the bytes up to its end, and the rest.
fn split(file: &[u8]) -> Result<(Header, &[u8], &[u8]), Unreadable> {
    let cut = || Unreadable::Damaged("is cut off");
    match file.first() {
        Some(&FORMAT) => {}
        Some(&newer) if newer > FORMAT && newer <= FORMAT_MAX => return Err(Unreadable::Newer(newer)),
        Some(_) => return Err(Unreadable::Damaged("has an unknown format")),
        None => return Err(Unreadable::Damaged("is empty")),
    }
    let length = file.get(1..PREFIX).and_then(|bytes| bytes.try_into().ok()).ok_or_else(cut)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > HEADER_MAX - PREFIX {
        return Err(Unreadable::Damaged("has a header that is too long"));
    }
    let (associated, rest) = file.split_at_checked(PREFIX + length).ok_or_else(cut)?;
    let header = associated.get(PREFIX..).unwrap_or_default();
    let header = rmp_serde::from_slice(header).map_err(|_| Unreadable::Damaged("has a damaged header"))?;
    Ok((header, associated, rest))
}

impl Header {
    fn of(entry: &Entry) -> Self {
        let VariableMetadata { namespace, path, create_index, modify_index, create_time, modify_time, lock } =
            entry.metadata.clone();
        let lock = lock.map(|VariableLock { id, ttl_ns, delay_ns }| StoredLock { id, ttl_ns, delay_ns });
        let key = entry.key.to_string();
        Self { namespace, path, create_index, modify_index, create_time, modify_time, key, lock }
    }

    fn entry(self) -> Result<Entry, Unreadable> {
        let Self { namespace, path, create_index, modify_index, create_time, modify_time, key, lock } = self;
        let key = key.parse().map_err(|_| Unreadable::Damaged("names no key"))?;
        let lock = lock.map(|StoredLock { id, ttl_ns, delay_ns }| VariableLock { id, ttl_ns, delay_ns });
        let metadata =
            VariableMetadata { namespace, path, create_index, modify_index, create_time, modify_time, lock };
        Ok(Entry { metadata, key })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keyring::new_line;

    fn ring() -> Keyring {
        Keyring::parse(&new_line(0).unwrap()).unwrap()
    }

    fn items(value: &str) -> VariableItems {
        VariableItems([("password".to_owned(), value.to_owned())].into_iter().collect())
    }

    fn metadata(path: &str) -> VariableMetadata {
        VariableMetadata {
            namespace: "default".to_owned(),
            path: path.to_owned(),
            create_index: 3,
            modify_index: 4,
            create_time: 5,
            modify_time: 6,
            lock: Some(VariableLock { id: "x".to_owned(), ttl_ns: 7, delay_ns: 8 }),
        }
    }

    #[test]
    fn a_file_holds_a_variable_and_hides_its_items() {
        let keys = ring();
        let (entry, file) = encode(&metadata("a/b"), &items("hunter2"), &keys).unwrap();
        assert!(!file.windows(7).any(|window| window == b"hunter2"));
        assert!(!file.windows(8).any(|window| window == b"password"));
        assert_eq!(decode_header(&file[..HEADER_MAX.min(file.len())]).unwrap(), entry);
        assert_eq!(decode(&file, &keys).unwrap(), (entry, items("hunter2")));
        assert_eq!(decode(&file, &ring()), Err(Locked::NoKey));
    }

    #[test]
    fn a_changed_byte_is_noticed_wherever_it_is() {
        let keys = ring();
        let (_, file) = encode(&metadata("a/b"), &items("hunter2"), &keys).unwrap();
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(decode(&changed, &keys).is_err(), "byte {at}");
        }
        for length in 0..file.len() {
            assert!(decode(&file[..length], &keys).is_err(), "length {length}");
        }
    }

    #[test]
    fn headers_and_contents_of_two_files_cannot_be_combined() {
        let keys = ring();
        let (_, one) = encode(&metadata("a/b"), &items("one"), &keys).unwrap();
        let (_, two) =
            encode(&VariableMetadata { modify_index: 5, ..metadata("a/b") }, &items("two"), &keys).unwrap();
        let header = |file: &[u8]| split(file).unwrap().1.to_vec();
        let rest = |file: &[u8]| split(file).unwrap().2.to_vec();
        let mixed = [header(&one), rest(&two)].concat();
        assert!(matches!(decode(&mixed, &keys), Err(Locked::Damaged(_))));
    }

    #[test]
    fn files_of_newer_releases_are_recognized() {
        let (_, mut file) = encode(&metadata("a"), &items("x"), &ring()).unwrap();
        file[0] = FORMAT + 1;
        assert_eq!(decode_header(&file), Err(Unreadable::Newer(FORMAT + 1)));
    }

    #[test]
    fn files_of_earlier_releases_are_read() {
        // A header without the fields that have a default.
        let keys = ring();
        let key = keys.active().unwrap().to_string();
        let mut old = vec![FORMAT, 0, 0, 0, 0];
        let fields =
            std::collections::BTreeMap::from([("namespace", "default"), ("path", "a"), ("key", &key)]);
        let numbers = ["create_index", "modify_index", "create_time", "modify_time"];
        let mut header = Vec::new();
        header.push(0x80 | u8::try_from(fields.len() + numbers.len()).unwrap());
        for (name, value) in fields {
            header.extend(rmp_serde::to_vec(name).unwrap());
            header.extend(rmp_serde::to_vec(value).unwrap());
        }
        for name in numbers {
            header.extend(rmp_serde::to_vec(name).unwrap());
            header.push(1);
        }
        old[1] = u8::try_from(header.len()).unwrap();
        old.extend(header);
        let entry = decode_header(&old).unwrap();
        assert_eq!((entry.metadata.path.as_str(), entry.metadata.lock), ("a", None));
    }

    /// A file that another implementation of the format has written (Python, `cryptography`). It never changes.
    #[test]
    fn a_file_of_the_first_format_is_read_and_its_header_keeps_its_bytes() {
        const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        const FILE: &str = "\
        01e500000088a96e616d657370616365a470726f64a470617468ae6e6f6d61642f6a6f62732f776562ac6372656174655f69\
        6e64657803ac6d6f646966795f696e64657804ab6372656174655f74696d65cf17979cfe362a0000ab6d6f646966795f7469\
        6d65cf17979cfe71c4ca00a36b6579d92436383762666134622d343961342d383632392d393831362d376164643438653736\
        343532a46c6f636b83a26964d92434623166386633652d303030302d343030302d383030302d303030303030303030303031\
        a674746c5f6e73cf000000037e11d600a864656c61795f6e73cf000000037e11d6006465666768696a6b6c6d6e6fcab3ae07\
        0a9a21f14c06f880af0b1e9830f0a27ff80981d0cab461061b1080a3f6b63340c34d9297b8d1";
        let byte = |at: usize| u8::from_str_radix(&FILE[at..at + 2], 16).unwrap();
        let file: Vec<u8> = (0..FILE.len()).step_by(2).map(byte).collect();
        let keys = Keyring::parse(KEY).unwrap();
        assert_eq!(keys.active().unwrap().to_string(), "687bfa4b-49a4-8629-9816-7add48e76452");
        let (entry, read) = decode(&file, &keys).unwrap();
        let expected = [("password", "hunter2"), ("user", "me")];
        assert_eq!(
            read.0.into_iter().collect::<Vec<_>>(),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!((entry.metadata.path.as_str(), entry.metadata.modify_index), ("nomad/jobs/web", 4));
        assert_eq!(entry.metadata.lock.as_ref().unwrap().ttl_ns, 15_000_000_000);
        let written = prefix(&Header::of(&entry)).unwrap();
        assert_eq!(written, file[..written.len()]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode_header(&bytes);
            let _ = decode(&bytes, &Keyring::default());
            let mut framed = vec![FORMAT, u8::try_from(bytes.len().min(200)).unwrap(), 0, 0, 0];
            framed.extend(&bytes);
            let _ = decode(&framed, &Keyring::default());
        }
    }
}
