//! System calls, one thin function each, for x86_64 and aarch64.
//!
//! In: Rust types. Out: the result or an errno. It knows nothing of tasks; whoever wants another call adds its number for
//! both machines. Only calls that exist on both are used (`openat`, never `open`).

use core::arch::asm;
use core::ffi::{CStr, c_void};

/// A Linux error number.
pub(super) type Errno = u16;
/// A result of the kernel.
pub(super) type Result<T> = core::result::Result<T, Errno>;
/// A file descriptor.
pub(super) type Fd = i32;

pub(super) const EPERM: Errno = 1;
pub(super) const ENOENT: Errno = 2;
pub(super) const EINTR: Errno = 4;
pub(super) const ECHILD: Errno = 10;
pub(super) const EACCES: Errno = 13;
pub(super) const EEXIST: Errno = 17;
pub(super) const EINVAL: Errno = 22;
pub(super) const ENOSYS: Errno = 38;

pub(super) const O_RDONLY: u32 = 0;
pub(super) const O_WRONLY: u32 = 1;
pub(super) const O_CREAT: u32 = 0o100;
pub(super) const O_EXCL: u32 = 0o200;
pub(super) const O_APPEND: u32 = 0o2000;
pub(super) const O_NONBLOCK: u32 = 0o4000;
pub(super) const O_CLOEXEC: u32 = 0o2_000_000;
#[cfg(target_arch = "x86_64")]
pub(super) const O_DIRECTORY: u32 = 0o200_000;
#[cfg(target_arch = "x86_64")]
pub(super) const O_NOFOLLOW: u32 = 0o400_000;
#[cfg(target_arch = "aarch64")]
pub(super) const O_DIRECTORY: u32 = 0o40_000;
#[cfg(target_arch = "aarch64")]
pub(super) const O_NOFOLLOW: u32 = 0o100_000;

pub(super) const AT_FDCWD: Fd = -100;
pub(super) const SIGKILL: u32 = 9;
pub(super) const SIGUSR1: u32 = 10;
pub(super) const SIGALRM: u32 = 14;
pub(super) const SIGCHLD: u32 = 17;
pub(super) const POLLIN: i16 = 1;

macro_rules! numbers {
    ($($name:ident $x86_64:literal $aarch64:literal;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            const $name: usize = $x86_64;
            #[cfg(target_arch = "aarch64")]
            const $name: usize = $aarch64;
        )*
    };
}

numbers! {
    READ 0 63;
    WRITE 1 64;
    CLOSE 3 57;
    MMAP 9 222;
    MUNMAP 11 215;
    RT_SIGACTION 13 134;
    RT_SIGPROCMASK 14 135;
    IOCTL 16 29;
    FCNTL 72 25;
    PWRITE64 18 68;
    SETITIMER 38 103;
    GETPID 39 172;
    EXECVE 59 221;
    EXIT 60 93;
    WAIT4 61 260;
    KILL 62 129;
    FTRUNCATE 77 46;
    CHDIR 80 49;
    UMASK 95 166;
    SETSID 112 157;
    SETGROUPS 116 159;
    SETRESUID 117 147;
    SETRESGID 119 149;
    PRCTL 157 167;
    FUTEX 202 98;
    GETDENTS64 217 61;
    CLOCK_GETTIME 228 113;
    EXIT_GROUP 231 94;
    TGKILL 234 131;
    OPENAT 257 56;
    UNLINKAT 263 35;
    PPOLL 271 73;
    SPLICE 275 76;
    SIGNALFD4 289 74;
    DUP3 292 24;
    PIPE2 293 59;
    PRLIMIT64 302 261;
    STATX 332 291;
    CLOSE_RANGE 436 436;
}

/// # Safety
/// The arguments must be what the kernel expects of that call.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn call(number: usize, a: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the caller vouches for the arguments; the clobbers are the kernel's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    checked(result)
}

/// # Safety
/// The arguments must be what the kernel expects of that call.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn call(number: usize, a: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    checked(result)
}

fn checked(result: isize) -> Result<usize> {
    if (-4095..0).contains(&result) { Err(-result as Errno) } else { Ok(result as usize) }
}

