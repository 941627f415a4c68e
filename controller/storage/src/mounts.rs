//! Volumes in a task's directory: private bind mounts or, without the right to mount, symbolic links.
//!
//! In: the volume's directory, its destination (relative to the task's directory), and whether the task may write. Out:
//! mounts created, or the result of an inspection. A bind mount is in the agent's own mount namespace, so a task
//! without a separate namespace sees it at once. A link can't be read-only; that is logged. This module does not know
//! volumes or tasks. All calls except [`herdlet_base::mounts::table::MountWatch`] and `MountBell` block.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

mod bind;
mod link;

use herdlet_base::{
    below::below,
    mounts::{
        kernel::{self, Access},
        table::mounts_below_now,
    },
    observation::{Class, Observation},
    privileges::{Mounting, Privileges},
    safe_fs::{Crossing, Dir, FsError, Rights},
};

/// A volume mounted for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    pub source: PathBuf,
    pub destination: Destination,
    pub access: Access,
}

/// A checked path relative to the task directory: it never leaves it and is not one of the directories that every task
/// has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination(PathBuf);

/// Errors of a task's volumes.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The task directory does not exist.
    #[error("mount volumes in {path}: the task directory is gone")]
    NoTaskDir { path: PathBuf },
    /// The path would leave the task directory.
    #[error("mount a volume at {destination:?}: the path is empty or leaves the task directory")]
    Leaves { destination: String },
    /// The path is one of the task's own directories.
    #[error("mount a volume at {destination}: {reason}")]
    Reserved { destination: String, reason: &'static str },
    /// Two volumes have the same destination, or one is inside the other.
    #[error("mount a volume at {inner}: another volume is mounted at {outer}")]
    Overlap { inner: String, outer: String },
    /// Something is at the destination that we may not remove.
    #[error("mount a volume at {path}: {what} is in the way")]
    Obstacle { path: PathBuf, what: &'static str },
    /// The volume's directory does not exist.
    #[error(
        "mount the volume at {path}: the directory does not exist; restore it, and it will be mounted again. Tasks that have it \
         mounted keep their mount"
    )]
    NoSource { path: PathBuf },
    /// The mount table can't be read.
    #[error("read the mount table: {0}")]
    Table(#[source] std::io::Error),
    /// A file system operation failed.
    #[error(transparent)]
    Fs(#[from] FsError),
}

impl MountError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::NoTaskDir { .. } | Self::NoSource { .. } | Self::Table(_) => Class::Retry,
            Self::Leaves { .. } | Self::Reserved { .. } | Self::Overlap { .. } | Self::Obstacle { .. } => {
                Class::Fatal
            }
            Self::Fs(error) => error.class(),
        }
    }
}

impl Destination {
    /// Checks `volume_mounts[].destination` for a driver without file system isolation. An absolute path means the same
    /// path in the task directory.
    ///
    /// # Errors
    ///
    /// If it leaves the task directory, or is in a directory with another use.
    pub fn parse(destination: &str) -> Result<Self, MountError> {
        let owned = || destination.to_owned();
        let path = below(destination).ok_or_else(|| MountError::Leaves { destination: owned() })?;
        let mut parts = path.iter();
        let first = parts.next().unwrap_or_default().to_string_lossy();
        let reserved = |reason| Err(MountError::Reserved { destination: owned(), reason });
        match (first.as_ref(), parts.next()) {
            ("secrets" | "private", _) => reserved("it is reserved for secrets"),
            ("alloc", _) => reserved("the allocation's shared directory has that name"),
            ("local" | "tmp", None) => {
                reserved("every task already has its own directory there; mount below it")
            }
            _ => Ok(Self(path)),
        }
    }

    /// The path relative to the task directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn name(&self) -> &OsStr {
        self.0.file_name().unwrap_or_default()
    }

    fn parent(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new(""))
    }
}

/// The volumes of one task.
#[derive(Debug, Clone)]
pub struct TaskMounts {
    task_dir: PathBuf,
    privileges: Privileges,
}

impl TaskMounts {
    /// Mounts in the directory `task_dir`.
    pub fn new(task_dir: PathBuf, privileges: Privileges) -> Self {
        Self { task_dir, privileges }
    }

