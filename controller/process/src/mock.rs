//! The driver `mock`: pretended tasks that do what their `config` says, for trying things out and for tests.
//!
//! In: attempts. Out: the same records, logs, exits and errors that a real driver gives, on tokio's clock. It starts no
//! process. Like any driver it finds its attempts again after a restart of the agent: what it must know stands in one small
//! file for each attempt.

mod exec;
mod run;
mod store;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::{UnixNanos, manifest::driver::MockConfig, task::ExitResult};
use herdlet_base::signal;
use herdlet_driver::{
    self, AttemptId, CpuUsage, DriverError, DriverInfo, DriverNetwork, DriverResult, ExecOutcome,
    ExecRequest, ExecSession, Fingerprint, Health, Leftover, MemoryUsage, Recovered, Recovery, RunState,
    Started, StopRequest, TaskConfig, TaskDriver, TaskInfo, Usage,
};

use super::attempts::Attempts;
use run::Run;
use store::{Claim, Entry, Store};

/// The wall clock.
pub type WallClock = Arc<dyn Fn() -> UnixNanos + Send + Sync>;

/// The driver.
pub struct Mock {
    shared: Arc<Shared>,
}

struct Shared {
    info: Arc<DriverInfo>,
    attempts: Arc<Attempts>,
    store: Store,
    clock: WallClock,
    runs: Mutex<BTreeMap<AttemptId, Arc<Run>>>,
}

impl Mock {
    /// A driver that keeps its notes beside the records of real attempts and tells their ends through the same channel.
    ///
    /// # Errors
    /// When there is no place for its notes.
    pub fn new(attempts: Arc<Attempts>, clock: WallClock) -> std::io::Result<Self> {
        let store = Store::open(&attempts.path().join(".mock"))?;
        let info = Arc::new(DriverInfo::mock());
        Ok(Self { shared: Arc::new(Shared { info, attempts, store, clock, runs: Mutex::default() }) })
    }
}

impl TaskDriver for Mock {
    fn info(&self) -> Arc<DriverInfo> {
        Arc::clone(&self.shared.info)
    }

