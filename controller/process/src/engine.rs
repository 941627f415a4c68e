//! Runs tasks as processes, for every process-based driver. A cgroup holds each attempt, and a supervisor watches it.
//!
//! In: attempts, and a driver's translation of a task into a process ([`Translate`]). Out: processes, their exits, their usage.
//! The engine finds all state of an attempt by its id: the record, the cgroup, the supervisor named in the record. The state in
//! memory is a cache of it, with one exception: how to execute commands in the attempt (environment, user, directory), which
//! [`Recovery`] restores.
//!
//! ```text
//! start    claim nothing, read the record ─► cgroup ─► supervisor ─► record is `running`
//! exit     record says exited, or the supervisor died ─► OOM counter ─► exits()
//! stop     tombstone, or signal ─► grace ─► SIGKILL ─► everything left in cgroup and process tree
//! destroy  everything left ─► cgroup removed ─► record removed
//! ```

mod exec;
mod failure;
mod ledger;
mod recover;
mod repair;
mod start;
mod stats;
mod stop;
mod supervise;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::{AllocId, job::Task};
use herdlet_base::error::in_full;
use herdlet_base::signal;
use herdlet_driver::{
    self, AttemptId, BoxError, DriverError, DriverInfo, DriverResult, Earlier, ExecRequest, ExecSession,
    Exited, Fingerprint, FsIsolation, Health, Leftover, Outlet, Recovered, Recovery, Started, StopRequest,
    TaskConfig, TaskDriver, TaskEvent, Usage, limits::Limits,
};

use super::{
    attempts::{Attempts, AttemptsError, DriverNumber, Reports},
    cgroup::{Cgroup, Isolation},
    supervisor::{self, Invocation, PidFd, Process, Program, Record, State},
};
use supervise::Live;

/// How a driver translates a task into a process. Process-based drivers differ only here: one that isolates its tasks sets their
/// root and namespaces in the [`Invocation`] that the supervisor executes.
pub trait Translate: Debug + Send + Sync + 'static {
    /// Whether the driver works with these cgroups. Blocking with [`Effort::Thorough`].
    fn fingerprint(&self, isolation: &Isolation, effort: Effort) -> Fingerprint;

    /// Whether that can change while the agent runs.
    fn constancy(&self) -> Constancy {
        Constancy::Fixed
    }

    /// The limits of a task, without that of its processes.
    fn limits(&self, task: &TaskConfig) -> Limits {
        Limits::of_attempt(task)
    }

    /// Why the driver's options refuse a task; none if they don't, or that is not known before its start. Blocking: it may query name
    /// services.
    fn refusal(&self, task: &Task) -> Option<String> {
        let _ = task;
        None
    }

    /// The main process of a task. Makes what it needs, such as a root with mounts, before each start; repeating that is safe.
    /// Blocking: it may query name services and search for files.
    ///
    /// # Errors
    /// With the class of a failed start. The attempt is torn down then.
    fn task(&self, task: &TaskConfig) -> DriverResult<Translated>;

    /// The file of the network namespace that a task and its commands enter; none for the machine's.
    ///
    /// # Errors
    /// If that can't be found.
    fn network(&self, task: &TaskConfig) -> DriverResult<Option<PathBuf>> {
        Ok(task.network.as_ref().map(|network| network.path.clone()))
    }

    /// A command in a running task. Blocking for the same reasons.
    ///
    /// # Errors
    /// If the command does not exist, or can't run in this task.
    fn command(&self, task: &RunningTask<'_>, command: &[String]) -> DriverResult<Invocation>;

    /// Asks a running task to end in a way of the driver's own, before a signal does. Returns whether it was asked. Blocking.
    fn ask_to_end(&self, task: &RunningTask<'_>) -> EndRequest {
        let _ = task;
        EndRequest::None
    }

    /// Removes what [`task`](Self::task) made for an attempt, none of whose processes runs. Repeating it is safe. Blocking.
    ///
    /// # Errors
    /// If something is left. It is tried again when the attempt is destroyed once more.
    fn tear_down(&self, id: &AttemptId) -> DriverResult<()> {
        let _ = id;
        Ok(())
    }
}

/// How much may be done to find out whether a driver works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// This process and files are examined: the start of an agent waits for it.
    Quick,
    /// Programs are run.
    Thorough,
}

/// Whether it can change while the agent runs that a driver works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constancy {
    Fixed,
    /// What it needs may be installed, replaced and removed.
    Changes,
}

/// Whether a task was asked to end in a way of its driver's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndRequest {
    /// It was asked in this way.
    Sent(&'static str),
    /// It could not be asked, for this reason.
    Failed(String),
    /// Its driver or its config has no such way.
    None,
}

/// A task in which a command is executed, or which is to end.
#[derive(Debug)]
pub struct RunningTask<'t> {
    pub config: &'t TaskConfig,
    /// Its main process, by the attempt's record: a command of an isolated task joins its namespaces.
    pub main: Process,
}

