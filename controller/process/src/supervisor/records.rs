//! The runtime directory: one record for each attempt.
//!
//! In: names of attempts. Out: their records. The caller watches the directory (one inotify watch, `IN_CREATE |
//! IN_MODIFY`). Names that begin with a dot are never records.

use herdlet_shim::record::{RECORD_LEN, Record, RecordError};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// How many times a record is read again after a read during a write.
const READS_MAX: usize = 16;

/// Prefixes of files that are about to become a tombstone or a record.
const UNFINISHED_TOMBSTONE: &str = ".tombstone-";
const UNFINISHED_RECORD: &str = ".put-";

/// The directory of an instance's records, held open.
#[derive(Debug)]
pub struct RuntimeDir {
    fd: OwnedFd,
}

/// Why a record is not available. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The directory could not be opened or listed.
    #[error("list the runtime directory {path}")]
    Directory {
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A record could not be read.
    #[error("read the record {name}")]
    Read {
        name: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A record could not be written or removed.
    #[error("write or remove the record {name}")]
    Change {
        name: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A record is damaged.
    #[error("parse the record {name}")]
    Damaged {
        name: String,
        /// What is wrong with it.
        #[source]
        source: RecordError,
    },
}

/// One entry of the runtime directory.
#[derive(Debug)]
pub struct Listed {
    /// The attempt's record name.
    pub name: String,
    /// Its record, or why it is not available.
    pub record: Result<Record, RecordsError>,
}

/// Result of the race between the agent and the attempt's shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TombstoneOutcome {
    /// The attempt will never run: a shim that starts later does nothing.
    Cancelled,
    /// A record exists already: a shim's, or an earlier tombstone.
    TooLate(Record),
}

impl RuntimeDir {
    /// Opens an existing directory.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open(path: &Path) -> Result<Self, RecordsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty());
        fd.map(|fd| Self { fd }).map_err(|source| RecordsError::Directory {
            path: path.display().to_string(),
            source: source.into(),
        })
    }

    /// Reads an attempt's record; `None` if nobody has claimed the attempt.
    ///
    /// A record without content reads as `Created` without processes: its shim is about to write it, or died at that
    /// moment.
    ///
    /// # Errors
    /// When it can't be read or is damaged.
    pub fn read(&self, name: &str) -> Result<Option<Record>, RecordsError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            fd => fd.map_err(|source| RecordsError::Read { name: name.to_owned(), source: source.into() })?,
        };
        let mut problem = RecordError::Checksum;
        for _ in 0..READS_MAX {
            // One byte more than a record has: a longer file is not a record.
            let mut bytes = [0; RECORD_LEN + 1];
            let len = rustix::io::pread(&fd, &mut bytes, 0)
                .map_err(|source| RecordsError::Read { name: name.to_owned(), source: source.into() })?;
            if len == 0 {
                return Ok(Some(Record::claimed()));
            }
            match Record::from_bytes(&bytes[..len]) {
                Ok(record) => return Ok(Some(record)),
                // Read during a write; the next read gets all of it.
                Err(RecordError::Checksum) => std::thread::yield_now(),
                Err(other) => {
                    problem = other;
                    break;
                }
            }
        }
        Err(RecordsError::Damaged { name: name.to_owned(), source: problem })
    }

    /// All records, sorted by name. A bad record is reported in its place.
    ///
    /// # Errors
    /// When the directory can't be listed.
    pub fn list(&self) -> Result<Vec<Listed>, RecordsError> {
        let mut names = self.names()?;
        names.retain(|name| !name.starts_with('.'));
        names.sort_unstable();
        let read = |name: String| match self.read(&name) {
            // Removed meanwhile.
            Ok(None) => None,
            Ok(Some(record)) => Some(Listed { name, record: Ok(record) }),
            Err(problem) => Some(Listed { name, record: Err(problem) }),
        };
        Ok(names.into_iter().filter_map(read).collect())
    }

    /// Removes files that an earlier agent left unfinished. Nobody else may create records meanwhile.
    ///
    /// # Errors
    /// When the directory can't be listed, or a file can't be removed.
    pub fn remove_unfinished(&self) -> Result<(), RecordsError> {
        let unfinished =
            |name: &String| name.starts_with(UNFINISHED_TOMBSTONE) || name.starts_with(UNFINISHED_RECORD);
        for name in self.names()?.into_iter().filter(unfinished) {
            rustix::fs::unlinkat(&self.fd, &*name, AtFlags::empty())
                .map_err(|errno| RecordsError::Change { name, source: errno.into() })?;
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, RecordsError> {
        let failed =
            |source: Errno| RecordsError::Directory { path: "(runtime)".to_owned(), source: source.into() };
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_file = matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown);
            match entry.file_name().to_str() {
                Ok(name) if is_file => names.push(name.to_owned()),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(names)
    }

    /// Cancels an attempt by claiming its record before its shim does. Atomic: nobody sees half a tombstone.
    ///
    /// # Errors
    /// When the directory can't be written to.
    pub fn tombstone(&self, name: &str) -> Result<TombstoneOutcome, RecordsError> {
        let failed = |source: Errno| RecordsError::Change { name: name.to_owned(), source: source.into() };
        let temporary = format!("{UNFINISHED_TOMBSTONE}{}", uuid::Uuid::new_v4());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, &*temporary, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let laid = rustix::io::pwrite(&fd, &Record::tombstone().to_bytes(), 0)
            .and_then(|_| rustix::fs::linkat(&self.fd, &*temporary, &self.fd, name, AtFlags::empty()));
        rustix::fs::unlinkat(&self.fd, &*temporary, AtFlags::empty()).map_err(failed)?;
        match laid {
            Ok(()) => Ok(TombstoneOutcome::Cancelled),
            Err(Errno::EXIST) => {
                let record = self.read(name)?;
                // The record was removed just now: nothing runs under that name, and the name is used up.
                Ok(record.map_or(TombstoneOutcome::Cancelled, TombstoneOutcome::TooLate))
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Writes the record of a running attempt atomically, whether or not one exists.
    ///
    /// # Errors
    /// When the directory can't be written to.
    pub fn put(&self, name: &str, record: &Record) -> std::io::Result<()> {
        let bytes = record.to_bytes();
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => rustix::io::pwrite(&fd, &bytes, 0)?,
            Err(Errno::NOENT) => {
                let temporary = format!("{UNFINISHED_RECORD}{}", uuid::Uuid::new_v4());
                let made = flags | OFlags::CREATE | OFlags::EXCL;
                let fd = rustix::fs::openat(&self.fd, &*temporary, made, Mode::RUSR | Mode::WUSR)?;
                let put = rustix::io::pwrite(&fd, &bytes, 0).and_then(|len| {
                    rustix::fs::renameat(&self.fd, &*temporary, &self.fd, name)?;
                    Ok(len)
                });
                if put.is_err() {
                    let _ = rustix::fs::unlinkat(&self.fd, &*temporary, AtFlags::empty());
                }
                put?
            }
            Err(errno) => return Err(errno.into()),
        };
        Ok(())
    }

    /// Removes an attempt's record. Its name must never be started again.
    ///
    /// # Errors
    /// When the directory can't be written to. A missing record is no error.
    pub fn remove(&self, name: &str) -> Result<(), RecordsError> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(RecordsError::Change { name: name.to_owned(), source: source.into() }),
        }
    }
}

impl AsFd for RuntimeDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_shim::record::State;

    #[test]
    fn only_unfinished_records_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = RuntimeDir::open(dir.path()).unwrap();
        records.tombstone("a").unwrap();
        for name in [".tombstone-1", ".put-2", ".damaged-b", "c"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        records.remove_unfinished().unwrap();
        let mut left = records.names().unwrap();
        left.sort_unstable();
        assert_eq!(left, [".damaged-b", "a", "c"]);
    }

    #[test]
    fn a_tombstone_is_laid_once() {
        let dir = tempfile::tempdir().unwrap();
        let records = RuntimeDir::open(dir.path()).unwrap();
        assert!(records.read("a").unwrap().is_none());
        assert_eq!(records.tombstone("a").unwrap(), TombstoneOutcome::Cancelled);
        assert_eq!(records.tombstone("a").unwrap(), TombstoneOutcome::TooLate(Record::tombstone()));
        assert_eq!(records.list().unwrap().len(), 1);
        records.remove("a").unwrap();
        records.remove("a").unwrap();
        assert!(records.list().unwrap().is_empty());
    }

    #[test]
    fn bad_records_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let records = RuntimeDir::open(dir.path()).unwrap();
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        std::fs::write(dir.path().join("short"), b"hrd1").unwrap();
        std::fs::write(dir.path().join("long"), [0; 65]).unwrap();
        std::fs::write(dir.path().join(".hidden"), b"x").unwrap();
        let mut torn = Record::claimed().to_bytes();
        torn[20] ^= 1;
        std::fs::write(dir.path().join("torn"), torn).unwrap();
        assert_eq!(records.read("empty").unwrap().unwrap().state, State::Created);
        let bad = |name| matches!(records.read(name), Err(RecordsError::Damaged { .. }));
        assert!(bad("short") && bad("long") && bad("torn"));
        let names: Vec<String> = records.list().unwrap().into_iter().map(|listed| listed.name).collect();
        assert_eq!(names, ["empty", "long", "short", "torn"]);
    }
}
