//! Volumes in a task's directory: a private bind mount where mounting is possible, a symbolic link elsewhere.
//!
//! In: the volume's directory, where the task wants it (relative to its directory), and whether it may write. Out: what was
//! made or seen. A bind mount is made in the agent's own mount namespace, so that a task without a namespace of its own
//! sees it at once. A link can't be read-only: without mounting that is not enforced, and said in the log.
//! It must not know what a volume is or which task this is. Everything but [`MountWatch`] and [`MountBell`] blocks.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

mod bind;
mod link;

use herdlet_base::{
    below::{NotBelow, below},
    mounts::kernel::{self, Access},
    privileges::{Mounting, Privileges},
    safe_fs::{Crossing, Dir, FsError, Rights},
    sight::{Class, Sight},
};

/// A volume as one task wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    pub source: PathBuf,
    pub destination: Destination,
    /// Whether the task may write.
    pub access: Access,
}

/// A path relative to the task directory, checked: no part goes up, and it is none of the directories that every task has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination(PathBuf);

/// Why volumes are not where a task wants them.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no task directory.
    #[error("mount volumes in {path}: the task directory is gone")]
    NoTaskDir { path: PathBuf },
    /// Absolute, but the driver has no file system of its own.
    #[error(
        "mount a volume at {destination}: the path is absolute, and a task without a file system of its own can't have \
         that; write it relative to the task directory, for instance local/{}",
        last_part(destination)
    )]
    Absolute { destination: String },
    /// It would leave the task directory.
    #[error("mount a volume at {destination:?}: the path is empty or leaves the task directory")]
    Leaves { destination: String },
    /// It is one of the task's own directories.
    #[error("mount a volume at {destination}: {reason}")]
    Reserved { destination: String, reason: &'static str },
    /// Two volumes want the same place, or one lies inside the other.
    #[error("mount a volume at {inner}: another volume is mounted at {outer}")]
    Overlap { inner: String, outer: String },
    /// Something stands at the destination that is not ours to remove.
    #[error("mount a volume at {path}: {what} stands in the way")]
    Obstacle { path: PathBuf, what: &'static str },
    /// The volume's directory is not there.
    #[error(
        "mount the volume at {path}: there is no directory; put it back where it was, and it is mounted again. What has it \
         mounted keeps what it has"
    )]
    NoSource { path: PathBuf },
    /// The mount table can't be read.
    #[error("read the mount table: {0}")]
    Table(#[source] std::io::Error),
    /// A step on the way failed.
    #[error(transparent)]
    Fs(#[from] FsError),
}

impl MountError {
    /// Whether trying again may help.
    pub fn class(&self) -> Class {
        match self {
            Self::NoTaskDir { .. } | Self::NoSource { .. } | Self::Table(_) => Class::Retry,
            Self::Absolute { .. }
            | Self::Leaves { .. }
            | Self::Reserved { .. }
            | Self::Overlap { .. }
            | Self::Obstacle { .. } => Class::Fatal,
            Self::Fs(error) => error.class(),
        }
    }
}

impl Destination {
    /// Checks `volume_mounts[].destination` for a driver without file system isolation.
    ///
    /// # Errors
    ///
    /// When it is absolute, leaves the task directory, or is or lies in a directory that has another use.
    pub fn parse(destination: &str) -> Result<Self, MountError> {
        let owned = || destination.to_owned();
        let path = below(destination).map_err(|why| match why {
            NotBelow::Absolute => MountError::Absolute { destination: owned() },
            NotBelow::Leaves => MountError::Leaves { destination: owned() },
        })?;
        let mut parts = path.iter();
        let first = parts.next().unwrap_or_default().to_string_lossy();
        let reserved = |reason| Err(MountError::Reserved { destination: owned(), reason });
        match (first.as_ref(), parts.next()) {
            ("secrets" | "private", _) => reserved("secrets lie there"),
            ("alloc", _) => reserved("the allocation's shared directory has that name"),
            ("local" | "tmp", None) => {
                reserved("every task has a directory of its own there; mount below it")
            }
            _ => Ok(Self(path)),
        }
    }

    /// The path, relative to the task directory.
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
    /// Of the task whose directory is `task_dir`.
    pub fn new(task_dir: PathBuf, privileges: Privileges) -> Self {
        Self { task_dir, privileges }
    }

    /// Makes every volume appear where it should. What covers one of our mounts at exactly its place is unmounted; what is
    /// right already is left alone.
    ///
    /// # Errors
    ///
    /// When a volume's directory is missing, something stands in the way, or the system refuses.
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

    /// Whether every volume is where it should be: the right directory, with the right access, and nothing over it.
    ///
    /// # Errors
    ///
    /// When that can't be told.
    pub fn look(&self, bindings: &[Binding]) -> Result<Sight, MountError> {
        let Some(task) = self.open()? else { return Ok(Sight::Absent) };
        let mut absent = 0;
        for binding in bindings {
            let seen = match self.privileges.mounting {
                Mounting::Possible => bind::look(&task, binding)?,
                Mounting::Impossible => link::look(&task, binding)?,
            };
            match seen {
                Sight::Present => {}
                Sight::Absent => absent += 1,
                seen @ (Sight::Foreign { .. } | Sight::Lost { .. }) => return Ok(seen),
            }
        }
        Ok(match absent {
            0 => Sight::Present,
            all if all == bindings.len() => Sight::Absent,
            some => Sight::foreign(format!("{some} of {} volumes are not mounted", bindings.len())),
        })
    }

    /// Takes all volumes away; data in them stays. The empty directories they were mounted on stay too.
    ///
    /// # Errors
    ///
    /// When something can't be unmounted or removed.
    pub fn down(&self, bindings: &[Binding]) -> Result<(), MountError> {
        let Some(task) = self.open()? else { return Ok(()) };
        for binding in bindings {
            let parent = match task.open_below(binding.destination.parent(), Crossing::Mounts) {
                Err(error) if error.is_missing() => continue,
                parent => parent?,
            };
            let name = binding.destination.name();
            match self.privileges.mounting {
                Mounting::Possible => kernel::unmount_at_name(&parent, name)?,
                Mounting::Impossible => {
                    if parent.read_link(name)?.is_some_and(|target| target == binding.source) {
                        parent.unlink(name)?;
                    }
                }
            }
        }
        Ok(())
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

/// Making the inner mount's place would write into the outer volume.
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

fn last_part(destination: &str) -> &str {
    destination.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Of what is made on the way to a destination: it is the task's, as its `local` is.
fn parents(task: &Dir) -> Result<Rights, FsError> {
    let local = task.stat_name(OsStr::new("local"))?;
    Ok(Rights::Exact { mode: 0o755, owner: local.map(|stat| (stat.st_uid, stat.st_gid)) })
}

#[cfg(test)]
mod tests;
