//! Digests of content.
//!
//! In: a digest as documents write it, bytes. Out: a [`Digest`], which verifies bytes (the OCI image
//! specification, `descriptor.md`).

use std::fmt;

use aws_lc_rs::digest as aws;
use herdlet_base::artifact::checksum::hex;
use herdlet_unpack::Algorithm;
use serde::{Deserialize, Serialize};

/// The digest of a content: `sha256:HEX` or `sha512:HEX` in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    text: String,
    algorithm: Algorithm,
}

/// A text that is no digest. Continues "failed to".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read a digest: it must be sha256: and 64, or sha512: and 128 hexadecimal digits in lower case")]
pub struct DigestError;

impl Digest {
    /// Parses a digest. Others than SHA-256 and SHA-512 are refused: what can't be checked can't be used.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let (name, hex) = text.split_once(':').ok_or(DigestError)?;
        let (algorithm, len) = match name {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _unknown => return Err(DigestError),
        };
        let is_hex = hex.len() == len && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hex {
            return Err(DigestError);
        }
        Ok(Self { text: text.to_owned(), algorithm })
    }

    /// The SHA-256 of bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::sha256();
        hasher.update(bytes);
        hasher.finish()
    }

    /// As documents write it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether these bytes have this digest.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        hasher.finish() == *self
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Starts a computation with the same algorithm.
    pub fn hasher(&self) -> Hasher {
        Hasher::new(self.algorithm)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.text
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A digest being computed.
pub struct Hasher {
    algorithm: Algorithm,
    context: aws::Context,
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, context: algorithm.context() }
    }

    pub fn sha256() -> Self {
        Self::new(Algorithm::Sha256)
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    pub fn finish(self) -> Digest {
        let text = format!("{}:{}", self.algorithm.name(), hex(self.context.finish().as_ref()));
        Digest { text, algorithm: self.algorithm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_checked_is_a_digest() {
        // FIPS 180-4, the digests of "abc".
        let sha256 = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sha512 = "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                      2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        assert_eq!(Digest::of_bytes(b"abc").as_str(), sha256);
        for text in [sha256, sha512] {
            let digest = Digest::parse(text).unwrap();
            assert!(digest.is_of(b"abc") && !digest.is_of(b"abd") && !digest.is_of(b""), "{text}");
            assert_eq!(digest.to_string(), text);
        }
        let upper = sha256.replace('a', "A");
        let short = sha256.get(..70).unwrap();
        let long = format!("{sha256}0");
        let sha1 = format!("sha1:{}", "0".repeat(40));
        let path = format!("sha256:{}", "../".repeat(21) + "a");
        for wrong in ["", ":", "sha256", "sha256:", &*upper, short, &*long, &*sha1, &*path] {
            assert_eq!(Digest::parse(wrong), Err(DigestError), "{wrong}");
        }
    }
}
