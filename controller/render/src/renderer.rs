//! Renders all templates of a task in rounds: each round finds further queries, until every query has an answer.
//!
//! In: a task's templates with the outputs of their last render. Out: files, or what is missing. A file is written only
//! if its output differs from the last one: a new agent changes nothing. With data missing nothing is written, so that
//! the files are always those of one render.

mod error;
mod output;
mod secrets;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use herdlet_api_types::{AllocId, job::Template as Block, variable::VariableKey};
use herdlet_base::{
    artifact::destination::Dirs,
    safe_fs::{Dir, FileOwner},
};
use herdlet_runtime::{BootClock, Clock as _, off_thread};
use herdlet_services::catalog::BuiltIn;
use herdlet_template::{Answer, Query, Render, Source, Template};
use herdlet_variables::service::Change;
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::Instant,
};

pub use self::{
    error::RenderError,
    output::{note_start, started_variables, template_variables},
    secrets::SecretVariables,
};
use self::{
    output::{all_are_there, outdated_since, write_all},
    text::{file, parse_all},
};
use crate::{
    data::{Data, Origin, is_about, is_about_services, is_about_variables, is_of},
    figures::{Figures, Tally},
    peers::Peers,
    record::{Indexes, Record},
    region::Region,
    servers::{Following, ServerReader},
    sources::{Access, Reader, Sources, selected},
    vault::{Upkeep, VaultRights, VaultSession},
    watches::{Consumer, TaskChanges, TaskKey, Use, Wait, Watches},
};

/// The agent's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Functions that no template may call.
    pub denied: Vec<String>,
    /// How long data must be quiet unless a template sets it.
    pub wait: Wait,
    /// The shortest wait that a template may set.
    pub wait_min: Duration,
    /// The longest wait that a template may set; `None` for any.
    pub wait_max: Option<Duration>,
    /// How data of servers is followed.
    pub following: Following,
}

impl Default for Settings {
    /// Nomad's defaults.
    fn default() -> Self {
        Self {
            denied: ["plugin", "writeToFile", "executeTemplate"].map(str::to_owned).into(),
            wait: Wait { min: Duration::from_secs(5), max: Duration::from_secs(240) },
            wait_min: Duration::ZERO,
            wait_max: None,
            following: Following::default(),
        }
    }
}

/// The templates of a task.
#[derive(Clone)]
pub struct TaskTemplates {
    pub key: TaskKey,
    pub reader: Reader,
    pub vault: VaultRights,
    /// Paths have their variables replaced.
    pub templates: Vec<Block>,
    /// What `env` reads: the task's environment as it sees it, and facts of the node.
    pub env: BTreeMap<String, String>,
    pub dirs: Dirs,
    /// The task's root while it runs, if it has one of its own.
    pub root: Option<Arc<Dir>>,
    /// Owner of directories that are made for outputs.
    pub owner: Option<FileOwner>,
    /// Size of `secrets` in MiB.
    pub secrets_mib: u64,
    /// The revisions of the last outputs; empty before the first render.
    pub before: Vec<u64>,
}

/// The end of a render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendering {
    /// All files are there. One revision for each template.
    Done { outputs: Vec<u64>, upkeep: Upkeep },
    /// Data is missing.
    Missing {
        /// Its names, for people.
        on: String,
        /// Since when the files of the last render are outdated, by `CLOCK_BOOTTIME`; none if they are not there.
        outdated_since_ns: Option<u64>,
        recheck: Recheck,
        upkeep: Upkeep,
    },
}

/// Why missing data has to be looked for without a report of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recheck {
    /// Its source reports it; a report could only be lost.
    Reported,
    /// Servers are away or refuse it.
    Servers,
    /// Nothing reports the appearance of a file.
    Files,
}

/// A report about the data of templates.
#[derive(Debug)]
pub enum DataChange {
    /// The data of this task has changed; [`DataChange::Due`] follows once it is quiet.
    Begun(TaskKey),
    /// The task is to be rendered again.
    Due(TaskKey),
    /// All changes that were made before a call of [`Renderer::flush`] have been reported.
    Flushed(oneshot::Sender<()>),
}

/// Callers of [`Renderer::flush`] at a time; more of them wait.
const FLUSHES_LEN: usize = 16;

/// Queries of the templates of one task, and so the rounds of its render.
const QUERIES_MAX: usize = 4_096;

/// Names of missing data in one text, as in Nomad.
const NAMES_MAX: usize = 3;

/// Renders the templates of all tasks.
pub struct Renderer {
    sources: Sources,
    peers: Peers,
    settings: Settings,
    watches: Watches,
    tally: Tally,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    to_flush: Mutex<mpsc::Receiver<oneshot::Sender<()>>>,
}

