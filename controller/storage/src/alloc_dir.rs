//! An allocation's directory (Nomad's ALLOC) and what all its tasks share in it.
//!
//! | path | what |
//! | --- | --- |
//! | ALLOC | the barrier: only the users of this allocation's tasks may enter |
//! | `.staging` | where artifacts are made ready; the agent's alone |
//! | `alloc.json` | the allocation's specification, from which a lost database is rebuilt; 0600 |
//! | `alloc`, `alloc/logs`, `alloc/tmp` | shared by the tasks, each keeps what it put there |
//! | `alloc/data` | shared by the tasks, which may replace what others wrote |
//!
//! Who may do what is in [`crate::access`].
//!
//! What it takes over of the disk of another allocation comes with it: [`heritage`].
//!
//! In: the directory of all allocations, an id, what we may do. Out: what was made or seen. Removal renames the directory
//! to `.gone-<id>` first, so that a directory under its own name is never half removed; [`sweep`] finishes what a
//! crash left. Everything here blocks.

pub mod heritage;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use herdlet_api_types::AllocId;
use herdlet_base::{
    mounts::{kernel, table::mounts_below},
    paths::{Paths, SHARED},
    safe_fs::{Dir, FsError, Outlives, Rights},
    sight::{Class, Sight},
};
use rustix::io::Errno;

use self::heritage::{COMING, Heritage, came_for, came_name, coming_name};
use crate::{
    access::{Access, TaskUsers, UNOPENED},
    artifact::staging,
    task_dir::unmount_tmpfs,
};

/// One allocation's directory.
#[derive(Debug, Clone)]
pub struct AllocDir {
    allocs: PathBuf,
    id: AllocId,
    users: TaskUsers,
    heritage: Option<Heritage>,
}

/// Why an allocation directory is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum AllocDirError {
    /// It can't be made or kept.
    #[error("build allocation directory of {id}: {source}")]
    Up {
        id: AllocId,
        /// The step that failed.
        source: FsError,
    },
    /// It can't be looked at.
    #[error("look at allocation directory of {id}: {source}")]
    Look {
        id: AllocId,
        /// The step that failed.
        source: FsError,
    },
    /// It can't be removed.
    #[error("remove allocation directory of {id}: {source}")]
    Down {
        id: AllocId,
        /// The step that failed.
        source: FsError,
    },
}

impl AllocDirError {
    /// Whether trying again may help.
    pub fn class(&self) -> Class {
        match self {
            Self::Up { source, .. } | Self::Look { source, .. } => source.class(),
            // There is no other way to be rid of it.
            Self::Down { .. } => Class::Retry,
        }
    }
}

impl AllocDir {
    /// The directory of allocation `id`, for tasks of the agent's own user.
    pub fn new(paths: &Paths, id: AllocId) -> Self {
        Self { allocs: paths.allocs(), id, users: TaskUsers::default(), heritage: None }
    }

    /// The same of one whose tasks are run by these users.
    #[must_use]
    pub fn used_by(self, users: TaskUsers) -> Self {
        Self { users, ..self }
    }

    /// The same of one that takes over the disk of another.
    #[must_use]
    pub fn inheriting(self, heritage: Option<Heritage>) -> Self {
        Self { heritage, ..self }
    }

    /// Makes it, or what is missing of it, and keeps `spec` in it. Done again with the same `spec` it writes nothing.
    ///
    /// # Errors
    ///
    /// When something else stands in its place or the system refuses.
    pub fn up(&self, spec: &[u8]) -> Result<(), AllocDirError> {
        self.make(spec).map_err(|source| AllocDirError::Up { id: self.id, source })
    }

    /// Whether all of it is there.
    ///
    /// # Errors
    ///
    /// When that can't be told.
    pub fn look(&self) -> Result<Sight, AllocDirError> {
        self.see().map_err(|source| AllocDirError::Look { id: self.id, source })
    }

    /// Unmounts all that is mounted at or below it and removes it with all that is in it. Nothing there is fine.
    ///
    /// # Errors
    ///
    /// When something can't be unmounted or removed; what could be is gone, and doing it again goes on from there.
    pub fn down(&self) -> Result<(), AllocDirError> {
        self.remove().map_err(|source| AllocDirError::Down { id: self.id, source })
    }

    /// The same for what is left of an allocation that was forgotten. Its mounts had gone before that: what is mounted there now,
    /// but for memory file systems of ours, is somebody else's and keeps it all where it is.
    ///
    /// # Errors
    ///
    /// As [`AllocDir::down`], and [`FsError::Mounted`] where somebody has mounted something.
    pub fn down_without_others_mounts(&self) -> Result<(), AllocDirError> {
        let removed = self.check_mounts().and_then(|()| self.remove());
        removed.map_err(|source| AllocDirError::Down { id: self.id, source })
    }

