//! Commands executed in a running attempt, with its cgroup, environment, user and directory, and with streams of their own.
//!
//! The agent owns a session: the supervisor holds its leash, and all processes of the session die with the agent, with the
//! connection (the dropped [`ExecSession`]), or with the command. Only processes that a command deliberately leaves in the cgroup
//! outlive it; they end with the task.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use herdlet_api_types::task::ExitResult;
use herdlet_base::ready;
use herdlet_driver::{AttemptId, DriverError, DriverResult, ExecRequest, ExecSession, TerminalSize};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    pipe::PipeFlags,
    pty::OpenptFlags,
    termios::Winsize,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{RunningTask, Shared, off_thread, retry};
use crate::supervisor::{
    Child, Invocation, Isolation, Namespaces, Session, ShimEnd, Terminal, enter, inner_side, open_in_root,
};

/// How many chunks of a stream are buffered for a slow reader.
const PIECES_MAX: usize = 16;
/// The longest chunk, in bytes.
const PIECE_LEN_MAX: usize = 32 * 1024;
/// How long the streams are read after a command's exit while they are silent: processes it left may hold them open indefinitely,
/// and a terminal delivers its last bytes with a delay.
const SILENCE_TIME_MAX: Duration = Duration::from_millis(100);
/// The end-of-input character of a terminal.
const END_OF_INPUT: u8 = 4;

/// Starts a command.
pub(super) async fn session(
    shared: &Arc<Shared>,
    id: &AttemptId,
    request: ExecRequest,
) -> DriverResult<ExecSession> {
    let (live, record) = shared.running(id)?;
    let task = live.config().ok_or_else(|| {
        DriverError::fatal(format!("execute a command in {id}: this agent does not know its specification"))
    })?;
    let (ours, child, leash) = off_thread({
        let (shared, id) = (Arc::clone(shared), id.clone());
        move || launch(&shared, &id, &RunningTask { config: &task, main: record.task }, &request)
    })
    .await?;
    // From here on the command may have run, so no error may cause a retry.
    follow(ours, child, leash).map_err(DriverError::fatal)
}

/// The agent's ends of a command's streams.
struct Streams {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
}

/// Blocking: name services, files, the clone itself.
fn launch(
    shared: &Shared,
    id: &AttemptId,
    task: &RunningTask<'_>,
    request: &ExecRequest,
) -> DriverResult<(Streams, Child, OwnedFd)> {
    if request.command.is_empty() {
        return Err(DriverError::fatal("execute a command: none was given"));
    }
    let mut invocation = shared.translate.command(task, &request.command)?;
    invocation.network = shared.translate.network(task.config)?;
    if request.terminal.is_some() && !task.config.env.iter().any(|(name, _)| name == "TERM") {
        invocation.environment.push(("TERM".into(), "xterm".into()));
    }
    if let Some(cgroup) = shared.cgroup(id) {
        invocation.tasks_files = cgroup.tasks_files();
        invocation.cgroup = Some(cgroup.dir().to_owned());
    }
    let shims = match shared.setup.isolation.cgroups() {
        Some(cgroups) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Some(
                rustix::fs::open(cgroups.shims(), flags, Mode::empty())
                    .map_err(|errno| retry(io::Error::from(errno)))?,
            )
        }
        None => None,
    };
    let (ours, theirs) = match request.terminal {
        Some(size) => terminal(size, &invocation),
        None => pipes(),
    }
    .map_err(|errno| retry(io::Error::from(errno)))?;
    let (leash, leash_held) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| retry(io::Error::from(errno)))?;
    let [stdin, stdout, stderr] = &theirs;
    let child = enter(&Session {
        program: &shared.setup.program,
        title: &id.name(),
        invocation: &invocation,
        stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
        terminal: if request.terminal.is_some() { Terminal::Stdin } else { Terminal::None },
        shims_cgroup: shims.as_ref().map(AsFd::as_fd),
        leash: leash.as_fd(),
    })
    .map_err(retry)?;
    Ok((ours, child, leash_held))
}

fn pipes() -> Result<(Streams, [OwnedFd; 3]), Errno> {
    let (their_in, stdin) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, their_out) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, their_err) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Streams { stdin, stdout, stderr: Some(stderr), terminal: None }, [their_in, their_out, their_err]))
}

fn terminal(size: TerminalSize, invocation: &Invocation) -> Result<(Streams, [OwnedFd; 3]), Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = match &invocation.isolation {
        Some(Isolation::Joined(joined)) if joined.kinds.contains(Namespaces::MOUNT) => {
            let root = joined.of.root().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            open_in_root(root.ok_or(Errno::SRCH)?.as_fd())?
        }
        Some(Isolation::Joined(_) | Isolation::Own(_)) | None => rustix::pty::openpt(flags)?,
    };
    // Lets the command open its terminal by name.
    let slave = inner_side(&master, invocation.user.as_ref().map(|user| user.uid))?;
    rustix::termios::tcsetwinsize(&master, winsize(size))?;
    let ours = Streams {
        stdin: master.try_clone().map_err(|_| Errno::MFILE)?,
        stdout: master.try_clone().map_err(|_| Errno::MFILE)?,
        stderr: None,
        terminal: Some(master),
    };
    let copy = || slave.try_clone().map_err(|_| Errno::MFILE);
    Ok((ours, [copy()?, copy()?, slave]))
}

