//! `herdlet run FILE…`: a private agent that ends with its batch work.
//!
//! In: manifests. Out: the tasks' output on stdout and stderr, progress and the result on stderr, an exit code. It has its
//! own instance and state directory, and no socket. A guard process cleans up, however the agent ends.

mod announcer;
pub mod output;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::future::join_all;
use herdlet_agent::{
    agent::{self, Agent},
    instance::{Host, Instance, Options, offered_cores},
    present,
    publish::ReadModel,
    requests::Requests,
    state_db::{Alone, StateDb, StateDir},
    task_sockets::NoApi,
};
use herdlet_api_types::{
    JobKey,
    api::VariableTexts,
    job::{Job, ReschedulePolicy},
    manifest::defaults::NODE_POOL,
    task::TaskStatus,
    view::{AllocView, ConvergenceState},
};
use herdlet_base::{durable, interrupt::interrupted, paths::Paths, user::guests};
use herdlet_config::{DriverSettings, MAX_KILL_TIMEOUT, START_PRESSURE_LIMIT, artifact::Limits};
use herdlet_manifest::{
    hcl::Variables,
    manifests::{self, Set},
    one_machine,
};
use herdlet_plan::{
    event::{Command, Reply},
    job::feasibility,
};
use herdlet_services::catalog::Catalogs;

use crate::{
    drivers,
    guard::{Charge, Guard},
    run::{
        announcer::{Announcer, exit_code},
        output::Output,
    },
};

#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Manifests: files, folders, or `-`.
    pub files: Vec<PathBuf>,
    /// Values of variables in HCL job files.
    pub variables: VariableTexts,
    /// The state directory; a temporary one if none.
    pub state_dir: Option<PathBuf>,
    pub cgroup_parent: String,
    /// Users with access to the directories of every allocation, as in the config of an agent.
    pub task_dir_users: Vec<String>,
}

/// Exit code if the agent itself fails, as for `docker run`.
pub const AGENT_FAILED: u8 = 125;

/// Exit code after Ctrl-C: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Limit on the delay of a run's end by the cleanup of its ended tasks.
const LAST_OUTPUT_MAX: Duration = Duration::from_secs(10);

/// Runs the manifests to their end. Returns the exit code.
pub async fn run(options: RunOptions) -> u8 {
    let set = Variables::read(&options.variables)
        .and_then(|variables| manifests::load(&options.files, &drivers::of_manifests(), &variables));
    let set = match set {
        Ok(set) => set,
        Err(problems) => {
            herdlet_base::stderr_line!("{problems}");
            if options.files.first().is_some_and(|first| !first.exists() && first.as_os_str() != "-") {
                herdlet_base::stderr_line!(
                    "  to run a command in the environment of a job: herdlet run JOB -- COMMAND"
                );
            }
            return AGENT_FAILED;
        }
    };
    for warning in &set.warnings {
        herdlet_base::stderr_line!("warning: {warning}");
    }
    for warning in guests::without_effect(&options.task_dir_users) {
        herdlet_base::stderr_line!("warning: {warning}");
    }
    match run_set(options, set).await {
        Ok(code) => code,
        Err(error) => {
            herdlet_base::stderr_line!("herdlet: failed to run: {error:#}");
            AGENT_FAILED
        }
    }
}

