//! A task's directory (Nomad's TASKDIR): `local`, `tmp`, `secrets` and `private`.
//!
//! | path | mode | what |
//! | --- | --- | --- |
//! | TASKDIR | 1777 | |
//! | `local` | 1777 | the task's own files |
//! | `tmp` | 1777 | |
//! | `secrets` | 1777 | tmpfs of 1 MiB, no exec, suid or devices; token files in it are 0600 |
//! | `private` | 0700 | the same, for what the task itself must not see |
//!
//! All of them are the agent's own: programs of any user find room in them, and nobody can take away or replace what another
//! has put there. Without root `umask` applies; where mounting is not possible, `secrets` and `private` are plain directories
//! with mode 0700 on disk.
//!
//! In: the path and what we may do. Out: what was made or seen. Looking never makes anything: a deleted directory is
//! [`Sight::Absent`], and whether the task survives that is decided elsewhere. Everything here blocks.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use crate::drivers::{
    artifact,
    mounts::{Mount, kernel, mounts_below},
    privileges::{Mounting, Ownership, Privileges},
    safe_fs::{Dir, FsError, Rights},
    sight::{Class, Sight},
};

/// Size of `secrets` and of `private`: Nomad's.
pub const SECRETS_SIZE_BYTES: u64 = 1024 * 1024;

/// One task's directory.
#[derive(Debug, Clone)]
pub struct TaskDir {
    path: PathBuf,
    privileges: Privileges,
}

