//! Renders all templates of a task in rounds: each round finds further queries, until every query has an answer.
//!
//! In: a task's templates with the outputs of their last render. Out: files, or what is missing. A file is written only
//! if its output differs from the last one: a new agent changes nothing. With data missing nothing is written, so that
//! the files are always those of one render.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use herdlet_api_types::{
    AllocId,
    job::{Template as Block, TemplateSource},
    variable::VariableKey,
};
use herdlet_base::{
    artifact::destination::{Base, Dirs, Outside},
    observation::Class,
    safe_fs::{FileOwner, FsError, Rights},
};
use herdlet_runtime::off_thread;
use herdlet_services::catalog::BuiltIn;
use herdlet_template::{Answer, MissingKey, Options, Query, Render, Source, Template, source::unavailable};
use herdlet_variables::service::Change;
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    env_file::{self, EnvFileError},
    figures::{Figures, Tally},
    place::Place,
    record::Record,
    sources::{Reader, Sources},
    watches::{TaskKey, Use, Wait, Watches},
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
}

impl Default for Settings {
    /// Nomad's defaults.
    fn default() -> Self {
        Self {
            denied: ["plugin", "writeToFile", "executeTemplate"].map(str::to_owned).into(),
            wait: Wait { min: Duration::from_secs(5), max: Duration::from_secs(240) },
            wait_min: Duration::ZERO,
            wait_max: None,
        }
    }
}

/// The templates of a task.
#[derive(Clone)]
pub struct TaskTemplates {
    pub key: TaskKey,
    pub reader: Reader,
    /// Paths have their variables replaced.
    pub templates: Vec<Block>,
    /// The task's environment as it sees it.
    pub env: BTreeMap<String, String>,
    pub dirs: Dirs,
    /// Owner of directories that are made for outputs.
    pub owner: Option<FileOwner>,
    /// The revisions of the last outputs; empty before the first render.
    pub before: Vec<u64>,
}

/// The end of a render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendering {
    /// All files are there. One revision for each template.
    Done { outputs: Vec<u64> },
    /// Data is missing.
    Missing {
        /// Its names, for people.
        on: String,
        /// Whether the files of the last render are there.
        kept: bool,
        /// Whether files are among it, whose appearance nothing reports.
        files: bool,
    },
}

/// Why templates can't be rendered. Has no part of an output: outputs are secrets.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("{0}")]
    Outside(#[from] Outside),
    #[error("read the template {path}: {source}")]
    Read { path: String, source: FsError },
    #[error("read the template {path}: there is no such file; an artifact or an earlier task must create it")]
    NoSource { path: String },
    #[error("read the template {path}: it is not UTF-8")]
    NotText { path: String },
    #[error("render {destination}: {source}")]
    Template { destination: String, source: herdlet_template::Error },
    #[error("render {destination}: its output is not a list of variables: {source}")]
    Env { destination: String, source: EnvFileError },
    #[error("render {destination}: {limit} queries are too many for the templates of one task")]
    Queries { destination: String, limit: usize },
    #[error(
        "write {destination}: {bytes} bytes do not fit into `secrets`, which holds 1 MiB; write the file to `local`"
    )]
    TooLarge { destination: String, bytes: usize },
    #[error(
        "write {destination}: its {bytes} bytes do not fit into `secrets` beside the other files there, which holds 1 MiB; a file is replaced in one step, which needs space for both; write it to `local`, or make it smaller"
    )]
    NoRoom { destination: String, bytes: usize },
    #[error("write {destination}: {source}")]
    Write { destination: String, source: FsError },
    #[error("keep the variables of templates: {0}")]
    Record(#[source] FsError),
    #[error("render templates: {0}")]
    Thread(String),
}

impl RenderError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Outside(_)
            | Self::NoSource { .. }
            | Self::NotText { .. }
            | Self::Template { .. }
            | Self::Env { .. }
            | Self::Queries { .. }
            | Self::TooLarge { .. } => Class::Fatal,
            Self::Read { source, .. } | Self::Write { source, .. } | Self::Record(source) => source.class(),
            // The task may remove files.
            Self::NoRoom { .. } | Self::Thread(_) => Class::Retry,
        }
    }
}

/// Queries of the templates of one task, and so the rounds of its render.
const QUERIES_MAX: usize = 4_096;