/// A task as a process.
#[derive(Debug)]
pub struct Translated {
    pub invocation: Invocation,
    /// Maximum number of processes and threads.
    pub processes: Option<u64>,
    /// The user it runs as, for people.
    pub user: String,
    /// What people should know about this start.
    pub messages: Vec<String>,
}

/// The environment of an engine.
#[derive(Debug)]
pub struct Setup {
    /// The watched attempts directory.
    pub attempts: Arc<Attempts>,
    pub program: Arc<Program>,
    /// Whether cgroups are available.
    pub isolation: Isolation,
    /// For a private agent: read end of a pipe; when it hangs up, all tasks of the agent end.
    pub leash: Option<OwnedFd>,
}

/// A driver whose tasks are processes.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    info: Arc<DriverInfo>,
    /// The driver's number in records.
    number: DriverNumber,
    translate: Arc<dyn Translate>,
    setup: Setup,
    earlier: Earlier,
    exits: Outlet<Exited>,
    live: Mutex<BTreeMap<AttemptId, Arc<Live>>>,
    /// Locks of launches, each of some attempts.
    turns: [tokio::sync::Mutex<()>; start::TURNS],
}

impl Engine {
    /// Creates a driver without attempts; `recover` adds those of an earlier agent. Must be called within a tokio runtime.
    pub fn new(info: DriverInfo, translate: impl Translate, setup: Setup) -> Self {
        if let Some(cgroups) = setup.isolation.cgroups()
            && let Err(error) = setup.attempts.watch_cgroups(cgroups.tree())
        {
            tracing::warn!(
                error = in_full(&error),
                "failed to watch cgroups; they are only inspected when a task is recovered"
            );
        }
        Self {
            shared: Arc::new(Shared {
                number: DriverNumber::of(&info.name),
                info: Arc::new(info),
                translate: Arc::new(translate),
                setup,
                earlier: Earlier::default(),
                exits: Outlet::default(),
                live: Mutex::default(),
                turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            }),
        }
    }

    /// Whether an attempt has a record of this driver. Blocks for a moment.
    ///
    /// # Errors
    /// If the records can't be read.
    pub fn has_record(&self, id: &AttemptId) -> DriverResult<bool> {
        let record = self.shared.attempts().record(id).map_err(DriverError::retry)?;
        let begun = record.filter(|record| record.state != State::Tombstone);
        Ok(begun.is_some_and(|record| DriverNumber::of_record(&record) == self.shared.number))
    }

    /// The main process of an attempt; none if it does not run. Blocks for a moment.
    ///
    /// # Errors
    /// If its record can't be read.
    pub fn main_process(&self, id: &AttemptId) -> DriverResult<Option<PidFd>> {
        match self.shared.attempts().record(id).map_err(DriverError::retry)? {
            Some(record) if record.state == State::Running => {
                supervisor::open_task(&record).map_err(DriverError::retry)
            }
            Some(_) | None => Ok(None),
        }
    }
}

impl TaskDriver for Engine {
    fn info(&self) -> Arc<DriverInfo> {
        Arc::clone(&self.shared.info)
    }

    fn fingerprint(&self) -> BoxStream<'static, Fingerprint> {
        let shared = Arc::clone(&self.shared);
        let found = shared.translate.fingerprint(&shared.setup.isolation, Effort::Quick);
        let first = stream::once(async { found });
        match shared.translate.constancy() {
            Constancy::Fixed => first.chain(stream::pending()).boxed(),
            Constancy::Changes => first.chain(examinations(shared)).boxed(),
        }
    }

    fn exits(&self) -> BoxStream<'static, Exited> {
        self.shared.exits.stream()
    }

    fn refusal(&self, task: &Task) -> Option<String> {
        self.shared.translate.refusal(task)
    }

    fn events(&self) -> BoxStream<'static, TaskEvent> {
        self.shared.reports().stream()
    }

    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        self.shared.earlier.set(known);
    }

    fn start(&self, config: TaskConfig) -> BoxFuture<'_, DriverResult<Started>> {
        self.shared.start(config).boxed()
    }

    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>> {
        self.shared.recover(recovery).boxed()
    }

    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>> {
        self.shared.stop(id, how).boxed()
    }

    fn destroy<'a>(&'a self, id: &'a AttemptId, leftover: Leftover) -> BoxFuture<'a, DriverResult<()>> {
        self.shared.destroy(id, leftover).boxed()
    }

    fn list_attempts(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        async { self.shared.found() }.boxed()
    }

    fn stats<'a>(
        &'a self,
        id: &'a AttemptId,
        interval: Duration,
    ) -> BoxFuture<'a, DriverResult<BoxStream<'static, DriverResult<Usage>>>> {
        async move { stats::stream(&self.shared, id, interval) }.boxed()
    }

    fn root<'a>(&'a self, alloc: AllocId, task: &'a str) -> BoxFuture<'a, DriverResult<Option<OwnedFd>>> {
        async move { self.shared.root(alloc, task) }.boxed()
    }

    fn signal<'a>(&'a self, id: &'a AttemptId, name: &'a str) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            if !self.shared.info.capabilities.signals {
                return Err(DriverError::Unsupported { ability: "sending signals" });
            }
            let signal = signal::parse(name).map_err(DriverError::fatal)?;
            let (_, record) = self.shared.running(id)?;
            if let Some(main) = supervisor::open_task(&record).map_err(DriverError::retry)? {
                main.send(signal).map_err(DriverError::retry)?;
            }
            Ok(())
        }
        .boxed()
    }

    fn exec_streaming<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        if !self.shared.info.capabilities.exec {
            return async { Err(DriverError::Unsupported { ability: "executing commands" }) }.boxed();
        }
        exec::session(&self.shared, id, request).boxed()
    }
}

