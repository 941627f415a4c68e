//! Moving files from one directory to another, also across file systems.
//!
//! Each comes to its place by a rename, so that it is whole or not there. Across file systems it is copied to a draft beside its place
//! first; a draft that a crash left is replaced by the next one.

use std::{ffi::OsStr, fs::File, io, os::fd::AsFd as _};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid},
    io::Errno,
};

use super::{Dir, FsError, check_name, set_rights};
use crate::safe_fs::Rights;

/// What is copied gets this name first.
const DRAFT: &str = ".herdlet.new";

impl Dir {
    /// Moves the file or link `from` in it to `to` in another one, as [`Dir::rename_into`], also to another file system.
    ///
    /// # Errors
    ///
    /// When `from` is not there or neither file nor link, a directory stands at `to`, or the system refuses.
    pub fn move_file(&self, from: &OsStr, other: &Self, to: &OsStr) -> Result<(), FsError> {
        match self.rename_into(from, other, to) {
            Err(error) if error.is_across() => {}
            renamed => return renamed,
        }
        let copied = self.copy(from, other).and_then(|()| {
            other.rename(OsStr::new(DRAFT), to)?;
            self.unlink(from)
        });
        if copied.is_err() {
            other.unlink(OsStr::new(DRAFT))?;
        }
        copied
    }

    /// Makes the draft in `other`.
    fn copy(&self, from: &OsStr, other: &Self) -> Result<(), FsError> {
        check_name(from)?;
        let draft = OsStr::new(DRAFT);
        // A directory would be a user's: it stays, and this fails.
        other.unlink(draft)?;
        let here = self.path.join(from);
        let not_there = || FsError::io("copy", &here, Errno::NOENT);
        let stat = self.stat_name(from)?.ok_or_else(not_there)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            let target = self.read_link(from)?.ok_or_else(not_there)?;
            other.link(draft, &target)?;
            return other.give_link(draft, (stat.st_uid, stat.st_gid));
        }
        let mut source = self.open_file(from)?.ok_or_else(not_there)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(other, draft, flags, Mode::from_raw_mode(0o600));
        let mut copy =
            File::from(copy.map_err(|errno| FsError::io("create", other.path.join(draft), errno))?);
        let refused = |error: io::Error| FsError::io("write", other.path.join(draft), error);
        io::copy(&mut source, &mut copy).map_err(refused)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec.cast_signed() },
            last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() },
        };
        rustix::fs::futimens(&copy, &times).map_err(|errno| refused(errno.into()))?;
        let rights = Rights::Exact { mode: stat.st_mode & 0o7777, owner: Some((stat.st_uid, stat.st_gid)) };
        set_rights(copy.as_fd(), &other.path, rights)
    }

    /// Gives the link `name` that was just made to somebody. Others may write to the directory: what they have put in its place, or a second
    /// name of another link, stays whose it is.
    fn give_link(&self, name: &OsStr, (uid, gid): (u32, u32)) -> Result<(), FsError> {
        let refused = |errno| FsError::io("change the owner of", self.path.join(name), errno);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = rustix::fs::openat(self, name, flags, Mode::empty()).map_err(refused)?;
        let stat = rustix::fs::fstat(&link).map_err(refused)?;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if !is_link || stat.st_nlink != 1 || stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused(Errno::STALE));
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(&link, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(refused)
    }
}
