//! Commands executed in a running task: run to completion, or as a session with streams.
//!
//! The holder of an [`ExecSession`] owns the command: dropping the session ends it.

use std::time::Duration;

use futures_util::{StreamExt, future::BoxFuture, stream::BoxStream};
use tokio::sync::mpsc;

use super::{DriverError, DriverResult, ExitResult};

/// Limit of each output stream in [`ExecOutcome`], in bytes. The last bytes are kept, as in Nomad's script checks.
pub const EXEC_OUTPUT_LEN_MAX: usize = 4096;

/// The result of a command that ran to completion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutcome {
    /// The last bytes of its standard output.
    pub stdout: Vec<u8>,
    /// The last bytes of its standard error.
    pub stderr: Vec<u8>,
    /// Exit code and signal.
    pub exit: ExitResult,
}

/// How much of a command's output is part of a message. More would not be a reason but a report.
const EXCERPT_LINES_MAX: usize = 3;
const LINE_CHARS_MAX: usize = 200;

impl ExecOutcome {
    /// The last lines that the command wrote, preferably to standard error, on one line.
    pub fn excerpt(&self) -> Option<String> {
        let last_lines = |bytes: &Vec<u8>| {
            let text = String::from_utf8_lossy(bytes);
            let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
            let mut last: Vec<String> = lines
                .rev()
                .take(EXCERPT_LINES_MAX)
                .map(|line| line.chars().take(LINE_CHARS_MAX).collect())
                .collect();
            last.reverse();
            (!last.is_empty()).then(|| last.join("; "))
        };
        [&self.stderr, &self.stdout].into_iter().find_map(last_lines)
    }
}

/// A command to execute as a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// Program and arguments.
    pub command: Vec<String>,
    /// The size of its terminal; none for pipes.
    pub terminal: Option<TerminalSize>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Rows.
    pub height: u16,
    /// Columns.
    pub width: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { height: 24, width: 80 }
    }
}

/// A running command.
pub struct ExecSession {
    /// Its standard input; dropping the sender closes it.
    pub stdin: mpsc::Sender<Vec<u8>>,
    /// Its standard output; with a terminal, all of its output. Ends at the end of the output.
    pub stdout: mpsc::Receiver<Vec<u8>>,
    /// Its standard error.
    pub stderr: mpsc::Receiver<Vec<u8>>,
    /// New sizes of its terminal.
    pub resize: mpsc::Sender<TerminalSize>,
    /// The exit of the command. Dropping this future ends the command.
    pub exit: BoxFuture<'static, DriverResult<ExitResult>>,
}

/// An input frame of a session in raw form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecInput {
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// The end of standard input.
    StdinEnd,
    /// A new size of the terminal.
    Resize(TerminalSize),
}

/// An output frame of a session in raw form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutput {
    /// Bytes of standard output.
    Stdout(Vec<u8>),
    /// The end of standard output.
    StdoutEnd,
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// The end of standard error.
    StderrEnd,
    /// The command exited. This is the last frame.
    Exited(ExitResult),
}

/// Runs a session to completion without input and keeps the tail of its output. Ends the command after `timeout`.
///
/// # Errors
/// The errors of the session; a timeout is fatal.
pub async fn run_to_end(session: ExecSession, timeout: Duration) -> DriverResult<ExecOutcome> {
    let ExecSession { stdin, mut stdout, mut stderr, resize, exit } = session;
    drop((stdin, resize));
    let mut outcome = ExecOutcome::default();
    let tails = (&mut outcome.stdout, &mut outcome.stderr);
    let all = async { tokio::join!(tail(&mut stdout, tails.0), tail(&mut stderr, tails.1), exit) };
    let ended = tokio::time::timeout(timeout, all).await;
    match ended {
        Ok(((), (), exit)) => Ok(ExecOutcome { exit: exit?, ..outcome }),
        Err(_) => {
            let output = outcome.excerpt().map(|lines| format!("; it wrote: {lines}")).unwrap_or_default();
            Err(DriverError::fatal(format!("complete the command within {timeout:?}: timed out{output}")))
        }
    }
}

