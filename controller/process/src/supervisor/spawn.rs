//! Starts the supervisor program, at a cost that does not depend on the agent's size.
//!
//! In: the program, its arguments, the descriptors that become 0, 1, 2, … and the cgroup to start in. Out: a pidfd.
//! `std::process::Command` offers neither the cgroup nor the pidfd, and placing descriptors through `pre_exec` makes it
//! copy the agent's page tables. The child here shares the agent's memory until exec, so between clone and exec it
//! makes only system calls on prepared data. All signals are blocked meanwhile, so that no signal handler of the agent
//! runs in the child.
//!
//! The descriptor table is not copied either, as a start would cost more the more tasks run: the needed descriptors are
//! copied to low numbers that were reserved early (`places`), and the child copies only those.
//!
//! Where a child can't start in a cgroup it moves itself there before exec. So no program ever runs in the wrong
//! cgroup, and after a failed start nothing has run, so it can be retried in another way.

#![expect(unsafe_code, reason = "clone3 and what the child does until exec have no safe interface")]

use super::places::{self, Places, Reserved};
use herdlet_shim::clone::{
    Birth, CLONE_FILES, CLONE_INTO_CGROUP, CLONE_PIDFD, CLONE_VFORK, CLONE_VM, clone_onto,
};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

const STACK_LEN: usize = 32 * 1024;
/// Descriptors are first copied to numbers from here on, so that placing one can't overwrite another.
const FREE_FROM: RawFd = 16;
const FDS_MAX: usize = places::LEN - 1;

/// The program to execute, with its arguments and descriptors.
pub(super) struct Spawn<'a> {
    pub(super) program: BorrowedFd<'a>,
    pub(super) places: &'a Places,
    pub(super) arguments: &'a [&'a CStr],
    /// Become descriptors 0, 1, 2, …; at most ten.
    pub(super) fds: &'a [BorrowedFd<'a>],
    pub(super) cgroup: Option<BorrowedFd<'a>>,
}

/// Starts the program with an empty environment. Returns its pid and pidfd; the caller reaps it.
pub(super) fn spawn(what: &Spawn<'_>) -> io::Result<(u32, OwnedFd)> {
    if let Some(reserved) = what.places.take(what.fds.iter().copied().chain([what.program])) {
        let spawned = spawn_with(what, Some(&reserved));
        // A part of the table can be copied only since Linux 5.9, and a sandbox may not know the call.
        let refusals = [libc::ENOSYS, libc::EINVAL, libc::EPERM];
        if !matches!(&spawned, Err(error) if error.raw_os_error().is_some_and(|errno| refusals.contains(&errno)))
        {
            return spawned;
        }
    }
    spawn_with(what, None)
}

