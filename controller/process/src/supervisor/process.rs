//! A verified process.
//!
//! In: a pid and start time from a record. Out: a pidfd, signals, the end of the process or of its whole tree. It never
//! signals a bare pid, because pids are reused. One exception: before Linux 6.9 a process group can only be named by
//! its number, so it is signalled by that, right after the pidfd showed that its leader lives.

use crate::process_tree;
use herdlet_base::ready::{self, SharedFd};
use herdlet_shim::record::{Process, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;

/// Why a process could not be reached. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Its pidfd could not be opened.
    #[error("open process {pid}")]
    Open {
        pid: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The record has no start time (its shim could not read /proc), so a later process with the same pid can't be
    /// ruled out.
    #[error("verify process {pid}: its record has no start time, so the pid may have been reused")]
    Unverifiable { pid: u32 },
    /// A signal could not be sent.
    #[error("signal process {pid}")]
    Signal {
        pid: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The processes below a shim did not end in time.
    #[error("end {left} processes below process {pid}")]
    Tree {
        pid: u32,
        /// How many are left.
        left: usize,
    },
}

/// A verified process. It refers to the same process even after that has ended.
#[derive(Debug)]
pub struct PidFd {
    fd: SharedFd,
    process: Process,
}

/// The task's main process, or `None` if it has ended.
///
/// # Errors
/// When the system can't report that.
pub fn open_task(record: &Record) -> Result<Option<PidFd>, ProcessError> {
    PidFd::open(record.task)
}

impl PidFd {
    /// Opens a process if it still has that start time.
    ///
    /// # Errors
    /// When the start time is unknown, or the system refuses.
    pub fn open(process: Process) -> Result<Option<Self>, ProcessError> {
        let Some(pid) = Pid::from_raw(process.pid as i32) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            // EINVAL: the number now belongs to a thread.
            Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
            fd => fd.map_err(|source| ProcessError::Open { pid: process.pid, source: source.into() })?,
        };
        if process.start_ticks == 0 {
            return Err(ProcessError::Unverifiable { pid: process.pid });
        }
        // Check only now: while the pidfd is open the number can't be reused.
        let stat = process_tree::read_stat(process.pid)
            .map_err(|source| ProcessError::Open { pid: process.pid, source })?;
        let is_same = stat.is_some_and(|stat| stat.start_ticks == process.start_ticks);
        Ok(is_same.then(|| Self { fd: SharedFd::new(fd), process }))
    }

    /// Pid and start time.
    #[must_use]
    pub const fn process(&self) -> Process {
        self.process
    }

    /// Sends a signal. It is no error if the process has already ended.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn send(&self, signal: Signal) -> Result<(), ProcessError> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(source) => Err(ProcessError::Signal { pid: self.process.pid, source: source.into() }),
        }
    }

    /// Sends a signal to the process group that this process leads, as a task's main process does.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn send_to_group(&self, signal: Signal) -> Result<(), ProcessError> {
        let sent = match signal_group(self.fd.as_fd(), signal) {
            Err(Errno::INVAL) => self.send_to_numbered_group(signal),
            sent => sent,
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(source) => Err(ProcessError::Signal { pid: self.process.pid, source: source.into() }),
        }
    }

    /// For kernels before Linux 6.9.
    fn send_to_numbered_group(&self, signal: Signal) -> Result<(), Errno> {
        let Some(pid) = Pid::from_raw(self.process.pid as i32) else { return Ok(()) };
        // The number can be another group's only after the leader was reaped.
        if self.has_ended()? {
            return Ok(());
        }
        #[expect(clippy::disallowed_methods, reason = "the leader was just seen alive through its pidfd")]
        rustix::process::kill_process_group(pid, signal)
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    /// When there is no tokio runtime with IO.
    pub async fn ended(&self) -> io::Result<()> {
        let fd = ready::register_shared(&self.fd, Interest::READABLE)?;
        fd.readable().await?.retain_ready();
        Ok(())
    }

    /// Opens its root directory; `None` if it has ended.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn root(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(format!("/proc/{}/root", self.process.pid), flags, Mode::empty());
        // Its number may belong to another process by now.
        if self.has_ended()? {
            return Ok(None);
        }
        match opened {
            Ok(root) => Ok(Some(root)),
            Err(Errno::NOENT | Errno::SRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it has ended, even if nobody has reaped it yet.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn has_ended(&self) -> Result<bool, Errno> {
        self.wait(Duration::ZERO)
    }

    fn wait(&self, at_most: Duration) -> Result<bool, Errno> {
        let timeout =
            Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

/// Signals the process group led by the process of a pidfd (pidfd_send_signal(2), Linux 6.9; EINVAL before).
#[expect(unsafe_code, reason = "rustix passes no flags")]
fn signal_group(leader: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;
    let no_info = std::ptr::null::<libc::siginfo_t>();
    let (fd, signal) = (leader.as_raw_fd(), signal.as_raw());
    // SAFETY: only numbers, and a null pointer, for which the kernel fills in what kill(2) would.
    let sent = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_info, PIDFD_SIGNAL_PROCESS_GROUP)
    };
    if sent == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Kills all processes below a shim, on machines without cgroups. Blocks until none is left or the time is over.
///
/// The shim itself lives on, records the exit and adopts orphans, so that no process escapes. Returns the number of
/// processes killed.
///
/// # Errors
/// When processes remain (stuck in the kernel, or forking faster than they can be killed), or the system refuses a
/// signal.
pub fn kill_tree(shim: &PidFd, patience: Duration) -> Result<usize, ProcessError> {
    let until = Instant::now() + patience;
    let mut killed = 0;
    loop {
        let below = descendants(shim);
        if below.is_empty() {
            return Ok(killed);
        }
        if Instant::now() >= until {
            return Err(ProcessError::Tree { pid: shim.process.pid, left: below.len() });
        }
        for process in &below {
            process.send(Signal::KILL)?;
            killed += 1;
        }
        for process in &below {
            let failed =
                |source: Errno| ProcessError::Signal { pid: process.process.pid, source: source.into() };
            process.wait(until.saturating_duration_since(Instant::now())).map_err(failed)?;
        }
    }
}

/// Every living process below a shim. Each is opened first, then checked to be still below it.
fn descendants(shim: &PidFd) -> Vec<PidFd> {
    let found = process_tree::below(shim.process.pid, |pid, stat| {
        PidFd::open(Process { pid, start_ticks: stat.start_ticks }).ok().flatten()
    });
    // If the shim's pid was reused meanwhile, the list is about another process.
    let is_same =
        process_tree::stat(shim.process.pid).is_some_and(|stat| stat.start_ticks == shim.process.start_ticks);
    if is_same { found } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, Stdio};

    /// A shell that leads its own group, and the child in that group whose pid it prints.
    fn group() -> (Child, PidFd, PidFd) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped()).process_group(0);
        let mut shell = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (leader, child) = (open(shell.id()), open(line.trim().parse().unwrap()));
        (shell, leader, child)
    }

    fn open(pid: u32) -> PidFd {
        let start_ticks = process_tree::stat(pid).unwrap().start_ticks;
        PidFd::open(Process { pid, start_ticks }).unwrap().unwrap()
    }

    fn ends(process: &PidFd) -> bool {
        process.wait(Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn a_signal_reaches_the_whole_group_on_old_kernels_too() {
        let ways: [fn(&PidFd); 2] = [
            |leader| leader.send_to_group(Signal::TERM).unwrap(),
            |leader| leader.send_to_numbered_group(Signal::TERM).unwrap(),
        ];
        for send in ways {
            let (mut shell, leader, child) = group();
            send(&leader);
            assert!(ends(&leader) && ends(&child));
            assert_eq!(shell.wait().unwrap().signal(), Some(libc::SIGTERM));
            // Nobody is left, and the number may belong to another group.
            send(&leader);
        }
    }

    #[test]
    fn a_tree_is_not_fought_beyond_its_time() {
        let (mut shell, top, child) = group();
        let refused = kill_tree(&top, Duration::ZERO);
        assert!(matches!(refused, Err(ProcessError::Tree { left: 1, .. })), "{refused:?}");
        assert!(!child.has_ended().unwrap());
        assert_eq!(kill_tree(&top, Duration::from_secs(20)).unwrap(), 1);
        assert!(ends(&child));
        shell.wait().unwrap();
    }
}
