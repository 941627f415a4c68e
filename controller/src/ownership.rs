//! Who else than root and the agent's own user can change what a path names.
//!
//! In: a path of something that the agent obeys or keeps to itself. Out: nothing, or who can change it and the command that ends
//! that. It must not know what the path is for: callers refuse or warn.
//!
//! A path is changed by whoever changes the file itself, or replaces a name on the way to it; names of links and what they lead to
//! are on the way too. The way is walked from the root on held descriptors, and the kernel follows no link. Where every step is
//! trusted nobody else can change what the path means, so the path can be opened by its name afterwards.
//!
//! ```text
//! a name      is replaced by whoever may write to its directory; in a sticky one only by the owners of both
//! a directory is written to by its owner, and by group and others as its mode says; so is a file
//! ```
//!
//! Where a file has an access list, the group bits of its mode are the list's mask (acl(5)): without `g+w` no entry lets anybody write,
//! and the list is not read.
//!
//! - `walk`: the steps of a path.
//! - `accounts`: names of users, and groups without other members.

mod accounts;
#[cfg(test)]
mod tests;
mod walk;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use accounts::Accounts;
use walk::Node;

/// A path is not trusted, or cannot be judged. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// Somebody else can change it.
    #[error("trust {}: {exposed}", path.display())]
    Exposed {
        /// The path.
        path: PathBuf,
        /// Who can, and by what.
        exposed: Exposed,
    },
    /// The path cannot be walked.
    #[error("find out who can change {}", path.display())]
    Unknown {
        /// The step that failed.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl OwnershipError {
    /// Whether the path names nothing.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Exposed { .. } => false,
            Self::Unknown { source, .. } => source.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// A file or directory that somebody else can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposed {
    at: PathBuf,
    owner: String,
    mode: u32,
    by: By,
    /// Who should own it.
    wanted: String,
}

/// The right by which somebody else can change a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Owner,
    Group,
    Others,
    AccessList,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, owner, mode, by, wanted } = self;
        let at = at.display();
        write!(f, "{at} belongs to {owner} and has mode {mode:04o}: ")?;
        let (why, repair) = match by {
            By::Owner => ("that user could change it", format!("chown -h {wanted} {at}")),
            By::Group => ("its group could change it", format!("chmod g-w {at}")),
            By::Others => ("everybody could change it", format!("chmod o-w {at}")),
            By::AccessList => ("its access list lets others change it", format!("setfacl -b {at}")),
        };
        write!(f, "{why}; {repair}, or name another place")
    }
}

/// Makes sure that only root and our own user can change what `path` names.
///
/// # Errors
/// [`OwnershipError`].
pub fn check(path: &Path) -> Result<(), OwnershipError> {
    let guard = Guard::of_process();
    let (at, node) = walk::walk(path, &guard)?;
    guard.content(&at, &node).map_err(|exposed| OwnershipError::Exposed { path: path.to_owned(), exposed })
}

/// Makes sure that only root, our own user and its owner can replace what `path` names. It may belong to anybody, and need not exist.
///
/// # Errors
/// [`OwnershipError`].
pub fn check_way(path: &Path) -> Result<(), OwnershipError> {
    match walk::walk(path, &Guard::of_process()) {
        Err(error) if !error.is_absent() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// As [`check`] where `path` exists, as [`check_way`] where it does not yet.
///
/// # Errors
/// [`OwnershipError`].
pub fn check_if_there(path: &Path) -> Result<(), OwnershipError> {
    match check(path) {
        Err(error) if !error.is_absent() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes sure that everything directly in the trusted directory `dir` is trusted: it may have been filled before it was.
///
/// # Errors
/// [`OwnershipError`] of the first entry that is not.
pub fn check_entries(dir: &Path) -> Result<(), OwnershipError> {
    let guard = Guard::of_process();
    let unknown = |source| OwnershipError::Unknown { path: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(unknown)? {
        let at = entry.map_err(unknown)?.path();
        guard.entry(&at)?;
        check_if_there(&at)?;
    }
    Ok(())
}

/// Who is trusted.
struct Guard {
    uid: u32,
    /// As [`TRUSTED_USERS`] says.
    others: Vec<u32>,
    accounts: Accounts,
}

/// Names of further users whose files are trusted, by commas: whoever is named can become the agent's user. For machines on which a
/// package gives a service's directories to a user of its own, as those of Nomad do.
pub const TRUSTED_USERS: &str = "HERDLET_TRUSTED_USERS";

impl Guard {
    fn of_process() -> Self {
        let accounts = Accounts::of_machine();
        let named = std::env::var(TRUSTED_USERS).unwrap_or_default();
        let others = named
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .filter_map(|name| accounts.uid(name));
        let others = others.collect();
        Self { uid: rustix::process::geteuid().as_raw(), others, accounts }
    }

    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid || self.others.contains(&uid)
    }

    /// Somebody else who may write to it.
    fn writer(&self, node: &Node) -> Option<By> {
        let is_private = |gid: u32| self.accounts.is_private(gid, |uid| self.trusts(uid));
        let writers = &node.writers;
        if !self.trusts(node.uid) {
            return Some(By::Owner);
        }
        if writers.other {
            return Some(By::Others);
        }
        if !writers.users.iter().all(|uid| self.trusts(*uid))
            || !writers.groups.iter().all(|gid| is_private(*gid))
        {
            return Some(By::AccessList);
        }
        (writers.group && !is_private(node.gid)).then_some(By::Group)
    }

    fn content(&self, at: &Path, node: &Node) -> Result<(), Exposed> {
        self.writer(node).map_or(Ok(()), |by| Err(self.exposed(at, node, by)))
    }

    /// A link is somebody's decision where to write, whatever it leads to.
    fn entry(&self, at: &Path) -> Result<(), OwnershipError> {
        let exposed = |exposed| OwnershipError::Exposed { path: at.to_owned(), exposed };
        match walk::entry(at) {
            Ok(node) if self.trusts(node.uid) => Ok(()),
            Ok(node) => Err(exposed(self.exposed(at, &node, By::Owner))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(OwnershipError::Unknown { path: at.to_owned(), source }),
        }
    }

    fn exposed(&self, at: &Path, node: &Node, by: By) -> Exposed {
        Exposed {
            at: at.to_owned(),
            owner: self.accounts.described(node.uid),
            mode: node.mode & 0o7777,
            by,
            wanted: self.accounts.name(self.uid),
        }
    }
}

impl walk::Judge for Guard {
    fn name(&self, dir: (&Path, &Node), entry: Option<(&Path, &Node)>) -> Result<(), Exposed> {
        const STICKY: u32 = 0o1000;
        let (dir_at, dir) = dir;
        match (self.writer(dir), entry) {
            (None, _) => Ok(()),
            (Some(By::Group | By::Others | By::AccessList), entry) if dir.mode & STICKY != 0 => match entry {
                Some((at, node)) if !self.trusts(node.uid) => Err(self.exposed(at, node, By::Owner)),
                Some(_) | None => Ok(()),
            },
            (Some(by), _) => Err(self.exposed(dir_at, dir, by)),
        }
    }
}