/// Why a task directory is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum TaskDirError {
    /// The allocation directory, in which it lies, is missing.
    #[error("build task directory {path}: the allocation directory is missing")]
    NoAllocDir {
        /// The task directory.
        path: PathBuf,
    },
    /// The mount table can't be read.
    #[error("read the mount table: {0}")]
    Table(#[source] std::io::Error),
    /// A step failed.
    #[error("build or remove task directory: {0}")]
    Fs(#[from] FsError),
}

impl TaskDirError {
    /// Whether trying again may help.
    pub fn class(&self) -> Class {
        match self {
            Self::NoAllocDir { .. } | Self::Table(_) => Class::Retry,
            Self::Fs(error) => error.class(),
        }
    }
}

impl TaskDir {
    /// The directory at `path`, see [`crate::paths::Paths::task`].
    pub fn new(path: PathBuf, privileges: Privileges) -> Self {
        Self { path, privileges }
    }

    /// Makes it, or what is missing of it. Mounts `secrets` and `private` where they are not mounted, as after a reboot;
    /// they are empty then.
    ///
    /// # Errors
    ///
    /// When something else stands in a directory's place or the system refuses.
    pub fn up(&self) -> Result<(), TaskDirError> {
        let missing = || TaskDirError::NoAllocDir { path: self.path.clone() };
        let alloc = self.alloc()?.ok_or_else(missing)?;
        let task = alloc.make(self.name(), open_rights(self.privileges))?;
        if task.find(OsStr::new("local"))?.is_none() {
            // What was fetched into it has gone with it.
            task.unlink(OsStr::new(artifact::marker::FILE))?;
        }
        task.make(OsStr::new("local"), open_rights(self.privileges))?;
        task.make(OsStr::new("tmp"), open_rights(self.privileges))?;
        for (name, mode) in TMPFS {
            self.secret_dir(&task, OsStr::new(name), mode)?;
        }
        Ok(())
    }

    /// Whether all of it is there and mounted.
    ///
    /// # Errors
    ///
    /// When that can't be told.
    pub fn look(&self) -> Result<Sight, TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(Sight::Absent) };
        let task = match alloc.find(self.name()) {
            Ok(Some(task)) => task,
            Ok(None) => return Ok(Sight::Absent),
            Err(error) => return Ok(error.into_sight()?),
        };
        for name in DIRS {
            match task.find(OsStr::new(name)) {
                Ok(Some(_)) => {}
                // The task's own files; all else can be made anew.
                Ok(None) if name == "local" => {
                    return Ok(Sight::Lost { why: format!("{} is gone", task.path().join(name).display()) });
                }
                Ok(None) => {
                    return Ok(Sight::foreign(format!("{} is missing", task.path().join(name).display())));
                }
                Err(error) => return Ok(error.into_sight()?),
            }
        }
        if self.privileges.mounting == Mounting::Possible {
            let base = task.real_path()?;
            let mounts = mounts_below(&base).map_err(TaskDirError::Table)?;
            for (name, _) in TMPFS {
                let here = task.path().join(name);
                if !kernel::may_be_mounted(&task, OsStr::new(name))? {
                    return Ok(Sight::foreign(format!("{} is not mounted", here.display())));
                }
                match at(&mounts, &base.join(name)).as_slice() {
                    [one] if one.is_ours() => {}
                    [] => return Ok(Sight::foreign(format!("{} is not mounted", here.display()))),
                    _ => {
                        return Ok(Sight::foreign(format!(
                            "a mount that is not ours covers {}",
                            here.display()
                        )));
                    }
                }
            }
        }
        Ok(Sight::Present)
    }

    /// Unmounts all that is mounted below and removes it. Nothing there is fine.
    ///
    /// # Errors
    ///
    /// When something can't be unmounted or removed.
    pub fn down(&self) -> Result<(), TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(()) };
        // A link in its place is removed as it is.
        if let Ok(Some(task)) = alloc.find(self.name()) {
            unmount_tmpfs(&task)?;
        }
        Ok(kernel::remove_with_mounts(&alloc, self.name())?)
    }

    /// Opens `secrets`, for token files.
    ///
    /// # Errors
    ///
    /// When it is not there or something else stands in its place.
    pub fn secrets(&self) -> Result<Option<Dir>, TaskDirError> {
        self.part("secrets")
    }

    /// Opens the directory itself.
    ///
    /// # Errors
    ///
    /// When it is not there or something else stands in its place.
    pub fn root(&self) -> Result<Option<Dir>, TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(None) };
        Ok(alloc.find(self.name())?)
    }

    /// Opens `local`.
    ///
    /// # Errors
    ///
    /// When it is not there or something else stands in its place.
    pub fn local(&self) -> Result<Option<Dir>, TaskDirError> {
        self.part("local")
    }

    fn part(&self, name: &str) -> Result<Option<Dir>, TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(None) };
        let Some(task) = alloc.find(self.name())? else { return Ok(None) };
        Ok(task.find(OsStr::new(name))?)
    }

    /// Opens the directory in which it lies; tasks can't replace that one.
    fn alloc(&self) -> Result<Option<Dir>, FsError> {
        match Dir::open(self.path.parent().unwrap_or(Path::new("/"))) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    fn secret_dir(&self, task: &Dir, name: &OsStr, mode: u32) -> Result<(), TaskDirError> {
        match self.privileges.mounting {
            Mounting::Impossible => {
                task.make(name, Rights::Exact { mode: 0o700, owner: None })?;
                return Ok(());
            }
            Mounting::Possible => {}
        }
        let point = task.real_path()?.join(name);
        while kernel::may_be_mounted(task, name)? {
            let mounts = mounts_below(&point).map_err(TaskDirError::Table)?;
            match at(&mounts, &point).as_slice() {
                [] => break,
                [one] if one.is_ours() => return Ok(()),
                // Whatever covers our place, ours below it appears again.
                _ => kernel::unmount_top(task, name)?,
            }
        }
        // Beneath the mount nobody but us: should it be unmounted, no secret lands on disk.
        let target = task.make(name, Rights::Exact { mode: 0o700, owner: None })?;
        kernel::mount_tmpfs(&target, SECRETS_SIZE_BYTES, mode)?;
        Ok(())
    }
}

/// What is made in it.
pub(crate) const DIRS: [&str; 4] = ["local", "tmp", "secrets", "private"];

/// Name and mode of what lies in memory.
const TMPFS: [(&str, u32); 2] = [("secrets", 0o1777), ("private", 0o700)];

/// Unmounts what [`TaskDir::up`] has mounted in `task`.
///
/// # Errors
///
/// When it can't be unmounted.
pub(crate) fn unmount_tmpfs(task: &Dir) -> Result<(), FsError> {
    TMPFS.iter().try_for_each(|(name, _)| kernel::unmount_at_name(task, OsStr::new(name)))
}

/// Rights of what tasks of any user put their files in: theirs stay theirs. The paths are no secret, so without the sticky bit any
/// user of the machine could put a program of his own where a task of root looks for one.
pub(crate) fn open_rights(privileges: Privileges) -> Rights {
    let mode = 0o1777;
    match privileges.ownership {
        Ownership::Anybody => {
            // The owner of a sticky directory may remove anything in it: nobody but us may be that.
            let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            Rights::Exact { mode, owner: Some(us) }
        }
        Ownership::OwnOnly => Rights::Masked { mode },
    }
}

fn at<'m>(mounts: &'m [Mount], point: &Path) -> Vec<&'m Mount> {
    mounts.iter().filter(|mount| mount.point == point).collect()
}

#[cfg(test)]
mod tests;
