//! Commands in containers.
//!
//! In: a command, perhaps with a terminal. Out: a session with its streams. Engines can't end a command: dropping the session
//! kills its process by its id, once it is sure that it belongs to the container.

mod terminal;

use std::{io, path::Path, pin::Pin, time::Duration};

use bollard::{
    Docker,
    container::LogOutput,
    errors::Error,
    exec::{CreateExecOptions, ResizeExecOptions, StartExecOptions, StartExecResults},
    models::ExecInspectResponse,
};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use herdlet_api_types::task::ExitResult;
use herdlet_driver::{DriverError, DriverResult, ExecRequest, ExecSession, TerminalSize};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};

use crate::{
    failure::{self, Meaning},
    processes,
};

/// How many chunks of output are buffered for a slow reader.
const PIECES_MAX: usize = 16;
/// The first and the longest pause between questions for the exit code of a command whose output has ended: the engine may know it a
/// little later, and a command may close its output and run on.
const EXIT_PAUSE: Duration = Duration::from_millis(20);
const EXIT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The number of failed inspections after which the wait ends. A single failure does not mean that the command has failed.
const EXIT_TRIES: u32 = 5;
/// How often a command without a session is inspected until its process is known: for 30 s. A command that was just created has none.
const KILL_TRIES: u32 = 600;
const KILL_PAUSE: Duration = Duration::from_millis(50);
/// How often a terminal's size is set until the engine accepts it: for 30 s, longer than a process takes to exist on a busy machine.
const RESIZE_TRIES: u32 = 600;
const RESIZE_PAUSE: Duration = Duration::from_millis(50);
/// When a size that the engine has accepted is set again: a busy Podman loses one, or applies two in the wrong order.
const RESIZE_AGAIN: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// Executes a command in a container.
///
/// # Errors
/// If it can't be started.
pub(crate) async fn session(
    (client, socket): (&Docker, &Path),
    container: &str,
    request: ExecRequest,
) -> DriverResult<ExecSession> {
    let tty = request.terminal.is_some();
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(tty),
        cmd: Some(request.command),
        ..CreateExecOptions::default()
    };
    let created = client.create_exec(container, options).await;
    let id = created.map_err(|error| failure::start("execute the command", &error))?.id;
    let (output, input) = match tty {
        true => terminal::attach(socket, &id).await,
        false => attach(client, &id).await,
    }
    .map_err(|error| failure::start("execute the command", &error))?;
    let command = Command { client: client.clone(), id, container: container.to_owned() };
    let (stdin, bytes) = mpsc::channel(PIECES_MAX);
    let (out, stdout) = mpsc::channel(PIECES_MAX);
    let (err, stderr) = mpsc::channel(PIECES_MAX);
    let (resize, sizes) = mpsc::channel(4);
    if let Some(size) = request.terminal {
        // Set beside the streams, as the engine may take a while to accept it. The channel has room for it.
        let _ = resize.try_send(size);
    }
    let (ended, exit) = oneshot::channel();
    tokio::spawn(command.run(Streams { output, input, bytes, out, err, sizes, ended }));
    let exit = async {
        exit.await.map_err(|_| DriverError::retry("follow the command: the engine no longer reports it"))?
    };
    Ok(ExecSession { stdin, stdout, stderr, resize, exit: exit.boxed() })
}

async fn attach(client: &Docker, id: &str) -> Result<(Output, Input), Error> {
    let options = StartExecOptions { detach: false, tty: false, output_capacity: None };
    match client.start_exec(id, Some(options)).await? {
        StartExecResults::Attached { output, input } => Ok((output, input)),
        StartExecResults::Detached => Err(Error::from(io::Error::other("the engine did not attach to it"))),
    }
}

/// What a command prints.
type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
/// What a command reads.
type Input = Pin<Box<dyn AsyncWrite + Send>>;

struct Command {
    client: Docker,
    id: String,
    container: String,
}

struct Streams {
    output: Output,
    input: Input,
    bytes: mpsc::Receiver<Vec<u8>>,
    out: mpsc::Sender<Vec<u8>>,
    err: mpsc::Sender<Vec<u8>>,
    sizes: mpsc::Receiver<TerminalSize>,
    ended: oneshot::Sender<DriverResult<ExitResult>>,
}

impl Command {
    async fn run(self, streams: Streams) {
        let Streams { mut output, mut input, mut bytes, out, err, sizes, mut ended } = streams;
        let writing = async {
            while let Some(bytes) = bytes.recv().await {
                if input.write_all(&bytes).await.is_err() || input.flush().await.is_err() {
                    break;
                }
            }
            let _ = input.shutdown().await;
            std::future::pending::<()>().await;
        };
        let resizing = async {
            self.follow_sizes(sizes).await;
            std::future::pending::<()>().await;
        };
        let reading = async {
            while let Some(piece) = output.next().await {
                let (to, bytes) = match piece {
                    Ok(LogOutput::StdErr { message }) => (&err, message),
                    Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => (&out, message),
                    Ok(LogOutput::StdIn { .. }) => continue,
                    Err(_) => break,
                };
                // A reader that is gone still wants the exit.
                let _ = to.send(bytes.to_vec()).await;
            }
        };
        let is_over = tokio::select! {
            () = reading => true,
            () = writing => true,
            () = resizing => true,
            () = ended.closed() => false,
        };
        if !is_over {
            return self.kill().await;
        }
        drop((out, err));
        let exit = tokio::select! {
            exit = self.exit() => exit,
            () = ended.closed() => return self.kill().await,
        };
        let _ = ended.send(exit);
    }

