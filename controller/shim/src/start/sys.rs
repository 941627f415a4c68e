//! Thin wrappers for system calls on x86_64 and aarch64.
//!
//! In: Rust types. Out: the result or an errno. A new call needs its number for both machines. Only calls that exist on
//! both are used (`openat`, never `open`). This file has numbers, the call itself, memory and time; `files`,
//! `mounts` and `processes` have the rest.

use core::arch::asm;
use core::ffi::{CStr, c_void};

/// A Linux error number.
pub(super) type Errno = u16;
/// A system call's result.
pub(super) type Result<T> = core::result::Result<T, Errno>;
/// A file descriptor.
pub(super) type Fd = i32;

pub(super) const EPERM: Errno = 1;
pub(super) const ENOENT: Errno = 2;
pub(super) const EINTR: Errno = 4;
pub(super) const ECHILD: Errno = 10;
pub(super) const EACCES: Errno = 13;
pub(super) const EEXIST: Errno = 17;
pub(super) const ENODEV: Errno = 19;
pub(super) const ENOTDIR: Errno = 20;
pub(super) const EINVAL: Errno = 22;
pub(super) const ENOSPC: Errno = 28;
pub(super) const ENOSYS: Errno = 38;

pub(super) const O_RDONLY: u32 = 0;
pub(super) const O_WRONLY: u32 = 1;
pub(super) const O_CREAT: u32 = 0o100;
pub(super) const O_EXCL: u32 = 0o200;
pub(super) const O_NONBLOCK: u32 = 0o4000;
pub(super) const O_CLOEXEC: u32 = 0o2_000_000;
pub(super) const O_PATH: u32 = 0o10_000_000;
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
pub(super) const SIGTERM: u32 = 15;
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
    GETCWD 79 17;
    CHDIR 80 49;
    UMASK 95 166;
    SETSID 112 157;
    SETGROUPS 116 159;
    SETRESUID 117 147;
    SETRESGID 119 149;
    CAPSET 126 91;
    PRCTL 157 167;
    SETHOSTNAME 170 161;
    FUTEX 202 98;
    GETDENTS64 217 61;
    CLOCK_GETTIME 228 113;
    EXIT_GROUP 231 94;
    TGKILL 234 131;
    KEYCTL 250 219;
    OPENAT 257 56;
    UNLINKAT 263 35;
    PPOLL 271 73;
    UNSHARE 272 97;
    SPLICE 275 76;
    SIGNALFD4 289 74;
    DUP3 292 24;
    PIPE2 293 59;
    PRLIMIT64 302 261;
    EXECVEAT 322 281;
    SETNS 308 268;
    STATX 332 291;
    OPEN_TREE 428 428;
    MOVE_MOUNT 429 429;
    FSOPEN 430 430;
    FSCONFIG 431 431;
    FSMOUNT 432 432;
    CLOSE_RANGE 436 436;
    MOUNT_SETATTR 442 442;
}

/// # Safety
/// The arguments must be valid for that system call.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn call(number: usize, a: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the caller guarantees the arguments; the clobbers are the kernel's.
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
/// The arguments must be valid for that system call.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn call(number: usize, a: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the caller guarantees the arguments.
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
        // SAFETY: every argument is a number, or a pointer from a live reference of the right size.
        unsafe { call($number, arguments) }
    }};
}

mod files;
mod mounts;
mod processes;

pub(super) use files::*;
pub(super) use mounts::*;
pub(super) use processes::*;

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

/// Allocates zeroed memory that the caller owns.
pub(super) fn map(len: usize) -> Result<&'static mut [u8]> {
    const READ_WRITE: u32 = 3;
    const PRIVATE_ANONYMOUS: u32 = 0x22;
    let at = kernel!(MMAP, 0, len, READ_WRITE, PRIVATE_ANONYMOUS, -1_isize, 0)?;
    // SAFETY: the kernel has just mapped this range, and it has no other users.
    Ok(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) })
}

/// Maps a file's first `len` bytes, read only.
pub(super) fn map_file(fd: Fd, len: usize) -> Result<&'static [u8]> {
    let at = kernel!(MMAP, 0, len, 1, 2, fd, 0)?;
    // SAFETY: the kernel has just mapped this range; the file is sealed against changes.
    Ok(unsafe { core::slice::from_raw_parts(at as *const u8, len) })
}

/// Unmaps memory.
///
/// # Safety
/// The range must have no users any more.
pub(super) unsafe fn unmap(at: *const u8, len: usize) {
    let _: Result<usize> = kernel!(MUNMAP, at, len);
}

/// Sleeps while the word has this value, at most for the timeout; may wake early.
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

/// The address of a value for the kernel; the value must live long enough.
pub(super) fn address<T>(of: &T) -> u64 {
    core::ptr::from_ref(of).cast::<c_void>() as u64
}
