//! Describes and starts one attempt or one exec session.
//!
//! In: [`Launch`] or [`Session`]. Out: a [`Child`], the shim itself. The record reports how an attempt ended, not the
//! shim: shims outlive the agent, and a `Child` only serves to reap one while the agent lives.

use super::invocation::{FirstProcess, Invocation, Isolation, Logs, StandardInput, WhenFull};
use super::places::Places;
use super::program::{Program, ProgramError, in_memory};
use super::spawn::{Spawn, spawn};
use herdlet_base::ready::{self, SharedFd};
use herdlet_base::safe_fs;
use herdlet_shim::spec::{Field, SpecError, encode};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use zeroize::Zeroize;

/// How long a start is retried while the program file is busy. Another process holds it until it has loaded its program, which takes
/// long on a machine whose disk is overloaded.
const BUSY_TIME_MAX: Duration = Duration::from_secs(10);

/// One attempt to start.
pub struct Launch<'a> {
    pub program: &'a Program,
    /// File name of the attempt's record; also shown in `ps`.
    pub record: &'a str,
    /// The attempt's driver, by its number in records.
    pub driver: u32,
    pub runtime_dir: BorrowedFd<'a>,
    /// Directory of the log files, below the allocation.
    pub logs_dir: BorrowedFd<'a>,
    pub invocation: &'a Invocation,
    pub logs: &'a Logs,
    /// The instance's cgroup for shims; `None` leaves the shim where the agent is.
    pub shims_cgroup: Option<BorrowedFd<'a>>,
    /// Read end of a pipe. When the write end is closed, the shim and the task are killed. For private agents.
    pub leash: Option<BorrowedFd<'a>>,
}

/// One exec session to start.
pub struct Session<'a> {
    pub program: &'a Program,
    /// Shown in `ps`.
    pub title: &'a str,
    pub invocation: &'a Invocation,
    /// The session's stdin, stdout and stderr.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whether stdin is the controlling terminal of the session.
    pub terminal: Terminal,
    /// The instance's cgroup for shims.
    pub shims_cgroup: Option<BorrowedFd<'a>>,
    /// Read end of a pipe. When the write end is closed, everything in the session is killed.
    pub leash: BorrowedFd<'a>,
}

/// Whether a session has a controlling terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    None,
    /// Stdin is a terminal (the slave of a pty), which becomes the controlling terminal.
    Stdin,
}

/// Why a supervisor could not be started. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The invocation can't be encoded: too long, or a NUL byte in a string.
    #[error("encode the launch specification of {name}")]
    Spec {
        /// The attempt or session.
        name: String,
        #[source]
        source: SpecError,
    },
    /// The description could not be passed on.
    #[error("pass the launch specification of {name} to its supervisor")]
    Handover {
        /// The attempt or session.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// There is no copy of the program that a task may see.
    #[error("prepare the supervisor of {name}")]
    Program {
        /// The attempt or session.
        name: String,
        #[source]
        source: ProgramError,
    },
    /// The supervisor could not be started.
    #[error("start the supervisor of {name}")]
    Spawn {
        /// The attempt or session.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A running shim, a child of this agent. It stays a zombie until the agent waits for it or ends.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    pidfd: SharedFd,
}

/// How a shim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimEnd {
    /// With an exit code: 0 after an attempt's end, [`herdlet_shim::EXIT_LOST`] for the loser of a double start, the
    /// command's own for a session.
    Code(i32),
    Signal(i32),
}

