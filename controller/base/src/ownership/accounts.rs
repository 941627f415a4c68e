//! Names of users, and groups without other members.
//!
//! In: `/etc/passwd` and `/etc/group` (passwd(5), group(5)). Out: how messages name a user id, and whether a group is
//! private to a user. Name services are not queried, because they may hang; users known only to them are not trusted.

use std::{cell::OnceCell, fs, path::PathBuf};

/// The accounts of a machine, read on first use.
pub(super) struct Accounts {
    users: PathBuf,
    groups: PathBuf,
    known: OnceCell<(String, String)>,
}

impl Accounts {
    pub(super) fn of_machine() -> Self {
        Self::of_files("/etc/passwd", "/etc/group")
    }

    pub(super) fn of_files(users: impl Into<PathBuf>, groups: impl Into<PathBuf>) -> Self {
        Self { users: users.into(), groups: groups.into(), known: OnceCell::new() }
    }

    /// A user as in messages: `nobody (uid 65534)`.
    pub(super) fn described(&self, uid: u32) -> String {
        let name = name_of(&self.known().0, uid);
        name.map_or_else(|| format!("uid {uid}"), |name| format!("{name} (uid {uid})"))
    }

    /// A group as in messages: `staff (gid 50)`.
    pub(super) fn described_group(&self, gid: u32) -> String {
        let name = name_of(&self.known().1, gid);
        name.map_or_else(|| gid.to_string(), |name| format!("{name} (gid {gid})"))
    }

    /// A user as in commands: the name, or the number if there is none.
    pub(super) fn name(&self, uid: u32) -> String {
        name_of(&self.known().0, uid).map_or_else(|| uid.to_string(), str::to_owned)
    }

    /// A group as in commands.
    pub(super) fn group_name(&self, gid: u32) -> String {
        name_of(&self.known().1, gid).map_or_else(|| gid.to_string(), str::to_owned)
    }

    pub(super) fn uid(&self, name: &str) -> Option<u32> {
        let users = &self.known().0;
        let user = users.lines().map(fields).find(|fields| fields.first() == Some(&name))?;
        user.get(2)?.parse().ok()
    }

    pub(super) fn gid(&self, name: &str) -> Option<u32> {
        let groups = &self.known().1;
        let group = groups.lines().map(fields).find(|fields| fields.first() == Some(&name))?;
        group.get(2)?.parse().ok()
    }

    /// Whether a group is private to a trusted user: its name is a trusted user's, and all its members, also by primary
    /// group, are trusted. With umask 002 all that such a user creates is group-writable.
    pub(super) fn is_private(&self, gid: u32, is_trusted: impl Fn(u32) -> bool) -> bool {
        let gid = gid.to_string();
        let (users, groups) = self.known();
        let Some(group) = groups.lines().map(fields).find(|fields| fields.get(2) == Some(&&*gid)) else {
            return false;
        };
        let is_trusted_name = |name: &str| self.uid(name).is_some_and(&is_trusted);
        let members = group.get(3).copied().unwrap_or_default().split(',').map(str::trim);
        let mut first_of = users
            .lines()
            .map(fields)
            .filter(|fields| fields.get(3) == Some(&&*gid))
            .filter_map(|fields| fields.first().copied());
        group.first().is_some_and(|name| is_trusted_name(name))
            && members.filter(|name| !name.is_empty()).all(is_trusted_name)
            && first_of.all(is_trusted_name)
    }

    fn known(&self) -> &(String, String) {
        let read = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
        self.known.get_or_init(|| (read(&self.users), read(&self.groups)))
    }
}

/// The name for a number in one of the two files: the third field in both.
fn name_of(file: &str, number: u32) -> Option<&str> {
    let number = number.to_string();
    file.lines().map(fields).find(|fields| fields.get(2) == Some(&&*number))?.first().copied()
}

fn fields(line: &str) -> Vec<&str> {
    line.split(':').collect()
}
