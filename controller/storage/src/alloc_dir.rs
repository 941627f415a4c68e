//! An allocation's directory (Nomad's ALLOC) and the directories in it that all its tasks share.
//!
//! | path | what |
//! | --- | --- |
//! | ALLOC | only the users of this allocation's tasks may enter it |
//! | `.staging` | artifacts in preparation; only for the agent |
//! | `.network` | `hosts` and `resolv.conf` of a network of its own |
//! | `alloc.json` | the allocation's specification, from which a lost database is rebuilt; 0600 |
//! | `alloc`, `alloc/logs`, `alloc/tmp` | shared by the tasks; each keeps its own files |
//! | `alloc/data` | shared by the tasks, which may replace each other's files |
//!
//! [`crate::access`] sets the rights.
//!
//! [`migration`] moves data from a predecessor's disk into it.
//!
//! In: the directory of all allocations, an id, privileges. Out: directories created, or the result of an inspection.
//! Removal first renames the directory to `.gone-<id>`, so that a directory under its own name is never partly removed;
//! [`sweep`] finishes interrupted removals. All calls block.

pub mod migration;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use herdlet_api_types::AllocId;
use herdlet_base::{
    mounts::{kernel, table::mounts_below},
    observation::{Class, Observation},
    paths::{Paths, SHARED},
    safe_fs::{Dir, FsError, Outlives, Rights},
};
use rustix::io::Errno;

use self::migration::{COMING, Migration, came_for, came_name, coming_name};
use crate::{
    access::{Access, TaskUsers, UNOPENED},
    artifact::staging,
    task_dir::unmount_tmpfs,
};

#[derive(Debug, Clone)]
pub struct AllocDir {
    allocs: PathBuf,
    id: AllocId,
    users: TaskUsers,
    heritage: Option<Migration>,
}

/// Errors of allocation directories.
#[derive(Debug, thiserror::Error)]
pub enum AllocDirError {
    /// It can't be created or completed.
    #[error("create allocation directory of {id}: {source}")]
    Up {
        id: AllocId,
        /// The step that failed.
        source: FsError,
    },
    /// It can't be inspected.
    #[error("inspect allocation directory of {id}: {source}")]
    Inspect {
        id: AllocId,
        /// The step that failed.
        source: FsError,
    },
    #[error("remove allocation directory of {id}: {source}")]
    Down {
        id: AllocId,
        /// The step that failed.
        source: FsError,
    },
}

impl AllocDirError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Up { source, .. } | Self::Inspect { source, .. } => source.class(),
            // There is no other way to remove it.
            Self::Down { .. } => Class::Retry,
        }
    }
}

impl AllocDir {
    /// The directory of allocation `id`, for tasks of the agent's own user.
    pub fn new(paths: &Paths, id: AllocId) -> Self {
        Self { allocs: paths.allocs(), id, users: TaskUsers::default(), heritage: None }
    }

    /// Sets the users of the tasks.
    #[must_use]
    pub fn used_by(self, users: TaskUsers) -> Self {
        Self { users, ..self }
    }

    /// Sets the predecessor whose disk it takes over.
    #[must_use]
    pub fn inheriting(self, heritage: Option<Migration>) -> Self {
        Self { heritage, ..self }
    }

    /// Creates the directory, or missing parts of it, and keeps `spec` in it. Repeating it with the same `spec` writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// If something else is in its place or a system call fails.
    pub fn up(&self, spec: &[u8]) -> Result<(), AllocDirError> {
        self.make(spec).map_err(|source| AllocDirError::Up { id: self.id, source })
    }

    /// Whether the directory is complete.
    ///
    /// # Errors
    ///
    /// If it can't be inspected.
    pub fn inspect(&self) -> Result<Observation, AllocDirError> {
        self.see().map_err(|source| AllocDirError::Inspect { id: self.id, source })
    }

    /// Unmounts everything at or below it and removes it recursively. Succeeds if it does not exist.
    ///
    /// # Errors
    ///
    /// If something can't be unmounted or removed; a repeated call continues.
    pub fn down(&self) -> Result<(), AllocDirError> {
        self.remove().map_err(|source| AllocDirError::Down { id: self.id, source })
    }

