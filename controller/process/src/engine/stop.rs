//! Stops an attempt and removes what it left.

use std::{sync::Arc, time::Duration};

use herdlet_base::signal;
use herdlet_driver::{AttemptId, Claim, DriverError, DriverResult, Ledger, Leftover, StopRequest};
use rustix::process::Signal;

use super::{EndRequest, RunningTask, Shared, off_thread, retry};
use crate::{
    attempts::AttemptsError,
    supervisor::{self, PidFd, ProcessError, Record, State},
};

/// The default stop signal, as in Nomad's executor.
const SIGNAL: &str = "SIGINT";
/// How long a claimed attempt may take to start before its supervisor counts as stuck.
const BIRTH_TIME_MAX: Duration = Duration::from_secs(5);
/// How long killed processes may take to exit, as in Nomad's executor.
const DEATH_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a process that had the whole grace period may take after the signal, to write what it holds in memory.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(3);
/// How long a supervisor may run after its task's last process exited: it still drains its pipes.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// The processes of a running attempt.
#[derive(Clone, Copy)]
struct Target<'a> {
    record: &'a Record,
    shim: Option<&'a PidFd>,
}

impl Shared {
    pub(super) async fn stop(self: &Arc<Self>, id: &AttemptId, how: StopRequest) -> DriverResult<()> {
        let signal = signal::parse(how.signal.as_deref().unwrap_or(SIGNAL)).map_err(DriverError::fatal)?;
        let mut record = match Ledger::fence(&**self, id).await? {
            Claim::Taken(record) => record,
            Claim::Free | Claim::Fenced => {
                tracing::debug!(%id, "cancelled before it started");
                self.kill_all(id, None).await?;
                self.settle(id).await;
                return Ok(());
            }
        };
        let shim = self.attempts().supervisor(id).await?;
        if record.state == State::Created {
            record = self.born(id, shim.as_ref()).await?.unwrap_or(record);
        }
        if record.state == State::Running {
            self.ask(id, Target { record: &record, shim: shim.as_ref() }, signal, how.grace).await?;
        }
        if record.state == State::Created
            && let Some(shim) = &shim
        {
            shim.send(Signal::KILL).map_err(retry)?;
        }
        self.kill_all_of(id, Some(&record), shim.as_ref()).await?;
        self.settle(id).await;
        Ok(())
    }

    pub(super) async fn destroy(self: &Arc<Self>, id: &AttemptId, leftover: Leftover) -> DriverResult<()> {
        let record = self.attempts().record(id)?;
        let shim = match self.attempts().supervisor(id).await {
            // The exit can no longer be determined, but the cgroup can still be emptied.
            Err(AttemptsError::Supervisor(ProcessError::Unverifiable { .. })) => None,
            shim => shim?,
        };
        let is_running = record.is_some_and(|record| !record.is_final()) && shim.is_some();
        match leftover {
            Leftover::MainMustBeGone if is_running => {
                return Err(DriverError::fatal(format!("destroy {id}: it still runs")));
            }
            Leftover::MainMustBeGone | Leftover::Kill => {}
        }
        self.kill_all_of(id, record.as_ref(), shim.as_ref()).await?;
        self.settle(id).await;
        if let Some(shim) = &shim
            && tokio::time::timeout(DRAIN_TIME_MAX, shim.ended()).await.is_err()
        {
            shim.send(Signal::KILL).map_err(retry)?;
        }
        self.live().remove(id);
        if let Some(cgroup) = self.cgroup(id) {
            cgroup.remove().await.map_err(retry)?;
        }
        let (shared, torn_down) = (Arc::clone(self), id.clone());
        off_thread(move || shared.translate.tear_down(&torn_down)).await?;
        Ok(self.attempts().remove(id)?)
    }

    /// Waits until a claimed attempt runs or has failed.
    async fn born(&self, id: &AttemptId, shim: Option<&PidFd>) -> DriverResult<Option<Record>> {
        let moved = self.attempts().until(id, |record| match record {
            Some(record) if record.state == State::Created => None,
            record => Some(record),
        });
        let born = async {
            tokio::select! {
                biased;
                record = moved => Ok(record?),
                ended = self.attempts().ended(id, shim) => { ended?; Ok(self.attempts().record(id)?) }
            }
        };
        match tokio::time::timeout(BIRTH_TIME_MAX, born).await {
            Ok(record) => record,
            Err(_) => Ok(None),
        }
    }