impl Renderer {
    pub fn new(sources: Sources, settings: Settings) -> Self {
        let peers = Peers::new(&settings.following, &sources.consuls);
        let (watches, tally) = (Watches::default(), Tally::default());
        let (flushes, to_flush) = mpsc::channel(FLUSHES_LEN);
        let to_flush = Mutex::new(to_flush);
        Self { sources, peers, settings, watches, tally, flushes, to_flush }
    }

    /// Renders the templates of a task, and watches their data from now on.
    ///
    /// # Errors
    /// If a template is wrong, or a file can't be read or written.
    pub async fn render(&self, task: TaskTemplates) -> Result<Rendering, RenderError> {
        let task = Arc::new(task);
        let ended = self.render_task(&task).await;
        self.tally.count(task.key, &ended);
        ended
    }

    async fn render_task(&self, task: &Arc<TaskTemplates>) -> Result<Rendering, RenderError> {
        if is_finished(task) && run(task, |task| Ok(all_are_there(task))).await? {
            return Ok(Rendering::Done { outputs: task.before.clone(), upkeep: Upkeep::default() });
        }
        let denied = self.settings.denied.clone();
        let (parsed, record, mut vault) = run(task, move |task| {
            let record = Record::read(&task.dirs).map_err(RenderError::Record)?;
            Ok((parse_all(task, &denied)?, record, VaultSession::open(&task.dirs, Consumer::Templates)?))
        })
        .await?;
        let answers = Answers::new(task, record.as_ref());
        let known = record.filter(|_| !task.before.is_empty());
        let indexes = known.map(|record| record.indexes).unwrap_or_default();
        let mut round = Round { parsed: Arc::new(parsed), answers, unanswered: BTreeMap::new(), indexes };
        let renders = self.complete(task, &mut round, &mut vault).await?;
        self.watch(task, &renders);
        let missing: BTreeSet<&Query> = renders.iter().flat_map(|render| &render.missing).collect();
        // Before files have values: the next agent must find those that were issued.
        if missing.is_empty() {
            vault.drop_unused();
        }
        let upkeep = vault.close().await?;
        if !missing.is_empty() {
            let on = names(&missing, &round.unanswered);
            let outdated_since_ns = run(task, outdated_since).await?;
            let recheck = recheck(&missing, &round);
            return Ok(Rendering::Missing { on, outdated_since_ns, recheck, upkeep });
        }
        round.indexes = self.indexes(task, &renders);
        let written = run(task, move |task| write_all(task, &round, renders)).await?;
        if is_finished(&TaskTemplates { before: written.clone(), ..TaskTemplates::clone(task) }) {
            self.watches.keep(task.key, &BTreeMap::new());
            self.peers.users_changed();
        }
        Ok(Rendering::Done { outputs: written, upkeep })
    }

    /// Whether all files are there.
    ///
    /// # Errors
    /// If they can't be inspected.
    pub async fn is_there(&self, task: TaskTemplates) -> Result<bool, RenderError> {
        run(&Arc::new(task), |task| Ok(all_are_there(task))).await
    }

    /// Forgets an allocation that is gone.
    pub fn forget(&self, alloc: AllocId) {
        self.watches.forget(alloc);
        self.peers.forget(alloc);
        self.tally.forget(alloc);
    }

    /// A task has another token of Vault: secrets that were issued with the last one have ended, or will soon.
    pub fn vault_token_changed(&self, alloc: AllocId, index: u16) {
        let task = (alloc, index, Consumer::Templates);
        self.watches.task_changed(task, |data| matches!(data.query, Query::Vault { .. }));
    }

    /// A task has another token of Consul, with which it reads again.
    pub fn consul_token_changed(&self, alloc: AllocId, index: u16) {
        let task = (alloc, index, Consumer::Templates);
        self.watches.task_changed(task, |data| matches!(data.query, Query::Consul { .. }));
    }

    /// Sets the servers that have the data of their allocations, once the node has joined their cluster.
    pub fn join(&self, region: Arc<dyn Region>) {
        self.peers.join(region);
    }

    /// The tasks that this variable concerns when it changes, with the templates that have used it: none if it is only
    /// waited for. Tasks of servers use the servers' variable of this name.
    pub fn users_of(&self, key: &VariableKey) -> BTreeMap<(AllocId, u16), BTreeSet<u16>> {
        let mut found: BTreeMap<_, BTreeSet<u16>> = BTreeMap::new();
        for ((alloc, index, _), templates) in self.watches.templates(|data| is_about(data, key)) {
            found.entry((alloc, index)).or_default().extend(templates);
        }
        found
    }

