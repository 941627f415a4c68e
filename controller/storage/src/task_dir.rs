//! A task's directory (Nomad's TASKDIR): `local`, `tmp`, `secrets` and `private`.
//!
//! | path | what |
//! | --- | --- |
//! | TASKDIR | the task's working directory; the agent's, but the task's user may add to it |
//! | `local` | the task's own files |
//! | `tmp` | the same, for temporary files |
//! | `secrets` | tmpfs of 1 MiB, no exec, suid or devices; closed to all but the task's user; token files in it are closed to all others, see [`crate::file_access`] |
//! | `private` | the same, but hidden from the task; 0700 |
//!
//! [`crate::access`] sets the rights. Without the right to mount, `secrets` and `private` are plain directories on
//! disk.
//!
//! In: the path and privileges. Out: directories created, or the result of an inspection. An inspection creates
//! nothing: a deleted directory is [`Observation::Absent`], and other modules decide whether the task survives that. All
//! calls block.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use herdlet_base::{
    mounts::{
        kernel,
        table::{Mount, mounts_below},
    },
    observation::{Class, Observation},
    privileges::{Mounting, Privileges},
    safe_fs::{Dir, FsError, Rights},
};

use crate::{
    access::{Access, TaskUsers, UNOPENED},
    artifact,
};

/// Size of `private`, and of `secrets` without another size.
pub const SECRETS_SIZE_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Clone)]
pub struct TaskDir {
    path: PathBuf,
    privileges: Privileges,
    users: TaskUsers,
    secrets_bytes: u64,
}

/// Errors of task directories.
#[derive(Debug, thiserror::Error)]
pub enum TaskDirError {
    /// The allocation directory, its parent, is missing.
    #[error("create task directory {path}: the allocation directory is missing")]
    NoAllocDir { path: PathBuf },
    #[error("read the mount table: {0}")]
    Table(#[source] std::io::Error),
    #[error("access the task directory: {0}")]
    Fs(#[from] FsError),
}

impl TaskDirError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::NoAllocDir { .. } | Self::Table(_) => Class::Retry,
            Self::Fs(error) => error.class(),
        }
    }
}

impl TaskDir {
    /// The directory at `path`, see [`herdlet_base::paths::Paths::task`], of a task of the agent's own user.
    pub fn new(path: PathBuf, privileges: Privileges) -> Self {
        Self { path, privileges, users: TaskUsers::default(), secrets_bytes: SECRETS_SIZE_BYTES }
    }

    /// Sets the user of the task, and the users of the allocation's other tasks.
    #[must_use]
    pub fn used_by(self, users: TaskUsers) -> Self {
        Self { users, ..self }
    }

    /// Sets the size of `secrets`. It has no effect on a directory that is there.
    #[must_use]
    pub fn with_secrets_of(self, mib: u64) -> Self {
        Self { secrets_bytes: mib.saturating_mul(1024 * 1024), ..self }
    }

    /// Creates the directory, or missing parts of it. Mounts `secrets` and `private` if they are not mounted, as after
    /// a reboot; they are empty then.
    ///
    /// # Errors
    ///
    /// If something else is in a directory's place or a system call fails.
    pub fn up(&self) -> Result<(), TaskDirError> {
        let missing = || TaskDirError::NoAllocDir { path: self.path.clone() };
        let alloc = self.alloc()?.ok_or_else(missing)?;
        let task = alloc.make(self.name(), UNOPENED)?;
        self.users.task().apply(&task)?;
        if task.find(OsStr::new("local"))?.is_none() {
            // The artifacts in it are gone too.
            task.unlink(OsStr::new(artifact::marker::FILE))?;
        }
        for name in ["local", "tmp"] {
            task.make(OsStr::new(name), UNOPENED)?;
        }
        for name in TMPFS {
            self.secret_dir(&task, OsStr::new(name))?;
        }
        for name in DIRS {
            if let Some(dir) = task.find(OsStr::new(name))? {
                self.access(name).apply(&dir)?;
            }
        }
        Ok(())
    }

