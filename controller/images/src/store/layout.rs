//! The directory of a store: paths, the lock of its records, and places for what is not complete.
//!
//! | path | contents |
//! | --- | --- |
//! | `lock` | locked shared to read several records, exclusively to change them; held for moments only |
//! | `names/NAME` | the image of a name |
//! | `images/DIGEST` | the config of an image, as its maker wrote it; its time is that of the last use |
//! | `layers/DIGEST` | a layer: `tree`, and `record` |
//! | `claims/OWNER` | the images that an agent uses |
//! | `downloads/DIGEST` | the first part of a layer as registries have it; locked by the process that fetches it |
//! | `staging/ID` | what a process prepares; locked as long as the process lives |
//!
//! Only root may enter it. All calls block.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use aws_lc_rs::rand;
use herdlet_base::{
    artifact::checksum::hex,
    durable, paths,
    safe_fs::{Dir, FsError, Rights},
};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::error::{StoreError, io_error};
use crate::digest::Digest;

/// The tree of a layer in its directory.
pub(super) const TREE: &str = "tree";

/// Only for root.
pub(super) const CLOSED: Rights = Rights::Exact { mode: 0o700, owner: None };

/// A part of a layer that nobody has continued for this long is removed.
const DOWNLOAD_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The directory of a store.
#[derive(Debug)]
pub(super) struct Layout {
    dir: PathBuf,
}

/// The lock of the records, until it is dropped.
pub(super) struct StoreLock {
    _file: File,
}

/// A directory for what is not complete. The next [`Layout::clean_staging`] after its drop removes it, if [`Staging::discard`] does not.
#[derive(Debug)]
pub(super) struct Staging {
    above: Dir,
    name: OsString,
    /// Locked.
    pub(super) dir: Dir,
}

impl Layout {
    pub(super) fn open(dir: &Path) -> Result<Self, StoreError> {
        let layout = Self { dir: dir.to_owned() };
        for part in ["names", "images", "layers", "claims", "downloads", "staging"] {
            let path = dir.join(part);
            durable::make_dir(&path).map_err(io_error("make", &path))?;
        }
        layout.clean_staging()?;
        Ok(layout)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn names(&self) -> PathBuf {
        self.dir.join("names")
    }

    pub(super) fn name(&self, name: &str) -> PathBuf {
        self.names().join(paths::file_name(name))
    }

    pub(super) fn images(&self) -> PathBuf {
        self.dir.join("images")
    }

    pub(super) fn image(&self, id: &Digest) -> PathBuf {
        self.images().join(file_name(id))
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.dir.join("layers")
    }

    pub(super) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.layers().join(file_name(diff_id))
    }

    pub(super) fn claims(&self) -> PathBuf {
        self.dir.join("claims")
    }

    pub(super) fn claim(&self, owner: &str) -> PathBuf {
        self.claims().join(paths::file_name(owner))
    }

    /// Locks the records against changes.
    pub(super) fn lock_shared(&self) -> Result<StoreLock, StoreError> {
        self.lock(FlockOperation::LockShared)
    }

    /// Locks the records to change them.
    pub(super) fn lock_exclusive(&self) -> Result<StoreLock, StoreError> {
        self.lock(FlockOperation::LockExclusive)
    }

