//! Supervises one attempt from its claim to its exit, whichever agent started it.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use herdlet_api_types::{UnixNanos, task::ExitResult};
use herdlet_base::clock;
use herdlet_driver::{AttemptId, DriverResult, Exited, TaskConfig};
use rustix::process::Signal;
use tokio::sync::watch;

use super::{Shared, failure, retry, stats::Sample, stop};
use crate::{
    attempts::SupervisionEnd,
    cgroup::Cgroup,
    supervisor::{self, PidFd, Record, State},
};

/// The delay before supervision of an attempt is retried after an error.
const FOLLOW_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often a supervisor that owes a record gets SIGCONT, in case somebody stopped it.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);
/// How many times it gets SIGCONT before it counts as stuck and is killed. An overloaded machine may be slow.
const WAKES_MAX: u32 = 30;

/// An attempt that this agent supervises.
#[derive(Debug)]
pub(super) struct Live {
    config: Mutex<Option<Arc<TaskConfig>>>,
    phase: watch::Sender<Phase>,
    /// The last measurement.
    sample: Mutex<Option<Sample>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Its supervisor has claimed it.
    Claimed,
    Running,
    Ended(ExitResult),
    /// It never ran.
    Failed(NeverRan),
}

/// Why an attempt never ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NeverRan {
    pub(super) why: String,
    pub(super) cause: Cause,
}

/// Why an attempt did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The machine: its program has certainly not started, and the same attempt can be started again.
    Machine,
    /// The task, or a stop.
    Task,
    /// Its supervisor was killed or its record removed about when the program was to start: it may have started.
    Unknown,
}

impl Live {
    pub(super) fn config(&self) -> Option<Arc<TaskConfig>> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn sample(&self) -> Option<Sample> {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_sample(&self, sample: Sample) {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample);
    }

    pub(super) fn set_config(&self, config: Arc<TaskConfig>) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Some(config);
    }

    pub(super) fn exit(&self) -> Option<ExitResult> {
        match &*self.phase.borrow() {
            Phase::Ended(exit) => Some(exit.clone()),
            Phase::Claimed | Phase::Running | Phase::Failed(_) => None,
        }
    }

    /// Waits until its process runs or has run; returns an error if it never did.
    pub(super) async fn begun(&self) -> Result<(), NeverRan> {
        let mut phase = self.phase.subscribe();
        let known = phase.wait_for(|phase| *phase != Phase::Claimed).await;
        match known.as_deref() {
            Ok(Phase::Failed(never)) => Err(never.clone()),
            Ok(Phase::Claimed | Phase::Running | Phase::Ended(_)) => Ok(()),
            Err(_) => Err(NeverRan { why: "the driver was dropped".to_owned(), cause: Cause::Unknown }),
        }
    }

    /// Waits for the exit; none if it never ran.
    pub(super) async fn ended(&self) -> Option<ExitResult> {
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| matches!(phase, Phase::Ended(_) | Phase::Failed(_))).await;
        self.exit()
    }
}

impl Shared {
    /// Starts supervising a claimed attempt.
    pub(super) async fn supervise(
        self: &Arc<Self>,
        id: &AttemptId,
        config: Option<Arc<TaskConfig>>,
    ) -> DriverResult<Arc<Live>> {
        let shim = self.attempts().supervisor(id).await?;
        let live = Arc::new(Live {
            config: Mutex::new(config),
            phase: watch::Sender::new(Phase::Claimed),
            sample: Mutex::default(),
        });
        {
            let mut all = self.live();
            if let Some(known) = all.get(id) {
                return Ok(Arc::clone(known));
            }
            all.insert(id.clone(), Arc::clone(&live));
        }
        let (shared, id, watched) = (Arc::clone(self), id.clone(), Arc::clone(&live));
        tokio::spawn(async move {
            let phase = loop {
                // Without this, a panic would leave the attempt unsupervised.
                let watch = AssertUnwindSafe(shared.watch(&id, &watched, shim.as_ref())).catch_unwind();
                let seen = watch.await.unwrap_or_else(|_| Err(retry("supervise it: it panicked".to_owned())));
                match seen {
                    Ok(phase) => break phase,
                    // A read error (no more descriptors, a failing disk) does not mean that the task ended.
                    Err(error) => tracing::warn!(%id, error = error.why(), "failed to supervise a task"),
                }
                tokio::time::sleep(FOLLOW_AGAIN_AFTER).await;
            };
            watched.phase.send_replace(phase.clone());
            if let Phase::Ended(result) = phase {
                tracing::debug!(%id, ?result, "ended");
                shared.exits.send(Exited { id, result }).await;
            }
        });
        Ok(live)
    }