    /// Sends the signal, waits for the grace period, sends SIGKILL: to the main process alone.
    async fn ask(
        self: &Arc<Self>,
        id: &AttemptId,
        Target { record, shim }: Target<'_>,
        signal: Signal,
        grace: Duration,
    ) -> DriverResult<()> {
        let Some(main) = supervisor::open_task(record).map_err(retry)? else { return Ok(()) };
        let ended = || self.attempts().ended(id, shim);
        let mut grace = grace;
        match self.ask_to_end(id, record, grace).await {
            EndRequest::Sent(how) => {
                let limit = herdlet_api_types::Duration::from_std(grace);
                self.reports().add_message(id.clone(), format!("{how}; it is ended after {limit}"));
                if let Ok(ended) = tokio::time::timeout(grace, ended()).await {
                    return Ok(ended.map(drop)?);
                }
                tracing::debug!(%id, "it did not end by itself; sending the signal");
                grace = FLUSH_TIME_MAX;
            }
            EndRequest::Failed(why) => self.reports().add_message(id.clone(), why),
            EndRequest::None => {}
        }
        main.send(signal).map_err(retry)?;
        if let Ok(ended) = tokio::time::timeout(grace, ended()).await {
            return Ok(ended.map(drop)?);
        }
        if !grace.is_zero() {
            self.reports().add_message(id.clone(), "It has not ended in time, and is killed".to_owned());
        }
        main.send(Signal::KILL).map_err(retry)?;
        // A process that survives this is left to the cgroup kill, which reports an error to the caller.
        let _ = tokio::time::timeout(DEATH_TIME_MAX, ended()).await;
        Ok(())
    }

    /// Asks in the driver's own way, if there is time for an answer.
    async fn ask_to_end(self: &Arc<Self>, id: &AttemptId, record: &Record, grace: Duration) -> EndRequest {
        let Some(config) = self.find(id).and_then(|live| live.config()).filter(|_| !grace.is_zero()) else {
            return EndRequest::None;
        };
        let (shared, main) = (Arc::clone(self), record.task);
        let asking =
            off_thread(move || Ok(shared.translate.ask_to_end(&RunningTask { config: &config, main })));
        asking.await.unwrap_or(EndRequest::None)
    }

    /// Kills all processes of the attempt, even if its supervisor is dead.
    async fn kill_all_of(
        &self,
        id: &AttemptId,
        record: Option<&Record>,
        shim: Option<&PidFd>,
    ) -> DriverResult<()> {
        match record {
            Some(record) if shim.is_none() && !record.is_final() => kill_orphans(self, id, record).await,
            Some(_) | None => self.kill_all(id, shim).await,
        }
    }

    /// Waits until the task that supervises a killed attempt has recorded its exit.
    async fn settle(&self, id: &AttemptId) {
        if let Some(live) = self.find(id) {
            let _ = tokio::time::timeout(DRAIN_TIME_MAX, live.ended()).await;
        }
    }

    /// Kills all processes of the attempt: those in its cgroup, and all descendants of its supervisor.
    pub(super) async fn kill_all(&self, id: &AttemptId, shim: Option<&PidFd>) -> DriverResult<()> {
        if let Some(cgroup) = self.cgroup(id)
            && cgroup.is_populated().map_err(retry)?
        {
            cgroup.kill().await.map_err(retry)?;
        }
        let Some(shim) = shim else { return Ok(()) };
        let Some(shim) = PidFd::open(shim.process()).map_err(retry)? else { return Ok(()) };
        off_thread(move || supervisor::kill_tree(&shim, DEATH_TIME_MAX).map_err(retry)).await?;
        Ok(())
    }
}

/// Kills the processes a dead supervisor left. Without a cgroup, only the main process and its process group can still be
/// identified as ours.
pub(super) async fn kill_orphans(shared: &Shared, id: &AttemptId, record: &Record) -> DriverResult<()> {
    if let Some(main) = supervisor::open_task(record).map_err(retry)? {
        main.send_to_group(Signal::KILL).map_err(retry)?;
        main.send(Signal::KILL).map_err(retry)?;
    }
    shared.kill_all(id, None).await
}