    fn fingerprint(&self) -> BoxStream<'static, Fingerprint> {
        let healthy = Fingerprint {
            health: Health::Healthy,
            description: "Healthy".to_owned(),
            attributes: BTreeMap::new(),
        };
        stream::once(async { healthy }).chain(stream::pending()).boxed()
    }

    fn start(&self, spec: TaskConfig) -> BoxFuture<'_, DriverResult<Started>> {
        async move {
            let config = herdlet_driver::read_config::<MockConfig>(&spec.config)?;
            tokio::time::sleep(config.start_block_for.0.to_std()).await;
            if let Some(error) = &config.start_error {
                let error = error.clone();
                return Err(if config.start_error_recoverable {
                    DriverError::recoverable(error)
                } else {
                    DriverError::fatal(error)
                });
            }
            let entry = Entry::running((self.shared.clock)(), config.clone());
            match self.shared.store.claim(&spec.id, &entry).map_err(DriverError::retry)? {
                Claim::Won => self.shared.begin(&spec.id, &entry, Some(&spec)),
                Claim::Lost(entry) if entry.fenced => {
                    return Err(DriverError::fatal(format!("start {}: it was cancelled before", spec.id)));
                }
                Claim::Lost(_) => {
                    self.recover(Recovery { id: spec.id.clone(), config: None, handle: None, network: None })
                        .await?;
                }
            }
            Ok(Started { handle: None, network: network(&config) })
        }
        .boxed()
    }

    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>> {
        async move {
            let id = &recovery.id;
            if let Some(run) = self.shared.run(id) {
                run.revive();
                return Ok(run.exit().map_or(Recovered::Running, Recovered::Exited));
            }
            Ok(match self.shared.store.read(id).map_err(DriverError::retry)? {
                None => Recovered::NotStarted,
                Some(Entry { fenced: true, .. }) => {
                    Recovered::Lost { why: "it was cancelled before it began".to_owned() }
                }
                Some(Entry { exit: Some(exit), .. }) => Recovered::Exited(exit),
                Some(entry) => {
                    self.shared.begin(id, &entry, None);
                    Recovered::Running
                }
            })
        }
        .boxed()
    }

    fn wait<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<ExitResult>> {
        async move {
            if let Some(run) = self.shared.run(id) {
                return run.ended().await;
            }
            let entry = self.shared.store.read(id).map_err(DriverError::retry)?;
            entry.and_then(|entry| entry.exit).ok_or_else(|| DriverError::Gone(id.clone()))
        }
        .boxed()
    }

    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            let signal = how.signal.as_deref().unwrap_or("SIGINT");
            let signal = signal::parse(signal).map_err(DriverError::fatal)?;
            if let Claim::Won = self.shared.store.claim(id, &Entry::fence()).map_err(DriverError::retry)? {
                return Ok(());
            }
            self.recover(Recovery { id: id.clone(), config: None, handle: None, network: None }).await?;
            if let Some(run) = self.shared.run(id) {
                run.stop(signal.as_raw(), how.grace).await;
            }
            Ok(())
        }
        .boxed()
    }

    fn destroy<'a>(&'a self, id: &'a AttemptId, leftover: Leftover) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            if let Some(run) = self.shared.run(id)
                && run.exit().is_none()
            {
                match leftover {
                    Leftover::MainMustBeGone => {
                        return Err(DriverError::fatal(format!("destroy {id}: it still runs")));
                    }
                    Leftover::Kill => run.stop(libc::SIGKILL, Duration::ZERO).await,
                }
            }
            self.shared.runs().remove(id);
            self.shared.store.remove(id).map_err(DriverError::retry)
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<TaskInfo>> {
        async move {
            let entry = self.shared.store.read(id).map_err(DriverError::retry)?;
            let entry = entry.filter(|entry| !entry.fenced).ok_or_else(|| DriverError::Gone(id.clone()))?;
            Ok(TaskInfo {
                state: if entry.exit.is_some() { RunState::Exited } else { RunState::Running },
                started_at: entry.started_at,
                network: network(&entry.config),
                exit: entry.exit,
                attributes: BTreeMap::new(),
            })
        }
        .boxed()
    }

    fn found(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        async { self.shared.store.list().map_err(DriverError::retry) }.boxed()
    }

    fn stats<'a>(
        &'a self,
        id: &'a AttemptId,
        interval: Duration,
    ) -> BoxFuture<'a, DriverResult<BoxStream<'static, DriverResult<Usage>>>> {
        async move {
            let run = self.shared.running(id)?;
            let clock = Arc::clone(&self.shared.clock);
            let ticks = stream::unfold((run, clock, Duration::ZERO), move |(run, clock, wait)| async move {
                tokio::time::sleep(wait).await;
                run.exit().is_none().then(|| {
                    // Any number will do; one that changes shows that it is read.
                    let rss = 1 + u64::from(uuid::Uuid::new_v4().as_fields().0);
                    let memory = MemoryUsage { rss: Some(rss), ..MemoryUsage::default() };
                    let usage = Usage { at: clock(), memory, cpu: CpuUsage::default(), pids: Vec::new() };
                    (Ok(usage), (run, clock, interval))
                })
            });
            Ok(ticks.boxed())
        }
        .boxed()
    }

    fn signal<'a>(&'a self, id: &'a AttemptId, name: &'a str) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            signal::parse(name).map_err(DriverError::fatal)?;
            match &self.shared.running(id)?.config().signal_error {
                Some(error) => Err(DriverError::fatal(error.clone())),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn exec<'a>(
        &'a self,
        id: &'a AttemptId,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, DriverResult<ExecOutcome>> {
        async move {
            let request = ExecRequest { command: command.to_vec(), terminal: None };
            herdlet_driver::run_to_end(self.exec_streaming(id, request).await?, timeout).await
        }
        .boxed()
    }

    fn exec_streaming<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        async move {
            let run = self.shared.running(id)?;
            Ok(exec::session(run.config().exec_command.clone().unwrap_or_default(), request))
        }
        .boxed()
    }
}

impl Shared {
    fn runs(&self) -> std::sync::MutexGuard<'_, BTreeMap<AttemptId, Arc<Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, id: &AttemptId) -> Option<Arc<Run>> {
        self.runs().get(id).map(Arc::clone)
    }

    fn running(&self, id: &AttemptId) -> DriverResult<Arc<Run>> {
        let run = self.run(id).filter(|run| run.exit().is_none());
        run.ok_or_else(|| DriverError::fatal(format!("find {id} running")))
    }

    fn begin(self: &Arc<Self>, id: &AttemptId, entry: &Entry, spec: Option<&TaskConfig>) {
        let run = Run::new(entry.config.clone());
        self.runs().insert(id.clone(), Arc::clone(&run));
        if let Some(spec) = spec {
            tokio::spawn(run::speak_to_logs(Arc::clone(&run), spec.dirs.clone()));
        }
        let elapsed = (self.clock)().0.saturating_sub(entry.started_at.0);
        let elapsed = Duration::from_nanos(u64::try_from(elapsed).unwrap_or(0));
        let (shared, id) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            let mut exit = run.live(elapsed).await;
            exit.at = (shared.clock)();
            if let Err(error) = shared.store.write_exit(&id, &exit) {
                tracing::warn!(%id, %error, "failed to note the end of a mock task");
            }
            run.finish(exit.clone());
            shared.attempts.notify(super::attempts::Notice::Exited { id, result: exit }).await;
        });
    }
}

fn network(config: &MockConfig) -> Option<DriverNetwork> {
    config.driver_ip.as_ref().map(|ip| DriverNetwork {
        ip: ip.clone(),
        auto_advertise: config.driver_advertise,
        port_map: config.driver_port_map.clone(),
    })
}

#[cfg(test)]
mod tests;
