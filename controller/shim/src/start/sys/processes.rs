//! System calls on processes: signals, children, identity, execution.
//!
//! In: pids, masks, ids. Out: the result or an errno. See `sys`.

use super::*;
use crate::isolation::Namespaces;

/// Sets the signal mask of the calling thread.
pub(in crate::start) fn set_signal_mask(mask: u64) {
    const SIG_SETMASK: u32 = 2;
    let _: Result<usize> = kernel!(RT_SIGPROCMASK, SIG_SETMASK, &raw const mask, 0, 8);
}

/// Resets every signal to its default disposition.
pub(in crate::start) fn reset_signals() {
    let default = [0_u64; 4];
    for signal in 1..=64 {
        let _: Result<usize> = kernel!(RT_SIGACTION, signal, default.as_ptr(), 0, 8);
    }
}

/// Schedules one SIGALRM for this process after the given time.
pub(in crate::start) fn set_alarm(after_ms: u32) {
    const ITIMER_REAL: u32 = 0;
    // Interval (seconds, microseconds), then the first time.
    let times = [0_u64, 0, u64::from(after_ms / 1000), u64::from(after_ms % 1000) * 1000];
    let _: Result<usize> = kernel!(SETITIMER, ITIMER_REAL, times.as_ptr(), 0);
}

/// A descriptor that is readable when one of the signals in this mask is pending.
pub(in crate::start) fn signalfd(mask: u64) -> Result<Fd> {
    kernel!(SIGNALFD4, -1_isize, &raw const mask, 8, O_CLOEXEC | O_NONBLOCK).map(|fd| fd as Fd)
}

/// Takes the pending signals and returns them as a mask.
pub(in crate::start) fn take_signals(signals: Fd) -> u64 {
    const SIGINFO_LEN: usize = 128;
    let mut infos = [0; 4 * SIGINFO_LEN];
    let len = read(signals, &mut infos).unwrap_or(0);
    let taken = infos.get(..len).unwrap_or_default().chunks(SIGINFO_LEN);
    // struct signalfd_siginfo begins with the signal's number.
    taken.filter_map(|info| info.first()).fold(0, |mask, signal| mask | signal_bit(u32::from(*signal).max(1)))
}

/// The bit of a signal in a mask.
pub(in crate::start) const fn signal_bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

pub(in crate::start) fn kill(pid: i32, signal: u32) {
    let _: Result<usize> = kernel!(KILL, pid, signal);
}

pub(in crate::start) fn signal_thread(process: u32, thread: u32, signal: u32) {
    let _: Result<usize> = kernel!(TGKILL, process, thread, signal);
}

pub(in crate::start) fn getpid() -> u32 {
    kernel!(GETPID).unwrap_or(0) as u32
}

/// Reaps a child without waiting: returns its pid and status, or `None` while all are alive.
pub(in crate::start) fn reap() -> Result<Option<(u32, u32)>> {
    const WNOHANG_WALL: u32 = 1 | 0x4000_0000;
    let mut status = 0_u32;
    let pid = kernel!(WAIT4, -1_isize, &raw mut status, WNOHANG_WALL, 0)?;
    Ok((pid != 0).then_some((pid as u32, status)))
}

/// Waits for a child to end and reaps it.
pub(in crate::start) fn reap_one(pid: u32) {
    const WALL: u32 = 0x4000_0000;
    while kernel!(WAIT4, pid, 0, WALL, 0) == Err(EINTR) {}
}

pub(in crate::start) fn setsid() -> Result<()> {
    kernel!(SETSID).map(|_| ())
}

/// prctl(2) with one argument.
pub(in crate::start) fn prctl(option: u32, argument: usize) -> Result<()> {
    kernel!(PRCTL, option, argument).map(|_| ())
}

pub(in crate::start) fn setgroups(groups: &[u32]) -> Result<()> {
    kernel!(SETGROUPS, groups.len(), groups.as_ptr()).map(|_| ())
}

pub(in crate::start) fn setgid(gid: u32) -> Result<()> {
    kernel!(SETRESGID, gid, gid, gid).map(|_| ())
}

pub(in crate::start) fn setuid(uid: u32) -> Result<()> {
    kernel!(SETRESUID, uid, uid, uid).map(|_| ())
}

pub(in crate::start) fn umask(mask: u32) {
    let _: Result<usize> = kernel!(UMASK, mask);
}

/// Returns the soft and hard limit of a resource, and sets new ones if given.
pub(in crate::start) fn limit(resource: u32, new: Option<[u64; 2]>) -> Result<[u64; 2]> {
    let mut old = [0_u64; 2];
    let new = new.as_ref().map_or(core::ptr::null(), |pair| pair.as_ptr());
    kernel!(PRLIMIT64, 0, resource, new, old.as_mut_ptr())?;
    Ok(old)
}

pub(in crate::start) fn chdir(path: &CStr) -> Result<()> {
    kernel!(CHDIR, path.as_ptr()).map(|_| ())
}

