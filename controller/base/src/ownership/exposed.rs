//! The message about a path that another user can change: the finding, who can change it, and how to fix it.
//!
//! In: the file, its owner and mode. Out: the text of an error. A command is suggested only if the agent's user can run
//! it, for a regular file or directory that somebody configured for the agent, or a directory on the way that the
//! agent's own user made. Other directories on the way, such as `/tmp`, serve other users and must stay as they are.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use super::{OwnershipError, TRUSTED_GROUPS, TRUSTED_USERS, TrustPolicy, walk::Node};

/// A file or directory that another user can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposed {
    at: PathBuf,
    owner: String,
    /// Includes the file type.
    mode: u32,
    right: Right,
    /// Who can change it, as messages name them.
    by: String,
    place: PathRole,
    /// The agent's user, as in commands.
    agent: String,
    /// Who can run the command that fixes it.
    repairer: Repairer,
    /// The variable that would make the agent trust them, and its value.
    trust: Option<(&'static str, String)>,
}

/// The right by which another user can change a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Owner,
    Group,
    Others,
    AccessList,
}

/// How the object relates to the path that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathRole {
    /// The path itself.
    Itself,
    /// The target of links in the path.
    Target,
    /// A directory or link on the way.
    Way,
    /// A file in one of the agent's own directories, where only another user can have put it.
    Kept,
}

/// Who can revoke a right (chmod(2), chown(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repairer {
    /// The agent is root.
    Root,
    /// The agent is not root but owns the file: it can change the mode.
    Owner,
    /// The agent's user can't change it.
    Nobody,
}

impl Exposed {
    pub(super) fn without_trust(mut self: Box<Self>) -> Box<Self> {
        self.trust = None;
        self
    }

    pub(super) fn new(
        guard: &TrustPolicy,
        (at, node): (&Path, &Node),
        right: Right,
        place: PathRole,
    ) -> Box<Self> {
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
        // If we may revoke the group's right, that is the fix.
        let is_ours = place != PathRole::Way && (guard.uid == 0 || guard.uid == node.uid);
        let trust = match right {
            Right::Owner => Some((TRUSTED_USERS, accounts.name(node.uid))),
            Right::Group if !is_ours => Some((TRUSTED_GROUPS, accounts.group_name(node.gid))),
            Right::Group | Right::Others | Right::AccessList => None,
        };
        let agent = accounts.name(guard.uid);
        let repairer = match guard.uid {
            0 => Repairer::Root,
            uid if uid == node.uid => Repairer::Owner,
            _ => Repairer::Nobody,
        };
        Box::new(Self { at: at.to_owned(), owner, mode: node.mode, right, by, place, agent, repairer, trust })
    }

    /// As [`Self::of`], for a file in one of the agent's own directories.
    pub(super) fn kept(mut self: Box<Self>, path: &Path) -> OwnershipError {
        self.place = PathRole::Kept;
        OwnershipError::Exposed { path: path.to_owned(), exposed: self }
    }

    /// Sets the path that was checked.
    pub(super) fn of(mut self: Box<Self>, path: &Path) -> OwnershipError {
        if self.at == path {
            self.place = PathRole::Itself;
        }
        OwnershipError::Exposed { path: path.to_owned(), exposed: self }
    }

    fn repair(&self) -> String {
        match self.place {
            PathRole::Way => self.repair_of_way(),
            PathRole::Itself | PathRole::Target => self.repair_of_target(),
            PathRole::Kept => self.repair_of_kept(),
        }
    }

    fn repair_of_way(&self) -> String {
        let elsewhere = self.elsewhere();
        // Directories that root owns are meant for everybody.
        match self.command().filter(|_| self.repairer == Repairer::Owner) {
            Some(command) => {
                format!("if no other user needs to write there, run `{command}`; if not, {elsewhere}")
            }
            None => elsewhere,
        }
    }

