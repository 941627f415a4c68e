//! Templates of tasks on the simulated machine: their data, the files rendered from it, and what processes have read.
//!
//! In: renders, starts, signals, scripts, changes of the data. Out: the facts of renders, or a violation: a task starts
//! without its files, or is notified although nothing has changed. Each job has one value, from which the templates of
//! all its tasks are rendered. The value is missing at first, changes, and can't be read at times.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, Duration, JobKey,
    alloc::Allocation,
    fixture,
    job::{Task, Template, TemplateChange},
    task::{TaskEventKind, TaskPhase},
    view::AllocView,
};
use herdlet_plan::{
    action::Outcome,
    facts::{Facts, Input, Revision},
    op::{Part, TaskPart},
    time::{Deadline, Now},
};

use super::Rng;

/// The signal sent to a running task when a template has changed.
pub(super) const SIGNAL: &str = "SIGUSR2";

/// Half of a lease of Vault: templates of tasks with a token have secrets that are renewed then, and stay the same.
const HALF: Duration = Duration::from_secs(3_600);

/// The text of a restart because of a template.
const RESTART: &str = "Template with change_mode restart re-rendered";

/// A task of an allocation.
type Key = (AllocId, u16);

/// An attempt: allocation, index of the task in its group, number.
type AttemptKey = (AllocId, u16, u32);

/// What is rendered for a task, and what its process has read.
#[derive(Debug, Default)]
struct Rendered {
    /// The outputs in the files, by template.
    files: Vec<u64>,
    /// The outputs that the process knows.
    known: Vec<u64>,
    /// The templates whose output has changed since the attempt started.
    changed: BTreeSet<usize>,
    /// The attempt.
    attempt: u32,
}

/// The data and the templates of all tasks.
#[derive(Debug, Default)]
pub struct Templates {
    values: BTreeMap<JobKey, u64>,
    /// Whether every job has a value.
    pub(super) is_complete: bool,
    /// The data can't be read until this time.
    pub(super) down_until: u64,
    /// The tasks whose data the present agent watches.
    watched: BTreeMap<JobKey, BTreeSet<Key>>,
    rendered: BTreeMap<Key, Rendered>,
}

impl Templates {
    /// Renders the templates of a task, and watches their data. `has_files` is whether the last files are there.
    pub(super) fn render(
        &mut self,
        now: Now,
        (alloc, index, task): (&Allocation, u16, &Task),
        (inputs, has_files): (&[Input], bool),
    ) -> Outcome {
        let key = (alloc.id, index);
        self.watched.entry(alloc.job_key.clone()).or_default().insert(key);
        let value = self.values.get(&alloc.job_key).copied().or(self.is_complete.then_some(0));
        let now_ns = now.boot_ns;
        let on = if now_ns < self.down_until { "the source" } else { "a value" }.to_owned();
        let ask_in = Duration::from_secs(20);
        let Some(value) = value.filter(|_| now_ns >= self.down_until) else {
            let has_rendered =
                inputs.iter().any(|input| input.part == Part::Task(index, TaskPart::Templates));
            return if has_files && has_rendered {
                Outcome::Outdated { on, ask_in, since_ns: now_ns }
            } else {
                Outcome::Pending { on, ask_in }
            };
        };
        let files = outputs(task, value);
        let rendered = self.rendered.entry(key).or_default();
        let differs = |at: &usize| rendered.known.get(*at) != files.get(*at);
        rendered.changed.extend((0..files.len()).filter(differs));
        let renew_at = task.vault.is_some().then(|| Deadline::after(now, HALF));
        let facts =
            Facts { renew_at, outputs: files.iter().copied().map(Revision).collect(), ..Facts::none() };
        rendered.files = files;
        Outcome::Done(Some(Arc::new(facts)))
    }

    /// A process starts, and reads the files.
    ///
    /// # Errors
    /// The start lacks the facts of its templates.
    pub(super) fn start(
        &mut self,
        (alloc, index, attempt): AttemptKey,
        task: &Task,
        inputs: &[Input],
    ) -> Result<(), String> {
        if task.templates.is_empty() {
            return Ok(());
        }
        let given = inputs.iter().find(|input| input.part == Part::Task(index, TaskPart::Templates));
        let Some(given) = given.map(|input| &input.facts.outputs) else {
            return Err(format!("task {index} starts without the facts of its templates"));
        };
        let rendered = self.rendered.entry((alloc, index)).or_default();
        rendered.known.clone_from(&rendered.files);
        // An agent that died after a render has not stored its outputs: the next one can't know that they are read.
        let is_unstored =
            |at: &usize| given.get(*at).map(|output| output.0) != rendered.files.get(*at).copied();
        rendered.changed = (0..rendered.files.len()).filter(is_unstored).collect();
        rendered.attempt = attempt;
        Ok(())
    }

