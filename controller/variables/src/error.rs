//! Why a request about variables fails. The texts are sentences for people, and contain no value of a variable.

use std::{io, path::PathBuf};

use herdlet_api_types::variable::{Variable, VariableKey};
use herdlet_base::ownership::OwnershipError;

/// Why keys can't be used. Reads after a colon.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Variables need it, or the config names it.
    #[error(
        "the key file {} is missing; restore it from a backup, or name the right file in variables.key_file of the agent's config",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error("the key file {} can't be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the key file {} can't be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Another user can change it.
    #[error("the key file can't be trusted: failed to {0}")]
    Exposed(#[from] OwnershipError),
    #[error("the key file {} can be read by every user; run: chmod 600 {0}", path.display())]
    Public { path: PathBuf },
    /// It is a directory, a FIFO, a socket or a device.
    #[error("the key file {} is not a regular file", path.display())]
    Special { path: PathBuf },
    #[error("the key file {} is not valid in line {line}: {why}", path.display())]
    Invalid { path: PathBuf, line: usize, why: &'static str },
    #[error("the key file {} has no key; write one: openssl rand -base64 32 > {0}", path.display())]
    Empty { path: PathBuf },
    /// The keys are not those that variables were encrypted with.
    #[error(
        "the key file {} has no key {id}, which {count} variables need; add that key as a further line, or restore the file from a backup",
        path.display()
    )]
    Unknown { path: PathBuf, id: String, count: usize },
    /// The agent changes only a file that it has generated.
    #[error("the keys are in {}, which the agent does not change: {remedy}", path.display())]
    Managed { path: PathBuf, remedy: &'static str },
    #[error("there is no key {id}")]
    NoSuchKey { id: String },
    #[error("the key {id} is in use: {why}")]
    InUse { id: String, why: String },
    #[error("the system provided no random data")]
    Random,
}

impl From<KeyError> for VariableError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Managed { .. } | KeyError::NoSuchKey { .. } | KeyError::InUse { .. } => {
                Self::KeyRequest(error)
            }
            KeyError::Missing { .. }
            | KeyError::Read { .. }
            | KeyError::Write { .. }
            | KeyError::Exposed(_)
            | KeyError::Public { .. }
            | KeyError::Special { .. }
            | KeyError::Invalid { .. }
            | KeyError::Empty { .. }
            | KeyError::Unknown { .. }
            | KeyError::Random => Self::Key(error),
        }
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum VariableError {
    #[error("{0}")]
    Invalid(String),
    #[error("variable not found")]
    NotFound,
    /// The variable has another index than the request expects, or its lock does not permit the change.
    #[error("{why}")]
    Conflict {
        why: &'static str,
        /// The variable as it is; without indexes if there is none.
        present: Box<Variable>,
    },
    /// Nothing was changed.
    #[error("variables can't be encrypted or decrypted: {0}")]
    Key(KeyError),
    /// A request about keys. Nothing was changed.
    #[error("{0}")]
    KeyRequest(KeyError),
    #[error(
        "the variable {key} can't be decrypted: {} {why}; restore the file from a backup, or purge the variable", path.display()
    )]
    Damaged { key: VariableKey, path: PathBuf, why: &'static str },
    /// Nothing was changed.
    #[error(
        "{} was written by a newer release: start that release again, or move the file away and restart the agent",
        path.display()
    )]
    Newer { path: PathBuf },
    #[error("failed to read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The change may have reached the disk, or not.
    #[error("failed to write {}: {source}; then check the result: herdlet var get", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the agent is shutting down")]
    Down,
}