async fn run_set(options: RunOptions, set: Set) -> anyhow::Result<u8> {
    let began = Instant::now();
    if let Some(job) = set.jobs.iter().map(|loaded| &loaded.object).find(|job| job.makes_children()) {
        let what = if job.takes_dispatches() { "parameterized: dispatches" } else { "periodic: launches" };
        anyhow::bail!(
            "job {} is {what} start its tasks, so this would wait for ever; apply it to an agent: herdlet apply -f FILE",
            job.id
        );
    }
    let Settled { paths, state, guard, alone: _alone } = settle(options.state_dir, &options.cgroup_parent)?;
    // Held until everything has been removed. If this process dies, the pipe closes, and the supervisors end the tasks
    // themselves.
    let (leash, _held) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("create a pipe")?;
    let instance = Instance::open(Options {
        instance: state.instance().clone(),
        paths,
        cgroup_parent: options.cgroup_parent,
        drivers: DriverSettings::all(),
        host: Host::standalone(),
        network: herdlet_config::network::Network::default(),
        leash: Some(leash),
    })?;
    if let herdlet_process::cgroup::Isolation::None { why } = &instance.isolation {
        tracing::info!(why, "isolation: none; tasks are tracked by their process tree only");
    }
    let ineffective = instance.isolation.ineffective();
    let mut agent = start_agent(state, instance, options.task_dir_users).await?;
    let jobs = set.jobs.into_iter().map(|loaded| anywhere(tried_once(loaded.object)));
    let jobs: Vec<Job> = jobs.collect();
    // A long-running agent waits until someone installs what a driver lacks. A run would only seem to hang.
    let undetected = agent.context.drivers.entries().undetected();
    for (job, group) in jobs.iter().flat_map(|job| job.groups.iter().map(move |group| (job, group))) {
        feasibility::check_with_drivers(job, group, &agent.context.node.get(), &undetected)
            .map_err(|unplaced| anyhow::anyhow!("place {}.{}: {}", job.id, group.name, unplaced.message))?;
    }
    for warning in ineffective.with_max_kill_timeout(Some(MAX_KILL_TIMEOUT)).warnings(&jobs) {
        herdlet_base::stderr_line!("warning: {warning}");
    }
    let tasks = herdlet_driver::users::users_of(&jobs);
    let (drivers, asked) = (agent.context.drivers.clone(), jobs.clone());
    let refusals = move || [herdlet_driver::users::warnings(tasks), drivers.refusals(&asked)].concat();
    for warning in herdlet_runtime::off_thread(refusals).await.unwrap_or_default() {
        herdlet_base::stderr_line!("warning: {warning}");
    }
    for warning in jobs.iter().flat_map(|job| one_machine::warnings(job, Ipv4Addr::LOCALHOST.into())) {
        herdlet_base::stderr_line!("warning: {warning}");
    }
    for warning in Catalogs::lacking(&agent.context.services.catalogs.consuls, &jobs).await {
        herdlet_base::stderr_line!("warning: {warning}");
    }
    let volumes = set.volumes.into_iter().map(|loaded| loaded.object).collect();
    delete_leftover_jobs(&agent, &jobs).await?;
    let work = Work::of(&jobs);
    let follow = Output::start(Arc::clone(&agent.model), agent.context.paths.clone(), &jobs);
    agent::accepted(agent.requests.ask(Command::Apply { jobs: jobs.clone(), volumes }).await?)?;
    let (model, requests) = (Arc::clone(&agent.model), agent.requests.clone());
    let end = tokio::select! {
        end = work.until_done(&model, &requests, began) => end,
        error = agent.failed() => return Err(error),
    };
    let code = match end {
        End::Done => {
            let left_nothing = tokio::time::timeout(LAST_OUTPUT_MAX, nothing_is_owed(&agent, &work));
            tokio::select! {
                left_nothing = left_nothing => if left_nothing.is_err() {
                    tracing::warn!("not everything of the ended tasks has been removed yet; their last output may be missing");
                },
                () = interrupted() => {}
            }
            follow.finish(interrupted()).await;
            let code = exit_code(&agent.model, &jobs);
            remove_jobs(&agent).await;
            code
        }
        End::Interrupted => {
            // Output of tasks while they stop is printed too.
            remove_jobs(&agent).await;
            follow.finish(interrupted()).await;
            INTERRUPTED
        }
    };
    tokio::select! {
        () = agent.stop() => {}
        // On a full disk, the agent keeps trying for a while.
        () = interrupted() => {}
    }
    tokio::select! {
        finished = herdlet_runtime::off_thread(|| guard.finish()) => finished.context("wait for the guard")??,
        // The guard continues without us.
        () = interrupted() => return Ok(INTERRUPTED),
    }
    Ok(code)
}

/// A private agent ignores the job's datacenters and node pool.
fn anywhere(mut job: Job) -> Job {
    job.datacenters = vec!["*".to_owned()];
    job.node_pool = NODE_POOL.to_owned();
    job
}

/// A claimed state directory with its guard.
struct Settled {
    paths: Paths,
    state: StateDir,
    guard: Guard,
    alone: Alone,
}