    /// As [`AllocDir::down`], for the remains of a forgotten allocation. Its own mounts were gone before that, so a
    /// mount that is not our tmpfs belongs to somebody else and keeps the directory in place.
    ///
    /// # Errors
    ///
    /// As [`AllocDir::down`], and [`FsError::Mounted`] for a foreign mount.
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
        // 0711: tasks of any user must be able to pass through.
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
            // After a power cut no task runs that needs the file.
            let rights = Rights::Exact { mode: 0o600, owner: None };
            alloc.write_file(OsStr::new(SPEC), spec, rights, Outlives::Processes)?;
        }
        if self.heritage.is_some() {
            allocs.remove_tree(&came_name(self.id))?;
        }
        Ok(())
    }

    /// Rights of a shared directory.
    fn access(&self, name: &str) -> Access {
        match name {
            DATA => self.users.data(),
            LOGS => self.users.logs(),
            _ => self.users.scratch(),
        }
    }

    fn see(&self) -> Result<Observation, FsError> {
        let Some(allocs) = open(&self.allocs)? else { return Ok(Observation::Absent) };
        let alloc = match allocs.find(&self.name()) {
            Ok(Some(alloc)) => alloc,
            Ok(None) if allocs.stat_name(&gone_name(self.id))?.is_some() => {
                return Ok(Observation::foreign(format!(
                    "{} is partly removed",
                    allocs.path().join(gone_name(self.id)).display()
                )));
            }
            Ok(None) => return Ok(Observation::Absent),
            Err(error) => return error.into_observation(),
        };
        let shared = match alloc.find(OsStr::new(SHARED)) {
            Ok(Some(shared)) => shared,
            Ok(None) => return Ok(lost(&alloc, SHARED)),
            Err(error) => return error.into_observation(),
        };
        let mut open =
            Vec::from([self.users.entrance().difference(&alloc)?, self.users.common().difference(&shared)?]);
        for name in SHARED_DIRS {
            match shared.find(OsStr::new(name)) {
                Ok(Some(dir)) => open.push(self.access(name).difference(&dir)?),
                Ok(None) if name == DATA => return Ok(lost(&shared, name)),
                Ok(None) => return Ok(missing(&shared, name)),
                Err(error) => return error.into_observation(),
            }
        }
        if alloc.stat_name(OsStr::new(SPEC))?.is_none() {
            return Ok(missing(&alloc, SPEC));
        }
        Ok(open.into_iter().flatten().next().map_or(Observation::Present, Observation::foreign))
    }

    fn remove(&self) -> Result<(), FsError> {
        let Some(allocs) = open(&self.allocs)? else { return Ok(()) };
        for name in [came_name(self.id), coming_name(self.id)] {
            allocs.remove_tree(&name)?;
        }
        let gone = gone_name(self.id);
        // Finish an earlier removal, because the rename below needs the name.
        if allocs.stat_name(&gone)?.is_some() {
            remove_all(&allocs, &gone)?;
        }
        if allocs.stat_name(&self.name())?.is_some() {
            // A mount point can't be renamed.
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

/// Removes the remains of interrupted removals, incomplete transfers from other nodes, and unfinished artifacts.
/// Returns the number of allocation directories removed.
///
/// # Errors
///
/// If one of them can't be removed.
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

/// Removes data from other nodes for allocations that no longer take it over: unknown ones, and those that have it
/// already.
///
/// # Errors
///
/// If one of them can't be removed.
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

/// Closes the directory of an allocation without running tasks that an older agent left open to every user. A start
/// opens it to the users of its tasks again.
///
/// # Errors
///
/// If its mode can't be read or changed.
pub fn close_unused(paths: &Paths, id: AllocId) -> Result<(), FsError> {
    match left_open(paths, id)? {
        Some(LeftOpen(alloc)) => alloc.set_rights(Rights::Exact { mode: 0o700, owner: None }),
        None => Ok(()),
    }
}

/// The directory of an allocation, if users other than its own may enter it.
///
/// # Errors
///
/// If its mode can't be read.
pub fn left_open(paths: &Paths, id: AllocId) -> Result<Option<LeftOpen>, FsError> {
    let Some(allocs) = open(&paths.allocs())? else { return Ok(None) };
    let Some(alloc) = allocs.find(id.to_string().as_ref())? else { return Ok(None) };
    Ok((alloc.stat()?.st_mode & OTHERS != 0).then_some(LeftOpen(alloc)))
}

/// A directory that is open to every user. Without access control lists, that is every directory with users.
#[derive(Debug)]
pub struct LeftOpen(Dir);

impl LeftOpen {
    /// The allocation's specification in it.
    ///
    /// # Errors
    ///
    /// If it can't be read.
    pub fn spec(&self) -> Result<Vec<u8>, FsError> {
        let missing = || FsError::io("open", self.0.path().join(SPEC), Errno::NOENT);
        self.0.read_file(OsStr::new(SPEC), SPEC_BYTES_MAX)?.ok_or_else(missing)
    }

    /// Closes it to all but these users.
    ///
    /// # Errors
    ///
    /// If a system call fails. On a full disk it is closed to the users too.
    pub fn close_around(&self, users: &TaskUsers) -> Result<(), FsError> {
        users.entrance().apply(&self.0)
    }
}

/// Mode bits that give every user access.
const OTHERS: u32 = 0o007;

/// The directory with the tasks' data; all others can be created again.
pub const DATA: &str = "data";
pub const SHARED_DIRS: [&str; 3] = [LOGS, "tmp", DATA];
const LOGS: &str = "logs";
pub use herdlet_base::paths::SPEC;
const GONE: &str = ".gone-";

/// Larger than any job, and still harmless.
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
    // Unmounts what every task has mounted. Other mounts make the removal fail, which then unmounts them.
    if let Ok(Some(alloc)) = allocs.find(name) {
        for task in alloc.names()? {
            if let Ok(Some(task)) = alloc.find(&task) {
                unmount_tmpfs(&task)?;
            }
        }
    }
    kernel::remove_with_mounts(allocs, name)
}

fn missing(dir: &Dir, name: &str) -> Observation {
    Observation::foreign(format!("{} is missing", dir.path().join(name).display()))
}

fn lost(dir: &Dir, name: &str) -> Observation {
    Observation::Lost { why: format!("{} is gone", dir.path().join(name).display()) }
}

#[cfg(test)]
mod tests;
