//! Errors of operations in directories, and whether a retry can help.

use std::{io, path::PathBuf};

use rustix::io::Errno;

use crate::observation::{Class, Observation};

/// An error of an operation in a directory.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// A system call failed.
    #[error("{operation} {path}: {source}")]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("open {path}: a symbolic link is in the way")]
    Link { path: PathBuf },
    #[error("open {path}: it is not a directory")]
    NotADirectory { path: PathBuf },
    #[error("read {path}: it is not a plain file")]
    NotAFile { path: PathBuf },
    #[error("enter {path}: something is mounted there")]
    Mounted { path: PathBuf },
    /// Another process keeps adding files to a directory being removed, or it is larger than one call removes.
    #[error(
        "remove {path}: it is not empty yet; files were added during the removal, or it is very large; the next try continues"
    )]
    Busy { path: PathBuf },
    /// A directory may have been swapped in.
    #[error(
        "enter {path}: user {uid} may not write to it, and other users may have put it there; use another destination, or one user for all tasks that share it"
    )]
    Untrusted {
        path: PathBuf,
        /// The user for whom the directory was to be entered.
        uid: u32,
    },
    #[error("read {path}: it is larger than {bytes_max} bytes")]
    TooLarge { path: PathBuf, bytes_max: u64 },
    /// A name or path that could leave its directory.
    #[error("use {path:?} as a path inside a directory: it is empty, absolute or contains `..`")]
    Escapes { path: PathBuf },
}

impl FsError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Io { source, .. } => match source.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NAMETOOLONG | Errno::INVAL | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP) => {
                    Class::Fatal
                }
                _ => Class::Retry,
            },
            Self::Busy { .. } | Self::Mounted { .. } | Self::Untrusted { .. } => Class::Retry,
            Self::Link { .. }
            | Self::NotADirectory { .. }
            | Self::NotAFile { .. }
            | Self::TooLarge { .. }
            | Self::Escapes { .. } => Class::Fatal,
        }
    }

    /// Whether the file or directory does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the file system has no space left.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// Whether the file system does not support the operation.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()))
    }

    /// Whether a rename would cross file systems.
    pub fn is_across(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::CrossesDevices)
    }

    /// The result of an inspection that failed with this error: an obstacle counts as an observation, anything else
    /// stays an error.
    pub fn into_observation(self) -> Result<Observation, Self> {
        if matches!(self, Self::Link { .. } | Self::NotADirectory { .. } | Self::Mounted { .. }) {
            Ok(Observation::foreign(self.to_string()))
        } else {
            Err(self)
        }
    }

    pub fn io(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { operation, path: path.into(), source: source.into() }
    }
}
