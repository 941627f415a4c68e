//! Restricts an allocation's directories to the users of its tasks, by access control lists.
//!
//! In: user names, an open directory. Out: the rights set on it, or how its rights differ. The lists name each user, so
//! a running task gains no group, and an older agent's allocation can be closed around its running tasks. All calls
//! block.
//!
//! | directory | owner | task users of the allocation | without lists |
//! | --- | --- | --- | --- |
//! | ALLOC | agent | enter, list | 0711 |
//! | `alloc` | agent, sticky | everything | 0711 |
//! | `alloc/logs` | agent, sticky | everything | 0700 |
//! | `alloc/tmp`, `alloc/data` | agent (`tmp` sticky) | everything | 0700 of the only user, or of the agent if there are several |
//! | TASKDIR | agent, sticky | its own everything, others enter and list | 0700 of its own |
//! | `local`, `tmp` | its own | its own everything, others enter and list | 0700 of its own |
//! | `secrets` | its own | its own alone | 0700 of its own |
//! | `private` | agent | nobody | 0700 |
//!
//! Users of container images are unknown to this machine. If a task of the allocation runs an image, everybody may pass through `alloc`
//! and change what is in `alloc/tmp` and `alloc/data`. On the machine only the users in the table get there, because ALLOC is closed to
//! others. Everybody may also change what is in the `local`, `tmp` and `secrets` of that task. On the machine only the agent gets there,
//! because that task's TASKDIR is closed to all users: the engine, which is root, mounts the directories below it. The lists inside
//! name no user, because the user of the image may have the number of another task's user.
//!
//! The same holds for `alloc` if the directory of a task is its root (driver `exec`): programs in it may change to any user, who may pass
//! through that TASKDIR and change what is in its `local` and `tmp`, where the sticky bit protects files of others. Its own user may not
//! enter ALLOC, unless another task with that user has no root of its own: the directories are mounted in the root. Such a task can make
//! files that are dangerous elsewhere, set-user-id programs of root and device files, and other processes of its user must not reach
//! them.
//!
//! A default list, inherited from the parent directory, is removed from the agent's directories, because new entries
//! would inherit it. If a list can't be written, as on a full disk, the mode closes the directory to all but its owner
//! until it can.
//!
//! Without lists a directory has one owner and one group, and a group may have members that no job names. There, access
//! is by owner alone: each user gets its own directories, and shared ones stay closed to all users. No task owns ALLOC
//! there, because its owner could replace `alloc.json`, from which a lost database is rebuilt.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_base::{
    acl::{Acl, AclError, Perm},
    observation::Class,
    privileges::{Ownership, Privileges},
    safe_fs::{Dir, FsError, Rights},
    user::{self, Ids, UserError},
};

/// The users who may enter the directories of one allocation. Root and the agent's own user are implied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskUsers {
    /// Users of tasks.
    users: Vec<Ids>,
    /// Those of them whose tasks have roots of their own, in which the directories are mounted.
    enclosed: Vec<Ids>,
    /// Users who may enter every allocation.
    guests: Vec<Ids>,
    known: UserLookup,
    own: Own,
    /// In the directories that tasks share.
    outsiders: Outsiders,
    /// In the task's own directories.
    own_outsiders: Outsiders,
}

/// Whether users that this machine does not know may change what is in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Outsiders {
    #[default]
    Excluded,
    /// They may pass through it.
    Passing,
    Admitted,
}

impl Outsiders {
    fn perm(self) -> Perm {
        match self {
            Self::Excluded => Perm::NONE,
            Self::Passing => Perm::EXECUTE,
            Self::Admitted => Perm::ALL,
        }
    }
}

/// Whether all users were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum UserLookup {
    #[default]
    All,
    /// Users with existing access may be the ones that were not found: they keep it.
    Some,
}

/// The owner of a task's own directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Own {
    #[default]
    Agent,
    User(Ids),
    /// The owner stays unchanged.
    Unknown,
}

