//! Identifiers that are hashes of everything that identifies their owner.
//!
//! In: texts and numbers, in a fixed order. Out: a prefix of their SHA-256. Different lists of fields have different
//! input bytes: each text is preceded by its length.

use core::fmt::Write as _;
use std_alloc::string::String;

use sha2::{Digest as _, Sha256};

/// Fields that are being hashed.
#[derive(Default)]
pub(crate) struct Fields(Sha256);

impl Fields {
    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    /// The first bytes of the hash.
    pub(crate) fn start<const N: usize>(self) -> [u8; N] {
        let digest = self.0.finalize();
        let mut bytes = [0; N];
        bytes.copy_from_slice(&digest[..N]);
        bytes
    }

    /// The first bytes of the hash in lower-case hexadecimal.
    pub(crate) fn hex<const N: usize>(self) -> String {
        let mut hex = String::with_capacity(2 * N);
        for byte in self.start::<N>() {
            // Writing to a String can't fail.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }
}
