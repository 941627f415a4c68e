//! Moves files between directories, also across file systems.
//!
//! A file appears under its final name by a rename, so it is complete or absent. Across file systems it is first copied
//! to a draft in the target directory; the next draft replaces one left by a crash. A moved file may itself have a
//! draft's name: drafts are recognized by their mode.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::fd::AsFd as _,
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid},
    io::Errno,
};

use super::{Dir, FsError, check_name, set_rights};
use crate::safe_fs::Rights;

/// The name of a draft; further drafts append a number.
const DRAFT: &str = ".herdlet.new";
/// More than any moved directory has files with draft names.
const DRAFTS_MAX: usize = 64;
/// The mode of an incomplete file. The sticky bit has no meaning for files (inode(7)), and nobody else sets it.
const UNFINISHED: u32 = 0o1600;

impl Dir {
    /// Moves the file or link `from` in it to `to` in another directory, as [`Dir::rename_into`], also to another file
    /// system.
    ///
    /// # Errors
    ///
    /// If `from` does not exist or is neither file nor link, `to` is a directory, or a system call fails.
    pub fn move_file(&self, from: &OsStr, other: &Self, to: &OsStr) -> Result<(), FsError> {
        match self.rename_into(from, other, to) {
            Err(error) if error.is_across() => {}
            renamed => return renamed,
        }
        let draft = other.draft()?;
        let copied = self.copy(from, other, &draft).and_then(|()| {
            other.rename(&draft, to)?;
            self.unlink(from)
        });
        if copied.is_err() {
            other.unlink(&draft)?;
        }
        copied
    }

    /// Returns a free name for a draft, removing an incomplete draft if it has the name.
    fn draft(&self) -> Result<OsString, FsError> {
        for count in 0..DRAFTS_MAX {
            let name = match count {
                0 => OsString::from(DRAFT),
                count => OsString::from(format!("{DRAFT}.{count}")),
            };
            match self.stat_name(&name)? {
                None => return Ok(name),
                Some(stat) if is_unfinished(&stat) => return self.unlink(&name).map(|()| name),
                Some(_) => {}
            }
        }
        Err(FsError::io("create", self.path.join(DRAFT), Errno::EXIST))
    }

    /// Creates the draft in `other`.
    fn copy(&self, from: &OsStr, other: &Self, draft: &OsStr) -> Result<(), FsError> {
        check_name(from)?;
        let full_path = self.path.join(from);
        let not_there = || FsError::io("copy", &full_path, Errno::NOENT);
        let stat = self.stat_name(from)?.ok_or_else(not_there)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            let target = self.read_link(from)?.ok_or_else(not_there)?;
            other.link(draft, &target)?;
            return other.give_link(draft, (stat.st_uid, stat.st_gid));
        }
        let mut source = self.open_file(from)?.ok_or_else(not_there)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(other, draft, flags, Mode::from_raw_mode(UNFINISHED));
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

    /// Changes the owner of the new link `name`. Others may write to the directory: a replacement, or another hard link
    /// of a different link, keeps its owner.
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

fn is_unfinished(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_mode & 0o7777 == UNFINISHED
}