    fn check_mounts(&self) -> Result<(), FsError> {
        let Some(allocs) = open(&self.allocs)? else { return Ok(()) };
        let top = allocs.real_path()?.join(self.name());
        let mounts = mounts_below(&top).map_err(|error| FsError::io("list the mounts below", &top, error))?;
        match mounts.into_iter().find(|mount| !mount.is_ours()) {
            Some(other) => Err(FsError::Mounted { path: other.point }),
            None => Ok(()),
        }
    }

    fn make(&self, spec: &[u8]) -> Result<(), FsError> {
        // 0711: tasks of any user must be able to pass.
        let allocs = Dir::open_or_make(&self.allocs, 0o711)?;
        let alloc = allocs.make(&self.name(), UNOPENED)?;
        self.users.entrance().apply(&alloc)?;
        let kept = alloc.read_file(OsStr::new(SPEC), SPEC_BYTES_MAX)?;
        if let Some(heritage) = self.heritage.as_ref().filter(|_| kept.is_none()) {
            heritage.take(&allocs, &alloc, self.id)?;
        }
        let shared = alloc.make(OsStr::new(SHARED), UNOPENED)?;
        self.users.common().apply(&shared)?;
        for name in SHARED_DIRS {
            self.access(name).apply(&shared.make(OsStr::new(name), UNOPENED)?)?;
        }
        if kept.as_deref() != Some(spec) {
            // What it is for, the tasks that run, a power cut ends too.
            let rights = Rights::Exact { mode: 0o600, owner: None };
            alloc.write_file(OsStr::new(SPEC), spec, rights, Outlives::Processes)?;
        }
        if self.heritage.is_some() {
            allocs.remove_tree(&came_name(self.id))?;
        }
        Ok(())
    }

    /// Of what the tasks share.
    fn access(&self, name: &str) -> Access {
        match name {
            DATA => self.users.data(),
            LOGS => self.users.logs(),
            _ => self.users.scratch(),
        }
    }

    fn see(&self) -> Result<Sight, FsError> {
        let Some(allocs) = open(&self.allocs)? else { return Ok(Sight::Absent) };
        let alloc = match allocs.find(&self.name()) {
            Ok(Some(alloc)) => alloc,
            Ok(None) if allocs.stat_name(&gone_name(self.id))?.is_some() => {
                return Ok(Sight::foreign(format!(
                    "{} is half removed",
                    allocs.path().join(gone_name(self.id)).display()
                )));
            }
            Ok(None) => return Ok(Sight::Absent),
            Err(error) => return error.into_sight(),
        };
        let shared = match alloc.find(OsStr::new(SHARED)) {
            Ok(Some(shared)) => shared,
            Ok(None) => return Ok(lost(&alloc, SHARED)),
            Err(error) => return error.into_sight(),
        };
        let mut open =
            Vec::from([self.users.entrance().difference(&alloc)?, self.users.common().difference(&shared)?]);
        for name in SHARED_DIRS {
            match shared.find(OsStr::new(name)) {
                Ok(Some(dir)) => open.push(self.access(name).difference(&dir)?),
                Ok(None) if name == DATA => return Ok(lost(&shared, name)),
                Ok(None) => return Ok(missing(&shared, name)),
                Err(error) => return error.into_sight(),
            }
        }
        if alloc.stat_name(OsStr::new(SPEC))?.is_none() {
            return Ok(missing(&alloc, SPEC));
        }
        Ok(open.into_iter().flatten().next().map_or(Sight::Present, Sight::foreign))
    }

    fn remove(&self) -> Result<(), FsError> {
        let Some(allocs) = open(&self.allocs)? else { return Ok(()) };
        for name in [came_name(self.id), coming_name(self.id)] {
            allocs.remove_tree(&name)?;
        }
        let gone = gone_name(self.id);
        // What an earlier removal left; the rename below needs the name.
        if allocs.stat_name(&gone)?.is_some() {
            remove_all(&allocs, &gone)?;
        }
        if allocs.stat_name(&self.name())?.is_some() {
            // A place where something is mounted can't be renamed.
            kernel::unmount_at_name(&allocs, &self.name())?;
            allocs.rename(&self.name(), &gone)?;
            remove_all(&allocs, &gone)?;
        }
        Ok(())
    }

    fn name(&self) -> OsString {
        self.id.to_string().into()
    }
}