    async fn watch(&self, id: &AttemptId, live: &Live, shim: Option<&PidFd>) -> DriverResult<Phase> {
        let running = self.attempts().until(id, |record| match record {
            Some(record) if record.state == State::Created => None,
            Some(_) | None => Some(()),
        });
        tokio::select! {
            biased;
            running = running => running?,
            _ = self.attempts().ended(id, shim) => {}
            () = press(id, shim) => {}
        }
        if self.attempts().record(id)?.is_some_and(|record| failure::has_run(&record)) {
            live.phase.send_replace(Phase::Running);
        }
        let has_run = *live.phase.borrow() == Phase::Running;
        let cgroup = self.cgroup(id);
        let ended = tokio::select! {
            biased;
            ended = self.attempts().ended(id, shim) => ended?,
            never = self.press_when_owed(id, shim) => match never {},
        };
        Ok(match ended {
            SupervisionEnd::Record(record) => match record.state {
                State::StartFailed { step, errno, .. } => {
                    let errno = i32::from(errno);
                    let cause = if failure::is_shortage(step, errno) { Cause::Machine } else { Cause::Task };
                    never_ran(failure::start_failure(step, errno), cause)
                }
                State::Tombstone if has_run => self.without_record(id, shim).await?,
                State::Tombstone => never_ran("it was cancelled before it started", Cause::Task),
                State::Created | State::Running | State::Exited(_) => {
                    Phase::Ended(result_of(&record, cgroup.as_ref()))
                }
            },
            SupervisionEnd::SupervisorDied(record) => {
                // Nothing would record its exit or drain its output any more.
                let orphans = stop::kill_orphans(self, id, &record).await;
                if let Err(error) = &orphans {
                    tracing::warn!(%id, error = error.why(), "failed to kill the processes that a dead supervisor left");
                }
                if failure::has_run(&record) {
                    let oom_killed = cgroup.is_some_and(|cgroup| cgroup.oom_kills() > 0);
                    let error = format!(
                        "its supervisor (pid {}) was killed or crashed, so the task was killed too",
                        record.shim.pid
                    );
                    Phase::Ended(ExitResult {
                        code: 137,
                        signal: 9,
                        oom_killed,
                        error,
                        at: clock::wall_now(),
                    })
                } else if record.shim.pid == 0 && orphans.is_ok() {
                    never_ran("its supervisor was killed as it claimed the attempt", Cause::Machine)
                } else {
                    never_ran("its supervisor died before it ran", Cause::Unknown)
                }
            }
            SupervisionEnd::Removed if has_run => self.without_record(id, shim).await?,
            SupervisionEnd::Removed => never_ran("its record was removed", Cause::Unknown),
        })
    }

    /// Presses the supervisor to record the exit once the main process has ended. Never returns.
    async fn press_when_owed(&self, id: &AttemptId, shim: Option<&PidFd>) -> Infallible {
        let record =
            self.attempts().record(id).ok().flatten().filter(|record| record.state == State::Running);
        if let Some(main) = record.and_then(|record| supervisor::open_task(&record).ok().flatten())
            && main.ended().await.is_ok()
        {
            press(id, shim).await;
        }
        std::future::pending().await
    }

    /// Kills a running attempt whose record is gone: its exit could no longer be reported.
    async fn without_record(&self, id: &AttemptId, shim: Option<&PidFd>) -> DriverResult<Phase> {
        self.kill_all(id, shim).await?;
        let error = "its record was removed or damaged".to_owned();
        Ok(Phase::Ended(ExitResult {
            code: 137,
            signal: 9,
            error,
            at: clock::wall_now(),
            ..ExitResult::default()
        }))
    }
}

fn never_ran(why: impl Into<String>, cause: Cause) -> Phase {
    Phase::Failed(NeverRan { why: why.into(), cause })
}

/// Sends SIGCONT to a supervisor repeatedly, then kills it and returns. Its task has the same user and may have stopped it; then
/// nothing would be recorded, and no stop of the task would ever complete.
async fn press(id: &AttemptId, shim: Option<&PidFd>) {
    let Some(shim) = shim else { return std::future::pending().await };
    let send = |signal| {
        if let Err(error) = shim.send(signal) {
            tracing::debug!(%id, error = herdlet_base::error::in_full(&error), "failed to signal a supervisor");
        }
    };
    for _ in 0..WAKES_MAX {
        send(Signal::CONT);
        tokio::time::sleep(WAKE_INTERVAL).await;
    }
    tracing::warn!(%id, "the supervisor does not respond; killing it");
    send(Signal::KILL);
}

/// Converts a final record to an API result.
pub(super) fn result_of(record: &Record, cgroup: Option<&Cgroup>) -> ExitResult {
    let at = |unix_ns: u64| UnixNanos(i64::try_from(unix_ns).unwrap_or(i64::MAX));
    match record.state {
        State::Exited(exit) => {
            let signal = i32::from(exit.signal);
            let result = ExitResult {
                code: if signal == 0 { i32::from(exit.code) } else { 128 + signal },
                signal,
                at: at(exit.at_unix_ns),
                ..ExitResult::default()
            };
            // A shell outlives a child that the OOM killer killed, and reports its own failure.
            let oom_killed = !result.is_success() && cgroup.is_some_and(|cgroup| cgroup.oom_kills() > 0);
            ExitResult { oom_killed, ..result }
        }
        State::StartFailed { step, errno, at_unix_ns } => ExitResult {
            code: failure::failure_code(step, i32::from(errno)),
            error: format!("failed to {}", failure::start_failure(step, i32::from(errno))),
            at: at(at_unix_ns),
            ..ExitResult::default()
        },
        State::Created | State::Running | State::Tombstone => {
            ExitResult { error: "it never ran".to_owned(), ..ExitResult::default() }
        }
    }
}