/// Executes a program; returns only on failure. Both lists end with a null pointer.
pub(in crate::start) fn execve(program: &CStr, arguments: &[*const u8], variables: &[*const u8]) -> Errno {
    match kernel!(EXECVE, program.as_ptr(), arguments.as_ptr(), variables.as_ptr()) {
        Ok(_) => 0,
        Err(errno) => errno,
    }
}

/// Ends the calling thread.
pub(in crate::start) fn exit_thread() -> ! {
    loop {
        let _: Result<usize> = kernel!(EXIT, 0);
    }
}

/// Ends the process.
pub(in crate::start) fn exit(code: u32) -> ! {
    loop {
        let _: Result<usize> = kernel!(EXIT_GROUP, code);
    }
}

/// Sets the effective, permitted and inheritable capabilities of the calling thread (capabilities(7)). Ambient ones that
/// are not permitted and inheritable any more are dropped with them.
pub(in crate::start) fn set_capabilities(effective: u64, permitted: u64, inheritable: u64) -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let sets = [effective, permitted, inheritable];
    // For the calling thread; then the three sets, first the lower and then the higher halves.
    let header = [VERSION_3, 0];
    let halves = [sets.map(|set| set as u32), sets.map(|set| (set >> 32) as u32)];
    kernel!(CAPSET, header.as_ptr(), halves.as_ptr()).map(|_| ())
}

/// Limits the bounding set to these capabilities.
pub(in crate::start) fn bound_capabilities(bounding: u64) -> Result<()> {
    const PR_CAPBSET_DROP: u32 = 24;
    for capability in 0..u64::BITS {
        if bounding & 1 << capability == 0 {
            match prctl(PR_CAPBSET_DROP, capability as usize) {
                // The kernel knows no more.
                Err(EINVAL) => break,
                done => done?,
            }
        }
    }
    Ok(())
}

/// Makes these capabilities ambient.
pub(in crate::start) fn raise_ambient_capabilities(ambient: u64) -> Result<()> {
    const PR_CAP_AMBIENT: u32 = 47;
    const PR_CAP_AMBIENT_RAISE: u32 = 2;
    for capability in (0..u64::BITS).filter(|capability| ambient & 1 << capability != 0) {
        kernel!(PRCTL, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)?;
    }
    Ok(())
}

/// Adds a seccomp filter: whole instructions of 8 bytes (prctl(2)).
pub(in crate::start) fn filter_calls(program: &[u8]) -> Result<()> {
    const PR_SET_SECCOMP: u32 = 22;
    const SECCOMP_MODE_FILTER: u32 = 2;
    // struct sock_fprog: the number of instructions in the lower half of a word, then their address.
    let described = [program.len() / 8, program.as_ptr() as usize];
    kernel!(PRCTL, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, described.as_ptr()).map(|_| ())
}

/// Leaves the inherited session keyring for a new and empty one (keyctl(2)).
pub(in crate::start) fn leave_keyring() -> Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: u32 = 1;
    kernel!(KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, 0).map(|_| ())
}

/// Enters a namespace of the given kind by its open file, or namespaces of the given kinds by a pidfd.
pub(in crate::start) fn enter_namespaces(fd: Fd, kinds: Namespaces) -> Result<()> {
    kernel!(SETNS, fd, kinds.flags()).map(|_| ())
}

/// Moves the calling process into new namespaces.
pub(in crate::start) fn unshare(kinds: Namespaces) -> Result<()> {
    kernel!(UNSHARE, kinds.flags()).map(|_| ())
}

/// Sets the host name of the uts namespace.
pub(in crate::start) fn set_hostname(name: &CStr) -> Result<()> {
    let name = name.to_bytes();
    kernel!(SETHOSTNAME, name.as_ptr(), name.len()).map(|_| ())
}

/// Whether the working directory is below the root directory. If not, the kernel's name for it is no absolute path.
pub(in crate::start) fn is_below_root() -> bool {
    // One page is the longest result.
    let mut path = [0_u8; 4096];
    kernel!(GETCWD, path.as_mut_ptr(), path.len()).is_ok() && path[0] == b'/'
}

/// Executes `name` in a directory, or the open file itself if the name is empty; returns only on failure. A link is not
/// followed.
pub(in crate::start) fn execveat(
    at: Fd,
    name: &CStr,
    arguments: &[*const u8],
    variables: &[*const u8],
) -> Errno {
    const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
    const AT_EMPTY_PATH: u32 = 0x1000;
    let flags = if name.is_empty() { AT_EMPTY_PATH } else { AT_SYMLINK_NOFOLLOW };
    let (arguments, variables) = (arguments.as_ptr(), variables.as_ptr());
    match kernel!(EXECVEAT, at, name.as_ptr(), arguments, variables, flags, 0) {
        Ok(_) => 0,
        Err(errno) => errno,
    }
}
