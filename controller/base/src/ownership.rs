//! Finds users other than root and the agent's own who can change what a path names.
//!
//! In: a path that the agent obeys or keeps private. Out: nothing, or who can change it and the command that prevents
//! it. This module does not know the path's purpose: callers refuse or warn.
//!
//! A user can change a path by changing the file itself or replacing a name on the way to it, including links and their
//! targets. The walk starts at the root, holds each directory open, and resolves links itself. If every step is
//! trusted, nobody else can change what the path means, so it can then be opened by name.
//!
//! ```text
//! a name      can be replaced by users who may write to its directory; in a sticky one only by the owners of both
//! a directory can be written to by its owner, and by group and others as its mode says; so can a file
//! ```
//!
//! If a file has an access list, the group bits of its mode are the list's mask (acl(5)): without `g+w` no entry grants
//! writing, and the list is not read.
//!
//! Group members are read from `/etc/passwd` and `/etc/group` only. Members that a name service adds to these groups
//! are not seen; groups that only a name service knows are not trusted.
//!
//! - `walk`: the steps of a path.
//! - `exposed`: messages about paths that are not trusted.
//! - `kept`: the files in the agent's state directory.
//! - `session`: a directory for run-time files that belongs to another user.
//! - `accounts`: names of users, and groups without other members.
//! - `trusted`: users and groups that the operator trusts.

mod accounts;
mod exposed;
mod kept;
mod session;
#[cfg(test)]
mod tests;
mod trusted;
mod walk;

/// Names of users and groups, for messages.
pub mod names {
    use super::accounts::Accounts;

    /// `nobody (uid 65534)`.
    pub fn user(uid: u32) -> String {
        Accounts::of_machine().described(uid)
    }

    /// `staff (gid 50)`.
    pub fn group(gid: u32) -> String {
        Accounts::of_machine().described_group(gid)
    }
}

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use accounts::Accounts;
pub use exposed::{Exposed, escape_path};
use exposed::{PathRole, Right};
pub use kept::{check_kept, exposed_kept};
pub use session::{ForeignSession, check_session};
use trusted::Trusted;
pub use trusted::{TRUSTED_GROUPS, TRUSTED_USERS};
use walk::{End, Node};

/// A path that is not trusted, or that can't be checked. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// Another user can change it.
    #[error("trust {}: {exposed}", escape_path(path))]
    Exposed {
        path: PathBuf,
        /// Who can, and by which right.
        exposed: Box<Exposed>,
    },
    /// The path can't be walked.
    #[error("check the ownership of {}", escape_path(path))]
    Unknown {
        /// The step that failed.
        path: PathBuf,
        source: io::Error,
    },
}

impl OwnershipError {
    /// The path that was checked, or the step on the way to it that failed.
    pub fn path(&self) -> &Path {
        match self {
            Self::Exposed { path, .. } | Self::Unknown { path, .. } => path,
        }
    }

    /// The command that restores the mode of a directory which the agent has used before, if there is one.
    pub fn restoring(&self) -> Option<String> {
        match self {
            Self::Exposed { exposed, .. } => exposed.restoring(),
            Self::Unknown { .. } => None,
        }
    }

    /// Removes the advice to trust another user, for paths that the operator did not choose.
    #[must_use]
    pub fn without_trust(self) -> Self {
        match self {
            Self::Exposed { path, exposed } => Self::Exposed { path, exposed: exposed.without_trust() },
            unknown @ Self::Unknown { .. } => unknown,
        }
    }

    /// Whether the path does not exist.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Exposed { .. } => false,
            Self::Unknown { source, .. } => source.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Checks that only root and our own user can change what `path` names.
///
/// # Errors
/// [`OwnershipError`].
pub fn check(path: &Path) -> Result<(), OwnershipError> {
    let guard = TrustPolicy::of_process();
    guard.end(path, &walk::walk(path, &guard)?)
}

/// Checks that only root, our own user and its owner can replace what `path` names. It may belong to any user, and need
/// not exist.
///
/// # Errors
/// [`OwnershipError`].
pub fn check_way(path: &Path) -> Result<(), OwnershipError> {
    unless_absent(walk::walk(path, &TrustPolicy::of_process()).map(drop))
}

/// As [`check`] if `path` exists, otherwise as [`check_way`].
///
/// # Errors
/// [`OwnershipError`].
pub fn check_if_there(path: &Path) -> Result<(), OwnershipError> {
    unless_absent(check(path))
}

/// Checks that everything directly in the trusted directory `dir` is trusted: it may have been filled before the
/// directory was.
///
/// # Errors
/// [`OwnershipError`] of the first entry that is not trusted.
pub fn check_entries(dir: &Path) -> Result<(), OwnershipError> {
    exposed_entries(dir).into_iter().next().map_or(Ok(()), Err)
}

/// The untrusted entries of `dir`, sorted by name. If the directory itself is untrusted, it is the only result.
pub fn exposed_entries(dir: &Path) -> Vec<OwnershipError> {
    let entries = || {
        let entries = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path()));
        let mut paths = entries.collect::<io::Result<Vec<PathBuf>>>()?;
        paths.sort();
        Ok(paths)
    };
    exposed(dir, entries)
}