/// Claims a state directory, and starts its guard.
fn settle(state_dir: Option<PathBuf>, cgroup_parent: &str) -> anyhow::Result<Settled> {
    let claim = |path: &Path| StateDir::claim(path).context("claim the state directory");
    let charge = |state: &Path, remove: Vec<PathBuf>| Charge {
        state: state.to_owned(),
        runtime: state.join("run"),
        cgroup_parent: cgroup_parent.to_owned(),
        remove,
    };
    let alone =
        |path: &Path, state: &StateDir| state.claim_runtime(&path.join("run")).context("claim the instance");
    let (path, state, guard, alone) = match state_dir {
        // The guard first, so that the directory is never left behind.
        None => {
            let path = std::env::temp_dir().join(format!("herdlet-run-{}", random_hex()));
            let guard = Guard::start(&charge(&path, vec![path.clone()]))?;
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .with_context(|| format!("create directory {}", path.display()))?;
            let state = claim(&path)?;
            let alone = alone(&path, &state)?;
            (path, state, guard, alone)
        }
        // The claim first, because nothing may be removed from a directory that another agent uses.
        Some(path) => {
            claim_private(&path)?;
            let state = claim(&path)?;
            let alone = alone(&path, &state)?;
            let guard = Guard::start(&charge(&path, vec![path.join("run"), path.join("bin")]))?;
            (path, state, guard, alone)
        }
    };
    Ok(Settled { paths: Paths { runtime: path.join("run"), state: path }, state, guard, alone })
}

/// Marks a new directory as one for private agents. At its end, a run removes everything of its instance, so it must not
/// use the directory of an agent whose tasks continue without it.
fn claim_private(path: &Path) -> anyhow::Result<()> {
    let mark = path.join("private");
    if StateDir::instance_in(path).is_none() && !path.join("state.db").exists() {
        durable::make_passage(path).with_context(|| format!("create directory {}", path.display()))?;
        return durable::write(&mark, b"").with_context(|| format!("write {}", mark.display()));
    }
    anyhow::ensure!(
        mark.exists(),
        "failed to use the state directory {}: it belongs to a long-running agent, whose tasks this run would end",
        path.display()
    );
    Ok(())
}

async fn start_agent(
    state: StateDir,
    instance: Instance,
    task_dir_users: Vec<String>,
) -> anyhow::Result<Agent> {
    let state = StateDb::open(state, &instance.paths, present::now()).context("open the state database")?;
    let node = agent::node_facts(&instance);
    let variables = agent::variables_in(&instance.paths)?;
    let settings =
        agent::planner_settings(instance.id.clone()).with_cores(offered_cores(&instance.isolation));
    let secrets_plugins = instance.paths.state.join("common_plugins/secrets");
    let mut agent = Agent::start(agent::Parts {
        instance,
        state,
        node,
        settings,
        volumes: Vec::new(),
        consuls: agent::consul_from_env()?,
        start_pressure_limit: START_PRESSURE_LIMIT,
        task_dir_users,
        artifacts: Limits::default(),
        variables,
        secrets_plugins,
        templates: herdlet_config::template::Template::default(),
        network: herdlet_config::network::Network::default(),
        issuer: Default::default(),
        vault: Default::default(),
        notes: Arc::new(|_| {}),
    })
    .await?;
    agent.context.task_sockets.serve_by(Arc::new(NoApi));
    agent.complete_after(std::future::ready(()));
    Ok(agent)
}

/// Disables rescheduling: the user sees the failure and decides whether to try again.
fn tried_once(mut job: Job) -> Job {
    for group in &mut job.groups {
        group.reschedule = ReschedulePolicy::default();
    }
    job
}

/// Deletes jobs that an earlier, killed run has left in this state directory, unless the files contain them.
async fn delete_leftover_jobs(agent: &Agent, jobs: &[Job]) -> anyhow::Result<()> {
    agent.handle.first_turn.opened().await.context("finish the first turn")?;
    let wanted: BTreeSet<_> = jobs.iter().map(Job::key).collect();
    for view in agent.model.jobs().iter().filter(|view| !wanted.contains(&view.key)) {
        agent::accepted(agent.requests.ask(Command::Delete { job: view.key.clone() }).await?)?;
    }
    Ok(())
}

/// The work that must end before the run does.
struct Work {
    /// Batch jobs, each with the number of its allocations.
    batch: BTreeMap<JobKey, u64>,
    /// All jobs. A run without batch work ends with Ctrl-C, or when everything in it has failed for good.
    all: BTreeMap<JobKey, u64>,
}

enum End {
    Done,
    Interrupted,
}

impl Work {
    fn of(jobs: &[Job]) -> Self {
        let count = |job: &Job| job.groups.iter().map(|group| u64::from(group.count)).sum();
        let all: BTreeMap<JobKey, u64> = jobs.iter().map(|job| (job.key(), count(job))).collect();
        let batch = jobs.iter().filter(|job| job.kind.completes());
        let batch = batch.map(|job| (job.key(), count(job))).collect();
        Self { batch, all }
    }