/// Removes what interrupted removals left, what was on its way from other nodes, and artifacts that were not ready. Returns how many
/// directories of allocations there were.
///
/// # Errors
///
/// When one of them can't be removed.
pub fn sweep(paths: &Paths) -> Result<usize, FsError> {
    let Some(allocs) = open(&paths.allocs())? else { return Ok(0) };
    let mut removed = 0;
    let is_left = |name: &OsString| {
        [GONE, COMING].iter().any(|begin| name.as_encoded_bytes().starts_with(begin.as_bytes()))
    };
    for name in allocs.names()? {
        if is_left(&name) {
            remove_all(&allocs, &name)?;
            removed += 1;
        } else if let Ok(Some(alloc)) = allocs.find(&name) {
            alloc.remove_tree(OsStr::new(staging::NAME))?;
        }
    }
    Ok(removed)
}

/// Removes what has come from other nodes for allocations that take it over no more: those that are not known, or have it.
///
/// # Errors
///
/// When one of them can't be removed.
pub fn sweep_came(paths: &Paths, is_known: impl Fn(&AllocId) -> bool) -> Result<(), FsError> {
    let Some(allocs) = open(&paths.allocs())? else { return Ok(()) };
    for name in allocs.names()? {
        let Some(id) = came_for(&name) else { continue };
        let is_taken = match allocs.find(id.to_string().as_ref())? {
            Some(alloc) => alloc.stat_name(OsStr::new(SPEC))?.is_some(),
            None => false,
        };
        if is_taken || !is_known(&id) {
            allocs.remove_tree(&name)?;
        }
    }
    Ok(())
}

/// Closes the directory of an allocation in which nothing runs, where an older agent left it open to every user. A start opens it to the
/// users of its tasks again.
///
/// # Errors
///
/// When its mode can't be read or changed.
pub fn close_unused(paths: &Paths, id: AllocId) -> Result<(), FsError> {
    match left_open(paths, id)? {
        Some(LeftOpen(alloc)) => alloc.set_rights(Rights::Exact { mode: 0o700, owner: None }),
        None => Ok(()),
    }
}

/// The directory of an allocation, where others than its users may enter it.
///
/// # Errors
///
/// When its mode can't be read.
pub fn left_open(paths: &Paths, id: AllocId) -> Result<Option<LeftOpen>, FsError> {
    let Some(allocs) = open(&paths.allocs())? else { return Ok(None) };
    let Some(alloc) = allocs.find(id.to_string().as_ref())? else { return Ok(None) };
    Ok((alloc.stat()?.st_mode & OTHERS != 0).then_some(LeftOpen(alloc)))
}

/// A directory that is open to every user. Without access control lists every one is that has users.
#[derive(Debug)]
pub struct LeftOpen(Dir);

impl LeftOpen {
    /// What is kept in it of its allocation.
    ///
    /// # Errors
    ///
    /// When it can't be read.
    pub fn spec(&self) -> Result<Vec<u8>, FsError> {
        let missing = || FsError::io("open", self.0.path().join(SPEC), Errno::NOENT);
        self.0.read_file(OsStr::new(SPEC), SPEC_BYTES_MAX)?.ok_or_else(missing)
    }

    /// Closes it to all but these users.
    ///
    /// # Errors
    ///
    /// When the system refuses. Where it is for want of room on the disk, it is closed to the users too.
    pub fn close_around(&self, users: &TaskUsers) -> Result<(), FsError> {
        users.entrance().apply(&self.0)
    }
}

/// Bits of a mode that give every user something.
const OTHERS: u32 = 0o007;

/// What tasks keep in it; all else can be made anew.
pub const DATA: &str = "data";
pub const SHARED_DIRS: [&str; 3] = [LOGS, "tmp", DATA];
const LOGS: &str = "logs";
pub const SPEC: &str = "alloc.json";
const GONE: &str = ".gone-";

/// Far beyond any job, well below what hurts.
const SPEC_BYTES_MAX: u64 = 64 * 1024 * 1024;

fn gone_name(id: AllocId) -> OsString {
    format!("{GONE}{id}").into()
}

fn open(allocs: &Path) -> Result<Option<Dir>, FsError> {
    match Dir::open(allocs) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_all(allocs: &Dir, name: &OsStr) -> Result<(), FsError> {
    // What every task has mounted. What else there is stands in the way of the removal then, and is found by it.
    if let Ok(Some(alloc)) = allocs.find(name) {
        for task in alloc.names()? {
            if let Ok(Some(task)) = alloc.find(&task) {
                unmount_tmpfs(&task)?;
            }
        }
    }
    kernel::remove_with_mounts(allocs, name)
}

fn missing(dir: &Dir, name: &str) -> Sight {
    Sight::foreign(format!("{} is missing", dir.path().join(name).display()))
}

fn lost(dir: &Dir, name: &str) -> Sight {
    Sight::Lost { why: format!("{} is gone", dir.path().join(name).display()) }
}

#[cfg(test)]
mod tests;