    /// Mounts every volume. A mount that covers one of ours at exactly its place is unmounted; correct mounts are left
    /// unchanged.
    ///
    /// # Errors
    ///
    /// If a volume's directory is missing, something is in the way, or a system call fails.
    pub fn up(&self, bindings: &[Binding]) -> Result<(), MountError> {
        check_overlap(bindings)?;
        let task = self.open()?.ok_or_else(|| MountError::NoTaskDir { path: self.task_dir.clone() })?;
        for binding in bindings {
            match self.privileges.mounting {
                Mounting::Possible => bind::up(&task, binding, bindings)?,
                Mounting::Impossible => link::up(&task, binding)?,
            }
        }
        Ok(())
    }

    /// Whether every volume is mounted: the right directory with the right access, and nothing over it.
    ///
    /// # Errors
    ///
    /// If it can't be inspected.
    pub fn inspect(&self, bindings: &[Binding]) -> Result<Observation, MountError> {
        let Some(task) = self.open()? else { return Ok(Observation::Absent) };
        let mut absent = 0;
        for binding in bindings {
            let seen = match self.privileges.mounting {
                Mounting::Possible => bind::inspect(&task, binding)?,
                Mounting::Impossible => link::inspect(&task, binding)?,
            };
            match seen {
                Observation::Present => {}
                Observation::Absent => absent += 1,
                seen @ (Observation::Foreign { .. } | Observation::Lost { .. }) => return Ok(seen),
            }
        }
        Ok(match absent {
            0 => Observation::Present,
            all if all == bindings.len() => Observation::Absent,
            some => Observation::foreign(format!("{some} of {} volumes are not mounted", bindings.len())),
        })
    }

    /// Unmounts all volumes; their data stays. The empty mount points stay too. A destination that can't be reached is no
    /// error if nothing is mounted in the task directory.
    ///
    /// # Errors
    ///
    /// If something can't be unmounted or removed.
    pub fn down(&self, bindings: &[Binding]) -> Result<(), MountError> {
        let Some(task) = self.open()? else { return Ok(()) };
        for binding in bindings {
            match self.down_one(&task, binding) {
                Ok(()) => {}
                Err(error) if error.is_missing() => {}
                // A name that is too long, a file or a link in the way: a retry would not help.
                Err(error) if error.class() == Class::Fatal && !self.has_mounts(&task)? => {
                    tracing::debug!(%error, "nothing is mounted at a destination");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn down_one(&self, task: &Dir, binding: &Binding) -> Result<(), FsError> {
        let parent = task.open_below(binding.destination.parent(), Crossing::Mounts)?;
        let name = binding.destination.name();
        match self.privileges.mounting {
            Mounting::Possible => kernel::unmount_at_name(&parent, name),
            Mounting::Impossible => match parent.read_link(name)? {
                Some(target) if target == binding.source => parent.unlink(name),
                Some(_) | None => Ok(()),
            },
        }
    }

    /// Whether anything but the tmpfs of its secrets is mounted in the task directory.
    fn has_mounts(&self, task: &Dir) -> Result<bool, MountError> {
        let mounts = mounts_below_now(&task.real_path()?).map_err(MountError::Table)?;
        Ok(mounts.iter().any(|mount| !mount.is_ours()))
    }

    fn open(&self) -> Result<Option<Dir>, MountError> {
        let (Some(parent), Some(name)) = (self.task_dir.parent(), self.task_dir.file_name()) else {
            return Ok(None);
        };
        match Dir::open(parent) {
            Err(error) if error.is_missing() => Ok(None),
            parent => Ok(parent?.find(name)?),
        }
    }
}

/// The mount point of the inner volume would be created inside the outer one.
fn check_overlap(bindings: &[Binding]) -> Result<(), MountError> {
    for (i, a) in bindings.iter().enumerate() {
        for b in bindings.iter().skip(i + 1) {
            let (a, b) = (a.destination.path(), b.destination.path());
            let (inner, outer) = if a.starts_with(b) {
                (a, b)
            } else if b.starts_with(a) {
                (b, a)
            } else {
                continue;
            };
            return Err(MountError::Overlap {
                inner: inner.display().to_string(),
                outer: outer.display().to_string(),
            });
        }
    }
    Ok(())
}

/// Rights for directories on the way to a destination: they belong to the task, like its `local`.
fn parents(task: &Dir) -> Result<Rights, FsError> {
    let local = task.stat_name(OsStr::new("local"))?;
    Ok(Rights::Exact { mode: 0o755, owner: local.map(|stat| (stat.st_uid, stat.st_gid)) })
}

#[cfg(test)]
mod tests;
