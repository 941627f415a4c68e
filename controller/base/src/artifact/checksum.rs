//! Checksums of downloads: `sha256:HEX`, `HEX` alone, `file:URL`.
//!
//! In: the specification, bytes, the text of a checksum list. Out: whether they agree.

use std::fmt::Write as _;

use aws_lc_rs::digest;
use md5::Digest as _;

/// An expected checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    kind: Algorithm,
    hex: String,
}

/// How a job gives a checksum.
#[derive(Clone, PartialEq, Eq)]
pub enum ChecksumSource {
    Value(Checksum),
    /// In a checksum list at this URL.
    List(String),
}

/// Errors in checksums.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    /// Not a checksum.
    #[error("must be md5:HEX, sha1:HEX, sha256:HEX, sha512:HEX or file:URL")]
    Form,
    /// The list does not contain the file.
    #[error("the checksum list has no entry for {file_name}")]
    NotListed { file_name: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

const KINDS: [(&str, Algorithm, usize); 4] = [
    ("md5", Algorithm::Md5, 32),
    ("sha1", Algorithm::Sha1, 40),
    ("sha256", Algorithm::Sha256, 64),
    ("sha512", Algorithm::Sha512, 128),
];

impl ChecksumSource {
    /// Parses the specification.
    ///
    /// # Errors
    /// [`ChecksumError::Form`].
    pub fn parse(text: &str) -> Result<Self, ChecksumError> {
        match text.split_once(':') {
            Some(("file", url)) => Ok(Self::List(url.to_owned())),
            Some((kind, hex)) => {
                let checksum = Checksum::of_hex(hex).filter(|checksum| checksum.name() == kind);
                checksum.map(Self::Value).ok_or(ChecksumError::Form)
            }
            None => Checksum::of_hex(text).map(Self::Value).ok_or(ChecksumError::Form),
        }
    }
}

impl Checksum {
    /// Finds the checksum of a file in a list: lines as `sha256sum` writes them (also with `--tag`), or a single bare
    /// checksum.
    ///
    /// # Errors
    /// [`ChecksumError::NotListed`].
    pub fn in_list(list: &str, file_name: &str) -> Result<Self, ChecksumError> {
        let lines = || list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let found = lines().find_map(|line| match line.split_once(" = ") {
            Some((what, hex)) => {
                let (_, named) = what.split_once('(')?;
                is_it(named.strip_suffix(')')?, file_name).then(|| Self::of_hex(hex))?
            }
            None => {
                let (hex, named) = line.split_once(char::is_whitespace)?;
                is_it(named.trim_start().trim_start_matches('*'), file_name).then(|| Self::of_hex(hex))?
            }
        });
        let alone = || match (lines().next(), lines().nth(1)) {
            (Some(line), None) => Self::of_hex(line),
            (Some(_) | None, _) => None,
        };
        found.or_else(alone).ok_or_else(|| ChecksumError::NotListed { file_name: file_name.to_owned() })
    }

    /// The length determines the kind.
    fn of_hex(hex: &str) -> Option<Self> {
        let (_, kind, _) = KINDS.iter().find(|(_, _, len)| *len == hex.len())?;
        let is_hex = hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| Self { kind: *kind, hex: hex.to_ascii_lowercase() })
    }

    pub fn name(&self) -> &'static str {
        KINDS.iter().find(|(_, kind, _)| *kind == self.kind).map_or("", |(name, ..)| name)
    }

    /// Starts a computation of the same kind.
    pub fn begin(&self) -> Hasher {
        match self.kind {
            Algorithm::Md5 => Hasher::Md5(md5::Md5::new()),
            Algorithm::Sha1 => Hasher::Other(digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY)),
            Algorithm::Sha256 => Hasher::Other(digest::Context::new(&digest::SHA256)),
            Algorithm::Sha512 => Hasher::Other(digest::Context::new(&digest::SHA512)),
        }
    }

    pub fn is(&self, computed: &str) -> bool {
        self.hex == computed
    }
}

/// A checksum being computed.
pub enum Hasher {
    /// MD5, which is still published; it detects corruption, not tampering.
    Md5(md5::Md5),
    Other(digest::Context),
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(md5) => md5.update(bytes),
            Self::Other(context) => context.update(bytes),
        }
    }

    /// The checksum in hexadecimal.
    pub fn finish(self) -> String {
        match self {
            Self::Md5(md5) => hex(&md5.finalize()),
            Self::Other(context) => hex(context.finish().as_ref()),
        }
    }
}

/// Lists may give paths: `./dir/name` matches `name`.
fn is_it(named: &str, file_name: &str) -> bool {
    named.rsplit('/').next() == Some(file_name)
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
