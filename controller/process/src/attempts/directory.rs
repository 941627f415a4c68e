//! The attempts directory itself: held open, watched, and recreated after it was deleted or replaced.
//!
//! In: its path. Out: the directory at that path. A deleted directory stays open, but no file can be created in it, so
//! no attempt could begin. The kernel sends no event for the deletion of a directory that is held open; its parent
//! directory gets one.

use std::{
    fs,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::Path,
    sync::Arc,
};

use herdlet_base::durable::{self, Outlives, Steps};
use rustix::fs::inotify::{self, WatchFlags as W};

use super::{Attempts, AttemptsError, BOOT_ID, read_boot};
use crate::supervisor::RuntimeDir;

/// File with the boot id of the records.
pub(super) const BOOT: &str = ".boot";

/// An open attempts directory.
#[derive(Debug)]
pub(super) struct AttemptsDir {
    records: Arc<RuntimeDir>,
    /// The watch of the directory.
    pub(super) inside: i32,
    /// The watch of the parent directory.
    pub(super) around: i32,
}

impl AttemptsDir {
    /// Makes the directory if it is missing, opens and watches it.
    pub(super) fn open(path: &Path, inotify: &OwnedFd) -> Result<Self, AttemptsError> {
        let prepare = |source| AttemptsError::Prepare { path: path.to_owned(), source };
        let watch =
            |errno: rustix::io::Errno| AttemptsError::Watch { path: path.to_owned(), source: errno.into() };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(prepare)?;
        super::lost::mark(path).map_err(prepare)?;
        let around = path.parent().unwrap_or(path);
        let gone = W::DELETE | W::MOVED_FROM | W::DELETE_SELF | W::MOVE_SELF;
        let around = inotify::add_watch(inotify, around, gone | W::ONLYDIR).map_err(watch)?;
        let changes = W::CREATE | W::MODIFY | W::DELETE | W::MOVED_FROM | W::MOVED_TO;
        let inside = inotify::add_watch(inotify, path, changes | W::ONLYDIR).map_err(watch)?;
        Ok(Self { records: Arc::new(RuntimeDir::open(path)?), inside, around })
    }

    pub(super) fn records(&self) -> &Arc<RuntimeDir> {
        &self.records
    }

    /// Whether the open directory is still the one at `path`.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let Ok(held) = rustix::fs::fstat(&*self.records) else { return false };
        fs::symlink_metadata(path).is_ok_and(|seen| (seen.dev(), seen.ino()) == (held.st_dev, held.st_ino))
    }
}

impl Attempts {
    /// Recreates the directory and restores the records of all living supervisors.
    pub(super) fn make_again(&self) -> Result<(), AttemptsError> {
        {
            let mut place = self.place();
            if place.is_at(&self.path) {
                return Ok(());
            }
            tracing::warn!(
                path = %self.path.display(),
                "the attempts directory was deleted or replaced; recreating it, tasks keep running"
            );
            let fresh = AttemptsDir::open(&self.path, self.inotify.get_ref())?;
            // Without this file the next agent keeps all records.
            if let Ok(boot) = read_boot(Path::new(BOOT_ID)) {
                let marker = self.path.join(BOOT);
                durable::write_in_steps(&marker, boot.as_bytes(), Outlives::Processes, &Steps::default())
                    .map_err(|source| AttemptsError::Prepare { path: marker, source })?;
            }
            let old = std::mem::replace(&mut *place, fresh);
            for watch in [old.inside, old.around] {
                // Already gone if the directory is.
                if watch != place.inside && watch != place.around {
                    let _ = inotify::remove_watch(self.inotify.get_ref(), watch);
                }
            }
        }
        self.put_all_back();
        self.wake_all();
        Ok(())
    }
}
