//! Workload identities: this machine's signing keys, and the tokens that they sign for tasks (JSON Web Tokens, RFC 7519).
//!
//! In: the directory of keys, claims, the files to write, tokens signed by servers. Out: signed tokens, token files in
//! the task's `secrets` or elsewhere in its directory, and the public keys as a JWK set for verification. Keys and
//! tokens never appear in `Debug` output and are wiped when dropped. All calls block.
//!
//! - `key`: one key, and its algorithm.
//! - `signer`: all keys: the active one signs, all verify.
//! - `files`: tokens in the directory of a task.

use std::{fmt, path::PathBuf};

use herdlet_base::{observation::Class, safe_fs::FsError};
use zeroize::Zeroizing;

mod files;
mod key;
mod signer;

pub use files::{Issued, SignedToken, TaskTokens, WantedToken};
pub use key::SigningAlgorithm;
pub use signer::{KeyState, Signer, SigningKeyInfo, examine};

/// A signed token. Only the task may see its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

/// Errors of keys and tokens.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A key file can't be read or written.
    #[error("read or write the signing keys: {0}")]
    Key(#[source] FsError),
    /// A key can't be generated.
    #[error("generate a signing key: the system provided no random data")]
    Generate,
    /// A file does not contain signing keys.
    #[error(
        "read the signing keys: {path} is damaged ({why}); restore it from a backup, or remove it: new keys are then \
         generated, and all tokens are replaced"
    )]
    Damaged { path: PathBuf, why: String },
    /// Too many keys are kept.
    #[error("add a signing key: there are {count} already; remove old ones first")]
    TooMany { count: usize },
    /// No key has this id.
    #[error("find a signing key with the id {kid}")]
    NoSuchKey { kid: String },
    /// The key is needed.
    #[error("remove the signing key {kid}: {why}")]
    InUse { kid: String, why: String },
    /// Signing failed.
    #[error("sign a token: the key does not work")]
    Sign,
    /// The claims are not JSON.
    #[error("sign a token: {0}")]
    Claims(#[source] serde_json::Error),
    /// None of our keys signed the token.
    #[error("verify a token: {0}")]
    Verify(#[source] jsonwebtoken::errors::Error),
    /// Another key signed it, by its own account.
    #[error("verify a token: it names another key")]
    OtherKey,
    /// The task has no `secrets` directory or, with a `filepath`, no directory at all.
    #[error("write tokens of task {task}: its directory, or `secrets` in it, is missing")]
    NoDir { task: String },
    /// A token file can't be written, read or removed.
    #[error("access the tokens of task {task}: {source}")]
    File { task: String, source: FsError },
    /// The task directory can't be entered.
    #[error("access the tokens of task {task}: {source}")]
    TaskDir { task: String, source: crate::task_dir::TaskDirError },
}

impl IdentityError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Key(source) | Self::File { source, .. } => source.class(),
            Self::TaskDir { source, .. } => source.class(),
            // An operator can repair a damaged file.
            Self::Generate | Self::NoDir { .. } | Self::Damaged { .. } => Class::Retry,
            Self::TooMany { .. }
            | Self::NoSuchKey { .. }
            | Self::InUse { .. }
            | Self::Sign
            | Self::Claims(_)
            | Self::Verify(_)
            | Self::OtherKey => Class::Fatal,
        }
    }

    /// Whether the token is not one of ours, rather than the keys being unusable.
    pub fn is_about_token(&self) -> bool {
        matches!(self, Self::Verify(_) | Self::OtherKey)
    }
}

impl Token {
    /// A token that a server has signed.
    pub fn from_servers(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The token's text, for the task only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
