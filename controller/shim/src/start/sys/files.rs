//! System calls on descriptors: files, directories, pipes, poll.
//!
//! In: descriptors, names, buffers. Out: the result or an errno. See `sys`.

use super::*;

pub(in crate::start) fn openat(dir: Fd, path: &CStr, flags: u32, mode: u32) -> Result<Fd> {
    kernel!(OPENAT, dir, path.as_ptr(), flags | O_CLOEXEC, mode).map(|fd| fd as Fd)
}

pub(in crate::start) fn close(fd: Fd) {
    if fd >= 0 {
        let _: Result<usize> = kernel!(CLOSE, fd);
    }
}

/// Closes every descriptor from `first` on.
pub(in crate::start) fn close_from(first: Fd) {
    close_range(first, Fd::MAX);
}

/// Closes every descriptor but the standard ones and `kept`, which may be none.
pub(in crate::start) fn close_all_but(kept: Fd) {
    const FIRST: Fd = 3;
    if kept > FIRST {
        close_range(FIRST, kept - 1);
    }
    close_from(FIRST.max(kept + 1));
}

fn close_range(first: Fd, last: Fd) {
    let all: Result<usize> = kernel!(CLOSE_RANGE, first, last, 0);
    if all.is_err() {
        for fd in first..=last.min(1023) {
            close(fd);
        }
    }
}

pub(in crate::start) fn read(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    kernel!(READ, fd, buffer.as_mut_ptr(), buffer.len())
}

pub(in crate::start) fn write(fd: Fd, bytes: &[u8]) -> Result<usize> {
    kernel!(WRITE, fd, bytes.as_ptr(), bytes.len())
}

pub(in crate::start) fn pwrite(fd: Fd, bytes: &[u8], offset: u64) -> Result<usize> {
    kernel!(PWRITE64, fd, bytes.as_ptr(), bytes.len(), offset)
}

pub(in crate::start) fn truncate(fd: Fd) {
    let _: Result<usize> = kernel!(FTRUNCATE, fd, 0);
}

pub(in crate::start) fn unlinkat(dir: Fd, name: &CStr) {
    let _: Result<usize> = kernel!(UNLINKAT, dir, name.as_ptr(), 0);
}

pub(in crate::start) fn getdents(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    kernel!(GETDENTS64, fd, buffer.as_mut_ptr(), buffer.len())
}

/// The result of [`stat`].
#[derive(Clone, Copy)]
pub(in crate::start) struct Stat {
    pub(in crate::start) is_file: bool,
    pub(in crate::start) links: u32,
    pub(in crate::start) size: u64,
    pub(in crate::start) inode: u64,
}

pub(in crate::start) fn stat(fd: Fd) -> Result<Stat> {
    const AT_EMPTY_PATH: u32 = 0x1000;
    statx(fd, c"", AT_EMPTY_PATH)
}

/// Like [`stat`], of what has this name in a directory. Links are not followed.
pub(in crate::start) fn stat_name(dir: Fd, name: &CStr) -> Result<Stat> {
    const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
    statx(dir, name, AT_SYMLINK_NOFOLLOW)
}

fn statx(fd: Fd, name: &CStr, flags: u32) -> Result<Stat> {
    const BASIC: u32 = 0x7ff;
    let mut words = [0_u64; 32];
    kernel!(STATX, fd, name.as_ptr(), flags, BASIC, words.as_mut_ptr(), 0)?;
    // struct statx: nlink at byte 16, mode at byte 28, inode at byte 32, size at byte 40.
    let links = words[2] as u32;
    let mode = (words[3] >> 32) as u16;
    Ok(Stat { is_file: mode & 0o170_000 == 0o100_000, links, size: words[5], inode: words[4] })
}

/// Creates a pipe: read end, write end.
pub(in crate::start) fn pipe() -> Result<(Fd, Fd)> {
    let mut ends: [Fd; 2] = [-1; 2];
    kernel!(PIPE2, ends.as_mut_ptr(), O_CLOEXEC)?;
    Ok((ends[0], ends[1]))
}

/// Copies a descriptor to another number, without close-on-exec. They may be equal only if it already lacks that flag.
pub(in crate::start) fn dup_to(from: Fd, to: Fd) -> Result<()> {
    kernel!(DUP3, from, to, 0).map(|_| ())
}

/// Sets close-on-exec.
pub(in crate::start) fn keep_private(fd: Fd) -> Result<()> {
    const F_SETFD: u32 = 2;
    const FD_CLOEXEC: u32 = 1;
    kernel!(FCNTL, fd, F_SETFD, FD_CLOEXEC).map(|_| ())
}

/// Sets the capacity of a pipe; a user limit may forbid a larger one.
pub(in crate::start) fn resize_pipe(pipe: Fd, len: usize) {
    const F_SETPIPE_SZ: u32 = 1031;
    let _: Result<usize> = kernel!(FCNTL, pipe, F_SETPIPE_SZ, len);
}

/// The number of bytes in a pipe.
pub(in crate::start) fn waiting_bytes(pipe: Fd) -> u32 {
    const FIONREAD: u32 = 0x541b;
    let mut len: u32 = 0;
    let _: Result<usize> = kernel!(IOCTL, pipe, FIONREAD, &raw mut len);
    len
}

/// Moves the contents of a pipe into another file without reading them; never blocks.
pub(in crate::start) fn splice(from: Fd, to: Fd, len: usize) -> Result<usize> {
    const SPLICE_F_NONBLOCK: u32 = 2;
    kernel!(SPLICE, from, 0, to, 0, len, SPLICE_F_NONBLOCK)
}

/// Moves the contents of a pipe into a file at an offset, without copying them through our memory; waits for the disk.
pub(in crate::start) fn splice_to(from: Fd, to: Fd, mut offset: u64, len: usize) -> Result<usize> {
    kernel!(SPLICE, from, 0, to, &raw mut offset, len, 0)
}

/// One entry of poll(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::start) struct PollFd {
    pub(in crate::start) fd: Fd,
    pub(in crate::start) events: i16,
    pub(in crate::start) revents: i16,
}

/// Waits for events, without a timeout indefinitely. Returns the number of entries with events.
pub(in crate::start) fn poll(fds: &mut [PollFd], timeout_ms: Option<u64>) -> Result<usize> {
    let time = timeout_ms.map(Time::of_ms);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    kernel!(PPOLL, fds.as_mut_ptr(), fds.len(), time, 0)
}

/// Makes the terminal at `fd` the controlling terminal of the session.
pub(in crate::start) fn take_terminal(fd: Fd) -> Result<()> {
    const TIOCSCTTY: u32 = 0x540e;
    kernel!(IOCTL, fd, TIOCSCTTY, 0).map(|_| ())
}