fn winsize(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Connects a running command with channels, and makes sure it is reaped.
fn follow(ours: Streams, child: Child, leash: OwnedFd) -> io::Result<ExecSession> {
    let (stdin, input) = mpsc::channel(PIECES_MAX);
    let (out, stdout) = mpsc::channel(PIECES_MAX);
    let (err, stderr) = mpsc::channel(PIECES_MAX);
    let (resize, sizes) = mpsc::channel(1);
    let (mut ended, exit) = oneshot::channel();
    let has_ended = CancellationToken::new();
    // A terminal has no end: the command sees one when this character arrives.
    let last: &'static [u8] = if ours.terminal.is_some() { &[END_OF_INPUT] } else { &[] };
    let ended_too = has_ended.clone();
    // First: a child is reaped even if its streams can't be read.
    tokio::spawn(async move {
        let mut leash = Some(leash);
        let mut end = std::pin::pin!(child.wait());
        let end = loop {
            tokio::select! {
                end = &mut end => break end,
                () = ended.closed(), if leash.is_some() => leash = None,
            }
        };
        ended_too.cancel();
        let _ = ended.send(end.map(result_of).map_err(DriverError::fatal));
    });
    let writing = write_all(nonblocking(ours.stdin, Interest::WRITABLE)?, input, last);
    tokio::spawn(has_ended.clone().run_until_cancelled_owned(writing));
    tokio::spawn(read_all(nonblocking(ours.stdout, Interest::READABLE)?, out, has_ended.clone()));
    match ours.stderr {
        Some(fd) => {
            tokio::spawn(read_all(nonblocking(fd, Interest::READABLE)?, err, has_ended.clone()));
        }
        None => drop(err),
    }
    tokio::spawn(has_ended.run_until_cancelled_owned(follow_size(ours.terminal, sizes)));
    let exit = async {
        match exit.await {
            Ok(result) => result,
            Err(_) => Err(DriverError::fatal("follow a command: the runtime is shutting down")),
        }
    };
    Ok(ExecSession { stdin, stdout, stderr, resize, exit: exit.boxed() })
}

fn result_of(end: ShimEnd) -> ExitResult {
    let code = match end {
        ShimEnd::Code(code) => code,
        ShimEnd::Signal(signal) => 128 + signal,
    };
    ExitResult { code, at: herdlet_base::clock::wall_now(), ..ExitResult::default() }
}

fn nonblocking(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    ready::register(fd, interest)
}

/// Writes all input until its sender is dropped, then `last`; then the command sees the end of its input.
async fn write_all(to: AsyncFd<OwnedFd>, mut pieces: mpsc::Receiver<Vec<u8>>, last: &'static [u8]) {
    while let Some(piece) = pieces.recv().await {
        if write_piece(&to, &piece).await.is_err() {
            return;
        }
    }
    let _ = write_piece(&to, last).await;
}

async fn write_piece(to: &AsyncFd<OwnedFd>, mut piece: &[u8]) -> io::Result<()> {
    while !piece.is_empty() {
        let mut ready = to.writable().await?;
        match rustix::io::write(to, piece) {
            Ok(len) => piece = &piece[len..],
            Err(Errno::WOULDBLOCK) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Reads to the end, and after the command's exit only until the stream is silent. Keeps reading when the receiver is gone: a
/// full pipe would block the command.
async fn read_all(from: AsyncFd<OwnedFd>, to: mpsc::Sender<Vec<u8>>, has_ended: CancellationToken) {
    let mut buffer = vec![0; PIECE_LEN_MAX];
    loop {
        let silence = async {
            has_ended.cancelled().await;
            tokio::time::sleep(SILENCE_TIME_MAX).await;
        };
        let mut ready = tokio::select! {
            biased;
            ready = from.readable() => match ready {
                Ok(ready) => ready,
                Err(_) => return,
            },
            () = silence => return,
        };
        match rustix::io::read(&from, &mut buffer) {
            // A terminal without a command reports its end as EIO.
            Ok(0) | Err(Errno::IO) => return,
            Ok(len) => {
                let _ = to.send(buffer[..len].to_vec()).await;
            }
            Err(Errno::WOULDBLOCK) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

async fn follow_size(terminal: Option<OwnedFd>, mut sizes: mpsc::Receiver<TerminalSize>) {
    while let Some(size) = sizes.recv().await {
        if let Some(terminal) = &terminal {
            // The kernel notifies the command with SIGWINCH. Errors of a closed terminal don't matter.
            let _ = rustix::termios::tcsetwinsize(terminal, winsize(size));
        }
    }
    // Hold the terminal until the end: closing its last descriptor hangs up the command.
    std::future::pending::<()>().await;
}
