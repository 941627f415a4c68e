//! A command in a running task.
//!
//! In: a task, a command, input frames. Out: output frames; the last one has the exit code. Dropping the session ends the
//! command. Nomad's frames are JSON. Input: `{"stdin":{"data":…}}`, `{"stdin":{"close":true}}`,
//! `{"tty_size":{"height":…,"width":…}}` and `{}`. Output: the same for stdout and stderr, then
//! `{"exited":true,"result":{"exit_code":…}}`.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use herdlet_api_types::{task::TaskStatus, view::AllocView};
use herdlet_driver::{
    DriverError, DriverResult, ExecInput, ExecOutput, ExecRequest, FsIsolation, TerminalSize,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, mpsc},
    time::{Instant, sleep},
};

use super::{
    AllocOps,
    error::{ApiError, ApiResult},
    target::TaskTarget,
};

/// Largest input frame. Neither a keyboard nor a pipe sends larger ones.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Output frames between the session and its reader.
pub const FRAMES_LEN: usize = 16;

/// How long a command waits for its task. A driver knows a running task only once it has adopted it after a restart of the agent.
const ADOPTION_MAX: Duration = Duration::from_secs(10);

const ADOPTION_INTERVAL: Duration = Duration::from_millis(50);

/// A command that is ready to run.
pub struct Session {
    target: TaskTarget,
    request: ExecRequest,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub struct ExecSpec {
    pub task: String,
    pub command: Vec<String>,
    pub terminal: bool,
}

impl AllocOps {
    /// Checks the request and prepares the command.
    pub fn open_exec(&self, alloc: &AllocView, wanted: ExecSpec) -> ApiResult<Session> {
        if wanted.task.is_empty() {
            return Err(ApiError::bad("must provide task name"));
        }
        if wanted.command.first().is_none_or(String::is_empty) {
            return Err(ApiError::bad("command is not present"));
        }
        let target = self.task(alloc, &wanted.task)?;
        if target.task.state != TaskStatus::Running {
            return Err(ApiError::NotFound(format!("task {:?} is not running.", wanted.task)));
        }
        let place = self.bounds.session()?;
        let request =
            ExecRequest { command: wanted.command, terminal: wanted.terminal.then(TerminalSize::default) };
        Ok(Session { target, request, _place: place })
    }

    /// Whether a task's driver gives it the machine's own file system; true if the driver is unknown.
    pub fn sees_machine(&self, alloc: &AllocView, task: &str) -> bool {
        let driver = alloc.spec.task(task).and_then(|task| self.drivers.get(&task.driver));
        driver.is_none_or(|driver| driver.info().capabilities.fs_isolation == FsIsolation::None)
    }
}

impl Session {
    /// Runs the command to its end. Dropping the future ends the command.
    ///
    /// # Errors
    /// When the command can't be started, or its output can't be read.
    pub async fn run(
        self,
        input: BoxStream<'static, ExecInput>,
        output: mpsc::Sender<ExecOutput>,
    ) -> DriverResult<()> {
        let Self { target, request, _place } = self;
        tracing::info!(attempt = %target.attempt, program = request.command.first(), "executing a command in a task");
        let input = Arc::new(Mutex::new(input));
        let deadline = Instant::now() + ADOPTION_MAX;
        loop {
            let run =
                target.driver.exec_frames(&target.attempt, request.clone(), shared(&input), output.clone());
            match run.await {
                Err(DriverError::Gone(_)) if Instant::now() < deadline => sleep(ADOPTION_INTERVAL).await,
                result => return result,
            }
        }
    }
}

/// A stream of the frames that remain. Several may be made in turn; the previous one must have been dropped.
fn shared(input: &Arc<Mutex<BoxStream<'static, ExecInput>>>) -> BoxStream<'static, ExecInput> {
    stream::unfold(Arc::clone(input), |input| async move {
        let frame = input.lock().await.next().await?;
        Some((frame, input))
    })
    .boxed()
}

/// The input frames in one message; none for invalid messages and heartbeats.
pub fn input_frames(text: &[u8]) -> Vec<ExecInput> {
    #[derive(Deserialize)]
    struct Frame {
        stdin: Option<Stdin>,
        tty_size: Option<Size>,
    }
    #[derive(Deserialize)]
    struct Stdin {
        #[serde(default)]
        data: String,
        #[serde(default)]
        close: bool,
    }
    #[derive(Deserialize)]
    struct Size {
        #[serde(default)]
        height: u16,
        #[serde(default)]
        width: u16,
    }
    let Ok(frame) = serde_json::from_slice::<Frame>(text) else { return Vec::new() };
    let mut frames = Vec::new();
    if let Some(Size { height, width }) = frame.tty_size {
        frames.push(ExecInput::Resize(TerminalSize { height, width }));
    }
    if let Some(stdin) = frame.stdin {
        if let Ok(bytes) = STANDARD.decode(stdin.data)
            && !bytes.is_empty()
        {
            frames.push(ExecInput::Stdin(bytes));
        }
        if stdin.close {
            frames.push(ExecInput::StdinEnd);
        }
    }
    frames
}

/// An output frame as JSON.
pub fn frame_text(frame: &ExecOutput) -> Value {
    match frame {
        ExecOutput::Stdout(bytes) => json!({ "stdout": { "data": STANDARD.encode(bytes) } }),
        ExecOutput::StdoutEnd => json!({ "stdout": { "close": true } }),
        ExecOutput::Stderr(bytes) => json!({ "stderr": { "data": STANDARD.encode(bytes) } }),
        ExecOutput::StderrEnd => json!({ "stderr": { "close": true } }),
        ExecOutput::Exited(exit) => {
            let code = if exit.signal > 0 { 128 + exit.signal } else { exit.code };
            let result = if code == 0 { json!({}) } else { json!({ "exit_code": code }) };
            json!({ "exited": true, "result": result })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_and_rubbish_is_passed_over() {
        assert_eq!(input_frames(b"{}"), []);
        assert_eq!(input_frames(b"[1"), []);
        assert_eq!(input_frames(br#"{"stdin":{"data":"%%"}}"#), []);
        assert_eq!(
            input_frames(br#"{"stdin":{"data":"aGk=","close":true},"tty_size":{"height":3,"width":9}}"#),
            [
                ExecInput::Resize(TerminalSize { height: 3, width: 9 }),
                ExecInput::Stdin(b"hi".to_vec()),
                ExecInput::StdinEnd
            ]
        );
    }
}
