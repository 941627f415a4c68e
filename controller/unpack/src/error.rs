//! Why an archive is refused.

use std::{io, path::PathBuf};

use herdlet_base::safe_fs::FsError;
use rustix::io::Errno;

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

    /// Whether the machine has failed, not the archive: its disk, its memory, its limits of open files.
    pub(super) fn is_fault(&self) -> bool {
        match self {
            Self::Fs(FsError::Io { source, .. }) | Self::Read(source) => is_of_machine(source),
            Self::Abandoned => true,
            Self::Fs(_)
            | Self::Outside { .. }
            | Self::LinkOutside { .. }
            | Self::Kind { .. }
            | Self::Entries { .. }
            | Self::Bytes { .. }
            | Self::Depth { .. }
            | Self::Marks { .. } => false,
        }
    }
}

/// No archive causes these errors. Errors of decoders have no number of the system.
fn is_of_machine(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| {
        [
            Errno::IO,
            Errno::NOMEM,
            Errno::MFILE,
            Errno::NFILE,
            Errno::ROFS,
            Errno::NODEV,
            Errno::NXIO,
            Errno::STALE,
            Errno::UCLEAN,
            Errno::TIMEDOUT,
            Errno::AGAIN,
            Errno::INTR,
        ]
        .contains(&errno)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn faults_of_the_machine_are_not_those_of_the_archive() {
        for errno in [Errno::IO, Errno::NOMEM, Errno::ROFS] {
            assert!(TreeError::Read(errno.into()).is_fault(), "{errno}");
            assert!(
                TreeError::Fs(FsError::io("write", Path::new("a").to_owned(), errno)).is_fault(),
                "{errno}"
            );
        }
        for errno in [Errno::NAMETOOLONG, Errno::NOTDIR, Errno::EXIST, Errno::NOSPC] {
            let error = TreeError::Fs(FsError::io("make", Path::new("a").to_owned(), errno));
            assert!(!error.is_fault(), "{errno}");
        }
        assert!(!TreeError::Read(io::ErrorKind::InvalidData.into()).is_fault());
        assert!(!TreeError::Read(io::ErrorKind::UnexpectedEof.into()).is_fault());
    }
}