/// Starts an attempt's supervisor; its record shows the rest. Blocks for well under a millisecond.
///
/// Starting the same record twice is safe: only one of them runs the task.
///
/// # Errors
/// When the supervisor itself can't be started. The record reports errors of the task's program.
pub fn launch(what: &Launch<'_>) -> Result<Child, LaunchError> {
    let names = log_names(what.logs);
    let mut fields = vec![Field::Record(what.record.as_bytes()), Field::Driver(what.driver)];
    if let (Logs::Files(files), Some((stdout, stderr))) = (what.logs, &names) {
        fields.extend([
            Field::Stdout(stdout.as_bytes()),
            Field::Stderr(stderr.as_bytes()),
            Field::LogFiles(files.files_max),
            Field::LogFileSize(files.file_size_max),
        ]);
        if files.when_full == WhenFull::Block {
            fields.push(Field::LogBlock);
        }
    }
    if what.leash.is_some() {
        fields.push(Field::Leash);
    }
    match &what.invocation.input {
        StandardInput::Ended => {}
        StandardInput::Open => fields.push(Field::Input),
        StandardInput::Terminal(_) => fields.push(Field::Terminal),
    }
    let handover =
        |source: Errno| LaunchError::Handover { name: what.record.to_owned(), source: source.into() };
    let spec = hand_over(what.record, fields, what.invocation)?;
    let null =
        rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(handover)?;
    let stdin = what.invocation.mounts().map_or(null.as_fd(), |mounts| mounts.null.as_fd());
    let mut fds = vec![stdin, what.logs_dir, what.runtime_dir, spec.as_fd()];
    let inside = match &what.invocation.isolation {
        Some(Isolation::Own(own)) if own.first == FirstProcess::Init => {
            Some(inside(what.program, what.record)?)
        }
        Some(Isolation::Own(_) | Isolation::Joined(_)) | None => None,
    };
    let entry = what.invocation.entry.as_ref().map(|entry| entry.dir.as_fd());
    let mounts = what.invocation.mounts().map(|mounts| mounts.namespace.as_fd());
    let open = match &what.invocation.input {
        StandardInput::Open => Some(endless_input().map_err(handover)?),
        StandardInput::Ended | StandardInput::Terminal(_) => None,
    };
    let [input, terminal] = match &what.invocation.input {
        StandardInput::Terminal(terminal) => [Some(terminal.inner.as_fd()), Some(terminal.outer.as_fd())],
        StandardInput::Ended | StandardInput::Open => [open.as_ref().map(AsFd::as_fd), None],
    };
    fds.extend(optional([what.leash, entry, mounts, inside, input, terminal], null.as_fd()));
    let (program, cgroup) = (what.program.as_fd(), what.shims_cgroup);
    let places = what.program.places();
    start(&Supervisor { program, places, verb: c"run", title: what.record, fds: &fds, cgroup })
}

/// Descriptors from 4 on. `filler` takes the place of one that is not needed before one that is.
fn optional<'a, const COUNT: usize>(
    fds: [Option<BorrowedFd<'a>>; COUNT],
    filler: BorrowedFd<'a>,
) -> impl Iterator<Item = BorrowedFd<'a>> {
    let len = fds.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    fds.into_iter().take(len).map(move |fd| fd.unwrap_or(filler))
}

/// A pipe that its own reader may write to, so that it never ends.
fn endless_input() -> Result<OwnedFd, Errno> {
    let (reader, _writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let path = safe_fs::proc_path(reader.as_fd(), None);
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn inside<'a>(program: &'a Program, name: &str) -> Result<BorrowedFd<'a>, LaunchError> {
    program.inside().map_err(|source| LaunchError::Program { name: name.to_owned(), source })
}

/// Starts an exec session. Its shim exits with the command's exit code.
///
/// # Errors
/// When the supervisor can't be started. A command that can't be executed exits with code 126 or 127.
pub fn enter(what: &Session<'_>) -> Result<Child, LaunchError> {
    let fields = match what.terminal {
        Terminal::None => vec![],
        Terminal::Stdin => vec![Field::Terminal],
    };
    let spec = hand_over(what.title, fields, what.invocation)?;
    let [stdin, stdout, stderr] = what.stdio;
    let mut fds = vec![stdin, stdout, stderr, spec.as_fd()];
    let (program, joined) = match &what.invocation.isolation {
        // Between its entry and the command's execution, processes of the task may see which program this is.
        Some(Isolation::Joined(joined)) => (inside(what.program, what.title)?, Some(joined.of.as_fd())),
        Some(Isolation::Own(_)) | None => (what.program.as_fd(), None),
    };
    let entry = what.invocation.entry.as_ref().map(|entry| entry.dir.as_fd());
    fds.extend(optional([Some(what.leash), entry, None, joined], spec.as_fd()));
    let (places, cgroup) = (what.program.places(), what.shims_cgroup);
    start(&Supervisor { program, places, verb: c"enter", title: what.title, fds: &fds, cgroup })
}