impl TaskUsers {
    /// Looks up these users. An unknown user is omitted; its task fails to start and reports it.
    ///
    /// # Errors
    /// If the name services don't answer.
    pub fn find<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self, UserError> {
        let mut found = Self::default();
        found.users = found.look_up(names)?;
        Ok(found)
    }

    /// Adds users who may enter every allocation.
    ///
    /// # Errors
    /// If the name services don't answer.
    pub fn and_guests<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Self, UserError> {
        self.guests = self.look_up(names)?;
        Ok(self)
    }

    /// Closes ALLOC to all users but these, whose tasks have no roots of their own.
    ///
    /// # Errors
    /// If the name services don't answer.
    pub fn entering<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Self, UserError> {
        let entering = self.look_up(names)?;
        let enclosed = self.users.iter().filter(|user| !entering.iter().any(|ids| ids.uid == user.uid));
        self.enclosed = enclosed.copied().collect();
        Ok(self)
    }

    fn look_up<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Vec<Ids>, UserError> {
        let mut found: Vec<Ids> = Vec::new();
        if !rustix::process::geteuid().is_root() {
            return Ok(found);
        }
        for name in names.into_iter().filter(|name| !name.is_empty()).collect::<BTreeSet<_>>() {
            match user::ids(name) {
                Ok(ids) if ids.uid == us().uid || found.iter().any(|known| known.uid == ids.uid) => {}
                Ok(ids) => found.push(ids),
                Err(error) if error.class() == Class::Retry => return Err(error),
                Err(_) => self.known = UserLookup::Some,
            }
        }
        Ok(found)
    }

    /// For name services that don't answer: names nobody, and every user keeps its rights.
    pub fn unknown() -> Self {
        Self { known: UserLookup::Some, own: Own::Unknown, ..Self::default() }
    }

    /// For the directory of the task that runs as `name`.
    ///
    /// # Errors
    /// If the name services don't answer.
    pub fn of_task(mut self, name: Option<&str>) -> Result<Self, UserError> {
        let Some(name) = name.filter(|name| !name.is_empty() && rustix::process::geteuid().is_root()) else {
            return Ok(self);
        };
        self.own = match user::ids(name) {
            Ok(ids) if ids == us() => Own::Agent,
            Ok(ids) => Own::User(ids),
            Err(error) if error.class() == Class::Retry => return Err(error),
            Err(_) => Own::Unknown,
        };
        Ok(self)
    }

    /// For an allocation in which a task runs an image, as a user of that image.
    #[must_use]
    pub fn and_users_of_images(self) -> Self {
        Self { outsiders: Outsiders::Admitted, ..self }
    }

    /// For the directory of a task that runs an image, as a user of that image.
    #[must_use]
    pub fn of_image(self) -> Self {
        Self { own_outsiders: Outsiders::Admitted, ..self }
    }

    /// For the directory of a task that has it as its root, in which programs may run as other users than the task's own.
    #[must_use]
    pub fn of_root(self) -> Self {
        Self { own_outsiders: Outsiders::Passing, ..self }
    }

    /// ALLOC.
    pub(crate) fn entrance(&self) -> Access {
        let mut entering = self.clone();
        entering.users.retain(|user| !self.enclosed.contains(user));
        entering.agents(Perm::READ_EXECUTE, Plain::Passage)
    }

    /// `alloc`.
    pub(crate) fn common(&self) -> Access {
        self.agents(Perm::ALL, Plain::Passage).sticky().with(match self.outsiders {
            Outsiders::Excluded => Outsiders::Excluded,
            Outsiders::Passing | Outsiders::Admitted => Outsiders::Passing,
        })
    }

    /// `alloc/logs`.
    pub(crate) fn logs(&self) -> Access {
        self.agents(Perm::ALL, Plain::Closed).sticky()
    }

    /// `alloc/tmp`.
    pub(crate) fn scratch(&self) -> Access {
        self.data().sticky()
    }

    /// `alloc/data`: without the sticky bit, so that tasks may change and replace each other's files.
    pub(crate) fn data(&self) -> Access {
        let plain = match (&self.users[..], self.known) {
            ([one], UserLookup::All) => Plain::Of(*one),
            (_, UserLookup::All | UserLookup::Some) => Plain::Closed,
        };
        self.agents(Perm::ALL, plain).with(self.outsiders)
    }

