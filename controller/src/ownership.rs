//! Finds users other than root and the agent's own who can change what a path names.
//!
//! In: a path of something that the agent obeys or keeps to itself. Out: nothing, or who can change it and the command that ends
//! that. It must not know what the path is for: callers refuse or warn.
//!
//! A path can be changed by users who can change the file itself or replace a name on the way to it; link names and their targets
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
//! Members of groups are read from `/etc/passwd` and `/etc/group` only: a member that a name service adds to a group of these files is not
//! seen, and a group that only a name service knows is not trusted.
//!
//! - `walk`: the steps of a path.
//! - `accounts`: names of users, and groups without other members.
//! - `trusted`: users and groups that the operator trusts.

mod accounts;
#[cfg(test)]
mod tests;
mod trusted;
mod walk;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use accounts::Accounts;
use trusted::Trusted;
pub use trusted::{TRUSTED_GROUPS, TRUSTED_USERS};
use walk::{Node, Place};

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
    #[error("check the ownership of {}", path.display())]
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
    /// The group to trust, where the agent itself can't take the right from it.
    group: Option<u32>,
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
        let Self { at, owner, mode, by, wanted, group } = self;
        let at = at.display();
        write!(f, "{at} belongs to {owner} and has mode {mode:04o}: ")?;
        let (why, repair) = match by {
            By::Owner => ("that user could change it", format!("chown -h {wanted} {at}")),
            By::Group => ("its group could change it", format!("chmod g-w {at}")),
            By::Others => ("everybody could change it", format!("chmod o-w {at}")),
            By::AccessList => ("its access list lets others change it", format!("setfacl -b {at}")),
        };
        write!(f, "{why}; {repair}")?;
        if let Some(gid) = group {
            write!(f, ", set {TRUSTED_GROUPS}={gid} if all its members may become the agent's user")?;
        }
        f.write_str(", or name another place")
    }
}

/// Makes sure that only root and our own user can change what `path` names.
///
/// # Errors
/// [`OwnershipError`].
pub fn check(path: &Path) -> Result<(), OwnershipError> {
    let guard = Guard::of_process();
    guard.place(path, &walk::walk(path, &guard)?)
}

/// Makes sure that only root, our own user and its owner can replace what `path` names. It may belong to anybody, and need not exist.
///
/// # Errors
/// [`OwnershipError`].
pub fn check_way(path: &Path) -> Result<(), OwnershipError> {
    unless_absent(walk::walk(path, &Guard::of_process()).map(drop))
}

/// As [`check`] where `path` exists, as [`check_way`] where it does not yet.
///
/// # Errors
/// [`OwnershipError`].
pub fn check_if_there(path: &Path) -> Result<(), OwnershipError> {
    unless_absent(check(path))
}

/// Makes sure that everything directly in the trusted directory `dir` is trusted: it may have been filled before it was.
///
/// # Errors
/// [`OwnershipError`] of the first entry that is not.
pub fn check_entries(dir: &Path) -> Result<(), OwnershipError> {
    let guard = Guard::of_process();
    let place = walk::walk(dir, &guard)?;
    let unknown = |source| OwnershipError::Unknown { path: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(unknown)? {
        let path = entry.map_err(unknown)?.path();
        guard.entry(&place, &path)?;
        unless_absent(guard.file(&place, &path))?;
    }
    Ok(())
}

/// Which of these files in the directory `dir` are not trusted. Where the directory is not, it stands for all of them.
pub fn exposed_in<'p>(
    dir: &'p Path,
    files: impl Iterator<Item = &'p Path>,
) -> Vec<(&'p Path, OwnershipError)> {
    let guard = Guard::of_process();
    let place = walk::walk(dir, &guard).and_then(|place| guard.place(dir, &place).map(|()| place));
    let place = match place {
        Ok(place) => place,
        Err(error) => return unless_absent(Err(error)).err().map(|error| (dir, error)).into_iter().collect(),
    };
    files.filter_map(|file| Some((file, unless_absent(guard.file(&place, file)).err()?))).collect()
}

/// Names in [`TRUSTED_USERS`] and [`TRUSTED_GROUPS`] that this machine does not know, each with its variable.
pub fn unknown_names() -> Vec<(&'static str, String)> {
    Trusted::of(variable, &Accounts::of_machine()).unknown
}

fn unless_absent(result: Result<(), OwnershipError>) -> Result<(), OwnershipError> {
    match result {
        Err(error) if !error.is_absent() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Who is trusted.
struct Guard {
    uid: u32,
    others: Trusted,
    accounts: Accounts,
}

impl Guard {
    fn of_process() -> Self {
        let accounts = Accounts::of_machine();
        let others = Trusted::of(variable, &accounts);
        Self { uid: rustix::process::geteuid().as_raw(), others, accounts }
    }

    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid || self.others.users.contains(&uid)
    }

    /// Somebody else who may write to it.
    fn writer(&self, node: &Node) -> Option<By> {
        let is_trusted = |gid: u32| {
            self.others.groups.contains(&gid) || self.accounts.is_private(gid, |uid| self.trusts(uid))
        };
        let writers = &node.writers;
        if !self.trusts(node.uid) {
            return Some(By::Owner);
        }
        if writers.other {
            return Some(By::Others);
        }
        if !writers.users.iter().all(|uid| self.trusts(*uid))
            || !writers.groups.iter().all(|gid| is_trusted(*gid))
        {
            return Some(By::AccessList);
        }
        (writers.group && !is_trusted(node.gid)).then_some(By::Group)
    }

    /// `path` leads to `place`.
    fn place(&self, path: &Path, place: &Place) -> Result<(), OwnershipError> {
        let (at, node) = place.end();
        let exposed =
            |by| OwnershipError::Exposed { path: path.to_owned(), exposed: self.exposed(at, node, by) };
        self.writer(node).map_or(Ok(()), |by| Err(exposed(by)))
    }

    /// As [`check`], for a file in a directory that was walked to.
    fn file(&self, dir: &Place, path: &Path) -> Result<(), OwnershipError> {
        self.place(path, &dir.walk(path, self)?)
    }

    /// A link is somebody's decision where to write, whatever it leads to.
    fn entry(&self, dir: &Place, path: &Path) -> Result<(), OwnershipError> {
        let exposed = |exposed| OwnershipError::Exposed { path: path.to_owned(), exposed };
        match dir.entry(path) {
            Ok(node) if self.trusts(node.uid) => Ok(()),
            Ok(node) => Err(exposed(self.exposed(path, &node, By::Owner))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(OwnershipError::Unknown { path: path.to_owned(), source }),
        }
    }

    fn exposed(&self, at: &Path, node: &Node, by: By) -> Exposed {
        let is_ours = self.uid == 0 || self.uid == node.uid;
        Exposed {
            at: at.to_owned(),
            owner: self.accounts.described(node.uid),
            mode: node.mode & 0o7777,
            by,
            wanted: self.accounts.name(self.uid),
            group: (by == By::Group && !is_ours).then_some(node.gid),
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
