//! Starts a program: from the launch spec to a running child.
//!
//! In: a decoded spec and three descriptors. Out: the child's pid, or the failed step and its errno. The child shares
//! this process's memory until it executes the program (`CLONE_VM | CLONE_VFORK`), so its failure is read from memory,
//! without a pipe, and no page is copied.

use super::sys::{self, Errno, Fd, Writes};
use super::{Descriptors, SPEC, mounts};
use crate::clone::{Birth, CLONE_INTO_CGROUP, CLONE_VFORK, CLONE_VM, clone_onto};
use crate::isolation::{Capabilities, Namespaces};
use crate::record::Step;
use crate::rotation::Text;
use crate::spec::Spec;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

/// The failed step of a start, and its errno.
pub(super) type Failure = (Step, Errno);

/// Whole words: the memory after it must be aligned.
pub(super) const CHILD_STACK_LEN: usize = 16 * 1024;
/// The number of arguments of the verb `init` before those of the task.
const INIT_ARGUMENTS: usize = 4;

/// Starts the program, by its name in its directory if that is given. `stdio` become its descriptors 0, 1 and 2; all
/// others must be close-on-exec.
pub(super) fn start(spec: &Spec<'_>, stdio: [Fd; 3], descriptors: &Descriptors) -> Result<u32, Failure> {
    if spec.join.is_some_and(|kinds| kinds.contains(Namespaces::PID)) {
        // Only for children of this process.
        sys::enter_namespaces(descriptors.helper, Namespaces::PID).map_err(|errno| (Step::Join, errno))?;
    }
    let cgroup = match spec.cgroup {
        Some(path) => sys::openat(sys::AT_FDCWD, path, sys::O_RDONLY | sys::O_DIRECTORY, 0)
            .map_err(|errno| (Step::Cgroup, errno))?,
        None => -1,
    };
    let arguments = INIT_ARGUMENTS + spec.arguments().count() + 1;
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
    let of_init = [c"herdlet-init", c"init", spec.program, spec.entry.unwrap_or_default()];
    for (slot, text) in for_arguments.iter_mut().zip(of_init.into_iter().chain(spec.arguments())) {
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
        descriptors,
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
    let pid = pid.map_err(|errno| match errno {
        // A limit of namespaces, or no right to make them. Neither comes from a cgroup.
        sys::ENOSPC | sys::EPERM if spec.namespaces.contains(Namespaces::PID) => (Step::Namespaces, errno),
        _ => (step_of_birth(spec), errno),
    })?;
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
    descriptors: &'a Descriptors,
    /// Those of the verb `init`, then the task's.
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
            flags: CLONE_VM | CLONE_VFORK | u64::from(namespaces_of_birth(self.spec).flags()),
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
        let spec = self.spec;
        let program_dir = self.descriptors.program_dir;
        if spec.init {
            // Descriptor 3 is closed, or belongs to the supervisor alone.
            if program_dir >= 0
                && let Err(errno) = sys::dup_to(program_dir, SPEC)
            {
                return errno;
            }
            return sys::execveat(self.descriptors.helper, c"", self.arguments, self.variables);
        }
        if self.has_own_root() {
            // The kernel closes them only after it has found the interpreter of a script, which a task could place at
            // `/proc/self/fd/N/../…`: a path out of its root.
            sys::close_all_but(program_dir);
        }
        let arguments = self.arguments.get(INIT_ARGUMENTS..).unwrap_or_default();
        execute(spec.program, spec.entry.map(|name| (program_dir, name)), arguments, self.variables)
    }

    fn prepare(&self) -> Result<(), Failure> {
        let spec = self.spec;
        self.enter_cgroups()?;
        if let Some(adjustment) = spec.oom_score_adj {
            // While /proc is the machine's.
            set_oom_score_adj(adjustment).map_err(|errno| (Step::OomScore, errno))?;
        }
        // Needs rights that the task may not have.
        self.enter_namespaces()?;
        sys::setsid().map_err(|errno| (Step::Session, errno))?;
        if let Some(limit) = spec.open_files {
            limit_open_files(limit).map_err(|errno| (Step::OpenFiles, errno))?;
        }
        for (resource, limits) in spec.limits() {
            sys::limit(resource, Some(limits)).map_err(|errno| (Step::Limit, errno))?;
        }
        sys::umask(spec.umask);
        for (to, from) in (0..).zip(self.stdio) {
            if from != to {
                sys::dup_to(from, to).map_err(|errno| (Step::Stdio, errno))?;
            }
        }
        // The verb `init` leaves it to the task, which has a session of its own.
        if spec.terminal && !spec.init {
            sys::take_terminal(0).map_err(|errno| (Step::Terminal, errno))?;
        }
        self.become_user()?;
        if spec.no_new_privs {
            const PR_SET_NO_NEW_PRIVS: u32 = 38;
            sys::prctl(PR_SET_NO_NEW_PRIVS, 1).map_err(|errno| (Step::NoNewPrivs, errno))?;
        }
        self.change_directory().map_err(|errno| (Step::Directory, errno))?;
        if !spec.init {
            // The verb `init` takes the signals that arrive before it runs; without it the first process of a pid
            // namespace would lose them.
            sys::set_signal_mask(0);
        }
        Ok(())
    }

    fn enter_cgroups(&self) -> Result<(), Failure> {
        if self.cgroup >= 0 {
            write_to(self.cgroup, c"cgroup.procs", b"0").map_err(|errno| (Step::Cgroup, errno))?;
        }
        for path in self.spec.tasks_files() {
            write_to(sys::AT_FDCWD, path, b"0").map_err(|errno| (Step::TasksFile, errno))?;
        }
        Ok(())
    }

    fn enter_namespaces(&self) -> Result<(), Failure> {
        let spec = self.spec;
        if let Some(path) = spec.network {
            enter_network(path).map_err(|errno| (Step::Network, errno))?;
        }
        if let Some(kinds) = spec.join.map(|kinds| kinds.without(Namespaces::PID))
            && kinds != Namespaces::default()
        {
            sys::enter_namespaces(self.descriptors.helper, kinds).map_err(|errno| (Step::Join, errno))?;
        }
        // The root of a cgroup namespace is the cgroup of the process that makes it: not earlier.
        let created = spec.namespaces.without(Namespaces::PID);
        if created != Namespaces::default() {
            sys::unshare(created).map_err(|errno| (Step::Namespaces, errno))?;
        }
        if let Some(name) = spec.hostname {
            sys::set_hostname(name).map_err(|errno| (Step::Hostname, errno))?;
        }
        if spec.mount_namespace {
            self.enter_mounts()?;
        }
        Ok(())
    }

    fn enter_mounts(&self) -> Result<(), Failure> {
        let spec = self.spec;
        sys::enter_namespaces(self.descriptors.mounts, Namespaces::MOUNT)
            .map_err(|errno| (Step::MountNamespace, errno))?;
        // Standard input of this program is mounted in this namespace; a path below the new root may lead anywhere.
        let null = match spec.masked_proc().next() {
            Some(_) => sys::copy_mount(0, c"").map_err(|errno| (Step::Proc, errno))?,
            None => -1,
        };
        if spec.proc {
            mounts::mount_proc(spec, null)?;
        }
        if spec.message_queues {
            mounts::mount_message_queues().map_err(|errno| (Step::MessageQueues, errno))?;
        }
        if spec.cgroups {
            let writes = if spec.writable_cgroups { Writes::Allowed } else { Writes::Refused };
            mounts::mount_cgroups(writes).map_err(|errno| (Step::Cgroups, errno))?;
        }
        Ok(())
    }

    fn become_user(&self) -> Result<(), Failure> {
        const PR_SET_KEEPCAPS: u32 = 8;
        let spec = self.spec;
        if let Some(sets) = spec.capabilities {
            // While setting ids can't have taken the right to do so.
            sys::bound_capabilities(sets.bounding).map_err(|errno| (Step::Capabilities, errno))?;
            sys::prctl(PR_SET_KEEPCAPS, 1).map_err(|errno| (Step::Capabilities, errno))?;
        }
        if spec.user.is_some() {
            // A process with the agent's keyring can use its keys. If leaving it fails, the kernel has no keyrings, or a
            // sandbox forbids them to the task too.
            let _ = sys::leave_keyring();
        }
        // Needs rights that the task may not have, and forbids nothing that follows.
        for program in spec.call_filters() {
            sys::filter_calls(program).map_err(|errno| (Step::CallFilter, errno))?;
        }
        if let Some((uid, gid)) = spec.user {
            sys::setgroups(self.groups).map_err(|errno| (Step::Groups, errno))?;
            sys::setgid(gid).map_err(|errno| (Step::Gid, errno))?;
            sys::setuid(uid).map_err(|errno| (Step::Uid, errno))?;
            // The kernel drops capabilities only when root changes to another user, and never the inheritable ones.
            if uid != 0 && spec.capabilities.is_none() {
                sys::set_capabilities(0, 0, 0).map_err(|errno| (Step::Uid, errno))?;
            }
        }
        match spec.capabilities {
            Some(sets) => set_capabilities(&sets).map_err(|errno| (Step::Capabilities, errno)),
            None => Ok(()),
        }
    }

    fn change_directory(&self) -> sys::Result<()> {
        let Some(path) = self.spec.directory else { return Ok(()) };
        sys::chdir(path)?;
        // A path through a descriptor of this process leads out of the task's root.
        if self.has_own_root() && !sys::is_below_root() { Err(sys::EACCES) } else { Ok(()) }
    }

    fn has_own_root(&self) -> bool {
        let joined = self.spec.join.is_some_and(|kinds| kinds.contains(Namespaces::MOUNT));
        self.spec.mount_namespace || joined
    }
}

