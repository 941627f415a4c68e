//! The execution of one mock task.

use std::{fs, io::Write, sync::Arc, time::Duration};

use herdlet_api_types::{
    manifest::{Span, Text, driver::MockConfig},
    task::ExitResult,
};
use herdlet_driver::TaskDirs;
use tokio::{sync::watch, time::Instant};

use super::notes::{Entry, Given};

/// A mock task that runs, or ran under this agent.
pub(super) struct Run {
    config: MockConfig,
    exit: watch::Sender<Option<ExitResult>>,
    stop: watch::Sender<Option<Stop>>,
    given: Given,
}

#[derive(Clone, Copy)]
struct Stop {
    signal: i32,
    ends_at: Instant,
    killed_at: Instant,
}

impl Run {
    pub(super) fn new(entry: &Entry) -> Arc<Self> {
        Arc::new(Self {
            config: entry.config.clone(),
            given: entry.given.clone(),
            exit: watch::Sender::new(None),
            stop: watch::Sender::new(None),
        })
    }

    pub(super) fn config(&self) -> &MockConfig {
        &self.config
    }

    pub(super) fn given(&self) -> &Given {
        &self.given
    }

    pub(super) fn exit(&self) -> Option<ExitResult> {
        self.exit.borrow().clone()
    }

    /// Runs to its end. `elapsed` is the part of its time that passed under an earlier agent.
    pub(super) async fn live(&self, elapsed: Duration) -> ExitResult {
        let natural = tokio::time::sleep(self.config.run_for.0.to_std().saturating_sub(elapsed));
        tokio::select! {
            () = natural => self.natural_exit(),
            signal = self.stopped() => ExitResult { code: 128 + signal, signal, ..ExitResult::default() },
        }
    }

    pub(super) fn finish(&self, exit: ExitResult) {
        self.exit.send_replace(Some(exit));
    }

    /// Requests a stop and waits until the task has ended.
    pub(super) async fn stop(&self, signal: i32, grace: Duration) {
        let now = Instant::now();
        let ends_at = if signal == libc::SIGKILL { now } else { now + self.config.kill_after.0.to_std() };
        self.stop.send_modify(|stop| {
            // An earlier request is already in effect; a later one can only shorten the time.
            let earlier = stop.unwrap_or(Stop { signal, ends_at, killed_at: now + grace });
            *stop = Some(Stop {
                signal: earlier.signal,
                ends_at: earlier.ends_at.min(ends_at),
                killed_at: earlier.killed_at.min(now + grace),
            });
        });
        let _ = self.exit.subscribe().wait_for(Option::is_some).await;
    }

    async fn stopped(&self) -> i32 {
        let mut stop = self.stop.subscribe();
        loop {
            let request = *stop.borrow_and_update();
            let over = async {
                match request {
                    Some(Stop { signal, ends_at, killed_at }) if ends_at <= killed_at => {
                        tokio::time::sleep_until(ends_at).await;
                        signal
                    }
                    Some(Stop { killed_at, .. }) => {
                        tokio::time::sleep_until(killed_at).await;
                        libc::SIGKILL
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                signal = over => return signal,
                _ = stop.changed() => {}
            }
        }
    }

    fn natural_exit(&self) -> ExitResult {
        let signal = i32::from(self.config.exit_signal);
        ExitResult {
            code: if signal == 0 { i32::from(self.config.exit_code) } else { 128 + signal },
            signal,
            error: self.config.exit_err_msg.clone().unwrap_or_default(),
            ..ExitResult::default()
        }
    }
}

/// A text that a task writes repeatedly: how often, and at which interval.
pub(super) struct ScriptedOutput {
    text: Option<String>,
    repeat: u32,
    every: Duration,
    written: u32,
}

impl ScriptedOutput {
    pub(super) fn new(text: Option<&Text>, repeat: u32, every: Span) -> Self {
        Self { text: text.map(|text| text.0.clone()), repeat, every: every.0.to_std(), written: 0 }
    }

    /// Waits for the next write and returns its text; none after the last.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        let text = self.text.as_ref().filter(|_| self.written <= self.repeat)?;
        if self.written > 0 {
            tokio::time::sleep(self.every).await;
        }
        self.written = self.written.saturating_add(1);
        Some(text.clone().into_bytes())
    }
}

/// Writes the task's output to its log files while it runs. Writes the first text even if the task ends at once.
pub(super) async fn write_logs(run: Arc<Run>, dirs: TaskDirs) {
    let config = run.config();
    let out = ScriptedOutput::new(
        config.stdout_string.as_ref(),
        config.stdout_repeat,
        config.stdout_repeat_duration,
    );
    let err = ScriptedOutput::new(
        config.stderr_string.as_ref(),
        config.stderr_repeat,
        config.stderr_repeat_duration,
    );
    tokio::join!(write_output(&run, &dirs, "stdout", out), write_output(&run, &dirs, "stderr", err));
}

async fn write_output(run: &Run, dirs: &TaskDirs, stream: &str, mut output: ScriptedOutput) {
    let path = dirs.logs.join(format!("{}.{stream}.0", dirs.log_name));
    while let Some(bytes) = output.next().await {
        let file = fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(&bytes));
        if written.is_err() || run.exit().is_some() {
            return;
        }
    }
}