    fn repair_of_target(&self) -> String {
        let elsewhere = self.elsewhere();
        match (self.kind(), self.command()) {
            (FileType::Symlink, _) => "remove this link, or use the path that it should lead to".to_owned(),
            (FileType::Directory, _) if self.is_sticky() => {
                "such a directory is meant for all users: use a new directory below it".to_owned()
            }
            (FileType::Directory, _) if self.right == Right::Owner => self.new_directory(),
            (FileType::Directory, Some(command)) => {
                format!(
                    "if it is meant for the agent alone, check what is in it and run `{command}`; if not, {elsewhere}"
                )
            }
            (FileType::RegularFile, Some(command)) => format!("check what is in it and run `{command}`"),
            (FileType::RegularFile, None) if self.right == Right::Owner => {
                format!("use a file of {}", self.agents())
            }
            (FileType::Directory | FileType::RegularFile, None) => elsewhere,
            (kind, _) => format!("it is {}: name a regular file", described(kind)),
        }
    }

    fn repair_of_kept(&self) -> String {
        let changed = || format!("if others have changed it, {}", self.new_directory());
        match (self.right, self.kind(), self.command()) {
            (Right::Owner, _, _) => format!(
                "only another user can have put it there, and may have added other files: {}",
                self.new_directory()
            ),
            (_, FileType::Directory | FileType::RegularFile, Some(command)) => {
                format!("check what is in it and run `{command}`; {}", changed())
            }
            (_, FileType::Directory | FileType::RegularFile, None) => {
                format!("revoke that right; {}", changed())
            }
            (_, kind, _) => {
                format!("it is {}, and the agent keeps only regular files there: remove it", described(kind))
            }
        }
    }

    /// A `chown` leaves the previous owner's hard links and open descriptors.
    fn new_directory(&self) -> String {
        format!(
            "use a new directory that belongs to {}: a change of the owner would leave the other user's hard links and open files",
            self.agents()
        )
    }

    fn elsewhere(&self) -> String {
        if self.is_root() {
            "use a path on which only root can change every directory, such as one below /etc, /var/lib or /run".to_owned()
        } else {
            "use a path on which only root and the agent's user can change every directory, such as one in that user's home"
                .to_owned()
        }
    }

    /// The command that revokes the right, if the agent's user can run it and the name is safe in a shell.
    fn command(&self) -> Option<String> {
        let Self { at, agent, right, repairer, .. } = self;
        let is_odd = at.to_str().is_none_or(|text| text.chars().any(char::is_control));
        let is_plain = matches!(self.kind(), FileType::Directory | FileType::RegularFile);
        if is_odd || !is_plain || *repairer == Repairer::Nobody {
            return None;
        }
        let at = quoted(at);
        match right {
            Right::Owner => Some(format!("chown -h {agent} {at}")).filter(|_| self.is_root()),
            // With an access list this limits all its entries.
            Right::Group | Right::AccessList => Some(format!("chmod g-w {at}")),
            Right::Others => Some(format!("chmod o-w {at}")),
        }
    }

    /// The command that restores the mode which a directory had when the agent used its contents.
    pub fn restoring(&self) -> Option<String> {
        self.command().filter(|_| self.right != Right::Owner && self.kind() == FileType::Directory)
    }

    fn is_sticky(&self) -> bool {
        const STICKY: u32 = 0o1000;
        self.mode & STICKY != 0 && self.right != Right::Owner
    }

    fn is_root(&self) -> bool {
        self.repairer == Repairer::Root
    }

    fn agents(&self) -> &str {
        if self.is_root() { "root" } else { "the agent's user or root" }
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// Anything but a regular file, a directory or a link.
fn described(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown => {
            "not a regular file"
        }
    }
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, owner, mode, by, place, agent, trust, .. } = self;
        match place {
            PathRole::Itself => f.write_str("it")?,
            PathRole::Target | PathRole::Way | PathRole::Kept => f.write_str(&escape_path(at))?,
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

/// A path for messages: another user may have put control characters for terminals into its names.
pub fn escape_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    if text.chars().any(char::is_control) { text.chars().map(escaped).collect() } else { text.into_owned() }
}

/// A path quoted for a shell, whatever characters it contains.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