    /// A process receives the signal of its templates, and reads their files.
    ///
    /// # Errors
    /// No output has changed.
    pub(super) fn signal(&mut self, (alloc, index, attempt): AttemptKey, task: &Task) -> Result<(), String> {
        let Some(rendered) = self.of_attempt((alloc, index, attempt)) else { return Ok(()) };
        let is_sent = |at: &usize| {
            let template = task.templates.get(*at);
            template.is_some_and(|template| matches!(template.on_change, TemplateChange::Signal(_)))
        };
        if !rendered.changed.iter().any(is_sent) {
            return Err(format!("attempt {attempt} of task {} gets a signal without a change", task.name));
        }
        for at in (0..rendered.files.len()).filter(is_sent) {
            rendered.known[at] = rendered.files[at];
        }
        Ok(())
    }

    /// The script of a template runs, and makes the process read the file.
    ///
    /// # Errors
    /// The output has not changed.
    pub(super) fn script(
        &mut self,
        (alloc, index, attempt): AttemptKey,
        (task, at): (&Task, usize),
    ) -> Result<(), String> {
        let Some(rendered) = self.of_attempt((alloc, index, attempt)) else { return Ok(()) };
        let Some(TemplateChange::Script(script)) = task.templates.get(at).map(|template| &template.on_change)
        else {
            return Err(format!("template {at} of task {} has no script", task.name));
        };
        if !rendered.changed.contains(&at) && !script.run_on_first_render {
            return Err(format!("script {at} of task {} runs without a change", task.name));
        }
        rendered.known[at] = rendered.files[at];
        Ok(())
    }

    fn of_attempt(&mut self, (alloc, index, attempt): AttemptKey) -> Option<&mut Rendered> {
        self.rendered.get_mut(&(alloc, index)).filter(|rendered| rendered.attempt == attempt)
    }

    /// The value of a job changes. Returns the parts whose watches report it.
    pub(super) fn change(&mut self, job: &JobKey, value: u64) -> Vec<(AllocId, Part)> {
        self.values.insert(job.clone(), value);
        let tasks = self.watched.get(job).into_iter().flatten();
        tasks.map(|(alloc, index)| (*alloc, Part::Task(*index, TaskPart::Templates))).collect()
    }

    /// The agent dies, and its watches with it.
    pub(super) fn crash(&mut self) {
        self.watched.clear();
    }

    /// What of the templates of a running attempt is not as it must be in the end: the files are the newest, and the
    /// process has read them unless its templates do not notify it.
    pub(super) fn trouble(
        &self,
        (alloc, index, _): AttemptKey,
        (job, task): (&JobKey, &Task),
    ) -> Option<String> {
        let value = self.values.get(job).copied().unwrap_or_default();
        let newest = outputs(task, value);
        let rendered = self.rendered.get(&(alloc, index));
        let (files, known) =
            rendered.map_or((&[][..], &[][..]), |rendered| (&rendered.files, &rendered.known));
        if files != newest {
            return Some(format!("has the files {files:?}, and the newest are {newest:?}"));
        }
        let is_read = |(at, template): (usize, &Template)| {
            template.on_change == TemplateChange::Noop || known.get(at) == newest.get(at)
        };
        let is_known = task.templates.iter().enumerate().all(is_read);
        (!is_known).then(|| format!("knows {known:?} of {newest:?}"))
    }

    /// Checks that tasks restart only because of outputs that have changed.
    ///
    /// # Errors
    /// One restarts without a change.
    pub(super) fn show(&self, view: &AllocView) -> Result<(), String> {
        let Some(group) = view.spec.group() else { return Ok(()) };
        for ((index, known), task) in (0..).zip(&view.tasks).zip(&group.tasks) {
            let since_start =
                known.events.iter().rev().take_while(|event| event.kind != TaskEventKind::Started);
            let is_this = [TaskPhase::Running, TaskPhase::Stopping].contains(&known.phase);
            let restarts = since_start.into_iter().any(|event| event.message == RESTART);
            let Some(rendered) = self.rendered.get(&(view.spec.id, index)) else { continue };
            if !is_this || !restarts || rendered.attempt != known.attempt {
                continue;
            }
            let is_restart = |at: &usize| {
                let template = task.templates.get(*at);
                template.is_some_and(|template| template.on_change == TemplateChange::Restart)
            };
            if !rendered.changed.iter().any(is_restart) {
                return Err(format!("{} of {} restarts without a change", task.name, view.spec.name()));
            }
        }
        Ok(())
    }
}

/// The outputs of a task's templates: not each change of the value changes each output.
fn outputs(task: &Task, value: u64) -> Vec<u64> {
    (1..).zip(&task.templates).map(|(divisor, _)| 1 + value / divisor).collect()
}

/// Random templates of a task.
pub(super) fn random(rng: &mut Rng) -> Vec<Template> {
    let count = 1 + rng.below(3);
    let one = |rng: &mut Rng| {
        let change = match rng.below(5) {
            0 => TemplateChange::Noop,
            1 | 2 => TemplateChange::Restart,
            3 => TemplateChange::Signal(SIGNAL.to_owned()),
            _ => {
                let mut script = fixture::change_script("/bin/reload");
                script.run_on_first_render = rng.one_in(2);
                TemplateChange::Script(script)
            }
        };
        let splay = Duration::from_secs(if rng.one_in(2) { 5 } else { 0 });
        Template { splay, ..fixture::template(change) }
    };
    (0..count).map(|_| one(rng)).collect()
}