/// Calls the kernel with up to six word-sized arguments.
macro_rules! kernel {
    ($number:expr) => { kernel!($number, 0) };
    ($number:expr, $a:expr) => { kernel!($number, $a, 0) };
    ($number:expr, $a:expr, $b:expr) => { kernel!($number, $a, $b, 0) };
    ($number:expr, $a:expr, $b:expr, $c:expr) => { kernel!($number, $a, $b, $c, 0) };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr) => { kernel!($number, $a, $b, $c, $d, 0, 0) };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {{
        let arguments = [$a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize];
        // SAFETY: every argument below is a number, or a pointer that comes from a live reference of the right size.
        unsafe { call($number, arguments) }
    }};
}

pub(super) fn openat(dir: Fd, path: &CStr, flags: u32, mode: u32) -> Result<Fd> {
    kernel!(OPENAT, dir, path.as_ptr(), flags | O_CLOEXEC, mode).map(|fd| fd as Fd)
}

pub(super) fn close(fd: Fd) {
    if fd >= 0 {
        let _: Result<usize> = kernel!(CLOSE, fd);
    }
}

/// Closes every descriptor from `first` on.
pub(super) fn close_from(first: Fd) {
    let all: Result<usize> = kernel!(CLOSE_RANGE, first, u32::MAX, 0);
    if all.is_err() {
        for fd in first..1024 {
            close(fd);
        }
    }
}

pub(super) fn read(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    kernel!(READ, fd, buffer.as_mut_ptr(), buffer.len())
}

pub(super) fn write(fd: Fd, bytes: &[u8]) -> Result<usize> {
    kernel!(WRITE, fd, bytes.as_ptr(), bytes.len())
}

pub(super) fn pwrite(fd: Fd, bytes: &[u8], offset: u64) -> Result<usize> {
    kernel!(PWRITE64, fd, bytes.as_ptr(), bytes.len(), offset)
}

pub(super) fn truncate(fd: Fd) {
    let _: Result<usize> = kernel!(FTRUNCATE, fd, 0);
}

pub(super) fn unlinkat(dir: Fd, name: &CStr) {
    let _: Result<usize> = kernel!(UNLINKAT, dir, name.as_ptr(), 0);
}

pub(super) fn getdents(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    kernel!(GETDENTS64, fd, buffer.as_mut_ptr(), buffer.len())
}

/// What [`stat`] tells of a file.
#[derive(Clone, Copy)]
pub(super) struct Stat {
    pub(super) is_file: bool,
    pub(super) links: u32,
    pub(super) size: u64,
}

pub(super) fn stat(fd: Fd) -> Result<Stat> {
    const AT_EMPTY_PATH: u32 = 0x1000;
    const BASIC: u32 = 0x7ff;
    let mut words = [0_u64; 32];
    kernel!(STATX, fd, c"".as_ptr(), AT_EMPTY_PATH, BASIC, words.as_mut_ptr(), 0)?;
    // struct statx: nlink at byte 16, mode at byte 28, size at byte 40.
    let links = words[2] as u32;
    let mode = (words[3] >> 32) as u16;
    Ok(Stat { is_file: mode & 0o170_000 == 0o100_000, links, size: words[5] })
}

/// A pipe: read end, write end.
pub(super) fn pipe() -> Result<(Fd, Fd)> {
    let mut ends: [Fd; 2] = [-1; 2];
    kernel!(PIPE2, ends.as_mut_ptr(), O_CLOEXEC)?;
    Ok((ends[0], ends[1]))
}

/// Copies a descriptor to another number, there without close-on-exec. They may be equal only if it lacks that already.
pub(super) fn dup_to(from: Fd, to: Fd) -> Result<()> {
    kernel!(DUP3, from, to, 0).map(|_| ())
}

/// Copies a descriptor to a free number with close-on-exec.
pub(super) fn dup_private(from: Fd) -> Result<Fd> {
    const F_DUPFD_CLOEXEC: u32 = 1030;
    kernel!(FCNTL, from, F_DUPFD_CLOEXEC, 3).map(|fd| fd as Fd)
}

/// Sets how many bytes a pipe holds; a limit of the user may forbid more than it has.
pub(super) fn resize_pipe(pipe: Fd, len: usize) {
    const F_SETPIPE_SZ: u32 = 1031;
    let _: Result<usize> = kernel!(FCNTL, pipe, F_SETPIPE_SZ, len);
}

/// How many bytes wait in a pipe.
pub(super) fn waiting_bytes(pipe: Fd) -> u32 {
    const FIONREAD: u32 = 0x541b;
    let mut len: u32 = 0;
    let _: Result<usize> = kernel!(IOCTL, pipe, FIONREAD, &raw mut len);
    len
}

