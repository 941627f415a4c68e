//! Stores entries as files, one small file for each attempt.
//!
//! Creating the file is the fence: its creator decides whether the attempt starts or never will.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use herdlet_api_types::task::ExitResult;
use herdlet_driver::{AttemptId, Claim};

use super::notes::{Entry, Notes};

/// The directory of these files.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
}

impl Store {
    /// Creates the directory, or removes the partial entries of an agent that was killed while it wrote them.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self { dir: dir.to_owned() })
    }

    fn path(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(id.name())
    }

    fn temporary(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(format!(".{}.{}", id.name(), uuid::Uuid::new_v4()))
    }
}

impl Notes for Store {
    /// Writes the file atomically: no reader sees a partial entry.
    fn claim(&self, id: &AttemptId, entry: &Entry) -> io::Result<Claim<Entry>> {
        let temporary = self.temporary(id);
        write(&temporary, entry)?;
        let linked = fs::hard_link(&temporary, self.path(id));
        fs::remove_file(&temporary)?;
        match linked {
            Ok(()) => Ok(Claim::Free),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let entry = self.read(id)?;
                entry.map(Entry::claim).ok_or_else(|| io::Error::other("removed while it was read"))
            }
            Err(error) => Err(error),
        }
    }

    fn read(&self, id: &AttemptId) -> io::Result<Option<Entry>> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set_exit(&self, id: &AttemptId, exit: &ExitResult) -> io::Result<()> {
        let Some(mut entry) = self.read(id)? else { return Ok(()) };
        entry.exit = Some(exit.clone());
        let temporary = self.temporary(id);
        write(&temporary, &entry)?;
        fs::rename(&temporary, self.path(id))
    }

    fn list(&self) -> io::Result<Vec<AttemptId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            found.extend(entry?.file_name().to_str().and_then(AttemptId::parse));
        }
        found.sort();
        Ok(found)
    }

    fn remove(&self, id: &AttemptId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn write(path: &Path, entry: &Entry) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(entry)?)
}
