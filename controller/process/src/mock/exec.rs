//! Commands executed in a mock task.

use futures_util::FutureExt;
use herdlet_api_types::{manifest::driver::MockExec, task::ExitResult};
use herdlet_driver::{DriverError, ExecRequest, ExecSession};
use tokio::sync::{mpsc, oneshot};

use super::{notes::Given, run::ScriptedOutput};

/// How many chunks of output are buffered for a slow reader.
const PIECES_MAX: usize = 16;

/// A session that runs `script`. The command `showinput` prints whether it has a terminal, and its input; `showtask` prints the
/// [`Given`] of the task.
pub(super) fn session(script: MockExec, given: &Given, request: ExecRequest) -> ExecSession {
    let task_json = serde_json::to_vec(given).unwrap_or_default();
    let (stdin, mut input) = mpsc::channel::<Vec<u8>>(PIECES_MAX);
    let (out, stdout) = mpsc::channel(PIECES_MAX);
    let (err, stderr) = mpsc::channel(PIECES_MAX);
    let (resize, sizes) = mpsc::channel(1);
    let (mut ended, exit) = oneshot::channel();
    tokio::spawn(async move {
        let script_run = async {
            if request.command.first().is_some_and(|program| program == "showinput") {
                let greeting = format!("TTY: {}\nStdin:\n", request.terminal.is_some());
                let mut is_open = out.send(greeting.into_bytes()).await.is_ok();
                while is_open && let Some(bytes) = input.recv().await {
                    is_open = out.send(bytes).await.is_ok();
                }
            }
            if request.command.first().is_some_and(|program| program == "showtask") {
                let _ = out.send(task_json).await;
            }
            let stdout_script = ScriptedOutput::new(
                script.stdout_string.as_ref(),
                script.stdout_repeat,
                script.stdout_repeat_duration,
            );
            let stderr_script = ScriptedOutput::new(
                script.stderr_string.as_ref(),
                script.stderr_repeat,
                script.stderr_repeat_duration,
            );
            let pause = tokio::time::sleep(script.run_for.0.to_std());
            tokio::join!(write_output(stdout_script, &out), write_output(stderr_script, &err), pause);
            ExitResult {
                code: i32::from(script.exit_code),
                error: script.exit_err_msg.unwrap_or_default(),
                ..ExitResult::default()
            }
        };
        tokio::select! {
            result = script_run => { let _ = ended.send(result); }
            () = ended.closed() => {}
        }
        drop(sizes);
    });
    let exit =
        async { exit.await.map_err(|_| DriverError::retry("follow a command: its session was dropped")) };
    ExecSession { stdin, stdout, stderr, resize, exit: exit.boxed() }
}

async fn write_output(mut output: ScriptedOutput, to: &mpsc::Sender<Vec<u8>>) {
    while let Some(bytes) = output.next().await {
        if to.send(bytes).await.is_err() {
            return;
        }
    }
}