/// Namespaces that only a new process can be in. The others are made by the child itself: it is in its cgroup by then.
fn namespaces_of_birth(spec: &Spec<'_>) -> Namespaces {
    if spec.namespaces.contains(Namespaces::PID) { Namespaces::PID } else { Namespaces::default() }
}

/// Executes a program, in its directory if there is one; returns only on failure.
pub(super) fn execute(
    program: &CStr,
    entry: Option<(Fd, &CStr)>,
    arguments: &[*const u8],
    variables: &[*const u8],
) -> Errno {
    if let Some((dir, name)) = entry {
        match sys::execveat(dir, name, arguments, variables) {
            // A script: its interpreter is given a path, and none leads through a descriptor that is closed by then.
            sys::ENOENT => {}
            errno => return errno,
        }
    }
    sys::execve(program, arguments, variables)
}

fn set_capabilities(sets: &Capabilities) -> sys::Result<()> {
    sys::set_capabilities(sets.effective, sets.permitted, sets.inheritable)?;
    sys::raise_ambient_capabilities(sets.ambient)
}

unsafe extern "C" fn child(argument: *mut c_void) -> ! {
    // SAFETY: `Child::clone` passes itself and is suspended meanwhile.
    let this = unsafe { &*argument.cast::<Child<'_>>() };
    let (step, errno) = this.become_task();
    this.failed_errno.store(u32::from(errno), Ordering::SeqCst);
    this.failed_step.store(step as u32, Ordering::SeqCst);
    sys::exit(127)
}

fn enter_network(path: &CStr) -> sys::Result<()> {
    let namespace = sys::openat(sys::AT_FDCWD, path, sys::O_RDONLY, 0)?;
    let done = sys::enter_namespaces(namespace, Namespaces::NETWORK);
    sys::close(namespace);
    done
}

fn write_to(dir: Fd, path: &CStr, bytes: &[u8]) -> sys::Result<()> {
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
    const RLIMIT_NOFILE: u32 = 7;
    match sys::limit(RLIMIT_NOFILE, Some([limit, limit])) {
        Err(sys::EPERM) => {
            let [_, hard] = sys::limit(RLIMIT_NOFILE, None)?;
            sys::limit(RLIMIT_NOFILE, Some([limit.min(hard), hard])).map(|_| ())
        }
        done => done.map(|_| ()),
    }
}
