//! A session: a command in a task, with this process's standard input, output and terminal.

use std::io::Write as _;

use clap::Args;
use tokio::{
    io::AsyncReadExt,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{
    client::{ClientError, ExecFrame, ExecInput, ExecOutput, ExecSocket, Tty},
    failure::{AGENT_FAILED, Failure},
    stdout,
    terminal::{self, Raw},
};

/// Bytes per read of standard input.
const PIECE_BYTES: usize = 16 * 1024;
/// Interval of heartbeats while nothing is typed, as in Nomad's command line.
const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(10);

/// Flags of commands that open a session.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct StdioFlags {
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Allocate a terminal for the command
    #[arg(short, long)]
    tty: bool,
}

impl StdioFlags {
    pub(super) fn stdio(self) -> Stdio {
        Stdio {
            input: if self.interactive { Input::Stdin } else { Input::Nothing },
            tty: if self.tty { Tty::Yes } else { Tty::No },
        }
    }
}

/// What a session gets of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stdio {
    pub input: Input,
    pub tty: Tty,
}

/// The input of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Stdin,
    Nothing,
}

impl Stdio {
    /// Sets the terminal to raw mode if the session needs it; dropping the result restores it.
    pub(super) fn prepare(self) -> Result<Option<Raw>, Failure> {
        if self.tty == Tty::No || self.input == Input::Nothing {
            return Ok(None);
        }
        let raw = Raw::enter()?;
        if raw.is_none() {
            herdlet_base::stderr_line!("standard input is not a terminal; the command gets one anyway");
        }
        Ok(raw)
    }

    /// Runs the session to its end. The result is the exit code of the command, if it has ended.
    pub(super) async fn attach(self, socket: ExecSocket) -> Result<Option<i32>, ClientError> {
        let (mut input, output) = socket.split();
        let has_terminal = self.tty == Tty::Yes;
        if let Some((height, width)) = terminal::size().filter(|_| has_terminal) {
            input.resize(height, width).await?;
        }
        let pieces = (self.input == Input::Stdin).then(typed);
        let resized = if has_terminal { signal(SignalKind::window_change()).ok() } else { None };
        let feeding = feed(input, pieces, resized);
        let draining = drain(output);
        tokio::pin!(draining);
        tokio::select! {
            ended = &mut draining => ended,
            // The session is over or the connection broke; the receiving side reports which, and why.
            _ = feeding => draining.await,
        }
    }
}

/// The exit code for the end of a session.
pub(super) fn exit_code(ended: Result<Option<i32>, ClientError>) -> Result<u8, Failure> {
    match ended {
        Ok(Some(code)) => Ok(u8::try_from(code & 0xff).unwrap_or(AGENT_FAILED)),
        Ok(None) => Err(Failure::new("the session ended without an exit code")),
        Err(error) => Err(Failure::from(error)),
    }
}

/// Prints output until the command has ended.
async fn drain(mut output: ExecOutput) -> Result<Option<i32>, ClientError> {
    while let Some(frame) = output.next().await? {
        match frame {
            ExecFrame::Stdout(bytes) => stdout::bytes(&bytes),
            // If stderr can't be written, the exit code still counts.
            ExecFrame::Stderr(bytes) => drop(std::io::stderr().write_all(&bytes)),
            ExecFrame::Exited(code) => return Ok(Some(code)),
        }
    }
    Ok(None)
}

enum Never {}

/// Forwards the pieces of standard input, and the terminal's size whenever it is `resized`. Never ends by itself: the
/// command decides when the session ends.
async fn feed(
    mut input: ExecInput,
    mut pieces: Option<mpsc::Receiver<Vec<u8>>>,
    mut resized: Option<Signal>,
) -> Result<Never, ClientError> {
    if pieces.is_none() {
        input.end().await?;
    }
    loop {
        let piece = async {
            match &mut pieces {
                Some(pieces) => pieces.recv().await,
                None => std::future::pending().await,
            }
        };
        let resize = async {
            match &mut resized {
                Some(resized) => resized.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            piece = piece => match piece {
                Some(bytes) => input.stdin(&bytes).await?,
                None => {
                    pieces = None;
                    input.end().await?;
                }
            },
            _ = resize => if let Some((height, width)) = terminal::size() {
                input.resize(height, width).await?;
            },
            () = tokio::time::sleep(HEARTBEAT) => input.heartbeat().await?,
        }
    }
}

/// Standard input in pieces. Read by a separate task, because a read can't be cancelled.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, pieces) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(count) = stdin.read(&mut buffer).await {
            if count == 0 || sender.send(buffer[..count].to_vec()).await.is_err() {
                return;
            }
        }
    });
    pieces
}
