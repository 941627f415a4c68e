//! A command in a running task.
//!
//! In: a task, a command, frames of input. Out: frames of output, the last of which says how it ended. The session ends when it is
//! dropped. Nomad's frames are JSON: `{"stdin":{"data":…}}`, `{"stdin":{"close":true}}`, `{"tty_size":{"height":…,"width":…}}` and `{}`
//! one way; the same for stdout and stderr, then `{"exited":true,"result":{"exit_code":…}}`, the other.

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::stream::BoxStream;
use herdlet_api_types::{task::TaskStatus, view::AllocView};
use herdlet_driver::{DriverResult, ExecInput, ExecOutput, ExecRequest, FsIsolation, TerminalSize};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{
    Reach,
    error::{ApiError, ApiResult},
    target::TaskTarget,
};

/// A frame of input larger than this is no keyboard and no pipe.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Output frames between the session and whoever reads them.
pub const FRAMES_LEN: usize = 16;

/// A command that may begin.
pub struct Session {
    target: TaskTarget,
    request: ExecRequest,
    _place: OwnedSemaphorePermit,
}

/// What to execute.
#[derive(Debug)]
pub struct Wanted {
    pub task: String,
    pub command: Vec<String>,
    pub terminal: bool,
}

impl Reach {
    /// Makes ready for a command.
    pub fn open_exec(&self, alloc: &AllocView, wanted: Wanted) -> ApiResult<Session> {
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

    /// Whether a task's driver shows it the machine's own file system; also where nobody knows.
    pub fn sees_machine(&self, alloc: &AllocView, task: &str) -> bool {
        let driver = alloc.spec.task(task).and_then(|task| self.drivers.get(&task.driver));
        driver.is_none_or(|driver| driver.info().capabilities.fs_isolation == FsIsolation::None)
    }
}

impl Session {
    /// Runs the command to its end. Dropped, it ends it.
    ///
    /// # Errors
    /// When it can't be started or followed.
    pub async fn run(
        self,
        input: BoxStream<'static, ExecInput>,
        output: mpsc::Sender<ExecOutput>,
    ) -> DriverResult<()> {
        let Self { target, request, _place } = self;
        tracing::info!(attempt = %target.attempt, program = request.command.first(), "a command is executed in a task");
        target.driver.exec_frames(&target.attempt, request, input, output).await
    }
}

/// What one message says. Rubbish and heartbeats say nothing.
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

/// A frame of output as JSON.
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