    /// TASKDIR: owned by the agent, so that only the agent can replace `private` and its other files in it.
    pub(crate) fn task(&self) -> Access {
        if self.own_outsiders == Outsiders::Admitted {
            return Self::private().sticky();
        }
        let mut access = self.agents(Perm::READ_EXECUTE, Plain::Closed).sticky().with(self.own_outsiders);
        if let Own::User(own) = self.own {
            access.name(own.uid, Perm::ALL);
            access.plain = Plain::Of(own);
        } else if self.own == Own::Unknown {
            access.known = UserLookup::Some;
        }
        access
    }

    /// `local` and `tmp`.
    pub(crate) fn own(&self, privileges: Privileges) -> Access {
        match self.own_outsiders {
            Outsiders::Excluded => {
                self.agents(Perm::READ_EXECUTE, Plain::Closed).owned_by(self.own, privileges)
            }
            Outsiders::Passing => {
                let access = self.agents(Perm::ALL, Plain::Closed).owned_by(self.own, privileges);
                access.sticky().with(Outsiders::Admitted)
            }
            Outsiders::Admitted => Self::private().with(Outsiders::Admitted),
        }
    }

    /// `secrets`.
    pub(crate) fn secret(&self, privileges: Privileges) -> Access {
        if self.own_outsiders == Outsiders::Admitted {
            return Self::private().with(Outsiders::Admitted);
        }
        Self { users: Vec::new(), guests: Vec::new(), ..self.clone() }
            .agents(Perm::NONE, Plain::Closed)
            .owned_by(self.own, privileges)
    }

    /// `private`.
    pub(crate) fn private() -> Access {
        Self::default().agents(Perm::NONE, Plain::Closed)
    }

    fn agents(&self, perm: Perm, plain: Plain) -> Access {
        let acl = Acl::of_users(Perm::ALL, self.users.iter().chain(&self.guests).map(|ids| (ids.uid, perm)));
        let outsiders = Outsiders::Excluded;
        Access { owner: Some(us()), acl, special: 0, plain, known: self.known, outsiders }
    }
}

/// Owner, list and mode of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Access {
    /// `None`: the owner is not changed.
    owner: Option<Ids>,
    acl: Acl,
    /// Mode bits that no list has.
    special: u32,
    plain: Plain,
    known: UserLookup,
    outsiders: Outsiders,
}

/// The replacement for a list on a file system without lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plain {
    /// Everybody may pass through but not list; the contents are closed.
    Passage,
    Closed,
    Of(Ids),
}

/// One change of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Removes the default list, which a directory inherits from its parent.
    NoDefault,
    Owner(Ids),
    List(Acl),
    Mode(u32),
}

impl Step {
    fn take(&self, dir: &Dir) -> Result<(), FsError> {
        match self {
            Self::NoDefault => Acl::remove_default(dir).map_err(|error| refused(dir, error)),
            Self::Owner(owner) => dir.set_owner(owner.pair()),
            Self::List(acl) => acl.write(dir).map_err(|error| refused(dir, error)),
            Self::Mode(mode) => dir.set_rights(Rights::Exact { mode: *mode, owner: None }),
        }
    }
}

/// The current state of a directory.
struct Found {
    device: u64,
    uid: u32,
    mode: u32,
    /// `None` if the file system has no lists.
    acl: Option<Acl>,
    has_default: bool,
}

impl Access {
    fn sticky(self) -> Self {
        Self { special: STICKY, ..self }
    }

    fn with(self, outsiders: Outsiders) -> Self {
        Self { outsiders, ..self }
    }

    fn name(&mut self, uid: u32, perm: Perm) {
        let others = self.acl.users.iter().copied().filter(|(known, _)| *known != uid);
        self.acl = Acl::of_users(Perm::ALL, others.chain([(uid, perm)]));
    }

