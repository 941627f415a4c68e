//! The verb `enter`: one exec session, which belongs to the agent and ends with it.
//!
//! In: the session's streams as descriptors 0 to 2, the launch spec, and the leash, a pipe that closes when the agent
//! is gone. Out: the command's exit code (128 + n for signal n), or 127 / 126 if it can't be found / executed, with a
//! line on stderr. There is no record.

use super::slay::slay;
use super::sys::{self, POLLIN, PollFd};
use super::{Descriptors, HELPER, birth, drop_spec, take_spec};
use crate::isolation::Namespaces;
use crate::record::{Exit, Step};
use crate::rotation::Text;
use crate::spec::Spec;
use crate::{EXIT_CANNOT_EXECUTE, EXIT_NOT_FOUND};

/// Runs a session to its end; returns the exit code.
pub(super) fn enter() -> u32 {
    let Ok(blob) = take_spec() else { return EXIT_CANNOT_EXECUTE };
    let Ok(mut spec) = Spec::decode(blob) else {
        return refuse((Step::Spec, 0));
    };
    spec.leash = true;
    let Ok(descriptors) = Descriptors::take(&spec, HELPER) else { return EXIT_CANNOT_EXECUTE };
    let leftovers = Leftovers::for_spec(&spec);
    let started = sys::signalfd(sys::signal_bit(sys::SIGCHLD))
        .map_err(|errno| (Step::Prepare, errno))
        .and_then(|signals| Ok((birth::start(&spec, [0, 1, 2], &descriptors)?, signals)));
    drop_spec(blob);
    descriptors.close();
    match started {
        Ok((pid, signals)) => wait(pid, signals, descriptors.leash, leftovers),
        Err(failure) => refuse(failure),
    }
}

/// What ends the processes that a command leaves behind.
#[derive(PartialEq, Eq)]
enum Leftovers {
    /// Their cgroup or pid namespace, with the task.
    EndWithTask,
    /// Nothing: this process kills them.
    Killed,
}

impl Leftovers {
    fn for_spec(spec: &Spec<'_>) -> Self {
        let shares_pids = spec.join.is_some_and(|kinds| kinds.contains(Namespaces::PID));
        if spec.cgroup.is_some() || shares_pids { Self::EndWithTask } else { Self::Killed }
    }
}

fn wait(main: u32, signals: sys::Fd, leash: sys::Fd, leftovers: Leftovers) -> u32 {
    let mut entries =
        [PollFd { fd: signals, events: POLLIN, revents: 0 }, PollFd { fd: leash, events: 0, revents: 0 }];
    let mut slaying = false;
    let mut code = None;
    loop {
        loop {
            match sys::reap() {
                Ok(Some((pid, status))) if pid == main => code = Some(code_of(status)),
                Ok(Some(_)) => {}
                Ok(None) => break,
                // No children are left, not even the main process.
                Err(_) => return code.unwrap_or(EXIT_CANNOT_EXECUTE),
            }
        }
        match code {
            Some(code) if leftovers == Leftovers::EndWithTask && !slaying => return code,
            Some(_) => slaying = true,
            None => {}
        }
        if slaying {
            slay(code.is_none().then_some(main));
        }
        if sys::poll(&mut entries, None).is_ok() {
            if entries[0].revents != 0 {
                sys::take_signals(signals);
            }
            if entries[1].revents != 0 {
                entries[1].fd = -1;
                slaying = true;
            }
        }
    }
}

/// The exit code for a wait status.
pub(super) fn code_of(status: u32) -> u32 {
    let exit = Exit::of_wait_status(status, 0);
    if exit.signal == 0 { u32::from(exit.code) } else { 128 + u32::from(exit.signal) }
}

/// Reports a failed start on stderr; returns the exit code.
pub(super) fn refuse((step, errno): birth::Failure) -> u32 {
    let line = Text::new()
        .with(b"herdlet: failed to ")
        .with(step.phrase().as_bytes())
        .with(b": ")
        .with(reason(errno))
        .with(b" (errno ")
        .with_number(u64::from(errno))
        .with(b")\n");
    let _ = sys::write(2, line.as_bytes());
    if step == Step::Exec && errno == sys::ENOENT { EXIT_NOT_FOUND } else { EXIT_CANNOT_EXECUTE }
}

/// The usual reasons, for people.
fn reason(errno: sys::Errno) -> &'static [u8] {
    const E2BIG: sys::Errno = 7;
    const ENOEXEC: sys::Errno = 8;
    const ENOTDIR: sys::Errno = 20;
    match errno {
        sys::ENOENT => b"no such file or directory, or its interpreter is missing",
        sys::EACCES | sys::EPERM => b"permission denied",
        E2BIG => b"arguments and environment are too long",
        ENOEXEC => b"not a program for this machine, and no #! line",
        ENOTDIR => b"a part of the path is not a directory",
        _ => b"the system refused it",
    }
}
