//! The verb `init`: the first process of a task's pid namespace.
//!
//! In: the task's program, arguments and environment as its own, with the ids and capabilities of the task, and all signals
//! blocked. Out: the exit code of the task's main process. It passes signals on and reaps orphans. The kernel ignores
//! signals for a first process that does not handle them, and few programs reap what they did not start.

use super::birth::{CHILD_STACK_LEN, execute};
use super::session::{code_of, refuse};
use super::sys::{self, Errno, POLLIN, PollFd};
use super::{SPEC, USAGE};
use crate::EXIT_CANNOT_EXECUTE;
use crate::clone::{Birth, CLONE_VFORK, CLONE_VM, clone_onto};
use crate::record::Step;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

/// Runs the task to its end; returns the exit code. Both lists end with a null pointer.
pub(super) fn init(arguments: &[*const u8], variables: &[*const u8]) -> u32 {
    let [_, _, program, entry, arguments @ ..] = arguments else { return USAGE };
    if arguments.len() < 2 {
        return USAGE;
    }
    // SAFETY: more arguments follow, so that neither pointer is the null pointer at the end of the list; the kernel ends each
    // argument with a NUL byte.
    let (program, entry) = unsafe { (CStr::from_ptr(program.cast()), CStr::from_ptr(entry.cast())) };
    if !entry.is_empty() && sys::keep_private(SPEC).is_err() {
        return EXIT_CANNOT_EXECUTE;
    }
    let task = Task { program, entry, arguments, variables, errno: AtomicU32::new(0) };
    let started = sys::signalfd(u64::MAX)
        .map_err(|errno| (Step::Prepare, errno))
        .and_then(|signals| Ok((task.start()?, signals)));
    match started {
        Ok((main, signals)) => serve(main, signals),
        Err(failure) => refuse(failure),
    }
}

fn serve(main: u32, signals: sys::Fd) -> u32 {
    let mut entries = [PollFd { fd: signals, events: POLLIN, revents: 0 }];
    loop {
        loop {
            match sys::reap() {
                Ok(Some((pid, status))) if pid == main => return code_of(status),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return EXIT_CANNOT_EXECUTE,
            }
        }
        if sys::poll(&mut entries, None).is_ok() {
            let taken = sys::take_signals(signals) & !sys::signal_bit(sys::SIGCHLD);
            for signal in (1..=64).filter(|signal| taken & sys::signal_bit(*signal) != 0) {
                sys::kill(main as i32, signal);
            }
        }
    }
}

struct Task<'a> {
    program: &'a CStr,
    entry: &'a CStr,
    arguments: &'a [*const u8],
    variables: &'a [*const u8],
    /// Why the program could not be executed, or 0.
    errno: AtomicU32,
}

impl Task<'_> {
    fn start(&self) -> Result<u32, (Step, Errno)> {
        let stack = sys::map(CHILD_STACK_LEN).map_err(|errno| (Step::Prepare, errno))?;
        let birth = Birth {
            flags: CLONE_VM | CLONE_VFORK,
            exit_signal: u64::from(sys::SIGCHLD),
            parent_word: 0,
            child_word: 0,
            cgroup: 0,
        };
        let this = core::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: this thread is suspended while the child uses the stack and `self`; the child only makes system calls.
        let pid = unsafe { clone_onto(&birth, stack, child, this) };
        if pid < 0 {
            return Err((Step::Clone, -pid as Errno));
        }
        match self.errno.load(Ordering::SeqCst) {
            0 => Ok(pid as u32),
            errno => Err((Step::Exec, errno as Errno)),
        }
    }
}

unsafe extern "C" fn child(argument: *mut c_void) -> ! {
    // SAFETY: `Task::start` passes itself and is suspended meanwhile.
    let task = unsafe { &*argument.cast::<Task<'_>>() };
    // Fails only if this process already leads a session, which a new one does not.
    let _ = sys::setsid();
    // Standard input may be a terminal; it becomes the task's controlling terminal.
    let _ = sys::take_terminal(0);
    sys::set_signal_mask(0);
    let entry = (!task.entry.is_empty()).then_some((SPEC, task.entry));
    let errno = execute(task.program, entry, task.arguments, task.variables);
    task.errno.store(u32::from(errno), Ordering::SeqCst);
    sys::exit(127)
}
