//! Users of the machine, looked up through its configured name services.
//!
//! In: the name (or number) of a user, as in a job. Out: ids and the exact list of groups. Blocking: a name service may
//! be on the network.
#![expect(
    unsafe_code,
    reason = "rustix has no name services; the C library's are the only ones that know all users"
)]

pub mod guests;

use std::ffi::{CStr, CString};

use super::observation::Class;

/// The user and groups of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// All groups, including the primary one, and no others.
    pub groups: Vec<u32>,
    pub login: Login,
}

/// The values that a login sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub name: String,
    pub home: String,
    pub shell: String,
}

/// A user's id and primary group id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

impl Ids {
    pub fn pair(self) -> (u32, u32) {
        (self.uid, self.gid)
    }
}

/// Why a user can't be used. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error("find user {name:?}: it does not exist on this machine")]
    Unknown { name: String },
    /// The name services don't answer.
    #[error("look up user {name:?}")]
    Lookup { name: String, source: std::io::Error },
    /// Only root can change to another user.
    #[error("run as user {name:?}: only an agent that runs as root can change users")]
    NotRoot { name: String },
}

impl UserError {
    /// Whether a retry can help: a temporary lookup failure does not make a user unknown.
    pub fn class(&self) -> Class {
        match self {
            // Out of files or memory, or a failing disk or name service: errors of the system.
            Self::Lookup { source, .. } if source.raw_os_error().is_some() => Class::Retry,
            Self::Lookup { .. } | Self::Unknown { .. } | Self::NotRoot { .. } => Class::Fatal,
        }
    }
}

/// The most groups that a process can have (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// Limit for the length of a name service entry, in bytes.
const ENTRY_LEN_MAX: usize = 1 << 20;

/// The credentials for a task with this `user`; `None` if the task keeps the agent's.
///
/// # Errors
/// If there is no such user, or the agent can't change to it.
pub fn credentials(name: Option<&str>) -> Result<Option<Credentials>, UserError> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    find(name)?.unless_own(name)
}

impl Credentials {
    /// `Some` if the agent has to change to this user, `None` if it is that user already. `name` is for the error.
    ///
    /// # Errors
    /// If the agent can't change to the user.
    pub fn unless_own(self, name: &str) -> Result<Option<Self>, UserError> {
        let own = rustix::process::geteuid();
        if own.is_root() {
            Ok(Some(self))
        } else if own.as_raw() == self.uid {
            Ok(None)
        } else {
            Err(UserError::NotRoot { name: name.to_owned() })
        }
    }
}

/// Finds a user by name, or by number if no user has that name. `USER:GROUP` is that user with this group alone; numbers there
/// need no name on this machine.
///
/// # Errors
/// If there is none, or the name services don't answer.
pub fn find(name: &str) -> Result<Credentials, UserError> {
    if let Some((user, group)) = name.split_once(':') {
        let Ids { uid, gid } = of_pair(name, user, group)?;
        let login = match lookup(user) {
            Ok(Entry { name, home, shell, .. }) => {
                Login { name: name.to_string_lossy().into_owned(), home, shell }
            }
            Err(_) => Login::default(),
        };
        return Ok(Credentials { uid, gid, groups: vec![gid], login });
    }
    let entry = lookup(name)?;
    let groups = groups(&entry.name, entry.gid).map_err(|source| failed(name, source))?;
    let Entry { name, uid, gid, home, shell } = entry;
    let login = Login { name: name.to_string_lossy().into_owned(), home, shell };
    Ok(Credentials { uid, gid, groups, login })
}

/// As [`find`], but only user and primary group.
///
/// # Errors
/// As [`find`].
pub fn ids(name: &str) -> Result<Ids, UserError> {
    if let Some((user, group)) = name.split_once(':') {
        return of_pair(name, user, group);
    }
    lookup(name).map(|entry| Ids { uid: entry.uid, gid: entry.gid })
}

/// The ids in `USER:GROUP`.
fn of_pair(pair: &str, user: &str, group: &str) -> Result<Ids, UserError> {
    let unknown = || UserError::Unknown { name: pair.to_owned() };
    // The largest number means "unchanged" to the kernel.
    let number = |text: &str| text.parse().ok().filter(|id| *id != u32::MAX);
    let uid = match number(user) {
        Some(uid) => uid,
        None => lookup(user)?.uid,
    };
    let gid = match number(group) {
        Some(gid) => gid,
        None => {
            let c_name = CString::new(group).map_err(|_| unknown())?;
            group_id(&c_name).map_err(|source| failed(pair, source))?.ok_or_else(unknown)?
        }
    };
    Ok(Ids { uid, gid })
}

fn group_id(name: &CStr) -> std::io::Result<Option<u32>> {
    let mut buffer: Vec<libc::c_char> = vec![0; 4096];
    loop {
        // SAFETY: all zero is a valid `group`: integers and null pointers.
        let mut group: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (out, text, len) = (&raw mut group, buffer.as_mut_ptr(), buffer.len());
        // SAFETY: all pointers are valid for the call, `text` for `len` bytes; the name ends with a NUL byte.
        let errno = unsafe { libc::getgrnam_r(name.as_ptr(), out, text, len, &raw mut found) };
        match errno {
            libc::ERANGE if buffer.len() < ENTRY_LEN_MAX => buffer.resize(buffer.len() * 2, 0),
            // As for users.
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            0 => return Ok(Some(group.gr_gid)),
            errno => return Err(std::io::Error::from_raw_os_error(errno)),
        }
    }
}