    fn lock(&self, operation: FlockOperation) -> Result<StoreLock, StoreError> {
        let path = self.dir.join("lock");
        let file = durable::open_in_place(&path).map_err(io_error("open", &path))?;
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(StoreLock { _file: file }),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error("lock", &path)(errno.into())),
            }
        }
    }

    /// Makes a directory for what is not complete.
    pub(super) fn stage(&self) -> Result<Staging, StoreError> {
        let mut random = [0; 16];
        rand::fill(&mut random).map_err(|_| StoreError::Random)?;
        let name = OsString::from(hex(&random));
        let above = Dir::open(&self.dir.join("staging"))?;
        // Until it is locked, another process may take it for that of a dead one.
        loop {
            let dir = above.make(&name, CLOSED)?;
            let is_locked = flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok();
            let there = above.stat_name(&name)?;
            if is_locked && there.is_some_and(|there| dir.stat().is_ok_and(|own| own.st_ino == there.st_ino))
            {
                return Ok(Staging { above, name, dir });
            }
        }
    }

    /// Makes a file that lasts until it is closed.
    pub(super) fn unnamed_file(&self) -> Result<File, StoreError> {
        let staging = self.stage()?;
        let path = staging.dir.proc_path("download".as_ref());
        let file = durable::open_in_place(&path).map_err(io_error("make", &path))?;
        staging.discard()?;
        Ok(file)
    }

    /// Removes what processes that have ended were preparing, and downloads that nobody continues.
    pub(super) fn clean_staging(&self) -> Result<(), StoreError> {
        let above = Dir::open(&self.dir.join("staging"))?;
        for name in above.names()? {
            let Some(dir) = above.find(&name)? else { continue };
            if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
                above.remove_tree(&name)?;
            }
        }
        let downloads = self.dir.join("downloads");
        for path in entries(&downloads)? {
            if age(&path).is_some_and(|age| age > DOWNLOAD_AGE_MAX) {
                self.discard_download(&path)?;
            }
        }
        Ok(())
    }

    /// Opens the download of a layer to continue it; none if another process fetches it now.
    pub(super) fn open_download(&self, digest: &Digest) -> Result<Option<(File, PathBuf)>, StoreError> {
        let path = self.dir.join("downloads").join(file_name(digest));
        let file = durable::open_in_place(&path).map_err(io_error("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some((file, path))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(io_error("lock", &path)(errno.into())),
        }
    }

    /// Removes the download of a layer, unless a process fetches it now.
    pub(super) fn discard_download_of(&self, digest: &Digest) -> Result<(), StoreError> {
        let path = self.dir.join("downloads").join(file_name(digest));
        if path.exists() { self.discard_download(&path) } else { Ok(()) }
    }

    /// Removes a download that no process fetches now.
    fn discard_download(&self, path: &Path) -> Result<(), StoreError> {
        let file = durable::open_in_place(path).map_err(io_error("open", path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_if_there(path)?;
        }
        Ok(())
    }

    /// What is free on the disk for us, and the size of the disk.
    pub(super) fn space(&self) -> Result<(u64, u64), StoreError> {
        let about =
            rustix::fs::statvfs(&self.dir).map_err(|errno| io_error("examine", &self.dir)(errno.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
        Ok((bytes(about.f_bavail), bytes(about.f_blocks)))
    }
}

impl Staging {
    pub(super) fn discard(self) -> Result<(), StoreError> {
        let Self { above, name, dir } = self;
        above.remove_tree(&name)?;
        drop(dir);
        Ok(())
    }

    /// Takes a directory of the store away, so that it has no name any more.
    pub(super) fn take(&self, dir: &Dir, name: &OsStr) -> Result<(), StoreError> {
        Ok(dir.rename_into(name, &self.dir, name)?)
    }

    /// Gives the staged directory its name in the store.
    pub(super) fn publish(self, place: &Dir, name: &OsStr) -> Result<(), StoreError> {
        self.above.rename_into(&self.name, place, name)?;
        Ok(place.sync()?)
    }
}

/// The name of a digest as a file.
pub(super) fn file_name(digest: &Digest) -> String {
    digest.as_str().replace(':', "-")
}

/// The digest of a name that [`file_name`] has made.
pub(super) fn digest_of_name(name: &OsStr) -> Option<Digest> {
    Digest::parse(&name.to_str()?.replacen('-', ":", 1)).ok()
}

/// What is in a directory, except files that are being written.
pub(super) fn entries(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let names = Dir::open(dir).and_then(|dir| dir.names())?;
    let visible = |name: &OsString| name.to_str().is_some_and(|name| !durable::is_temporary(name));
    Ok(names.into_iter().filter(visible).map(|name| dir.join(name)).collect())
}

/// How long ago a file has been used; none if it has gone, or its time is in the future.
pub(super) fn age(path: &Path) -> Option<Duration> {
    let used = fs::symlink_metadata(path).and_then(|about| about.modified()).ok()?;
    SystemTime::now().duration_since(used).ok()
}

/// Removes a file that may have gone.
pub(super) fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl From<FsError> for StoreError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}