/// Names of missing data in one text, as in Nomad.
const NAMES_MAX: usize = 3;

/// The size of `secrets`.
const SECRETS_BYTES: usize = 1 << 20;

/// Renders the templates of all tasks.
pub struct Renderer {
    sources: Sources,
    settings: Settings,
    watches: Watches,
    tally: Tally,
}

impl Renderer {
    pub fn new(sources: Sources, settings: Settings) -> Self {
        Self { sources, settings, watches: Watches::default(), tally: Tally::default() }
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
        if is_finished(task) && run(task, |task| Ok(all_exist(task))).await? {
            return Ok(Rendering::Done { outputs: task.before.clone() });
        }
        let denied = self.settings.denied.clone();
        let (parsed, record) = run(task, move |task| {
            Ok((parse_all(task, &denied)?, Record::read(&task.dirs).map_err(RenderError::Record)?))
        })
        .await?;
        let mut round = Round { parsed: Arc::new(parsed), answers: Answers::new(task, record.as_ref()) };
        let renders = self.complete(task, &mut round).await?;
        self.watch(task, &renders);
        let missing: BTreeSet<&Query> = renders.iter().flat_map(|render| &render.missing).collect();
        if !missing.is_empty() {
            let on = names(&missing);
            let kept = !task.before.is_empty() && run(task, |task| Ok(all_exist(task))).await?;
            let files = missing.iter().any(|query| matches!(query, Query::File { .. }));
            return Ok(Rendering::Missing { on, kept, files });
        }
        let written = run(task, move |task| write_all(task, &round, renders)).await?;
        if is_finished(&TaskTemplates { before: written.clone(), ..TaskTemplates::clone(task) }) {
            self.watches.keep(task.key, &BTreeMap::new());
        }
        Ok(Rendering::Done { outputs: written })
    }

    /// Whether all files are there.
    ///
    /// # Errors
    /// If they can't be inspected.
    pub async fn is_there(&self, task: TaskTemplates) -> Result<bool, RenderError> {
        run(&Arc::new(task), |task| Ok(all_exist(task))).await
    }

    /// Forgets an allocation that is gone.
    pub fn forget(&self, alloc: AllocId) {
        self.watches.forget(alloc);
        self.tally.forget(alloc);
    }

    /// The tasks that are rendered again when this variable changes, with the templates that have used it.
    pub fn users_of(&self, key: &VariableKey) -> BTreeMap<TaskKey, BTreeSet<u16>> {
        self.watches.users(|query| is_of(query, key))
    }

    /// Figures for metrics.
    pub fn figures(&self) -> Figures {
        self.tally.figures(self.watches.queries())
    }