    /// Waits until all batch work has ended, and prints the changes of each task.
    async fn until_done(&self, model: &ReadModel, requests: &Requests, began: Instant) -> End {
        let mut changes = model.changes();
        let mut announcer = Announcer::default();
        let interrupt = interrupted();
        tokio::pin!(interrupt);
        let mut trouble = Trouble::default();
        loop {
            announcer.announce(model, began);
            let over = |jobs: &BTreeMap<JobKey, u64>| {
                !jobs.is_empty() && jobs.iter().all(|(job, count)| is_over(model, job, *count))
            };
            if over(&self.batch) || over(&self.all) {
                return End::Done;
            }
            tokio::select! {
                // A lagging receiver has missed changes, but the whole model is read again anyway.
                _ = changes.recv() => {}
                () = &mut interrupt => return End::Interrupted,
                () = trouble.next(requests) => {}
            }
        }
    }
}

/// While the state can't be written, no progress is possible or visible. This must not look like a hang.
#[derive(Default)]
struct Trouble {
    reported: Option<String>,
}

impl Trouble {
    /// Prints the next change: that the state can't be written, or that it can again. Cancel-safe.
    async fn next(&mut self, requests: &Requests) {
        if self.reported.is_none() {
            requests.until_degraded().await;
            self.reported = requests.degraded();
            if let Some(why) = &self.reported {
                herdlet_base::stderr_line!("waiting: {why}");
            }
        } else {
            requests.until_able().await;
            self.reported = None;
            herdlet_base::stderr_line!("the state can be written again");
        }
    }
}

/// Waits until the ended tasks are cleaned up: only then their logs are complete.
async fn nothing_is_owed(agent: &Agent, work: &Work) {
    for key in work.batch.keys() {
        for view in agent.model.allocs_of(key) {
            // Subscribes before the request: every change of the explanation is published.
            let mut changes = agent.model.changes();
            loop {
                let explained = agent.requests.ask(Command::Explain { alloc: view.spec.id }).await;
                match explained.map(|answer| answer.reply) {
                    Ok(Reply::Explanation(explanation)) if !explanation.waits.is_empty() => {
                        // A lagging receiver has missed changes, so the loop asks again.
                        let _ = changes.recv().await;
                    }
                    Ok(_) | Err(_) => break,
                }
            }
        }
    }
}

/// Whether every allocation of the job has ended.
fn is_over(model: &ReadModel, key: &JobKey, count: u64) -> bool {
    let Some(job) = model.job(key) else { return false };
    let settled = matches!(job.convergence.state, ConvergenceState::Converged | ConvergenceState::Failed);
    let allocs = model.allocs_of(key);
    settled && (count == 0 || !allocs.is_empty()) && allocs.iter().all(|view| has_ended(view))
}

fn has_ended(view: &AllocView) -> bool {
    view.status.is_terminal() && view.tasks.iter().all(|task| task.state == TaskStatus::Dead)
}

/// Stops and removes everything, including services. The tasks' `kill_timeout` bounds this, then [`LAST_OUTPUT_MAX`] for a
/// catalogue that does not confirm deregistrations. Ctrl-C leaves the rest to the guard.
async fn remove_jobs(agent: &Agent) {
    let mut changes = agent.model.changes();
    let interrupt = interrupted();
    tokio::pin!(interrupt);
    let jobs = agent.model.jobs();
    let deletions = jobs.iter().map(|view| agent.requests.ask(Command::Delete { job: view.key.clone() }));
    tokio::select! {
        deleted = join_all(deletions) => {
            for error in deleted.into_iter().filter_map(Result::err) {
                tracing::debug!(%error, "failed to delete a job");
            }
        }
        () = &mut interrupt => return,
    }
    let mut given_up = None;
    while !agent.model.jobs().is_empty() {
        if given_up.is_none() && agent.model.allocs().iter().all(|view| has_ended(view)) {
            given_up = Some(tokio::time::Instant::now() + LAST_OUTPUT_MAX);
        }
        tokio::select! {
            _ = changes.recv() => {}
            () = tokio::time::sleep_until(given_up.unwrap_or_else(tokio::time::Instant::now)), if given_up.is_some() => {
                for view in agent.model.jobs() {
                    tracing::warn!(job = %view.key, why = view.convergence.message, "not everything of the job could be removed");
                }
                return;
            }
            () = &mut interrupt => return,
            // No progress would be visible. The guard needs no state.
            () = agent.requests.until_degraded() => return,
        }
    }
}

fn random_hex() -> String {
    uuid::Uuid::new_v4().simple().to_string().chars().take(16).collect()
}
