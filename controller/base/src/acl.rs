//! Access control lists of files and directories (POSIX.1e, `acl(5)`), read from and written to open descriptors.
//!
//! In: a descriptor. Out: a typed [`Acl`]; without named entries it is equivalent to the file's mode. A file system
//! without lists gives [`AclError::Unsupported`]; only the mode applies there, see [`Acl::from_mode`]. All calls block.
//! This module does not know what the files are for.
//!
//! The kernel passes a list as the extended attribute `system.posix_acl_access`: a version, then entries of a tag, permissions
//! and an id, little-endian, sorted by tag and id (`include/uapi/linux/posix_acl_xattr.h`).

use std::{
    fmt, io,
    ops::BitAnd,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
};

use rustix::{
    fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat, getxattr},
    io::Errno,
};

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    pub owner: Perm,
    /// Named users by id.
    pub users: Vec<(u32, Perm)>,
    /// The owning group.
    pub group: Perm,
    /// Named groups by id.
    pub groups: Vec<(u32, Perm)>,
    /// Upper bound for named users, named groups and the owning group. Present whenever a user or group is named.
    pub mask: Option<Perm>,
    pub other: Perm,
}

/// Permissions of one entry: any of reading, writing and executing (searching, where it is a directory).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Perm(u8);

/// Who may write, besides the owner and root, after the mask is applied.
///
/// Group members are not resolved here. A named user has exactly the rights of its entry, regardless of its groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writers {
    pub users: Vec<u32>,
    pub group: bool,
    pub groups: Vec<u32>,
    pub other: bool,
}

/// Errors when reading or writing a list. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum AclError {
    /// The file system has no access control lists.
    #[error("use access control lists: the file system has none")]
    Unsupported,
    #[error("{operation} access control list")]
    Io { operation: &'static str, source: io::Error },
    /// Not version 2, or an entry that every list has is missing.
    #[error("read access control list: it is malformed")]
    Malformed,
}

impl AclError {
    /// Converts to the equivalent system error.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Unsupported => Errno::OPNOTSUPP.into(),
            Self::Io { source, .. } => source,
            Self::Malformed => io::Error::new(io::ErrorKind::InvalidData, self),
        }
    }
}

impl Perm {
    /// No permissions.
    pub const NONE: Self = Self(0);
    /// Search only.
    pub const EXECUTE: Self = Self(1);
    /// Read and search.
    pub const READ_EXECUTE: Self = Self(5);
    /// Read, write and execute.
    pub const ALL: Self = Self(7);

    /// From the lowest three bits of a mode.
    pub const fn from_bits(bits: u32) -> Self {
        Self((bits & 7).to_le_bytes()[0])
    }

    /// As the lowest three bits of a mode.
    pub fn bits(self) -> u32 {
        u32::from(self.0)
    }

    pub const fn reads(self) -> bool {
        self.0 & 4 != 0
    }

    pub const fn writes(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether executing or searching is permitted.
    pub const fn executes(self) -> bool {
        self.0 & 1 != 0
    }
}

impl BitAnd for Perm {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for Perm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |is_set, letter| if is_set { letter } else { '-' };
        write!(f, "{}{}{}", show(self.reads(), 'r'), show(self.writes(), 'w'), show(self.executes(), 'x'))
    }
}

impl Acl {
    /// The list equivalent to a mode, without named entries.
    pub const fn from_mode(mode: u32) -> Self {
        Self {
            owner: Perm::from_bits(mode >> 6),
            users: Vec::new(),
            group: Perm::from_bits(mode >> 3),
            groups: Vec::new(),
            mask: None,
            other: Perm::from_bits(mode),
        }
    }

    /// A list that gives nothing to the group and others; each of `users` gets the permissions paired with it.
    pub fn of_users(owner: Perm, users: impl IntoIterator<Item = (u32, Perm)>) -> Self {
        let mut acl = Self { owner, users: users.into_iter().collect(), ..Self::from_mode(0) };
        acl.users.sort_unstable();
        acl.users.dedup_by_key(|(uid, _)| *uid);
        if !acl.users.is_empty() {
            acl.mask = Some(Perm(acl.users.iter().fold(0, |bits, (_, perm)| bits | perm.0)));
        }
        acl
    }

    /// Reads the list of an open file or directory; `O_PATH` descriptors work too.
    ///
    /// # Errors
    /// [`AclError::Unsupported`] if the file system has no lists; otherwise if reading fails.
    pub fn read(file: impl AsFd) -> Result<Self, AclError> {
        let fd = file.as_fd();
        // Most lists fit; an attribute can have up to 64 KiB.
        let mut small = [0_u8; 256];
        match get(fd, &mut small) {
            Ok(len) => Self::decode(small.get(..len).unwrap_or_default()),
            Err(Errno::RANGE) => {
                let mut large = vec![0_u8; XATTR_BYTES_MAX];
                let len = get(fd, &mut large).map_err(|errno| error("read", errno))?;
                Self::decode(large.get(..len).unwrap_or_default())
            }
            // No list is set: only the mode applies.
            Err(Errno::NODATA) => {
                let stat = fstat(fd).map_err(|errno| error("read", errno))?;
                Ok(Self::from_mode(stat.st_mode))
            }
            Err(errno) => Err(error("read", errno)),
        }
    }

