//! Who may use the files and sockets that the agent makes for a task.
//!
//! In: the task's user on this machine, as far as it is known. Out: owner and mode. The user of an image may be unknown: then every user
//! who reaches the file may read it. On the machine only the agent does, because the directory of a task with an image is closed to all
//! users ([`crate::access`]).

use herdlet_base::safe_fs::{FileOwner, Rights};
use rustix::fs::Stat;

/// Who may use a file of the agent in a task's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    /// This user and root; the agent's own user if absent.
    Owner(Option<(u32, u32)>),
    /// Every user who reaches the directory: the user of an image is unknown.
    Anybody,
}

impl FileAccess {
    /// The rights of a file or directory whose owner gets `mode`.
    pub fn rights(self, mode: u32) -> Rights {
        match self {
            Self::Owner(owner) => Rights::Exact { mode, owner },
            Self::Anybody => {
                let use_only = mode >> 6 & 0o5;
                Rights::Exact { mode: mode | use_only << 3 | use_only, owner: None }
            }
        }
    }

    /// The user besides the agent's own who may have made directories on the way to a file.
    pub fn owner(self) -> Option<FileOwner> {
        match self {
            Self::Owner(owner) => owner.map(FileOwner::from),
            Self::Anybody => None,
        }
    }

    /// Whether a secret file whose owner gets `mode` is open to others than these users.
    pub fn is_exceeded_by(self, file: &Stat, mode: u32) -> bool {
        let others = match self {
            Self::Owner(_) => 0o077 & !mode,
            Self::Anybody => 0o022,
        };
        file.st_mode & others != 0
    }

    /// Whether these users can read a file. A file of an older release, or one that was made for another user, may be closed to them.
    pub fn is_granted_by(self, file: &Stat) -> bool {
        match self {
            Self::Owner(owner) => owner.is_none_or(|owner| (file.st_uid, file.st_gid) == owner),
            Self::Anybody => file.st_mode & 0o444 == 0o444,
        }
    }
}