    /// Figures for metrics.
    pub fn figures(&self) -> Figures {
        self.tally.figures(self.watches.queries(), BootClock.now().boot_ns)
    }

    /// Waits until all changes of the agent's data so far have been reported and the receiver has confirmed that. Changes of
    /// data of servers are reported when the servers send them. Needs [`Renderer::follow`] to run.
    pub async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.flushes.send(done).await.is_ok() {
            // An error means that the agent ends.
            let _ = is_done.await;
        }
    }

    /// Reports the tasks whose data has changed, until the receiver is gone.
    pub async fn follow(&self, changed: mpsc::Sender<DataChange>) {
        tokio::select! {
            () = self.peers.follow(&self.watches) => {}
            () = self.follow_agent(changed) => {}
        }
    }

    async fn follow_agent(&self, changed: mpsc::Sender<DataChange>) {
        let mut to_flush = self.to_flush.lock().await;
        let mut variables = self.sources.variables.subscribe();
        let catalogue: &BuiltIn = &self.sources.catalogue;
        let mut version = catalogue.version();
        loop {
            tokio::select! {
                // In this order: a flush follows all changes before it.
                biased;
                change = variables.next() => match change {
                    Some(Change::Of(key)) => self.watches.changed(Instant::now(), |data| is_of(data, &key)),
                    Some(Change::Any) => self.watches.changed(Instant::now(), is_about_variables),
                    None => return,
                },
                () = catalogue.changed(version) => {
                    version = catalogue.version();
                    self.watches.changed(Instant::now(), is_about_services);
                }
                change = self.watches.next() => {
                    let (tasks, report): (_, fn(TaskKey) -> DataChange) = match change {
                        TaskChanges::Begun(tasks) => (tasks, DataChange::Begun),
                        TaskChanges::Due(tasks) => (tasks, DataChange::Due),
                    };
                    for task in tasks {
                        if changed.send(report(task)).await.is_err() {
                            return;
                        }
                    }
                }
                Some(done) = to_flush.recv() => {
                    if changed.send(DataChange::Flushed(done)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Renders until every query has an answer, or is known to have none.
    async fn complete(
        &self,
        task: &Arc<TaskTemplates>,
        round: &mut Round,
        vault: &mut VaultSession,
    ) -> Result<Vec<Render>, RenderError> {
        loop {
            let (parsed, answers) = (Arc::clone(&round.parsed), round.answers.clone());
            let renders = run(task, move |_| Ok(render_all(&parsed, &answers))).await?;
            let asked = renders.iter().flat_map(|render| &render.used);
            let new: BTreeSet<Query> =
                asked.filter(|query| !round.answers.known.contains_key(query)).cloned().collect();
            if new.is_empty() {
                return Ok(renders);
            }
            if round.answers.known.len() + new.len() > QUERIES_MAX {
                let destination =
                    task.templates.first().map(|block| block.destination.clone()).unwrap_or_default();
                return Err(RenderError::Queries { destination, limit: QUERIES_MAX });
            }
            for query in new {
                let answer = match self.answer(task, &query, (vault, &round.indexes)).await? {
                    Ok(answer) => answer,
                    Err(why) => {
                        round.unanswered.insert(query.clone(), why);
                        Answer::Pending
                    }
                };
                round.answers.known.insert(query, answer);
            }
        }
    }

    /// The answer to a query, or why its source does not answer.
    async fn answer(
        &self,
        task: &Arc<TaskTemplates>,
        query: &Query,
        (vault, indexes): (&mut VaultSession, &Indexes),
    ) -> Result<Result<Answer, String>, RenderError> {
        match query {
            Query::Vault { .. } => {
                // Vault reports no changes: this counts the query, and finds it when the task's token changes.
                self.watches.add(task.key, &Data::of(query, &task.reader), Wait::NONE);
                Ok(vault.answer(query, &task.reader, &task.vault).await?)
            }
            Query::Env { name } => {
                Ok(Ok(task.env.get(name).map_or(Answer::Absent, |value| Answer::Text(value.as_str().into()))))
            }
            Query::File { path } => {
                let path = path.clone();
                run(task, move |task| Ok(file(&path, task))).await
            }
            Query::Addresses
            | Query::NomadVariable { .. }
            | Query::NomadVariables { .. }
            | Query::NomadService { .. }
            | Query::NomadServices { .. }
            | Query::Consul { .. } => {
                let data = Data::of(query, &task.reader);
                // Before the read: a change after it is noticed.
                self.watches.add(task.key, &data, Wait::NONE);
                let peer = match self.peers.with_data(&data) {
                    None => return Ok(self.sources.answer(query, &task.reader).await),
                    Some(Err(why)) => return Ok(Err(why)),
                    Some(Ok(peer)) => peer,
                };
                let token = match (&data.origin, &task.reader.access) {
                    (Origin::Servers { .. }, Access::Servers { token }) => token,
                    (Origin::Servers { .. } | Origin::Consul { .. } | Origin::Agent, _) => {
                        &task.reader.consul.token
                    }
                };
                let recalled = indexes.get(&query.to_string()).copied().unwrap_or_default();
                let reader = ServerReader { key: task.key, task: &task.reader.task, token, recalled };
                let answer = peer.read(&data, reader).await;
                Ok(answer.map(|answer| selected(answer, query)))
            }
        }
    }

    /// Watches exactly the queries of this render. What is missing is rendered as soon as it is there.
    fn watch(&self, task: &TaskTemplates, renders: &[Render]) {
        let is_complete = renders.iter().all(|render| render.missing.is_empty());
        let mut wanted: BTreeMap<Data, Use> = BTreeMap::new();
        for (index, (block, render)) in (0..).zip(task.templates.iter().zip(renders)) {
            let wait = if is_complete { self.wait_of(block) } else { Wait::NONE };
            for query in &render.used {
                let known = wanted.entry(Data::of(query, &task.reader)).or_insert_with(|| Use::waiting(wait));
                known.templates.insert(index);
                if wait.min < known.wait.min {
                    known.wait = wait;
                }
            }
        }
        self.watches.keep(task.key, &wanted);
        self.peers.users_changed();
    }

    /// The template's wait or the agent's, within the agent's bounds.
    fn wait_of(&self, block: &Block) -> Wait {
        let Settings { wait, wait_min, wait_max, .. } = &self.settings;
        let Some(own) = block.wait else { return *wait };
        let bound = |length: Duration| length.max(*wait_min).min(wait_max.unwrap_or(Duration::MAX));
        Wait { min: bound(own.min.to_std()), max: bound(own.max.to_std()) }
    }
}

/// The state of a render between its rounds.
struct Round {
    parsed: Arc<Vec<Template>>,
    answers: Answers,
    /// Queries whose source does not answer, and why.
    unanswered: BTreeMap<Query, String>,
    /// Those of data in the last outputs; then those in the new ones.
    indexes: Indexes,
}

/// What is known so far. Has no `Debug`: answers are secrets.
#[derive(Clone)]
struct Answers {
    known: BTreeMap<Query, Answer>,
    unix_time: i64,
}

impl Answers {
    /// The time is that of the last render, so that only other changes make a difference.
    fn new(task: &TaskTemplates, record: Option<&Record>) -> Self {
        let last = record.filter(|_| !task.before.is_empty()).map(|record| record.rendered_at);
        Self { known: BTreeMap::new(), unix_time: last.unwrap_or_else(unix_now) }
    }
}

impl Source for Answers {
    fn answer(&self, query: &Query) -> Answer {
        self.known.get(query).cloned().unwrap_or(Answer::Pending)
    }

    fn unix_time(&self) -> Option<i64> {
        Some(self.unix_time)
    }
}

/// Whether all templates are rendered only once, and have been.
fn is_finished(task: &TaskTemplates) -> bool {
    task.before.len() == task.templates.len() && task.templates.iter().all(|block| block.once)
}

async fn run<T: Send + 'static>(
    task: &Arc<TaskTemplates>,
    work: impl FnOnce(&TaskTemplates) -> Result<T, RenderError> + Send + 'static,
) -> Result<T, RenderError> {
    let task = Arc::clone(task);
    let done = off_thread(move || work(&task)).await;
    done.map_err(|error| RenderError::Thread(error.to_string()))?
}

fn render_all(parsed: &[Template], answers: &Answers) -> Vec<Render> {
    parsed.iter().map(|template| template.render(answers)).collect()
}

/// The first names, as Nomad lists them, and why sources do not answer.
fn names(missing: &BTreeSet<&Query>, unanswered: &BTreeMap<Query, String>) -> String {
    let mut text = String::new();
    for (index, query) in missing.iter().take(NAMES_MAX).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a string can't fail.
        let _ = write!(text, "{comma}{query}");
    }
    if missing.len() > NAMES_MAX {
        let _ = write!(text, " and {} more", missing.len() - NAMES_MAX);
    }
    let reasons: BTreeSet<&String> = unanswered.values().collect();
    for reason in reasons.into_iter().take(NAMES_MAX) {
        let _ = write!(text, "; {reason}");
    }
    text
}

fn recheck(missing: &BTreeSet<&Query>, round: &Round) -> Recheck {
    if missing.iter().any(|query| matches!(query, Query::File { .. })) {
        return Recheck::Files;
    }
    if round.unanswered.is_empty() { Recheck::Reported } else { Recheck::Servers }
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
