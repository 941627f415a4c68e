//! The driver `mock`: simulated tasks that behave as their `config` specifies, for experiments and tests.
//!
//! In: attempts. Out: the records, logs, exits and errors of a real driver, on tokio's clock. It starts no process. Like any
//! driver, it recovers its attempts after an agent restart: one small file for each attempt holds what it needs. Tests replace
//! the files with other kinds of ledgers (`notes`).

mod exec;
mod notes;
mod run;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::{UnixNanos, manifest::driver::MockConfig};
use herdlet_base::signal;
use herdlet_driver::{
    self, AttemptId, Claim, CpuUsage, DriverError, DriverInfo, DriverNetwork, DriverResult, ExecRequest,
    ExecSession, Exited, Fingerprint, Health, Ledger, Leftover, MemoryUsage, Outlet, Recovered, Recovery,
    Started, StopRequest, TaskConfig, TaskDriver, TaskEvent, Usage, recover_by,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use notes::{Entry, Given, Kept, Notes};
use run::Run;
use store::Store;

/// The wall clock.
pub type WallClock = Arc<dyn Fn() -> UnixNanos + Send + Sync>;

/// The driver.
pub struct Mock {
    shared: Arc<Shared>,
}

struct Shared {
    info: Arc<DriverInfo>,
    notes: Kept,
    clock: WallClock,
    health: watch::Sender<Health>,
    exits: Outlet<Exited>,
    events: Outlet<TaskEvent>,
    runs: Mutex<BTreeMap<AttemptId, Arc<Run>>>,
}

impl Mock {
    /// Creates a driver that keeps its notes in this directory.
    ///
    /// # Errors
    /// If the directory can't be created.
    pub fn new(dir: &Path, clock: WallClock) -> std::io::Result<Self> {
        Ok(Self::with(Box::new(Store::open(dir)?), clock))
    }

    fn with(notes: Box<dyn Notes>, clock: WallClock) -> Self {
        let shared = Shared {
            info: Arc::new(DriverInfo::mock()),
            notes: Kept(notes),
            clock,
            health: watch::Sender::new(Health::Healthy),
            exits: Outlet::default(),
            events: Outlet::default(),
            runs: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl TaskDriver for Mock {
    fn info(&self) -> Arc<DriverInfo> {
        Arc::clone(&self.shared.info)
    }

    fn fingerprint(&self) -> BoxStream<'static, Fingerprint> {
        let mut health = self.shared.health.subscribe();
        health.mark_changed();
        let changes = stream::unfold(health, |mut health| async move {
            health.changed().await.ok()?;
            let fingerprint = fingerprint(*health.borrow_and_update());
            Some((fingerprint, health))
        });
        changes.chain(stream::pending()).boxed()
    }

    fn exits(&self) -> BoxStream<'static, Exited> {
        self.shared.exits.stream()
    }

    fn events(&self) -> BoxStream<'static, TaskEvent> {
        self.shared.events.stream()
    }

    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        self.shared.notes.set_earlier(known);
    }

    fn prepare<'a>(
        &'a self,
        config: &'a TaskConfig,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            let config = herdlet_driver::read_config::<MockConfig>(&config.config)?;
            let pull = tokio::time::sleep(config.prepare_block_for.0.to_std());
            if cancel.run_until_cancelled(pull).await.is_none() {
                return Err(DriverError::retry("prepare it: it was withdrawn"));
            }
            config.prepare_error.map_or(Ok(()), |error| Err(DriverError::recoverable(error)))
        }
        .boxed()
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
            let entry = Entry::running((self.shared.clock)(), config.clone(), Given::of(&spec));
            match self.shared.notes.claim(&spec.id, &entry).map_err(DriverError::retry)? {
                Claim::Free => self.shared.begin(&spec.id, &entry, Some(&spec)),
                Claim::Fenced => {
                    return Err(DriverError::fatal(format!("start {}: it was cancelled earlier", spec.id)));
                }
                Claim::Taken(_) => {
                    self.shared.recover(&spec.id).await?;
                }
            }
            Ok(self.shared.started(&spec.id, &config))
        }
        .boxed()
    }

    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>> {
        async move {
            if let Some(handle) = &recovery.handle {
                self.shared.notes.recall(&recovery.id, handle);
            }
            self.shared.recover(&recovery.id).await
        }
        .boxed()
    }

    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            let signal = how.signal.as_deref().unwrap_or("SIGINT");
            let signal = signal::parse(signal).map_err(DriverError::fatal)?;
            match self.shared.notes.fence(id).await? {
                Claim::Free | Claim::Fenced => return Ok(()),
                Claim::Taken(_) => self.shared.recover(id).await?,
            };
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
            self.shared.notes.remove(id).map_err(DriverError::retry)
        }
        .boxed()
    }

    fn list_attempts(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        async { self.shared.notes.list().map_err(DriverError::retry) }.boxed()
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
                    // Any number will do; a changing one shows that it is read.
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

    fn exec_streaming<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        async move {
            let run = self.shared.running(id)?;
            Ok(exec::session(run.config().exec_command.clone().unwrap_or_default(), run.given(), request))
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
        if *self.health.borrow() != Health::Healthy {
            return Err(DriverError::retry(SHUT_DOWN));
        }
        let run = self.run(id).filter(|run| run.exit().is_none());
        run.ok_or_else(|| DriverError::fatal(format!("reach {id}: it is not running")))
    }

    fn started(&self, id: &AttemptId, config: &MockConfig) -> Started {
        Started { handle: self.notes.handle(id), network: network(config) }
    }

    async fn recover(self: &Arc<Self>, id: &AttemptId) -> DriverResult<Recovered> {
        self.health.send_if_modified(|health| std::mem::replace(health, Health::Healthy) != Health::Healthy);
        if let Some(run) = self.run(id) {
            let running = || Recovered::Running(self.started(id, run.config()));
            return Ok(run.exit().map_or_else(running, Recovered::Exited));
        }
        let take_over = async |entry: Entry| match entry.exit {
            Some(exit) => Ok(Recovered::Exited(exit)),
            None => {
                self.begin(id, &entry, None);
                Ok(Recovered::Running(self.started(id, &entry.config)))
            }
        };
        recover_by(&self.notes, id, take_over).await
    }

    fn begin(self: &Arc<Self>, id: &AttemptId, entry: &Entry, spec: Option<&TaskConfig>) {
        let run = Run::new(entry);
        self.runs().insert(id.clone(), Arc::clone(&run));
        if let Some(spec) = spec {
            tokio::spawn(run::write_logs(Arc::clone(&run), spec.dirs.clone()));
            tokio::spawn(Arc::clone(self).shut_down(id.clone(), Arc::clone(&run)));
        }
        let elapsed = (self.clock)().0.saturating_sub(entry.started_at.0);
        let elapsed = Duration::from_nanos(u64::try_from(elapsed).unwrap_or(0));
        let (shared, id) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            let mut result = run.live(elapsed).await;
            result.at = (shared.clock)();
            if let Err(error) = shared.notes.set_exit(&id, &result) {
                tracing::warn!(%id, %error, "failed to store the exit of a mock task");
            }
            run.finish(result.clone());
            shared.exits.send(Exited { id, result }).await;
        });
    }

    /// Simulates a crash of the driver while a task runs, as the task's config specifies. Recovering the task restores the
    /// driver.
    async fn shut_down(self: Arc<Self>, id: AttemptId, run: Arc<Run>) {
        let after = run.config().plugin_exit_after.0.to_std();
        if after.is_zero() {
            return;
        }
        tokio::time::sleep(after).await;
        if run.exit().is_none() {
            self.health.send_replace(Health::Unhealthy);
            self.events.send(TaskEvent::Drift { id }).await;
        }
    }
}

/// The error of a driver that simulates a crash. Nomad's text.
const SHUT_DOWN: &str = "plugin is shut down";

fn fingerprint(health: Health) -> Fingerprint {
    let description = match health {
        Health::Healthy => "Healthy",
        Health::Unhealthy | Health::Undetected => SHUT_DOWN,
    };
    Fingerprint { health, description: description.to_owned(), attributes: BTreeMap::new() }
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
