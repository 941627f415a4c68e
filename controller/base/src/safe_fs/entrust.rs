//! Directories in which the agent puts files for a user of a task.
//!
//! Whoever may write to a directory may exchange the directories in it for others, without any right to those. What the agent then puts into
//! one of them, with root's rights, comes where its user could not put it. So a directory is entered for a user only if one of these holds:
//!
//! - That user may write to it.
//! - Nobody but the agent and root can have put it where it is.
//! - It belongs to the one user who can have put it there, and who is neither the agent nor root: nobody gave more than what is its own. So what
//!   one task's artifact has made is entered for another one's.
//!
//! A directory of root's or of another user that lies where several users may write is not entered, though it may be an honest one: any of
//! them can have renamed it to that place, and whoever works in it would find files there that others may change. All is read from held
//! directories.

use std::path::Path;

use rustix::fs::{AtFlags, Stat, StatxAttributes, StatxFlags, statx};

use super::{Dir, FsError, Rights};
use crate::acl::{Acl, AclError, Writers};

/// The user of a task, for whom files are put into directories.
#[derive(Debug, Clone)]
pub struct FileOwner {
    pub uid: u32,
    /// The group of the files.
    pub gid: u32,
    /// All groups of the user.
    pub groups: Vec<u32>,
}

impl FileOwner {
    /// Whose files they are.
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
    /// As [`Dir::make_all`], with every directory on the way checked for the user whose files are to be put there.
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
    /// [`FsError::Untrusted`] where none of the reasons holds that this module names; otherwise when rights can't be read.
    pub fn check_entry(&self, inner: &Self, owner: Option<&FileOwner>) -> Result<(), FsError> {
        // What is the agent's own goes where the job says.
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

    /// Whether it is the root of a mount, which nobody can rename. Before Linux 5.8 none is known to be one.
    fn is_mounted(&self) -> Result<bool, FsError> {
        let seen = statx(self, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
        let seen = seen.map_err(|errno| FsError::io("examine", &self.path, errno))?;
        Ok(seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    fn rights_and_owner(&self) -> Result<Held, FsError> {
        let stat = self.stat()?;
        let writers = match Acl::read(self) {
            Ok(acl) => acl.writers(),
            Err(AclError::Unsupported) => Acl::from_mode(stat.st_mode).writers(),
            Err(error) => return Err(FsError::io("examine", &self.path, error.into_io())),
        };
        Ok(Held { stat, writers })
    }
}

/// Who may write to a held directory.
struct Held {
    stat: Stat,
    writers: Writers,
}

impl Held {
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

    /// Whether others than the agent and root can exchange what is in it. The sticky bit leaves each name to the owner of what it names, who
    /// moves only what is its own.
    fn may_be_changed_by_others(&self) -> bool {
        let is_shared = self.writers != Writers::default() && self.stat.st_mode & STICKY == 0;
        is_shared || !is_ours(self.stat.st_uid)
    }
}

fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

const STICKY: u32 = 0o1000;