fn spawn_with(what: &Spawn<'_>, reserved: Option<&Reserved<'_>>) -> io::Result<(u32, OwnedFd)> {
    let mut arguments: Vec<*const c_char> = what.arguments.iter().map(|text| text.as_ptr()).collect();
    arguments.push(std::ptr::null());
    let mut fds = [-1; FDS_MAX];
    for (slot, fd) in fds.iter_mut().zip(what.fds) {
        *slot = fd.as_raw_fd();
    }
    let (fds, program) = match reserved {
        Some(reserved) => split(reserved, what.fds.len()),
        None => (fds, what.program.as_raw_fd()),
    };
    let child = Child {
        program,
        arguments: arguments.as_ptr(),
        variables: [std::ptr::null()],
        fds,
        keeps_below: reserved.map(Reserved::end),
        enters: Cell::new(-1),
        errno: AtomicI32::new(0),
    };
    let mut stack = vec![0_u8; STACK_LEN];
    let blocked = BlockedSignals::all();
    let (pid, pidfd) = child.create(&mut stack, what.cgroup)?;
    drop(blocked);
    match child.errno.load(Ordering::SeqCst) {
        0 => Ok((pid, pidfd)),
        errno => {
            let options = rustix::process::WaitIdOptions::EXITED;
            let _ = rustix::process::waitid(rustix::process::WaitId::PidFd(borrow(&pidfd)), options);
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// The first `count` reserved numbers, and the one of the program after them.
fn split(reserved: &Reserved<'_>, count: usize) -> ([RawFd; FDS_MAX], RawFd) {
    let mut fds = [-1; FDS_MAX];
    for (slot, number) in fds.iter_mut().zip(reserved.numbers()).take(count) {
        *slot = *number;
    }
    (fds, reserved.numbers().get(count).copied().unwrap_or(-1))
}

fn borrow(fd: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(fd)
}

struct Child {
    program: RawFd,
    arguments: *const *const c_char,
    variables: [*const c_char; 1],
    fds: [RawFd; FDS_MAX],
    /// Upper bound (exclusive) of the descriptors that the child needs: it shares the agent's descriptor table until it
    /// has copied that part.
    keeps_below: Option<RawFd>,
    /// The `cgroup.procs` file through which the child moves itself into its cgroup; negative if it starts there.
    enters: Cell<RawFd>,
    errno: AtomicI32,
}

impl Child {
    /// Returns pid and pidfd.
    fn create(&self, stack: &mut [u8], cgroup: Option<BorrowedFd<'_>>) -> io::Result<(u32, OwnedFd)> {
        let mut pidfd: c_int = -1;
        let mut birth = Birth {
            flags: CLONE_VM | CLONE_VFORK | CLONE_PIDFD,
            exit_signal: libc::SIGCHLD as u64,
            parent_word: &raw mut pidfd as u64,
            child_word: 0,
            cgroup: cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
        };
        let this = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        if cgroup.is_some() {
            birth.flags |= CLONE_INTO_CGROUP;
        }
        if self.keeps_below.is_some() {
            birth.flags |= CLONE_FILES;
        }
        // SAFETY: this thread is suspended while the child uses the stack and `self`; see `Child::become_program`.
        let mut pid = unsafe { clone_onto(&birth, stack, child, this) };
        let refusals = [libc::ENOSYS, libc::EINVAL, libc::EPERM];
        if let Some(cgroup) = cgroup
            && refusals.iter().any(|errno| pid == -(*errno as isize))
        {
            // Kernels and sandboxes without clone3.
            use rustix::fs::{Mode, OFlags, openat};
            let procs = openat(cgroup, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            self.enters.set(procs.as_raw_fd());
            birth.flags &= !CLONE_INTO_CGROUP;
            // SAFETY: as above.
            pid = unsafe { clone_onto(&birth, stack, child, this) };
        }
        if pid < 0 {
            return Err(io::Error::from_raw_os_error(-pid as i32));
        }
        // SAFETY: the kernel made this descriptor for us, through CLONE_PIDFD.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok((pid as u32, pidfd))
    }

    /// Runs in the child, in the agent's memory: system calls only. Returns the errno of the call that failed.
    fn become_program(&self) -> c_int {
        let enters = self.enters.get();
        if enters >= 0 {
            // SAFETY: a plain system call on a constant. 0 means the writing process (cgroups(7)).
            let written = unsafe { libc::write(enters, c"0".as_ptr().cast(), 1) };
            if written < 0 {
                return errno();
            }
        }
        if let Some(first) = self.keeps_below {
            // SAFETY: a plain system call on numbers. After it the table is the child's own.
            let left =
                unsafe { libc::syscall(libc::SYS_close_range, first, c_int::MAX, libc::CLOSE_RANGE_UNSHARE) };
            if left < 0 {
                return errno();
            }
        }
        let mut copies = [-1; FDS_MAX];
        for (copy, fd) in copies.iter_mut().zip(self.fds) {
            if fd >= 0 {
                // SAFETY: plain system calls on numbers.
                *copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FREE_FROM) };
                if *copy < 0 {
                    return errno();
                }
            }
        }
        // SAFETY: as above.
        let program = unsafe { libc::fcntl(self.program, libc::F_DUPFD_CLOEXEC, FREE_FROM) };
        for (place, copy) in (0..).zip(copies) {
            // SAFETY: as above.
            if copy >= 0 && unsafe { libc::dup3(copy, place, 0) } < 0 {
                return errno();
            }
        }
        // SAFETY: both lists end with a null pointer and live in the suspended parent.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                program,
                c"".as_ptr(),
                self.arguments,
                self.variables.as_ptr(),
                libc::AT_EMPTY_PATH,
            )
        };
        errno()
    }
}