fn lookup(name: &str) -> Result<Entry, UserError> {
    let unknown = || UserError::Unknown { name: name.to_owned() };
    let c_name = CString::new(name).map_err(|_| unknown())?;
    let mut entry = entry(Key::Name(&c_name)).map_err(|source| failed(name, source))?;
    if entry.is_none()
        && let Ok(uid) = name.parse()
    {
        entry = self::entry(Key::Uid(uid)).map_err(|source| failed(name, source))?;
    }
    entry.ok_or_else(unknown)
}

fn failed(name: &str, source: std::io::Error) -> UserError {
    UserError::Lookup { name: name.to_owned(), source }
}

enum Key<'a> {
    Name(&'a CStr),
    Uid(u32),
}

struct Entry {
    name: CString,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

fn entry(key: Key<'_>) -> std::io::Result<Option<Entry>> {
    let mut buffer: Vec<libc::c_char> = vec![0; 4096];
    loop {
        // SAFETY: all zero is a valid `passwd`: integers and null pointers.
        let mut passwd: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (out, text, len) = (&raw mut passwd, buffer.as_mut_ptr(), buffer.len());
        // SAFETY: all pointers are valid for the call, `text` for `len` bytes; the name ends with a NUL byte.
        let errno = unsafe {
            match key {
                Key::Name(name) => libc::getpwnam_r(name.as_ptr(), out, text, len, &raw mut found),
                Key::Uid(uid) => libc::getpwuid_r(uid, out, text, len, &raw mut found),
            }
        };
        match errno {
            libc::ERANGE if buffer.len() < ENTRY_LEN_MAX => buffer.resize(buffer.len() * 2, 0),
            // A missing entry means "not found"; some name services return these errors instead (getpwnam(3)).
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: the entry was found, so its strings point into `buffer`, which is still alive.
                let (name, home, shell) = unsafe {
                    (CStr::from_ptr(passwd.pw_name), text_of(passwd.pw_dir), text_of(passwd.pw_shell))
                };
                return Ok(Some(Entry {
                    name: name.to_owned(),
                    uid: passwd.pw_uid,
                    gid: passwd.pw_gid,
                    home,
                    shell,
                }));
            }
            errno => return Err(std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// # Safety
/// `text` is null or points to a string that ends with a NUL byte.
unsafe fn text_of(text: *const libc::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn groups(name: &CStr, gid: u32) -> std::io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `groups` has room for `count` ids, and the name ends with a NUL byte.
        let fits = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if fits >= 0 {
            // Drops the unused tail of zeros: 0 is a group, root's.
            groups.truncate(usize::try_from(count).unwrap_or(0));
            return Ok(groups);
        }
        if groups.len() >= GROUPS_MAX {
            return Err(std::io::Error::other("too many groups"));
        }
        groups.resize(groups.len() * 4, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_name_and_by_number() {
        let root = find("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(find("0").unwrap(), root);
    }

    #[test]
    fn nobody_has_no_supplementary_groups() {
        let nobody = find("nobody").unwrap();
        assert_eq!(nobody.groups, [nobody.gid]);
        assert_ne!(nobody.gid, 0);
    }

    #[test]
    fn a_pair_is_a_user_with_one_group() {
        let found = find("54321:98765").unwrap();
        assert_eq!((found.uid, found.gid, &*found.groups), (54321, 98765, &[98765][..]));
        assert_eq!(found.login, Login::default());
        let root = find("root:root").unwrap();
        assert_eq!((root.uid, root.gid, &*root.login.name), (0, 0, "root"));
        assert_eq!(ids("nobody:7").unwrap(), Ids { uid: ids("nobody").unwrap().uid, gid: 7 });
        for pair in
            ["root:no such group", "no such user:0", ":", "0:", "4294967295:0", "0:4294967295", "0:a\0b"]
        {
            assert!(matches!(find(pair), Err(UserError::Unknown { .. })), "{pair}");
            assert!(ids(pair).is_err(), "{pair}");
        }
    }

    #[test]
    fn unknown_users_are_errors() {
        for name in ["no such user", "a\0b", "4294967294", ""] {
            assert!(matches!(find(name), Err(UserError::Unknown { .. })), "{name}");
        }
        assert_eq!(credentials(None).unwrap(), None);
    }

    // A machine that was briefly out of files failed its tasks permanently.
    #[test]
    fn failed_user_lookup_is_retryable() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::EIO, libc::ENOMEM] {
            let source = std::io::Error::from_raw_os_error(errno);
            assert_eq!(UserError::Lookup { name: "web".into(), source }.class(), Class::Retry);
        }
        let source = std::io::Error::other("too many groups");
        assert_eq!(UserError::Lookup { name: "web".into(), source }.class(), Class::Fatal);
        assert_eq!(find("no such user").unwrap_err().class(), Class::Fatal);
    }
}