/// Collects the last bytes of a stream in `kept`, where they are if its command does not end in time.
async fn tail(pieces: &mut mpsc::Receiver<Vec<u8>>, kept: &mut Vec<u8>) {
    while let Some(piece) = pieces.recv().await {
        kept.extend_from_slice(&piece);
        if kept.len() > EXEC_OUTPUT_LEN_MAX {
            kept.drain(..kept.len() - EXEC_OUTPUT_LEN_MAX);
        }
    }
}

/// Drives a session by frames. Returns after the last frame was sent, or early when the receiver of `output` is dropped, which
/// ends the command. The end of `input` does not end the session: the client may still read output.
///
/// # Errors
/// The errors of the session.
pub async fn relay_frames(
    session: ExecSession,
    mut input: BoxStream<'static, ExecInput>,
    output: mpsc::Sender<ExecOutput>,
) -> DriverResult<()> {
    let ExecSession { stdin, mut stdout, mut stderr, resize, exit } = session;
    let reading = async {
        let mut stdin = Some(stdin);
        while let Some(frame) = input.next().await {
            match frame {
                ExecInput::Stdin(bytes) => {
                    if let Some(stdin) = &stdin {
                        // Fails if the command closed its input, which is not an error.
                        let _ = stdin.send(bytes).await;
                    }
                }
                ExecInput::StdinEnd => stdin = None,
                ExecInput::Resize(size) => {
                    let _ = resize.send(size).await;
                }
            }
        }
        // The streams stay open: closing them at the end of `input` would end an interactive shell.
        std::future::pending::<()>().await;
    };
    let writing = async {
        let out = async {
            while let Some(bytes) = stdout.recv().await {
                output.send(ExecOutput::Stdout(bytes)).await?;
            }
            output.send(ExecOutput::StdoutEnd).await
        };
        let err = async {
            while let Some(bytes) = stderr.recv().await {
                output.send(ExecOutput::Stderr(bytes)).await?;
            }
            output.send(ExecOutput::StderrEnd).await
        };
        let (exit, out, err) = tokio::join!(exit, out, err);
        let exit = exit?;
        if out.is_ok() && err.is_ok() {
            let _ = output.send(ExecOutput::Exited(exit)).await;
        }
        Ok(())
    };
    tokio::select! {
        () = reading => Ok(()),
        () = output.closed() => Ok(()),
        result = writing => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(stdout: &str, stderr: &str) -> Option<String> {
        let (stdout, stderr) = (stdout.into(), stderr.into());
        ExecOutcome { stdout, stderr, ..ExecOutcome::default() }.excerpt()
    }

    #[test]
    fn the_last_lines_of_errors_are_the_reason_of_a_failure() {
        assert_eq!(excerpt("out\n", "first\ncannot drain\n\n"), Some("first; cannot drain".to_owned()));
        assert_eq!(excerpt("1\n2\n3\n4\n", " \n"), Some("2; 3; 4".to_owned()));
        assert_eq!(excerpt("", "\n"), None);
        assert_eq!(excerpt(&"x".repeat(9_000), "").unwrap().len(), LINE_CHARS_MAX);
    }

    /// Nothing of a command that timed out was left anywhere.
    #[tokio::test(start_paused = true)]
    async fn a_command_that_times_out_leaves_its_last_lines() {
        let (write, stdout) = mpsc::channel(1);
        write.send(b"waiting for the lock\n".to_vec()).await.unwrap();
        let session = ExecSession {
            stdin: mpsc::channel(1).0,
            stdout,
            stderr: mpsc::channel(1).1,
            resize: mpsc::channel(1).0,
            exit: Box::pin(std::future::pending()),
        };
        let error = run_to_end(session, Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.why(), "complete the command within 1s: timed out; it wrote: waiting for the lock");
        drop(write);
    }
}