    fn owned_by(mut self, own: Own, privileges: Privileges) -> Self {
        match (own, privileges.ownership) {
            (Own::Agent, _) => {}
            (Own::Unknown, _) => self.owner = None,
            (Own::User(own), Ownership::Anybody) => {
                self.acl.users.retain(|(uid, _)| *uid != own.uid);
                self.acl = Acl::of_users(Perm::ALL, std::mem::take(&mut self.acl.users));
                (self.owner, self.plain) = (Some(own), Plain::Of(own));
            }
            // It can't be given away, only opened.
            (Own::User(own), Ownership::OwnOnly) => self.name(own.uid, Perm::ALL),
        }
        self
    }

    /// Sets these rights on a directory, if they differ.
    ///
    /// # Errors
    /// If a system call fails.
    pub(crate) fn apply(&self, dir: &Dir) -> Result<(), FsError> {
        let found = Found::of(dir)?;
        let Some(acl) = &found.acl else {
            if !self.acl.users.is_empty() {
                warn_once(dir);
            }
            return dir.set_rights(self.without_list(found.mode));
        };
        for step in self.steps(&found, acl) {
            match (step.take(dir), &step) {
                (Ok(()), _) => {}
                (Err(error), Step::List(_)) => return self.close_without_list(dir, &found, error),
                (Err(error), Step::NoDefault | Step::Owner(_) | Step::Mode(_)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fallback if no list can be written: changing a mode takes no disk space. Closes the directory to all but its
    /// owner until a later try succeeds.
    ///
    /// # Errors
    /// Why the list can't be written, unless the file system turns out to have none.
    fn close_without_list(&self, dir: &Dir, found: &Found, why: FsError) -> Result<(), FsError> {
        if why.is_unsupported() {
            without_lists().insert(found.device);
            warn_once(dir);
            return dir.set_rights(self.without_list(found.mode));
        }
        let mode = (found.mode | self.special) & (SPECIAL | 0o700);
        dir.set_rights(Rights::Exact { mode, owner: None })?;
        Err(why)
    }

    /// The changes for a directory with a list. Their order keeps every intermediate state closed, even if the agent is
    /// killed after any of them: a world-writable directory keeps its sticky bit until it is closed.
    fn steps(&self, found: &Found, present: &Acl) -> Vec<Step> {
        let wanted = self.desired_acl(present);
        let mut steps = Vec::new();
        if self.has_wrong_default(found) {
            steps.push(Step::NoDefault);
        }
        // The group bits are the list's mask: they stay unchanged until the list itself is written.
        if self.special & !found.mode != 0 {
            steps.push(Step::Mode(found.mode | self.special));
        }
        steps.extend(self.owner.filter(|owner| owner.uid != found.uid).map(Step::Owner));
        let closed = wanted.mode() | self.special;
        if *present != wanted {
            steps.push(Step::List(wanted));
        }
        if found.mode & SPECIAL & !self.special != 0 {
            steps.push(Step::Mode(closed));
        }
        steps
    }

    /// How a directory's rights differ from these, as a sentence without a full stop.
    ///
    /// # Errors
    /// If they can't be read.
    pub(crate) fn difference(&self, dir: &Dir) -> Result<Option<String>, FsError> {
        let found = Found::of(dir)?;
        let here = dir.path().display();
        let (owner, acl, mode) = match (&found.acl, self.without_list(found.mode)) {
            (Some(acl), _) => (self.owner.map(|owner| owner.uid), self.desired_acl(acl), None),
            (None, Rights::Exact { mode, owner }) => {
                (owner.map(|(uid, _)| uid), Acl::from_mode(mode), Some(mode & SPECIAL))
            }
            (None, Rights::Masked { .. }) => return Ok(None),
        };
        if owner.is_some_and(|owner| owner != found.uid) {
            return Ok(Some(format!("{here} belongs to user {}, not to {}", found.uid, owner.unwrap_or(0))));
        }
        if self.has_wrong_default(&found) {
            return Ok(Some(format!(
                "{here} has a default access list that gives others access to new files"
            )));
        }
        let present = found.acl.unwrap_or_else(|| Acl::from_mode(found.mode));
        if present != acl || found.mode & SPECIAL != mode.unwrap_or(self.special) {
            return Ok(Some(format!("{here} has the wrong permissions")));
        }
        Ok(None)
    }

    /// Whether its default list must be removed. A user's own list on its own directory stays; an inherited one on a
    /// directory that becomes the user's does not.
    fn has_wrong_default(&self, found: &Found) -> bool {
        let is_wrong = |owner: Ids| owner.uid == us().uid || owner.uid != found.uid;
        found.has_default && self.owner.is_some_and(is_wrong)
    }

    /// The list for a directory that currently has `present`.
    fn desired_acl(&self, present: &Acl) -> Acl {
        let mut acl = match self.known {
            UserLookup::All => self.acl.clone(),
            UserLookup::Some => {
                let named = |uid| self.acl.users.iter().any(|(known, _)| *known == uid);
                let kept = present.users.iter().copied().filter(|(uid, _)| !named(*uid));
                Acl::of_users(Perm::ALL, self.acl.users.iter().copied().chain(kept))
            }
        };
        if self.outsiders != Outsiders::Excluded {
            // Without its group's right a user of an image whose group has the agent's number would be refused.
            (acl.group, acl.other) = (self.outsiders.perm(), self.outsiders.perm());
            acl.mask = acl.mask.map(|_| Perm::ALL);
        }
        acl
    }

    /// The rights for a directory whose mode is `present`.
    fn without_list(&self, present: u32) -> Rights {
        if self.outsiders != Outsiders::Excluded {
            let mode = 0o700 | (self.outsiders.perm().bits() * 0o11) | self.special;
            return Rights::Exact { mode, owner: self.owner.map(Ids::pair) };
        }
        let is_shared = !self.acl.users.is_empty();
        let (mode, owner) = match (self.plain, self.known) {
            (Plain::Of(one), _) => (0o700, Some(one)),
            (Plain::Passage, _) if is_shared => (0o711, self.owner),
            // The missing user may be the one with access, or the owner: close it to strangers and change nothing else.
            (Plain::Passage, UserLookup::Some) => (present & (SPECIAL | 0o711), None),
            (Plain::Closed, UserLookup::Some) => (present & (SPECIAL | 0o700), None),
            (Plain::Closed, UserLookup::All) if is_shared => (0o700, self.owner),
            (Plain::Passage | Plain::Closed, UserLookup::All) => (0o700 | self.special, self.owner),
        };
        Rights::Exact { mode, owner: owner.map(Ids::pair) }
    }
}

impl Found {
    fn of(dir: &Dir) -> Result<Self, FsError> {
        let stat = dir.stat()?;
        let examined = |error: AclError| FsError::io("examine", dir.path(), error.into_io());
        let acl = match Acl::read(dir) {
            Ok(_) if without_lists().contains(&stat.st_dev) => None,
            Ok(acl) => Some(acl),
            Err(AclError::Unsupported) => None,
            Err(error) => return Err(examined(error)),
        };
        let has_default = acl.is_some() && Acl::has_default(dir).map_err(examined)?;
        Ok(Self { device: stat.st_dev, uid: stat.st_uid, mode: stat.st_mode & 0o7777, acl, has_default })
    }
}

/// Rights of a new directory until its final ones are set.
pub(crate) const UNOPENED: Rights = Rights::Masked { mode: 0o700 };

/// File systems that allow reading lists but not writing them: treated as without lists.
fn without_lists() -> MutexGuard<'static, BTreeSet<u64>> {
    static DEVICES: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(dir: &Dir, error: AclError) -> FsError {
    FsError::io("close", dir.path(), error.into_io())
}

const STICKY: u32 = 0o1000;
/// Mode bits that are not permissions.
const SPECIAL: u32 = 0o7000;

fn us() -> Ids {
    Ids { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn warn_once(dir: &Dir) {
    static WARNED: std::sync::Once = std::sync::Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            dir = %dir.path().display(),
            "the file system has no access control lists: each task user gets private directories, and directories shared by several users stay closed to all of them"
        );
    });
}

#[cfg(test)]
mod tests;