/// Moves what waits in a pipe into another file without looking at it; never waits.
pub(super) fn splice(from: Fd, to: Fd, len: usize) -> Result<usize> {
    const SPLICE_F_NONBLOCK: u32 = 2;
    kernel!(SPLICE, from, 0, to, 0, len, SPLICE_F_NONBLOCK)
}

/// One entry of poll(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PollFd {
    pub(super) fd: Fd,
    pub(super) events: i16,
    pub(super) revents: i16,
}

/// Waits; without a timeout until something happens. Returns how many entries have news.
pub(super) fn poll(fds: &mut [PollFd], timeout_ms: Option<u64>) -> Result<usize> {
    let time = timeout_ms.map(Time::of_ms);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    kernel!(PPOLL, fds.as_mut_ptr(), fds.len(), time, 0)
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Time {
    seconds: u64,
    nanoseconds: u64,
}

impl Time {
    fn of_ms(ms: u64) -> Self {
        Self { seconds: ms / 1000, nanoseconds: ms % 1000 * 1_000_000 }
    }
}

/// Wall time in nanoseconds since the Unix epoch.
pub(super) fn now_unix_ns() -> u64 {
    const CLOCK_REALTIME: u32 = 0;
    let mut time = Time::default();
    let _: Result<usize> = kernel!(CLOCK_GETTIME, CLOCK_REALTIME, &raw mut time);
    time.seconds.wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds)
}

/// Blocks (`SIG_BLOCK` of all) or unblocks every signal of the calling thread.
pub(super) fn set_signal_mask(mask: u64) {
    const SIG_SETMASK: u32 = 2;
    let _: Result<usize> = kernel!(RT_SIGPROCMASK, SIG_SETMASK, &raw const mask, 0, 8);
}

/// Gives every signal its default disposition.
pub(super) fn reset_signals() {
    let default = [0_u64; 4];
    for signal in 1..=64 {
        let _: Result<usize> = kernel!(RT_SIGACTION, signal, default.as_ptr(), 0, 8);
    }
}

/// SIGALRM for this process after that time, once.
pub(super) fn set_alarm(after_ms: u32) {
    const ITIMER_REAL: u32 = 0;
    // Interval (seconds, microseconds), then the first time.
    let times = [0_u64, 0, u64::from(after_ms / 1000), u64::from(after_ms % 1000) * 1000];
    let _: Result<usize> = kernel!(SETITIMER, ITIMER_REAL, times.as_ptr(), 0);
}

/// A descriptor that is readable when one of these signals is pending.
pub(super) fn signalfd(signals: &[u32]) -> Result<Fd> {
    let mask: u64 = signals.iter().fold(0, |mask, signal| mask | signal_bit(*signal));
    kernel!(SIGNALFD4, -1_isize, &raw const mask, 8, O_CLOEXEC | O_NONBLOCK).map(|fd| fd as Fd)
}

/// Which signals were pending, as a mask; they no longer are.
pub(super) fn take_signals(signals: Fd) -> u64 {
    const SIGINFO_LEN: usize = 128;
    let mut infos = [0; 4 * SIGINFO_LEN];
    let len = read(signals, &mut infos).unwrap_or(0);
    let taken = infos.get(..len).unwrap_or_default().chunks(SIGINFO_LEN);
    // struct signalfd_siginfo begins with the signal's number.
    taken.filter_map(|info| info.first()).fold(0, |mask, signal| mask | signal_bit(u32::from(*signal).max(1)))
}

/// The bit of a signal in a mask.
pub(super) const fn signal_bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

pub(super) fn kill(pid: i32, signal: u32) {
    let _: Result<usize> = kernel!(KILL, pid, signal);
}

pub(super) fn signal_thread(process: u32, thread: u32, signal: u32) {
    let _: Result<usize> = kernel!(TGKILL, process, thread, signal);
}

pub(super) fn getpid() -> u32 {
    kernel!(GETPID).unwrap_or(0) as u32
}

/// Reaps a child without waiting: its pid and status, or `None` while all of them live.
pub(super) fn reap() -> Result<Option<(u32, u32)>> {
    const WNOHANG_WALL: u32 = 1 | 0x4000_0000;
    let mut status = 0_u32;
    let pid = kernel!(WAIT4, -1_isize, &raw mut status, WNOHANG_WALL, 0)?;
    Ok((pid != 0).then_some((pid as u32, status)))
}

