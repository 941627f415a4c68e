//! Mounts that only a process in the task's namespaces can make: /proc and the message queues.
//!
//! In: the spec; the calling process is in the task's pid, ipc and mount namespaces, as their only one. Out: mounts at /proc
//! and /dev/mqueue, or an errno. The task may have written to its root before: no link is followed.

use super::sys::{self, Errno, Fd, Writes};
use crate::record::Step;
use crate::spec::{SETTING_PATH_LEN_MAX, Spec};
use core::ffi::CStr;

/// Where settings are below /proc.
const BEGIN: &[u8] = b"sys/";

/// Mounts /proc, and writes settings of the task's namespaces. `null` is a copy of the mount of /dev/null, in no place yet.
pub(super) fn mount_proc(spec: &Spec<'_>, null: Fd) -> Result<(), (Step, Errno)> {
    let proc = mount_at(c"proc", c"/proc", Writes::Allowed).map_err(|errno| (Step::Proc, errno))?;
    for (path, value) in spec.settings() {
        set(proc, path, value).map_err(|errno| (Step::Setting, errno))?;
    }
    let done = cover(proc, spec, null).map_err(|errno| (Step::Proc, errno));
    sys::close(proc);
    done
}

/// Writes a setting, before /proc/sys is read-only.
fn set(proc: Fd, path: &[u8], value: &[u8]) -> sys::Result<()> {
    // With its begin, and a zero at the end.
    let mut whole = [0_u8; BEGIN.len() + SETTING_PATH_LEN_MAX + 1];
    for (to, from) in whole.iter_mut().zip(BEGIN.iter().chain(path)) {
        *to = *from;
    }
    let path = CStr::from_bytes_until_nul(&whole).map_err(|_| sys::EINVAL)?;
    let file = sys::openat(proc, path, sys::O_WRONLY | sys::O_NOFOLLOW, 0)?;
    let done = sys::write(file, value);
    sys::close(file);
    done.map(|_| ())
}

/// Makes parts of /proc read-only, and hides others.
fn cover(proc: Fd, spec: &Spec<'_>, null: Fd) -> sys::Result<()> {
    for path in spec.read_only_proc() {
        skip_missing(make_read_only(proc, path))?;
    }
    let mut null = Null { at: null, name: c"" };
    for path in spec.masked_proc() {
        skip_missing(null.hide(proc, path))?;
    }
    Ok(())
}

/// Mounts the message queues.
pub(super) fn mount_message_queues() -> sys::Result<()> {
    mount_at(c"mqueue", c"/dev/mqueue", Writes::Allowed).map(sys::close)
}

/// Mounts the v2 cgroups. A kernel without them has none to show.
pub(super) fn mount_cgroups(writes: Writes) -> sys::Result<()> {
    match mount_at(c"cgroup2", c"/sys/fs/cgroup", writes) {
        Err(sys::ENODEV | sys::ENOENT) => Ok(()),
        done => done.map(sys::close),
    }
}

/// Mounts a new file system of a kind on a directory; returns the mount.
fn mount_at(kind: &CStr, path: &CStr, writes: Writes) -> sys::Result<Fd> {
    let mount = sys::new_mount(kind, writes)?;
    let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;
    let place = sys::openat(sys::AT_FDCWD, path, flags, 0)?;
    let done = sys::place_mount(mount, place, c"");
    sys::close(place);
    done.map(|()| mount)
}

fn make_read_only(proc: Fd, path: &CStr) -> sys::Result<()> {
    let copy = sys::copy_mount(proc, path)?;
    let done = sys::make_read_only(copy).and_then(|()| sys::place_mount(copy, proc, path));
    sys::close(copy);
    done
}

/// Where /dev/null can be found: first the mount that was handed over, then the last path that it hides. A mount in no
/// place can't be copied.
struct Null<'a> {
    at: Fd,
    name: &'a CStr,
}

impl<'a> Null<'a> {
    fn hide(&mut self, proc: Fd, path: &'a CStr) -> sys::Result<()> {
        let cover = match kind_of(proc, path)? {
            Kind::Directory => sys::new_mount(c"tmpfs", Writes::Refused)?,
            Kind::File if self.name.is_empty() => self.at,
            Kind::File => sys::copy_mount(self.at, self.name)?,
        };
        let done = sys::place_mount(cover, proc, path);
        if done.is_ok() && cover == self.at {
            *self = Self { at: proc, name: path };
        }
        sys::close(cover);
        done
    }
}

enum Kind {
    Directory,
    File,
}

fn kind_of(proc: Fd, path: &CStr) -> sys::Result<Kind> {
    match sys::openat(proc, path, sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW, 0) {
        Ok(fd) => {
            sys::close(fd);
            Ok(Kind::Directory)
        }
        Err(sys::ENOTDIR) => Ok(Kind::File),
        Err(errno) => Err(errno),
    }
}

/// Not every kernel has every file.
fn skip_missing(done: Result<(), Errno>) -> sys::Result<()> {
    match done {
        Err(sys::ENOENT) => Ok(()),
        done => done,
    }
}
