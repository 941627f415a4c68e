//! What the driver must know after a restart of the agent: one small file for each attempt.
//!
//! Creating the file is the fence: whoever creates it decides whether the attempt begins or never will.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use herdlet_api_types::{UnixNanos, manifest::driver::MockConfig, task::ExitResult};
use herdlet_driver::AttemptId;
use serde::{Deserialize, Serialize};

/// What is noted of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) started_at: UnixNanos,
    /// It was cancelled before it began.
    pub(super) fenced: bool,
    pub(super) config: MockConfig,
    pub(super) exit: Option<ExitResult>,
}

/// Who came first.
#[derive(Debug)]
pub(super) enum Claim {
    Won,
    Lost(Box<Entry>),
}

/// The directory of these files.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
}

impl Entry {
    pub(super) fn running(started_at: UnixNanos, config: MockConfig) -> Self {
        Self { started_at, fenced: false, config, exit: None }
    }

    pub(super) fn fence() -> Self {
        Self { started_at: UnixNanos(0), fenced: true, config: MockConfig::default(), exit: None }
    }
}

impl Store {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Writes the file if there is none. Whole and at once: nobody reads half an entry.
    pub(super) fn claim(&self, id: &AttemptId, entry: &Entry) -> io::Result<Claim> {
        let temporary = self.temporary(id);
        write(&temporary, entry)?;
        let linked = fs::hard_link(&temporary, self.path(id));
        fs::remove_file(&temporary)?;
        match linked {
            Ok(()) => Ok(Claim::Won),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let entry = self.read(id)?;
                entry
                    .map(|entry| Claim::Lost(Box::new(entry)))
                    .ok_or_else(|| io::Error::other("removed while it was read"))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn read(&self, id: &AttemptId) -> io::Result<Option<Entry>> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write_exit(&self, id: &AttemptId, exit: &ExitResult) -> io::Result<()> {
        let Some(mut entry) = self.read(id)? else { return Ok(()) };
        entry.exit = Some(exit.clone());
        let temporary = self.temporary(id);
        write(&temporary, &entry)?;
        fs::rename(&temporary, self.path(id))
    }

    pub(super) fn list(&self) -> io::Result<Vec<AttemptId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            found.extend(entry?.file_name().to_str().and_then(AttemptId::parse));
        }
        found.sort();
        Ok(found)
    }

    pub(super) fn remove(&self, id: &AttemptId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(id.name())
    }

    fn temporary(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(format!(".{}.{}", id.name(), uuid::Uuid::new_v4()))
    }
}

fn write(path: &Path, entry: &Entry) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(entry)?)
}