    /// Reports the tasks whose data has changed, until the receiver is gone.
    pub async fn follow(&self, changed: mpsc::Sender<TaskKey>) {
        let mut variables = self.sources.variables.subscribe();
        let catalogue: &BuiltIn = &self.sources.catalogue;
        let mut version = catalogue.version();
        loop {
            tokio::select! {
                change = variables.next() => match change {
                    Some(Change::Of(key)) => self.watches.changed(Instant::now(), |query| is_of(query, &key)),
                    Some(Change::Any) => self.watches.changed(Instant::now(), is_about_variables),
                    None => return,
                },
                () = catalogue.changed(version) => {
                    version = catalogue.version();
                    self.watches.changed(Instant::now(), is_about_services);
                }
                tasks = self.watches.due() => {
                    for task in tasks {
                        if changed.send(task).await.is_err() {
                            return;
                        }
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
                let answer = self.answer(task, &query).await?;
                round.answers.known.insert(query, answer);
            }
        }
    }

    async fn answer(&self, task: &Arc<TaskTemplates>, query: &Query) -> Result<Answer, RenderError> {
        match query {
            Query::Env { name } => {
                Ok(task.env.get(name).map_or(Answer::Absent, |value| Answer::Text(value.as_str().into())))
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
            | Query::Consul { .. }
            | Query::Vault { .. } => {
                // Before the read: a change after it is noticed.
                self.watches.add(task.key, &absolute(query, &task.reader), Wait::NONE);
                Ok(self.sources.answer(query, &task.reader).await)
            }
        }
    }

    /// Watches exactly the queries of this render. What is missing is rendered as soon as it is there.
    fn watch(&self, task: &TaskTemplates, renders: &[Render]) {
        let is_complete = renders.iter().all(|render| render.missing.is_empty());
        let mut wanted: BTreeMap<Query, Use> = BTreeMap::new();
        for (index, (block, render)) in (0..).zip(task.templates.iter().zip(renders)) {
            let wait = if is_complete { self.wait_of(block) } else { Wait::NONE };
            for query in &render.used {
                let known = wanted.entry(absolute(query, &task.reader)).or_insert_with(|| Use::waiting(wait));
                known.templates.insert(index);
                if wait.min < known.wait.min {
                    known.wait = wait;
                }
            }
        }
        self.watches.keep(task.key, &wanted);
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

/// Whether the answer to the query depends on this variable.
fn is_of(query: &Query, key: &VariableKey) -> bool {
    match query {
        Query::NomadVariable { path, namespace, .. } => *path == key.path && *namespace == key.namespace,
        Query::NomadVariables { prefix, namespace, .. } => {
            key.path.starts_with(prefix) && *namespace == key.namespace
        }
        Query::Env { .. }
        | Query::File { .. }
        | Query::Addresses
        | Query::NomadService { .. }
        | Query::NomadServices { .. }
        | Query::Consul { .. }
        | Query::Vault { .. } => false,
    }
}

fn is_about_variables(query: &Query) -> bool {
    matches!(query, Query::NomadVariable { .. } | Query::NomadVariables { .. })
}

fn is_about_services(query: &Query) -> bool {
    matches!(query, Query::NomadService { .. } | Query::NomadServices { .. })
}

/// The same query without reference to the job's namespace.
fn absolute(query: &Query, reader: &Reader) -> Query {
    let mut query = query.clone();
    if let Query::NomadVariable { namespace, .. } | Query::NomadVariables { namespace, .. } = &mut query
        && namespace.is_empty()
    {
        namespace.clone_from(&reader.namespace);
    }
    query
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

fn parse_all(task: &TaskTemplates, denied: &[String]) -> Result<Vec<Template>, RenderError> {
    task.templates
        .iter()
        .map(|block| {
            let options = Options {
                name: block.destination.as_str().into(),
                left_delimiter: block.left_delimiter.clone(),
                right_delimiter: block.right_delimiter.clone(),
                missing_key: if block.error_on_missing_key { MissingKey::Error } else { MissingKey::Zero },
                denylist: denied.to_vec(),
                ..Options::default()
            };
            let failed = |source| RenderError::Template { destination: block.destination.clone(), source };
            match &block.source {
                TemplateSource::Inline(text) => Template::parse(text, &options).map_err(failed),
                TemplateSource::File(path) => {
                    Template::parse(&text_of(path, &task.dirs)?, &options).map_err(failed)
                }
            }
        })
        .collect()
}

fn text_of(path: &str, dirs: &Dirs) -> Result<String, RenderError> {
    let read = Place::of(path, dirs)?.read(dirs);
    let bytes = read.map_err(|source| RenderError::Read { path: path.to_owned(), source })?;
    let bytes = bytes.ok_or_else(|| RenderError::NoSource { path: path.to_owned() })?;
    String::from_utf8(bytes).map_err(|_| RenderError::NotText { path: path.to_owned() })
}

/// The answer to `file`: a file that does not exist yet is waited for.
fn file(path: &str, task: &TaskTemplates) -> Answer {
    let dirs = &task.dirs;
    let query = Query::File { path: path.to_owned() };
    match Place::of(path, dirs) {
        Err(_) => Answer::Failed(format!(
            "file {path}: it is not in the task's directories `local`, `secrets`, `tmp` or `alloc`"
        )),
        Ok(place) => match place.read(dirs) {
            Ok(Some(bytes)) => Answer::Text(bytes.into()),
            // Nothing is written before all outputs are known.
            Ok(None) if task.templates.iter().any(|block| place.is_of(&block.destination, dirs)) => {
                Answer::Failed(format!(
                    "file {path}: it is the output of a template of the same task; write that text into this template too"
                ))
            }
            Ok(None) => Answer::Pending,
            Err(error) => Answer::Failed(format!("{}: {error}", unavailable(&query))),
        },
    }
}

fn render_all(parsed: &[Template], answers: &Answers) -> Vec<Render> {
    parsed.iter().map(|template| template.render(answers)).collect()
}

fn all_exist(task: &TaskTemplates) -> bool {
    let is_there =
        |block: &Block| Place::of(&block.destination, &task.dirs).is_ok_and(|place| place.exists(&task.dirs));
    let has_record =
        !task.templates.iter().any(|block| block.env) || matches!(Record::read(&task.dirs), Ok(Some(_)));
    has_record && task.templates.iter().all(is_there)
}

/// Writes what differs. If anything does, everything is rendered once more with the present time.
fn write_all(task: &TaskTemplates, round: &Round, renders: Vec<Render>) -> Result<Vec<u64>, RenderError> {
    let outputs = outputs_of(task, renders)?;
    let revisions: Vec<u64> = outputs.iter().map(|output| revision(output)).collect();
    if revisions == task.before && all_exist(task) {
        return Ok(revisions);
    }
    let now = unix_now();
    let is_current = revisions == task.before || round.answers.unix_time == now;
    let (outputs, rendered_at) = if is_current {
        (outputs, round.answers.unix_time)
    } else {
        let answers = Answers { unix_time: now, ..round.answers.clone() };
        (outputs_of(task, render_all(&round.parsed, &answers))?, now)
    };
    let record = Record { rendered_at, env: variables(task, &outputs)? };
    record.write(&task.dirs).map_err(RenderError::Record)?;
    let mut revisions = Vec::with_capacity(outputs.len());
    for (index, (block, output)) in task.templates.iter().zip(&outputs).enumerate() {
        let revision = revision(output);
        let place = Place::of(&block.destination, &task.dirs)?;
        if task.before.get(index) != Some(&revision) || !place.exists(&task.dirs) {
            write(task, (block, &place), output)?;
        }
        revisions.push(revision);
    }
    Ok(revisions)
}

fn outputs_of(task: &TaskTemplates, renders: Vec<Render>) -> Result<Vec<Vec<u8>>, RenderError> {
    let failed =
        |block: &Block, source| RenderError::Template { destination: block.destination.clone(), source };
    let each = task.templates.iter().zip(renders);
    each.map(|(block, render)| render.result.map_err(|error| failed(block, error))).collect()
}

fn variables(task: &TaskTemplates, outputs: &[Vec<u8>]) -> Result<BTreeMap<String, String>, RenderError> {
    let mut all = BTreeMap::new();
    for (block, output) in task.templates.iter().zip(outputs).filter(|(block, _)| block.env) {
        let failed = |source| RenderError::Env { destination: block.destination.clone(), source };
        all.extend(env_file::parse(output).map_err(failed)?);
    }
    Ok(all)
}

fn write(task: &TaskTemplates, (block, place): (&Block, &Place), output: &[u8]) -> Result<(), RenderError> {
    let owner = match (block.uid, block.gid) {
        (None, None) => None,
        (uid, gid) => Some((
            uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
            gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
        )),
    };
    let rights = Rights::Exact { mode: block.perms & 0o777, owner };
    place.write(&task.dirs, output, (rights, task.owner.as_ref())).map_err(|source| {
        let destination = block.destination.clone();
        if place.base() == Base::Secrets && output.len() > SECRETS_BYTES {
            return RenderError::TooLarge { destination, bytes: output.len() };
        }
        if place.base() == Base::Secrets && source.is_full() {
            return RenderError::NoRoom { destination, bytes: output.len() };
        }
        RenderError::Write { destination, source }
    })
}

/// Identifies an output. Never 0, which means that there is none.
fn revision(output: &[u8]) -> u64 {
    let digest = Sha256::digest(output);
    let start = digest.first_chunk().copied().map_or(0, u64::from_le_bytes);
    start.max(1)
}

/// The first names, as Nomad lists them.
fn names(missing: &BTreeSet<&Query>) -> String {
    let mut text = String::new();
    for (index, query) in missing.iter().take(NAMES_MAX).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a string can't fail.
        let _ = write!(text, "{comma}{query}");
    }
    if missing.len() > NAMES_MAX {
        let _ = write!(text, " and {} more", missing.len() - NAMES_MAX);
    }
    text
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Variables of a task from its templates with `env = true`, as of the last render.
///
/// # Errors
/// If they can't be read.
pub fn template_variables(dirs: &Dirs) -> Result<BTreeMap<String, String>, FsError> {
    Ok(Record::read(dirs)?.map(|record| record.env).unwrap_or_default())
}

#[cfg(test)]
mod tests;