impl Shared {
    fn attempts(&self) -> &Arc<Attempts> {
        &self.setup.attempts
    }

    fn cgroup(&self, id: &AttemptId) -> Option<Cgroup> {
        self.setup.isolation.cgroups().map(|cgroups| cgroups.of(id))
    }

    fn live(&self) -> std::sync::MutexGuard<'_, BTreeMap<AttemptId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &AttemptId) -> Option<Arc<Live>> {
        self.live().get(id).map(Arc::clone)
    }

    /// A supervised running attempt, with its record.
    fn running(&self, id: &AttemptId) -> DriverResult<(Arc<Live>, Record)> {
        let live = self.find(id).ok_or_else(|| DriverError::Gone(id.clone()))?;
        match self.attempts().record(id).map_err(DriverError::retry)? {
            Some(record) if record.state == State::Running => Ok((live, record)),
            Some(_) | None => Err(DriverError::fatal(format!("reach {id}: it is not running"))),
        }
    }

    /// The root of a task's running attempt. While one starts, its root is made of what the task's directory has by then.
    fn root(&self, alloc: AllocId, task: &str) -> DriverResult<Option<OwnedFd>> {
        if self.info.capabilities.fs_isolation != FsIsolation::Chroot {
            return Ok(None);
        }
        let is_of_task = |id: &&AttemptId| id.alloc == alloc && *id.task == *task;
        let known: Vec<AttemptId> = self.live().keys().filter(is_of_task).cloned().collect();
        let running = known.iter().filter_map(|id| self.running(id).ok()).next_back();
        let Some((_, record)) = running else { return Ok(None) };
        let main = supervisor::open_task(&record).map_err(DriverError::retry)?;
        main.map_or(Ok(None), |main| main.root().map_err(DriverError::retry))
    }

    fn reports(&self) -> Arc<Reports> {
        self.attempts().reports(self.number)
    }

    /// The attempts of this driver. A cgroup without a record may be of any driver, and each can remove it.
    fn found(&self) -> DriverResult<Vec<AttemptId>> {
        let recorded = self.attempts().recorded_attempts().map_err(DriverError::retry)?;
        let is_own = |id: &AttemptId| recorded.get(id).is_none_or(|driver| *driver == self.number);
        let mut found: BTreeSet<AttemptId> = recorded.keys().filter(|id| is_own(id)).cloned().collect();
        if let Some(cgroups) = self.setup.isolation.cgroups() {
            let in_cgroups = cgroups.existing_attempts().map_err(DriverError::retry)?;
            found.extend(in_cgroups.into_iter().filter(is_own));
        }
        Ok(found.into_iter().collect())
    }
}

/// Fingerprints of a driver that may begin and cease to work.
fn examinations(shared: Arc<Shared>) -> impl Stream<Item = Fingerprint> + Send {
    stream::unfold((shared, EXAMINATION_DELAY), |(shared, wait)| async move {
        tokio::time::sleep(wait).await;
        // It may last longer than the agent, and must not hold the attempts: they would restore their directory, which a private agent
        // removes at its end.
        let (translate, isolation) = (Arc::clone(&shared.translate), shared.setup.isolation.clone());
        let examination = off_thread(move || Ok(translate.fingerprint(&isolation, Effort::Thorough)));
        let found = examination.await.unwrap_or_else(|error| Fingerprint {
            health: Health::Unhealthy,
            description: format!("failed to {}", error.why()),
            attributes: BTreeMap::new(),
        });
        Some((found, (shared, EXAMINATION_INTERVAL)))
    })
}

/// How long after its start an agent begins with it: the first second belongs to its tasks.
const EXAMINATION_DELAY: Duration = Duration::from_secs(1);

/// How often a driver is examined that may begin and cease to work, as in Nomad. What it needs lies behind links in several
/// directories: watching them all would cost more than looking at one file.
const EXAMINATION_INTERVAL: Duration = Duration::from_secs(30);

impl From<AttemptsError> for DriverError {
    fn from(error: AttemptsError) -> Self {
        Self::retry(error)
    }
}

/// Runs blocking work off the async threads.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
) -> DriverResult<T> {
    match herdlet_runtime::off_thread(work).await {
        Ok(result) => result,
        Err(error) => Err(DriverError::retry(io::Error::other(error))),
    }
}

fn retry(error: impl Into<BoxError>) -> DriverError {
    DriverError::retry(error)
}
