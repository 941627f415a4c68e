//! Starts a program: from the launch spec to a running child.
//!
//! In: a decoded spec and three descriptors. Out: the child's pid, or the failed step and its errno. The child shares
//! this process's memory until it executes the program (`CLONE_VM | CLONE_VFORK`), so its failure is read from memory,
//! without a pipe, and no page is copied.

use super::sys::{self, Errno, Fd};
use crate::clone::{Birth, CLONE_INTO_CGROUP, CLONE_VFORK, CLONE_VM, clone_onto};
use crate::record::Step;
use crate::rotation::Text;
use crate::spec::Spec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

/// The failed step of a start, and its errno.
pub(super) type Failure = (Step, Errno);

/// Whole words: the memory after it must be aligned.
const CHILD_STACK_LEN: usize = 16 * 1024;

/// Starts the program, by its name in `program_dir` if that is set. `stdio` become its descriptors 0, 1 and 2; all
/// others must be close-on-exec.
pub(super) fn start(spec: &Spec<'_>, stdio: [Fd; 3], program_dir: Fd) -> Result<u32, Failure> {
    let cgroup = match spec.cgroup {
        Some(path) => sys::openat(sys::AT_FDCWD, path, sys::O_RDONLY | sys::O_DIRECTORY, 0)
            .map_err(|errno| (Step::Cgroup, errno))?,
        None => -1,
    };
    let arguments = spec.arguments().count() + 1;
    let variables = spec.variables().count() + 1;
    let groups = spec.groups().count();
    let pointers_len = (arguments + variables) * size_of::<usize>();
    let len = CHILD_STACK_LEN + pointers_len + groups * size_of::<u32>();
    let arena = sys::map(len).map_err(|errno| (Step::Prepare, errno))?;
    let whole = (arena.as_ptr(), arena.len());
    let (stack, rest) = arena.split_at_mut(CHILD_STACK_LEN);
    let (pointers, numbers) = rest.split_at_mut(pointers_len.min(rest.len()));
    // SAFETY: zeroed words are null pointers. All of it is aligned: a mapping begins at a page, and the stack is whole
    // words long.
    let (_, pointers, _) = unsafe { pointers.align_to_mut::<*const u8>() };
    // SAFETY: zeroed bytes are valid numbers. All of it is aligned, because it follows whole words.
    let (_, for_groups, _) = unsafe { numbers.align_to_mut::<u32>() };
    let (for_arguments, for_variables) = pointers.split_at_mut(arguments.min(pointers.len()));
    for (slot, text) in for_arguments.iter_mut().zip(spec.arguments()) {
        *slot = text.as_ptr().cast();
    }
    for (slot, text) in for_variables.iter_mut().zip(spec.variables()) {
        *slot = text.as_ptr().cast();
    }
    for (slot, group) in for_groups.iter_mut().zip(spec.groups()) {
        *slot = group;
    }
    let mut child = Child {
        spec,
        stdio,
        program_dir,
        arguments: for_arguments,
        variables: for_variables,
        groups: for_groups,
        cgroup: -1,
        // The result if the child is killed before it can report, as happens in a cgroup that is being killed.
        failed_step: AtomicU32::new(step_of_birth(spec) as u32),
        failed_errno: AtomicU32::new(u32::from(sys::EINTR)),
    };
    let pid = child.create(stack, cgroup);
    let failed_step = Step::of(child.failed_step.load(Ordering::SeqCst) as u8);
    let failed_errno = child.failed_errno.load(Ordering::SeqCst) as Errno;
    sys::close(cgroup);
    // SAFETY: the child no longer uses the arena: it has executed its program or exited.
    unsafe { sys::unmap(whole.0, whole.1) };
    let pid = pid.map_err(|errno| (step_of_birth(spec), errno))?;
    match failed_step {
        None => Ok(pid),
        Some(step) => {
            sys::reap_one(pid);
            Err((step, failed_errno))
        }
    }
}

/// The step that fails if the child can't be created.
fn step_of_birth(spec: &Spec<'_>) -> Step {
    if spec.cgroup.is_some() { Step::Cgroup } else { Step::Clone }
}

struct Child<'a> {
    spec: &'a Spec<'a>,
    stdio: [Fd; 3],
    program_dir: Fd,
    arguments: &'a [*const u8],
    variables: &'a [*const u8],
    groups: &'a [u32],
    /// Directory of a cgroup to enter explicitly, or -1.
    cgroup: Fd,
    failed_step: AtomicU32,
    failed_errno: AtomicU32,
}

