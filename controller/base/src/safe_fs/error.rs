//! Why something in a directory could not be done, and whether trying again may help.

use std::{io, path::PathBuf};

use rustix::io::Errno;

use crate::sight::{Class, Sight};

/// Why something in a directory could not be done.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The system said no.
    #[error("{operation} {path}: {source}")]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    /// Links are not followed here.
    #[error("open {path}: a symbolic link stands in the way")]
    Link { path: PathBuf },
    /// A directory was expected.
    #[error("open {path}: it is not a directory")]
    NotADirectory { path: PathBuf },
    /// A plain file was expected.
    #[error("read {path}: it is not a plain file")]
    NotAFile { path: PathBuf },
    /// Something is mounted there.
    #[error("enter {path}: something is mounted there")]
    Mounted { path: PathBuf },
    /// Somebody keeps making files in a directory that is being removed, or there are more than are removed at a time.
    #[error(
        "remove {path}: it is not empty yet; files were added during the removal, or it is very large; the next try continues"
    )]
    Busy { path: PathBuf },
    /// A directory may have been put in the place of another one.
    #[error(
        "enter {path}: user {uid} may not write to it, and other users may have put it there; use another destination, or one user for all tasks that share it"
    )]
    Untrusted {
        path: PathBuf,
        /// For whom it was to be entered.
        uid: u32,
    },
    /// A file is larger than it may be.
    #[error("read {path}: it is larger than {bytes_max} bytes")]
    TooLarge { path: PathBuf, bytes_max: u64 },
    /// A name or path that could leave its directory.
    #[error("use {path:?} as a path inside a directory: it is empty, absolute or goes up")]
    Escapes { path: PathBuf },
}

impl FsError {
    /// Whether trying again may help.
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

    /// Whether the thing does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the file system can't do it at all.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()))
    }

    /// Whether a rename would lead to another file system.
    pub fn is_across(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::CrossesDevices)
    }

    /// The answer of a look that met this: something that stands in the way was seen, everything else is still an error.
    pub fn into_sight(self) -> Result<Sight, Self> {
        if matches!(self, Self::Link { .. } | Self::NotADirectory { .. } | Self::Mounted { .. }) {
            Ok(Sight::foreign(self.to_string()))
        } else {
            Err(self)
        }
    }

    pub fn io(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { operation, path: path.into(), source: source.into() }
    }
}