    /// Gives the terminal the newest size, until no more can come.
    async fn follow_sizes(&self, mut sizes: mpsc::Receiver<TerminalSize>) {
        let Some(mut size) = sizes.recv().await else { return };
        let mut again = RESIZE_AGAIN.iter();
        loop {
            self.resize(size).await;
            let newer = match again.next() {
                Some(pause) => tokio::time::timeout(*pause, sizes.recv()).await,
                None => Ok(sizes.recv().await),
            };
            match newer {
                Ok(Some(newer)) => {
                    size = newer;
                    again = RESIZE_AGAIN.iter();
                }
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }

    /// Sets the size of the terminal. An engine refuses that until the process exists, a little after the command was started.
    async fn resize(&self, TerminalSize { height, width }: TerminalSize) {
        for _ in 0..RESIZE_TRIES {
            if self.client.resize_exec(&self.id, ResizeExecOptions { height, width }).await.is_ok() {
                return;
            }
            tokio::time::sleep(RESIZE_PAUSE).await;
        }
        if let Err(error) = self.client.resize_exec(&self.id, ResizeExecOptions { height, width }).await {
            let error = failure::sentence(&error);
            tracing::warn!(
                container = self.container,
                error,
                "failed to set the size of a command's terminal"
            );
        }
    }

    /// Waits for the end of a command whose output has ended.
    async fn exit(&self) -> DriverResult<ExitResult> {
        let mut pause = EXIT_PAUSE;
        let mut failed = 0;
        loop {
            match self.client.inspect_exec(&self.id).await {
                Ok(inspected) => {
                    if let Some(code) = exit_code(&inspected) {
                        let code = i32::try_from(code).unwrap_or(i32::MAX);
                        let signal = if (129..=192).contains(&code) { code - 128 } else { 0 };
                        return Ok(ExitResult { code, signal, ..ExitResult::default() });
                    }
                }
                Err(error) => {
                    failed += 1;
                    if failed == EXIT_TRIES || failure::meaning(&error) == Meaning::Missing {
                        return Err(failure::retry("read the command's exit code", &error));
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(EXIT_PAUSE_MAX);
        }
    }

    /// Kills the command's process once it is known, if it is one of this machine and in the container's cgroup.
    async fn kill(&self) {
        for _ in 0..KILL_TRIES {
            if let Ok(inspected) = self.client.inspect_exec(&self.id).await {
                if exit_code(&inspected).is_some() {
                    return;
                }
                let pid = inspected.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
                if let Some(pid) = pid {
                    let _ = processes::kill(pid, &self.container);
                    return;
                }
            }
            tokio::time::sleep(KILL_PAUSE).await;
        }
        tracing::warn!(
            container = self.container,
            "failed to end a command without a session: the engine does not name its process"
        );
    }
}

/// Returns the exit code of a command that has ended.
///
/// A command that does not run may be one that does not run yet. Podman gives it the code 0 and no process, and calls it removable only
/// at its end. Docker keeps the process of a command that has ended, and gives one without a process a code if it failed to start.
fn exit_code(inspected: &ExecInspectResponse) -> Option<i64> {
    let code = inspected.exit_code?;
    let had_process = inspected.pid.is_some_and(|pid| pid > 0);
    let has_ended = had_process || inspected.can_remove == Some(true) || code != 0;
    (inspected.running != Some(true) && has_ended).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that Podman had not started yet had ended with code 0.
    #[test]
    fn commands_that_do_not_run_yet_have_no_exit_code() {
        let inspected = |running, exit_code, pid, can_remove| ExecInspectResponse {
            running: Some(running),
            exit_code,
            pid: Some(pid),
            can_remove: Some(can_remove),
            ..ExecInspectResponse::default()
        };
        // As Docker 20.10 and Podman 4.3 answer.
        for (state, response, code) in [
            ("Docker: created", inspected(false, None, 0, false), None),
            ("Docker: starting", inspected(true, None, 0, false), None),
            ("Docker: running", inspected(true, None, 7, false), None),
            ("Docker: ended", inspected(false, Some(0), 7, false), Some(0)),
            ("Docker: no such program", inspected(false, Some(126), 0, false), Some(126)),
            ("Podman: created", inspected(false, Some(0), 0, false), None),
            ("Podman: running", inspected(true, Some(0), 7, false), None),
            ("Podman: ended", inspected(false, Some(0), 0, true), Some(0)),
            ("Podman: no such program", inspected(false, Some(127), 0, true), Some(127)),
        ] {
            assert_eq!(exit_code(&response), code, "{state}");
        }
    }
}