    /// Whether the directory is complete and everything is mounted.
    ///
    /// # Errors
    ///
    /// If it can't be inspected.
    pub fn inspect(&self) -> Result<Observation, TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(Observation::Absent) };
        let task = match alloc.find(self.name()) {
            Ok(Some(task)) => task,
            Ok(None) => return Ok(Observation::Absent),
            Err(error) => return Ok(error.into_observation()?),
        };
        let mut open = Vec::from([self.users.task().difference(&task)?]);
        for name in DIRS {
            match task.find(OsStr::new(name)) {
                Ok(Some(dir)) => open.push(self.access(name).difference(&dir)?),
                // The task's own files; all others can be created again.
                Ok(None) if name == "local" => {
                    return Ok(Observation::Lost {
                        why: format!("{} is gone", task.path().join(name).display()),
                    });
                }
                Ok(None) => {
                    return Ok(Observation::foreign(format!(
                        "{} is missing",
                        task.path().join(name).display()
                    )));
                }
                Err(error) => return Ok(error.into_observation()?),
            }
        }
        if self.privileges.mounting == Mounting::Possible {
            let base = task.real_path()?;
            let mounts = mounts_below(&base).map_err(TaskDirError::Table)?;
            for name in TMPFS {
                let here = task.path().join(name);
                if !kernel::may_be_mounted(&task, OsStr::new(name))? {
                    return Ok(Observation::foreign(format!("{} is not mounted", here.display())));
                }
                match at(&mounts, &base.join(name)).as_slice() {
                    [one] if one.is_ours() => {}
                    [] => return Ok(Observation::foreign(format!("{} is not mounted", here.display()))),
                    _ => {
                        return Ok(Observation::foreign(format!(
                            "a mount that is not ours covers {}",
                            here.display()
                        )));
                    }
                }
            }
        }
        Ok(open.into_iter().flatten().next().map_or(Observation::Present, Observation::foreign))
    }

    /// Unmounts everything below and removes the directory. Succeeds if it does not exist.
    ///
    /// # Errors
    ///
    /// If something can't be unmounted or removed.
    pub fn down(&self) -> Result<(), TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(()) };
        // A link in its place is removed, not followed.
        if let Ok(Some(task)) = alloc.find(self.name()) {
            unmount_tmpfs(&task)?;
        }
        Ok(kernel::remove_with_mounts(&alloc, self.name())?)
    }

    /// Opens `secrets`, for token files.
    ///
    /// # Errors
    ///
    /// If it can't be opened, for instance because it is not a directory.
    pub fn secrets(&self) -> Result<Option<Dir>, TaskDirError> {
        self.part("secrets")
    }

    /// Opens `private`, which the task can't see.
    ///
    /// # Errors
    ///
    /// If it can't be opened, for instance because it is not a directory.
    pub fn private(&self) -> Result<Option<Dir>, TaskDirError> {
        self.part("private")
    }

    /// Opens the directory itself.
    ///
    /// # Errors
    ///
    /// If it can't be opened, for instance because it is not a directory.
    pub fn root(&self) -> Result<Option<Dir>, TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(None) };
        Ok(alloc.find(self.name())?)
    }

    /// Opens `local`.
    ///
    /// # Errors
    ///
    /// If it can't be opened, for instance because it is not a directory.
    pub fn local(&self) -> Result<Option<Dir>, TaskDirError> {
        self.part("local")
    }

    fn part(&self, name: &str) -> Result<Option<Dir>, TaskDirError> {
        let Some(alloc) = self.alloc()? else { return Ok(None) };
        let Some(task) = alloc.find(self.name())? else { return Ok(None) };
        Ok(task.find(OsStr::new(name))?)
    }

    /// Opens the parent directory; tasks can't replace it.
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

    /// Rights of one of [`DIRS`].
    fn access(&self, name: &str) -> Access {
        match name {
            "secrets" => self.users.secret(self.privileges),
            "private" => TaskUsers::private(),
            _ => self.users.own(self.privileges),
        }
    }

    fn secret_dir(&self, task: &Dir, name: &OsStr) -> Result<(), TaskDirError> {
        match self.privileges.mounting {
            Mounting::Impossible => {
                task.make(name, UNOPENED)?;
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
                // Remove the covering mount: ours below appears again.
                _ => kernel::unmount_top(task, name)?,
            }
        }
        // Only we may enter the directory below the mount: if it is unmounted, no secret ends up on disk.
        let target = task.make(name, Rights::Exact { mode: 0o700, owner: None })?;
        let size = if name == SECRETS { self.secrets_bytes } else { SECRETS_SIZE_BYTES };
        kernel::mount_tmpfs(&target, size, 0o700)?;
        Ok(())
    }
}

/// The directories in it.
pub const DIRS: [&str; 4] = ["local", "tmp", "secrets", "private"];

/// The directories in memory.
const TMPFS: [&str; 2] = [SECRETS, "private"];
const SECRETS: &str = "secrets";

/// Unmounts the mounts of [`TaskDir::up`] in `task`.
///
/// # Errors
///
/// If one can't be unmounted.
pub(crate) fn unmount_tmpfs(task: &Dir) -> Result<(), FsError> {
    TMPFS.iter().try_for_each(|name| kernel::unmount_at_name(task, OsStr::new(name)))
}

fn at<'m>(mounts: &'m [Mount], point: &Path) -> Vec<&'m Mount> {
    mounts.iter().filter(|mount| mount.point == point).collect()
}

#[cfg(test)]
mod tests;