impl Child<'_> {
    fn create(&mut self, stack: &mut [u8], cgroup: Fd) -> sys::Result<u32> {
        let mut birth = Birth {
            flags: CLONE_VM | CLONE_VFORK,
            exit_signal: u64::from(sys::SIGCHLD),
            parent_word: 0,
            child_word: 0,
            cgroup: 0,
        };
        if cgroup >= 0 {
            birth.flags |= CLONE_INTO_CGROUP;
            birth.cgroup = cgroup as u64;
            match self.clone(&birth, stack) {
                // An old kernel or a sandbox without clone3: use the slower way, which moves the child.
                Err(sys::ENOSYS | sys::EINVAL | sys::EPERM) => {
                    birth.flags &= !CLONE_INTO_CGROUP;
                    self.cgroup = cgroup;
                }
                done => return done,
            }
        }
        self.clone(&birth, stack)
    }

    fn clone(&self, birth: &Birth, stack: &mut [u8]) -> sys::Result<u32> {
        let this = core::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: this thread is suspended while the child uses the stack and `self`; the child only makes system
        // calls.
        let pid = unsafe { clone_onto(birth, stack, child, this) };
        if pid < 0 { Err(-pid as Errno) } else { Ok(pid as u32) }
    }

    /// Runs in the child. Returns only on failure.
    fn become_task(&self) -> Failure {
        match self.prepare() {
            Ok(()) => {
                // From here on no report means success.
                self.failed_step.store(0, Ordering::SeqCst);
                (Step::Exec, self.execute())
            }
            Err(failure) => failure,
        }
    }

    /// Returns only on failure.
    fn execute(&self) -> Errno {
        if let Some(name) = self.spec.entry {
            match sys::execveat(self.program_dir, name, self.arguments, self.variables) {
                // A script: its interpreter is given a path, and none leads through a descriptor that is closed by
                // then.
                sys::ENOENT => {}
                errno => return errno,
            }
        }
        sys::execve(self.spec.program, self.arguments, self.variables)
    }

    fn prepare(&self) -> Result<(), Failure> {
        let spec = self.spec;
        if self.cgroup >= 0 {
            write_to(self.cgroup, c"cgroup.procs", b"0").map_err(|errno| (Step::Cgroup, errno))?;
        }
        for path in spec.tasks_files() {
            write_to(sys::AT_FDCWD, path, b"0").map_err(|errno| (Step::TasksFile, errno))?;
        }
        if let Some(path) = spec.network {
            // Needs rights that the task may not have.
            enter_network(path).map_err(|errno| (Step::Network, errno))?;
        }
        sys::setsid().map_err(|errno| (Step::Session, errno))?;
        if let Some(adjustment) = spec.oom_score_adj {
            set_oom_score_adj(adjustment).map_err(|errno| (Step::OomScore, errno))?;
        }
        if let Some(limit) = spec.open_files {
            limit_open_files(limit).map_err(|errno| (Step::OpenFiles, errno))?;
        }
        sys::umask(spec.umask);
        for (to, from) in (0..).zip(self.stdio) {
            if from != to {
                sys::dup_to(from, to).map_err(|errno| (Step::Stdio, errno))?;
            }
        }
        if spec.terminal {
            sys::take_terminal(0).map_err(|errno| (Step::Terminal, errno))?;
        }
        if let Some((uid, gid)) = spec.user {
            // A process with the agent's keyring can use its keys. If leaving it fails, the kernel has no keyrings, or a
            // sandbox forbids them to the task too.
            let _ = sys::leave_keyring();
            sys::setgroups(self.groups).map_err(|errno| (Step::Groups, errno))?;
            sys::setgid(gid).map_err(|errno| (Step::Gid, errno))?;
            sys::setuid(uid).map_err(|errno| (Step::Uid, errno))?;
            // The kernel drops capabilities only when root changes to another user, and never the inheritable ones.
            if uid != 0 {
                sys::drop_capabilities().map_err(|errno| (Step::Uid, errno))?;
            }
        }
        if spec.no_new_privs {
            const PR_SET_NO_NEW_PRIVS: u32 = 38;
            sys::prctl(PR_SET_NO_NEW_PRIVS, 1).map_err(|errno| (Step::NoNewPrivs, errno))?;
        }
        if let Some(path) = spec.directory {
            sys::chdir(path).map_err(|errno| (Step::Directory, errno))?;
        }
        sys::set_signal_mask(0);
        Ok(())
    }
}

unsafe extern "C" fn child(argument: *mut c_void) -> ! {
    // SAFETY: `Child::clone` passes itself and is suspended meanwhile.
    let this = unsafe { &*argument.cast::<Child<'_>>() };
    let (step, errno) = this.become_task();
    this.failed_errno.store(u32::from(errno), Ordering::SeqCst);
    this.failed_step.store(step as u32, Ordering::SeqCst);
    sys::exit(127)
}

fn enter_network(path: &core::ffi::CStr) -> sys::Result<()> {
    let namespace = sys::openat(sys::AT_FDCWD, path, sys::O_RDONLY, 0)?;
    let done = sys::enter_network(namespace);
    sys::close(namespace);
    done
}

fn write_to(dir: Fd, path: &core::ffi::CStr, bytes: &[u8]) -> sys::Result<()> {
    let fd = sys::openat(dir, path, sys::O_WRONLY, 0)?;
    let done = sys::write(fd, bytes);
    sys::close(fd);
    done.map(|_| ())
}

/// The kernel refuses a lower value without CAP_SYS_RESOURCE; the task then runs with the inherited one.
fn set_oom_score_adj(adjustment: i16) -> sys::Result<()> {
    let sign: &[u8] = if adjustment < 0 { b"-" } else { b"" };
    let text = Text::new().with(sign).with_number(u64::from(adjustment.unsigned_abs()));
    match write_to(sys::AT_FDCWD, c"/proc/self/oom_score_adj", text.as_bytes()) {
        Err(sys::EPERM | sys::EACCES | sys::ENOENT) => Ok(()),
        done => done,
    }
}

/// If the hard limit can't be raised, the limit is reduced to it.
fn limit_open_files(limit: u64) -> sys::Result<()> {
    match sys::limit_open_files(Some([limit, limit])) {
        Err(sys::EPERM) => {
            let [_, hard] = sys::limit_open_files(None)?;
            sys::limit_open_files(Some([limit.min(hard), hard])).map(|_| ())
        }
        done => done.map(|_| ()),
    }
}
