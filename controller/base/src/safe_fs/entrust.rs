//! Directories in which the agent creates files for the user of a task.
//!
//! A user who may write to a directory can swap the directories in it for others, without any right to those. Files
//! that the agent, as root, then puts into one of them end up where the user could not put them. So the agent enters a
//! directory for a user only if one of these holds:
//!
//! - That user may write to it.
//! - Only the agent and root can have put it where it is.
//! - It belongs to the one user who can have put it there, and who is neither the agent nor root: that user has given
//!   only its own. So directories made by one task's artifact are entered for another task's.
//!
//! A directory of root's or of another user in a place where several users may write is not entered, even a legitimate
//! one: any of them can have renamed it to that place, and a process that works there would find files that others may
//! change. All checks use open directories.

use std::path::Path;

use rustix::fs::{AtFlags, Stat, StatxAttributes, StatxFlags, statx};

use super::{Dir, FsError, Rights};
use crate::acl::{Acl, AclError, Writers};

/// The user of a task, for whom files are created.
#[derive(Debug, Clone)]
pub struct FileOwner {
    pub uid: u32,
    /// The group of the files.
    pub gid: u32,
    /// All groups of the user.
    pub groups: Vec<u32>,
}

impl FileOwner {
    /// User and group.
    pub fn pair(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }
}

impl From<(u32, u32)> for FileOwner {
    fn from((uid, gid): (u32, u32)) -> Self {
        Self { uid, gid, groups: vec![gid] }
    }
}

impl Dir {
    /// As [`Dir::make_all`], but checks every directory on the way for the user who will own the files.
    ///
    /// # Errors
    ///
    /// As [`Dir::make_all`], and [`FsError::Untrusted`].
    pub fn make_all_for(
        &self,
        path: &Path,
        rights: Rights,
        owner: Option<&FileOwner>,
    ) -> Result<Self, FsError> {
        self.make_each(path, rights, |dir, inner| dir.check_entry(inner, owner))
    }

    /// Checks that files of `owner` may be put into `inner`, which was opened by a name in this directory.
    ///
    /// # Errors
    ///
    /// [`FsError::Untrusted`] if none of the module's conditions holds; otherwise if rights can't be read.
    pub fn check_entry(&self, inner: &Self, owner: Option<&FileOwner>) -> Result<(), FsError> {
        // The agent's own files go where the job says.
        let Some(owner) = owner.filter(|owner| !is_ours(owner.uid)) else { return Ok(()) };
        let there = inner.rights_and_owner()?;
        if there.may_be_written_by(owner) {
            return Ok(());
        }
        let here = self.rights_and_owner()?;
        if !here.may_be_changed_by_others()
            || (here.is_its_owners_alone() && here.stat.st_uid == there.stat.st_uid)
            || inner.is_mounted()?
        {
            return Ok(());
        }
        Err(FsError::Untrusted { path: inner.path.clone(), uid: owner.uid })
    }

    /// Whether it is the root of a mount, which nobody can rename. Always false before Linux 5.8.
    fn is_mounted(&self) -> Result<bool, FsError> {
        let seen = statx(self, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
        let seen = seen.map_err(|errno| FsError::io("examine", &self.path, errno))?;
        Ok(seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    fn rights_and_owner(&self) -> Result<DirectoryAccess, FsError> {
        let stat = self.stat()?;
        let writers = match Acl::read(self) {
            Ok(acl) => acl.writers(),
            Err(AclError::Unsupported) => Acl::from_mode(stat.st_mode).writers(),
            Err(error) => return Err(FsError::io("examine", &self.path, error.into_io())),
        };
        Ok(DirectoryAccess { stat, writers })
    }
}

/// The owner and writers of an open directory.
struct DirectoryAccess {
    stat: Stat,
    writers: Writers,
}

impl DirectoryAccess {
    fn may_be_written_by(&self, owner: &FileOwner) -> bool {
        let Writers { users, group, groups, other } = &self.writers;
        self.stat.st_uid == owner.uid
            || *other
            || users.contains(&owner.uid)
            || (*group && owner.groups.contains(&self.stat.st_gid))
            || groups.iter().any(|group| owner.groups.contains(group))
    }

    fn is_its_owners_alone(&self) -> bool {
        self.writers == Writers::default()
    }

    /// Whether users other than the agent and root can swap its entries. With the sticky bit, only the owner of an
    /// entry can move it.
    fn may_be_changed_by_others(&self) -> bool {
        let is_shared = self.writers != Writers::default() && self.stat.st_mode & STICKY == 0;
        is_shared || !is_ours(self.stat.st_uid)
    }
}

fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

const STICKY: u32 = 0o1000;