/// The untrusted ones of these files in `dir`. If the directory itself is untrusted, it is the only result.
pub fn exposed_in<'p>(dir: &Path, files: impl Iterator<Item = &'p Path>) -> Vec<OwnershipError> {
    exposed(dir, || Ok(files.collect()))
}

/// Reads the entries after the directory has been found trusted.
fn exposed<P: AsRef<Path>>(dir: &Path, entries: impl FnOnce() -> io::Result<Vec<P>>) -> Vec<OwnershipError> {
    let guard = TrustPolicy::of_process();
    let found = walk::walk(dir, &guard).and_then(|end| {
        guard.end(dir, &end)?;
        let unknown = |source| OwnershipError::Unknown { path: dir.to_owned(), source };
        Ok((end, entries().map_err(unknown)?))
    });
    match found {
        Ok((end, entries)) => {
            let exposed = |entry: P| unless_absent(guard.entry(&end, entry.as_ref())).err();
            entries.into_iter().filter_map(exposed).collect()
        }
        Err(error) => unless_absent(Err(error)).err().into_iter().collect(),
    }
}

/// The trusted users and groups, for messages: `root, daemon (uid 1) and nomad (uid 100) (HERDLET_TRUSTED_USERS)`.
pub fn trusted() -> String {
    TrustPolicy::of_process().described()
}

/// Users whose processes may belong to an earlier agent: our own, and for root those in [`TRUSTED_USERS`], as the agent
/// may have run as one of them.
pub fn own_and_trusted_users() -> Vec<u32> {
    let guard = TrustPolicy::of_process();
    let others = if guard.uid == 0 { guard.others.users } else { Vec::new() };
    std::iter::once(guard.uid).chain(others).collect()
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

/// The trusted users and groups.
struct TrustPolicy {
    uid: u32,
    others: Trusted,
    accounts: Accounts,
}

impl TrustPolicy {
    fn of_process() -> Self {
        let accounts = Accounts::of_machine();
        let others = Trusted::of(variable, &accounts);
        Self { uid: rustix::process::geteuid().as_raw(), others, accounts }
    }

    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid || self.others.users.contains(&uid)
    }

    fn trusts_group(&self, gid: u32) -> bool {
        self.others.groups.contains(&gid) || self.accounts.is_private(gid, |uid| self.trusts(uid))
    }

    fn described(&self) -> String {
        let Self { uid, others, accounts } = self;
        let own = (*uid != 0).then(|| accounts.described(*uid));
        let users = others.users.iter().map(|uid| format!("{} ({TRUSTED_USERS})", accounts.described(*uid)));
        let groups = others
            .groups
            .iter()
            .map(|gid| format!("all members of group {} ({TRUSTED_GROUPS})", accounts.described_group(*gid)));
        let mut names: Vec<String> =
            ["root".to_owned()].into_iter().chain(own).chain(users).chain(groups).collect();
        let last = names.pop().unwrap_or_default();
        if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) }
    }

    /// The right by which an untrusted user may write to the node.
    fn exposure(&self, node: &Node) -> Option<Right> {
        let writers = &node.writers;
        if !self.trusts(node.uid) {
            return Some(Right::Owner);
        }
        // Write permission on a socket allows connecting, and stores nothing that is read later. A socket also has
        // another mode if a killed agent left it before setting the mode.
        if FileType::from_raw_mode(node.mode) == FileType::Socket {
            return None;
        }
        if writers.other {
            return Some(Right::Others);
        }
        if !writers.users.iter().all(|uid| self.trusts(*uid))
            || !writers.groups.iter().all(|gid| self.trusts_group(*gid))
        {
            return Some(Right::AccessList);
        }
        (writers.group && !self.trusts_group(node.gid)).then_some(Right::Group)
    }

    /// Checks `end`, which `path` leads to.
    fn end(&self, path: &Path, end: &End) -> Result<(), OwnershipError> {
        let (at, node) = end.named();
        let exposed = |right| Exposed::new(self, (at, node), right, PathRole::Target).of(path);
        self.exposure(node).map_or(Ok(()), |right| Err(exposed(right)))
    }

    /// As [`check`], for a name in a walked directory. The owner of a link decides where it leads, so a link of an
    /// untrusted user is refused whatever its target.
    fn entry(&self, dir: &End, path: &Path) -> Result<(), OwnershipError> {
        match dir.entry(path) {
            Ok(node) if self.trusts(node.uid) => self.end(path, &dir.walk(path, self)?),
            Ok(node) => Err(Exposed::new(self, (path, &node), Right::Owner, PathRole::Target).of(path)),
            Err(source) => Err(OwnershipError::Unknown { path: path.to_owned(), source }),
        }
    }
}

impl walk::Judge for TrustPolicy {
    fn name(&self, dir: (&Path, &Node), entry: Option<(&Path, &Node)>) -> Result<(), Box<Exposed>> {
        const STICKY: u32 = 0o1000;
        let exposed = |found, right| Err(Exposed::new(self, found, right, PathRole::Way));
        match (self.exposure(dir.1), entry) {
            (None, _) => Ok(()),
            (Some(Right::Group | Right::Others | Right::AccessList), entry) if dir.1.mode & STICKY != 0 => {
                match entry {
                    Some(entry) if !self.trusts(entry.1.uid) => exposed(entry, Right::Owner),
                    Some(_) | None => Ok(()),
                }
            }
            (Some(right), _) => exposed(dir, right),
        }
    }
}