pub(super) fn setsid() -> Result<()> {
    kernel!(SETSID).map(|_| ())
}

/// prctl(2) with one argument.
pub(super) fn prctl(option: u32, argument: usize) -> Result<()> {
    kernel!(PRCTL, option, argument).map(|_| ())
}

pub(super) fn setgroups(groups: &[u32]) -> Result<()> {
    kernel!(SETGROUPS, groups.len(), groups.as_ptr()).map(|_| ())
}

pub(super) fn setgid(gid: u32) -> Result<()> {
    kernel!(SETRESGID, gid, gid, gid).map(|_| ())
}

pub(super) fn setuid(uid: u32) -> Result<()> {
    kernel!(SETRESUID, uid, uid, uid).map(|_| ())
}

pub(super) fn umask(mask: u32) {
    let _: Result<usize> = kernel!(UMASK, mask);
}

/// Soft and hard limit of open files: reads the present ones, and sets new ones if given.
pub(super) fn limit_open_files(new: Option<[u64; 2]>) -> Result<[u64; 2]> {
    const RLIMIT_NOFILE: u32 = 7;
    let mut old = [0_u64; 2];
    let new = new.as_ref().map_or(core::ptr::null(), |pair| pair.as_ptr());
    kernel!(PRLIMIT64, 0, RLIMIT_NOFILE, new, old.as_mut_ptr())?;
    Ok(old)
}

pub(super) fn chdir(path: &CStr) -> Result<()> {
    kernel!(CHDIR, path.as_ptr()).map(|_| ())
}

/// Makes the terminal at `fd` the controlling one of the session.
pub(super) fn take_terminal(fd: Fd) -> Result<()> {
    const TIOCSCTTY: u32 = 0x540e;
    kernel!(IOCTL, fd, TIOCSCTTY, 0).map(|_| ())
}

/// Executes a program; returns only on failure. Both lists end with a null pointer.
pub(super) fn execve(program: &CStr, arguments: &[*const u8], variables: &[*const u8]) -> Errno {
    match kernel!(EXECVE, program.as_ptr(), arguments.as_ptr(), variables.as_ptr()) {
        Ok(_) => 0,
        Err(errno) => errno,
    }
}

/// Ends the calling thread.
pub(super) fn exit_thread() -> ! {
    loop {
        let _: Result<usize> = kernel!(EXIT, 0);
    }
}

/// Ends the process.
pub(super) fn exit(code: u32) -> ! {
    loop {
        let _: Result<usize> = kernel!(EXIT_GROUP, code);
    }
}

/// Fresh zeroed memory that the caller owns.
pub(super) fn map(len: usize) -> Result<&'static mut [u8]> {
    const READ_WRITE: u32 = 3;
    const PRIVATE_ANONYMOUS: u32 = 0x22;
    let at = kernel!(MMAP, 0, len, READ_WRITE, PRIVATE_ANONYMOUS, -1_isize, 0)?;
    // SAFETY: the kernel just gave us this range and nobody else has it.
    Ok(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) })
}

/// A file's first `len` bytes, read only.
pub(super) fn map_file(fd: Fd, len: usize) -> Result<&'static [u8]> {
    let at = kernel!(MMAP, 0, len, 1, 2, fd, 0)?;
    // SAFETY: the kernel just gave us this range; the file is sealed against changes.
    Ok(unsafe { core::slice::from_raw_parts(at as *const u8, len) })
}

/// Gives memory back.
///
/// # Safety
/// Nothing may refer to the range any more.
pub(super) unsafe fn unmap(at: *const u8, len: usize) {
    let _: Result<usize> = kernel!(MUNMAP, at, len);
}

/// Sleeps while the word has this value, at most that long; may wake early.
pub(super) fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32, timeout_ms: Option<u64>) {
    const FUTEX_WAIT: u32 = 0;
    let time = timeout_ms.map(Time::of_ms);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let _: Result<usize> = kernel!(FUTEX, word.as_ptr(), FUTEX_WAIT, value, time, 0, 0);
}

/// Wakes one sleeper.
pub(super) fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    const FUTEX_WAKE: u32 = 1;
    let _: Result<usize> = kernel!(FUTEX, word.as_ptr(), FUTEX_WAKE, 1, 0, 0, 0);
}

/// Address for the kernel of something that lives long enough.
pub(super) fn address<T>(of: &T) -> u64 {
    core::ptr::from_ref(of).cast::<c_void>() as u64
}
