//! Removes a tree that another process may be writing to: follows no link, enters no mount, and keeps few files open
//! however deep the tree is.
//!
//! Each directory is closed to all other users when it is entered, including those who hold it open: from then on only
//! root can add to it. If names are added elsewhere faster than they are removed, the removal fails with an error and
//! the next try continues it.

use std::{
    ffi::{CStr, CString, OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Access, AtFlags, Mode, OFlags, accessat},
    io::Errno,
};

use super::{Crossing, DIRECTORY, Dir, FsError, openat2};

/// Directories open at a time. Deeper ones are moved up first: a task can nest deeper than our file limit.
const DEPTH_MAX: usize = 32;

/// Limit for emptying a directory again that others keep filling.
const ROUNDS_MAX: u32 = 16;

/// Time limit of one call: a tree that is larger, or on a slow disk, is continued by the next one.
const TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Interval for progress reports of a long removal.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Names removed between readings of the clock: milliseconds on an ordinary disk.
const NAMES_BETWEEN: u64 = 64;

/// Removes `name` in `parent`.
pub(super) fn tree(parent: &Dir, name: &OsStr) -> Result<(), FsError> {
    tree_within(parent, name, TIME_MAX)
}

/// As [`tree`] with a time limit; removes at least [`NAMES_BETWEEN`] names.
pub(super) fn tree_within(parent: &Dir, name: &OsStr, time: Duration) -> Result<(), FsError> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(refused(&parent.path.join(name), errno)),
    }
    let mut progress = Progress::begin(time);
    for _ in 0..ROUNDS_MAX {
        let Some(top) = enter(parent, name)? else { return Ok(()) };
        clear(&top, &mut progress)?;
        drop(top);
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY) => {}
            Err(errno) => return Err(refused(&parent.path.join(name), errno)),
        }
    }
    Err(FsError::Busy { path: parent.path.join(name) })
}

/// Progress of a removal.
struct Progress {
    removed: u64,
    reported: Instant,
    end: Instant,
    is_over: bool,
}

impl Progress {
    fn begin(time: Duration) -> Self {
        let now = Instant::now();
        Self { removed: 0, reported: now, end: now + time, is_over: false }
    }

    /// Counts one name; false if the time is over.
    fn count(&mut self, dir: &Dir) -> bool {
        self.removed += 1;
        if self.removed.is_multiple_of(NAMES_BETWEEN) {
            let now = Instant::now();
            if now.duration_since(self.reported) >= REPORT_EVERY {
                self.reported = now;
                tracing::info!(path = %dir.path.display(), removed = self.removed, "removing a large directory");
            }
            self.is_over |= now >= self.end;
        }
        !self.is_over
    }
}

/// Empties `top`, depth first.
fn clear(top: &Dir, progress: &mut Progress) -> Result<(), FsError> {
    let mut levels: Vec<(Dir, OsString)> = Vec::new();
    let mut moved = 0_u64;
    let mut refilled = 0_u32;
    loop {
        let current = levels.last().map_or(top, |(dir, _)| dir);
        let first = first_directory(current, progress)?;
        if progress.is_over {
            return Err(FsError::Busy { path: top.path.clone() });
        }
        match first {
            Some(name) if levels.len() < DEPTH_MAX => {
                let name = OsStr::from_bytes(name.to_bytes()).to_owned();
                if let Some(dir) = enter(current, &name)? {
                    levels.push((dir, name));
                }
            }
            Some(name) => {
                let unique = format!(".herdlet-removing-{}-{moved}", std::process::id());
                moved += 1;
                match rustix::fs::renameat(current, name.as_c_str(), top, unique.as_str()) {
                    Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                    Err(errno) => {
                        return Err(refused(&current.path.join(OsStr::from_bytes(name.to_bytes())), errno));
                    }
                }
            }
            None => {
                let Some((dir, name)) = levels.pop() else { return Ok(()) };
                drop(dir);
                let above = levels.last().map_or(top, |(dir, _)| dir);
                match rustix::fs::unlinkat(above, &name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => drop(progress.count(above)),
                    Err(Errno::NOTEMPTY) => {
                        refilled += 1;
                        if refilled > ROUNDS_MAX {
                            return Err(FsError::Busy { path: above.path.join(&name) });
                        }
                    }
                    Err(errno) => return Err(refused(&above.path.join(&name), errno)),
                }
            }
        }
    }
}

/// Unlinks non-directories until it finds a directory, and returns that.
fn first_directory(dir: &Dir, progress: &mut Progress) -> Result<Option<CString>, FsError> {
    let mut found = None;
    let mut failure = None;
    dir.each_name(|name| match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => progress.count(dir),
        Err(Errno::ISDIR) => {
            found = Some(name.to_owned());
            false
        }
        Err(errno) => {
            failure = Some(refused(&dir.path.join(os(name)), errno));
            false
        }
    })?;
    failure.map_or(Ok(found), Err)
}

/// Opens a directory for emptying; `None` if it is gone or no longer a directory.
fn enter(parent: &Dir, name: &OsStr) -> Result<Option<Dir>, FsError> {
    let path = parent.path.join(name);
    let open = || openat2(super::AsFd::as_fd(parent), Path::new(name), DIRECTORY, Crossing::Nothing);
    let opened = match open() {
        // Our own, but closed to ourselves: a task may have done that.
        Err(Errno::ACCESS) => {
            unlock(parent, name).map_err(|errno| refused(&path, errno))?;
            open()
        }
        opened => opened,
    };
    match opened {
        Ok(fd) => {
            // If this is refused, removing a file is refused too and reports it.
            let _ = close_to_others(&fd);
            Ok(Some(Dir { fd, path }))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(Errno::XDEV) => Err(FsError::Mounted { path }),
        Err(errno) => Err(refused(&path, errno)),
    }
}

/// Takes ownership of a directory and revokes all rights of others: of its owner, who could restore them, and of every
/// user in an access control list, whose mask is the mode's group bits. Owner write permission is also required for
/// removing files from it.
pub(super) fn close_to_others(fd: &OwnedFd) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let is_ours = stat.st_uid == uid.as_raw() || rustix::fs::fchown(fd, Some(uid), Some(gid)).is_ok();
    if stat.st_mode & 0o777 != Mode::RWXU.as_raw_mode() {
        rustix::fs::fchmod(fd, Mode::RWXU)?;
    }
    // Without the right to change owners it may now be closed to us too.
    let needed = Access::WRITE_OK | Access::EXEC_OK;
    if !is_ours && accessat(fd, c".", needed, AtFlags::EACCESS).is_err() {
        rustix::fs::fchmod(fd, Mode::from_raw_mode(stat.st_mode))?;
    }
    Ok(())
}

/// Gives its owner access to a directory that can't be opened.
fn unlock(parent: &Dir, name: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat2(super::AsFd::as_fd(parent), Path::new(name), flags, Crossing::Nothing)?;
    rustix::fs::chmod(super::proc_path(super::AsFd::as_fd(&fd), None), Mode::RWXU)
}

fn os(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

fn refused(path: &Path, errno: Errno) -> FsError {
    match errno {
        Errno::BUSY | Errno::XDEV => FsError::Mounted { path: path.to_owned() },
        _ => FsError::io("remove", path, errno),
    }
}
