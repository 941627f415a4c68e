//! For `#[serde(with = "codec::bytes")]`: Go's `[]byte` and `net.IP` as `Vec<u8>`, which serde would encode as a list of numbers.
//!
//! Also decodes lists of numbers. Go's `nil` and an empty slice are the same here; both are encoded as an empty text.

use std::fmt;

use serde::{
    Deserializer, Serializer,
    de::{self, Visitor},
};

/// Encodes bytes.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Decodes bytes from a text of any form, a list of numbers, or nil.
///
/// # Errors
/// If the value has another type.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(Bytes)
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_owned())
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }

    fn visit_str<E>(self, text: &str) -> Result<Vec<u8>, E> {
        Ok(text.as_bytes().to_owned())
    }

    fn visit_unit<E>(self) -> Result<Vec<u8>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}