unsafe extern "C" fn child(argument: *mut c_void) -> ! {
    // SAFETY: `Child::create` passes itself and is suspended meanwhile.
    let this = unsafe { &*argument.cast::<Child>() };
    this.errno.store(this.become_program(), Ordering::SeqCst);
    loop {
        // SAFETY: ends this process without touching the memory it shares.
        unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    }
}

fn errno() -> c_int {
    // SAFETY: a pointer to the calling thread's errno; the child uses that of the suspended parent.
    unsafe { *libc::__errno_location() }
}

/// Blocks every signal of this thread until dropped.
struct BlockedSignals(u64);

impl BlockedSignals {
    fn all() -> Self {
        Self(set_mask(u64::MAX))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Not through libc, which would leave out the signals it uses itself.
fn set_mask(mask: u64) -> u64 {
    let mut old: u64 = 0;
    // SAFETY: both point to words of the kernel's size.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut old,
            size_of::<u64>(),
        )
    };
    old
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
    use std::ffi::CString;
    use std::fs::{self, File};
    use std::os::{fd::AsFd, unix::fs::symlink};
    use std::path::Path;
    use std::thread;

    /// Makes `clone3` fail with ENOSYS in this thread, as old sandboxes do.
    fn forbid_clone3() {
        const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step(LOAD, 0, 0, 0),
            step(IS, 0, 1, libc::SYS_clone3 as u32),
            step(ANSWER, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
            step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: numbers, and a filter that the kernel copies.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64)
                + libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
        };
        assert_eq!(done, 0);
    }

    /// Starts a system program without `clone3`.
    fn start(program: &str, argument: &CStr, cgroup: &Path) -> io::Result<(u32, OwnedFd)> {
        let (program, cgroup) = (File::open(program).unwrap(), File::open(cgroup).unwrap());
        let places = Places::reserve().unwrap();
        let start = || {
            forbid_clone3();
            spawn(&Spawn {
                program: program.as_fd(),
                places: &places,
                arguments: &[c"program", argument],
                fds: &[],
                cgroup: Some(cgroup.as_fd()),
            })
        };
        thread::scope(|scope| scope.spawn(start).join().unwrap())
    }

    fn reap(pidfd: &OwnedFd) -> Option<i32> {
        waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).unwrap().unwrap().exit_status()
    }

    #[test]
    fn refused_clone3_fails_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let touched = dir.path().join("touched");
        let argument = CString::new(touched.as_os_str().as_encoded_bytes()).unwrap();
        let procs = memfd_create("procs", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let name = format!("/proc/self/fd/{}", procs.as_raw_fd());
        symlink(&name, dir.path().join("cgroup.procs")).unwrap();
        let (_, pidfd) = start("/usr/bin/touch", &argument, dir.path()).unwrap();
        assert_eq!(reap(&pidfd), Some(0));
        assert_eq!((touched.exists(), fs::read(&name).unwrap()), (true, b"0".to_vec()));

        // The child may not enter. From clone3 the same error means that another way must be tried.
        fs::remove_file(&touched).unwrap();
        fcntl_add_seals(&procs, SealFlags::WRITE).unwrap();
        let refused = start("/usr/bin/touch", &argument, dir.path()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(!touched.exists());
    }

    #[test]
    fn refused_clone3_moves_the_child_into_its_cgroup() {
        let mut tops = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new).into_iter();
        let top = tops.find(|top| top.join("cgroup.controllers").exists());
        let cgroup = top.map(|top| top.join(format!("herdlet-spawn-{}", std::process::id())));
        let Some(cgroup) = cgroup.filter(|cgroup| fs::create_dir(cgroup).is_ok()) else {
            eprintln!("left out: cannot create a cgroup");
            return;
        };
        let (pid, pidfd) = start("/usr/bin/sleep", c"1000", &cgroup).unwrap();
        assert_eq!(fs::read_to_string(cgroup.join("cgroup.procs")).unwrap(), format!("{pid}\n"));
        pidfd_send_signal(&pidfd, Signal::KILL).unwrap();
        assert_eq!(reap(&pidfd), None);
        fs::remove_dir(cgroup).unwrap();
    }
}
