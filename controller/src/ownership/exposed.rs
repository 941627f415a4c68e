//! What is said of a path that somebody else can change: what was found, who can change it, and what to do.
//!
//! In: where it was found, with its owner and mode. Out: the text of an error. A command is given only for the very object that somebody
//! named for the agent: a directory on the way, such as `/tmp` or somebody's home, serves others and has to stay as it is.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use super::{Guard, OwnershipError, TRUSTED_GROUPS, TRUSTED_USERS, walk::Node};

/// A file or directory that somebody else can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposed {
    at: PathBuf,
    owner: String,
    /// With the type of the file.
    mode: u32,
    right: Right,
    /// Who can change it, as a message names them.
    by: String,
    place: Place,
    /// The agent's user, as a command takes it.
    agent: String,
    /// A variable that would trust them, and its value.
    trust: Option<(&'static str, String)>,
}

/// The right by which somebody else can change a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Owner,
    Group,
    Others,
    AccessList,
}

/// What the object is of the path that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has this path.
    Itself,
    /// Links lead to it.
    Target,
    /// A directory or link on the way.
    Way,
}

impl Exposed {
    pub(super) fn new(guard: &Guard, (at, node): (&Path, &Node), right: Right, place: Place) -> Box<Self> {
        let accounts = &guard.accounts;
        let (owner, group) = (accounts.described(node.uid), accounts.described_group(node.gid));
        let by = match right {
            Right::Owner => "its owner".to_owned(),
            Right::Group => format!("group {group}"),
            Right::Others => "everybody".to_owned(),
            Right::AccessList => {
                let writers = &node.writers;
                let users = writers.users.iter().filter(|uid| !guard.trusts(**uid));
                let groups = writers.groups.iter().filter(|gid| !guard.trusts_group(**gid));
                let users = users.map(|uid| accounts.described(*uid));
                let groups = groups.map(|gid| format!("group {}", accounts.described_group(*gid)));
                format!("by its access list {}", users.chain(groups).collect::<Vec<_>>().join(", "))
            }
        };
        // Where we may take the right from a group that is what to do.
        let is_ours = place != Place::Way && (guard.uid == 0 || guard.uid == node.uid);
        let trust = match right {
            Right::Owner => Some((TRUSTED_USERS, accounts.name(node.uid))),
            Right::Group if !is_ours => Some((TRUSTED_GROUPS, accounts.group_name(node.gid))),
            Right::Group | Right::Others | Right::AccessList => None,
        };
        let agent = accounts.name(guard.uid);
        Box::new(Self { at: at.to_owned(), owner, mode: node.mode, right, by, place, agent, trust })
    }

    /// Found where `path` was checked.
    pub(super) fn of(mut self: Box<Self>, path: &Path) -> OwnershipError {
        if self.at == path {
            self.place = Place::Itself;
        }
        OwnershipError::Exposed { path: path.to_owned(), exposed: self }
    }

    fn repair(&self) -> String {
        const STICKY: u32 = 0o1000;
        let Self { at, agent, right, place, mode, .. } = self;
        let is_root = matches!(&**agent, "root" | "0");
        let kind = FileType::from_raw_mode(*mode);
        let elsewhere = if is_root {
            "use a path on which only root can change every directory, such as one below /etc, /var/lib or /run"
        } else {
            "use a path on which only root and the agent's user can change every directory, such as one in that user's home"
        };
        let command = match right {
            Right::Owner => format!("chown -h {agent} {}", quoted(at)),
            // Where there is an access list this limits all its entries.
            Right::Group | Right::AccessList => format!("chmod g-w {}", quoted(at)),
            Right::Others => format!("chmod o-w {}", quoted(at)),
        };
        let is_sticky = kind == FileType::Directory && mode & STICKY != 0 && *right != Right::Owner;
        // A name that a terminal or a shell would not take as it is shown.
        let is_odd = at.to_str().is_none_or(|text| text.chars().any(char::is_control));
        match (place, kind) {
            (Place::Way, _) => elsewhere.to_owned(),
            (Place::Itself | Place::Target, FileType::Symlink) => {
                "remove this link, or name the place that it should lead to".to_owned()
            }
            (Place::Itself | Place::Target, _) if is_sticky => {
                "such a directory is meant for all users: use a new directory below it".to_owned()
            }
            (Place::Itself | Place::Target, _) if is_odd => elsewhere.to_owned(),
            (Place::Itself | Place::Target, FileType::Directory) => {
                format!(
                    "if it is meant for the agent alone, check what is in it and run `{command}`; if not, {elsewhere}"
                )
            }
            (Place::Itself | Place::Target, _) => format!("check what is in it and run `{command}`"),
        }
    }
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, owner, mode, by, place, agent, trust, .. } = self;
        match place {
            Place::Itself => f.write_str("it")?,
            Place::Target | Place::Way => write!(f, "{}", at.display())?,
        }
        let mode = mode & 0o7777;
        write!(f, " belongs to {owner} and has mode {mode:04o}, so {by} could change it; {}", self.repair())?;
        match trust {
            Some((variable @ TRUSTED_USERS, name)) => {
                write!(f, "; or set {variable}={name} for the agent, if that user may act as {agent}")
            }
            Some((variable, name)) => {
                write!(
                    f,
                    "; or set {variable}={name} for the agent, if all members of the group may act as {agent}"
                )
            }
            None => Ok(()),
        }
    }
}

/// A path as a shell takes it, whatever its names are.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
