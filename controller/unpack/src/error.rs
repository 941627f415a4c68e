//! Why an archive is refused.

use std::path::PathBuf;

use herdlet_base::safe_fs::FsError;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    /// An entry would be outside.
    #[error("{path:?} leads out of the archive")]
    Outside { path: PathBuf },
    /// A link leads outside, or may do so.
    #[error("the link {path:?} leads out of the archive, to {target:?}")]
    LinkOutside { path: PathBuf, target: PathBuf },
    /// An entry is not a file, directory or link.
    #[error("{path:?} is {kind}, which is not unpacked")]
    Kind { path: PathBuf, kind: &'static str },
    #[error("it has more than the {max} entries that are allowed")]
    Entries {
        /// The limit.
        max: u64,
    },
    #[error("it unpacks to more than the {max} bytes that are allowed")]
    Bytes {
        /// The limit.
        max: u64,
    },
    #[error("{path:?} is nested too deep")]
    Depth { path: PathBuf },
    #[error("its marks of removed files take more than {max} bytes")]
    Marks { max: u64 },
    /// The agent has stopped waiting.
    #[error("the agent no longer waits for it")]
    Abandoned,
    /// The archive can't be read.
    #[error("read it: {0}")]
    Read(#[from] std::io::Error),
    /// A file or directory can't be created.
    #[error(transparent)]
    Fs(#[from] FsError),
}

impl TreeError {
    /// Whether the disk or the quota is used up.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Fs(error) if error.is_full())
    }
}