/// A supervisor to start.
struct Supervisor<'a> {
    program: BorrowedFd<'a>,
    places: &'a Places,
    /// What it does.
    verb: &'a CStr,
    /// The attempt or session, for lists of processes.
    title: &'a str,
    fds: &'a [BorrowedFd<'a>],
    cgroup: Option<BorrowedFd<'a>>,
}

fn start(what: &Supervisor<'_>) -> Result<Child, LaunchError> {
    let Supervisor { program, places, verb, title, fds, cgroup } = *what;
    let text = CString::new(title).unwrap_or_default();
    let arguments = [c"herdlet-shim", verb, text.as_c_str()];
    let what = Spawn { program, places, arguments: &arguments, fds, cgroup };
    let began = Instant::now();
    loop {
        match spawn(&what) {
            Ok((pid, pidfd)) => return Ok(Child { pid, pidfd: SharedFd::new(pidfd) }),
            Err(problem)
                if problem.kind() == io::ErrorKind::ExecutableFileBusy && began.elapsed() < BUSY_TIME_MAX =>
            {
                wait_for_others();
            }
            Err(source) => return Err(LaunchError::Spawn { name: title.to_owned(), source }),
        }
    }
}

/// A process that another thread has just forked may hold the program file open for writing until it calls exec. The
/// kernel sends no event for that.
#[expect(
    clippy::disallowed_methods,
    reason = "this function blocks anyway, and only right after an installation"
)]
fn wait_for_others() {
    std::thread::sleep(Duration::from_millis(2));
}

fn log_names(logs: &Logs) -> Option<(String, String)> {
    match logs {
        Logs::Disabled => None,
        Logs::Files(files) => Some((format!("{}.stdout", files.name), format!("{}.stderr", files.name))),
    }
}

/// Writes the spec to a memfd that only the shim reads. The environment holds secrets, so no copy is left behind.
fn hand_over(
    name: &str,
    mut fields: Vec<Field<'_>>,
    invocation: &Invocation,
) -> Result<OwnedFd, LaunchError> {
    let mut variables: Vec<Vec<u8>> = invocation
        .environment
        .iter()
        .map(|(key, value)| [key.as_bytes(), b"=", value.as_bytes()].concat())
        .collect();
    let all = fields.drain(..).chain(invocation.fields()).chain(variables.iter().map(|v| Field::Variable(v)));
    let mut blob = Vec::with_capacity(4096);
    let encoded = encode(all, &mut blob);
    let written =
        encoded.map_err(|source| LaunchError::Spec { name: name.to_owned(), source }).and_then(|()| {
            in_memory("herdlet-spec", &blob, MemfdFlags::NOEXEC_SEAL)
                .map_err(|source| LaunchError::Handover { name: name.to_owned(), source: source.into() })
        });
    blob.zeroize();
    variables.zeroize();
    written
}

impl Child {
    /// The shim's pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the shim ends and reaps it. The future may be dropped and created again.
    ///
    /// # Errors
    /// When the shim was reaped before, or there is no tokio runtime with IO.
    pub fn wait(&self) -> impl Future<Output = io::Result<ShimEnd>> + use<> {
        let pidfd = self.pidfd.clone();
        async move {
            let pidfd = ready::register_shared(&pidfd, Interest::READABLE)?;
            loop {
                let mut guard = pidfd.readable().await?;
                match reap(pidfd.get_ref().as_fd(), WaitIdOptions::NOHANG)? {
                    Some(end) => return Ok(end),
                    None => guard.clear_ready(),
                }
            }
        }
    }

    /// Waits until the shim ends and reaps it, blocking the calling thread.
    ///
    /// # Errors
    /// When the shim was reaped before.
    pub fn wait_blocking(&self) -> io::Result<ShimEnd> {
        loop {
            if let Some(end) = reap(self.pidfd.as_fd(), WaitIdOptions::empty())? {
                return Ok(end);
            }
        }
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn reap(pidfd: BorrowedFd<'_>, options: WaitIdOptions) -> io::Result<Option<ShimEnd>> {
    let status = loop {
        match rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | options) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    Ok(status.as_ref().and_then(end_of))
}

fn end_of(status: &WaitIdStatus) -> Option<ShimEnd> {
    let code = status.exit_status().map(ShimEnd::Code);
    code.or_else(|| status.terminating_signal().map(ShimEnd::Signal))
}