    /// Sets the list of an open file or directory in one step. The mode then shows the owner's permissions, the mask in
    /// place of the group's, and the others'. Set-id and sticky bits are unchanged.
    ///
    /// # Errors
    /// [`AclError::Unsupported`] if the file system has no lists; otherwise if the system call fails.
    pub fn write(&self, file: impl AsFd) -> Result<(), AclError> {
        fsetxattr(file.as_fd(), NAME, &self.encode(), XattrFlags::empty())
            .map_err(|errno| error("write", errno))
    }

    /// Whether a directory has a default list, which new entries inherit.
    ///
    /// # Errors
    /// If it can't be read. A file system without lists gives `false`.
    pub fn has_default(dir: impl AsFd) -> Result<bool, AclError> {
        let mut nothing: [u8; 0] = [];
        match fgetxattr(dir, DEFAULT_NAME, &mut nothing) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(error("read", errno)),
        }
    }

    /// Sets this list as the default list of a directory.
    #[cfg(any(test, feature = "fixture"))]
    pub fn write_default(&self, dir: impl AsFd) -> Result<(), AclError> {
        let written = fsetxattr(dir.as_fd(), DEFAULT_NAME, &self.encode(), XattrFlags::empty());
        written.map_err(|errno| error("write", errno))
    }

    /// Removes the default list of a directory. Existing entries are unchanged.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn remove_default(dir: impl AsFd) -> Result<(), AclError> {
        match fremovexattr(dir, DEFAULT_NAME) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(error("remove", errno)),
        }
    }

    /// The permission bits in the mode of a file with this list.
    pub fn mode(&self) -> u32 {
        (self.owner.bits() << 6) | (self.mask.unwrap_or(self.group).bits() << 3) | self.other.bits()
    }

    /// Who may write besides the owner and root.
    pub fn writers(&self) -> Writers {
        let mask = self.mask.unwrap_or(Perm::ALL);
        let writing = |entries: &[(u32, Perm)]| {
            entries.iter().filter(|(_, perm)| (*perm & mask).writes()).map(|(id, _)| *id).collect()
        };
        Writers {
            users: writing(&self.users),
            group: (self.group & mask).writes(),
            groups: writing(&self.groups),
            other: self.other.writes(),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, AclError> {
        let (version, entries) = bytes.split_at_checked(4).ok_or(AclError::Malformed)?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if version != VERSION.to_le_bytes() || !rest.is_empty() {
            return Err(AclError::Malformed);
        }
        let (mut owner, mut group, mut other) = (None, None, None);
        let mut acl = Self::from_mode(0);
        for [tag, tag_high, bits, bits_high, id @ ..] in entries {
            let perm = Perm(u16::from_le_bytes([*bits, *bits_high]).to_le_bytes()[0] & 7);
            let id = u32::from_le_bytes(*id);
            match u16::from_le_bytes([*tag, *tag_high]) {
                USER_OBJ => owner = Some(perm),
                USER => acl.users.push((id, perm)),
                GROUP_OBJ => group = Some(perm),
                GROUP => acl.groups.push((id, perm)),
                MASK => acl.mask = Some(perm),
                OTHER => other = Some(perm),
                _ => return Err(AclError::Malformed),
            }
        }
        let (Some(owner), Some(group), Some(other)) = (owner, group, other) else {
            return Err(AclError::Malformed);
        };
        Ok(Self { owner, group, other, ..acl })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut put = |tag: u16, perm: Perm, id: u32| {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(perm.0).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        };
        put(USER_OBJ, self.owner, NO_ID);
        for (uid, perm) in &self.users {
            put(USER, *perm, *uid);
        }
        put(GROUP_OBJ, self.group, NO_ID);
        for (gid, perm) in &self.groups {
            put(GROUP, *perm, *gid);
        }
        if let Some(mask) = self.mask {
            put(MASK, mask, NO_ID);
        }
        put(OTHER, self.other, NO_ID);
        bytes
    }
}

const NAME: &std::ffi::CStr = c"system.posix_acl_access";
const DEFAULT_NAME: &std::ffi::CStr = c"system.posix_acl_default";
const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// `XATTR_SIZE_MAX` in the kernel.
const XATTR_BYTES_MAX: usize = 64 * 1024;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Id of an entry without a user or group.
const NO_ID: u32 = u32::MAX;

fn get(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    match fgetxattr(fd, NAME, &mut *into) {
        // `O_PATH` descriptors have no attribute calls; the `/proc` path resolves to the same file.
        Err(Errno::BADF) => getxattr(format!("/proc/self/fd/{}", fd.as_raw_fd()), NAME, into),
        got => got,
    }
}

fn error(operation: &'static str, errno: Errno) -> AclError {
    // ENOTSUP has the same value.
    if errno == Errno::OPNOTSUPP {
        return AclError::Unsupported;
    }
    AclError::Io { operation, source: errno.into() }
}

#[cfg(test)]
mod tests;
