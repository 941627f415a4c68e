//! Resolves TARGET: `JOB`, `JOB.GROUP[N]` (also `JOB.GROUP.N`, or `JOB.GROUP` for the whole group), each with an optional
//! `/TASK`, or a prefix of an allocation id with at least eight digits.
//!
//! In: the text, and the present jobs and allocations. Out: allocations, and a task if one is named.
//!
//! Names may contain dots, slashes and brackets, so a text can have several readings. These rules choose one:
//!
//! 1. `NAMESPACE/ID` names a job exactly. `ID` alone names one in the default namespace; if the text also is `NAMESPACE/ID` of
//!    another job, it names that one.
//! 2. The longest matching job wins over a group or a task of another job; then the longest matching group.
//! 3. A job wins over an allocation id.

use std::collections::BTreeMap;

use herdlet_api_types::{
    JobKey,
    alloc::ClientStatus,
    names::shell_word,
    overview::{Transition, TransitionState},
    view::{AllocView, JobView},
};

use super::{
    children,
    client::Client,
    failed_allocs,
    failure::{Failure, USAGE},
    selection::{after_job, plain_name},
    show,
};

/// A resolved target.
#[derive(Debug, Clone)]
pub struct Target {
    /// The target's job; none if the target is an allocation id.
    pub(super) job: Option<JobKey>,
    /// The allocations, by group, index and age. Of several in a slot: all live ones, else the newest.
    pub allocs: Vec<AllocView>,
    pub task: Option<String>,
}

/// At most this many candidates are listed.
const CANDIDATES_LEN_MAX: usize = 10;

/// Requests the jobs and allocations, and resolves `text`.
pub(super) async fn find(client: &Client, text: &str) -> Result<Target, Failure> {
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    find_among(client, text, &jobs, &allocs).await
}

/// Requests the jobs and allocations once, and resolves each text.
pub(super) async fn find_all(client: &Client, texts: &[String]) -> Result<Vec<Target>, Failure> {
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let mut found = Vec::with_capacity(texts.len());
    for text in texts {
        found.push(find_among(client, text, &jobs, &allocs).await?);
    }
    Ok(found)
}

pub(super) fn is_running(view: &AllocView) -> bool {
    view.status == ClientStatus::Running
}

/// Whether it has failed for good and fills a place: if it is stopped, its job creates another one.
pub(super) fn can_be_retried(view: &AllocView) -> bool {
    view.status == ClientStatus::Failed && view.fills_a_place()
}

/// Resolves `text`. On failure, adds what happened to the object, as far as the agent remembers.
pub(super) async fn find_among(
    client: &Client,
    text: &str,
    jobs: &[JobView],
    allocs: &[AllocView],
) -> Result<Target, Failure> {
    match resolve(text, jobs, allocs) {
        Ok(target) => Ok(target),
        Err(failure) => Err(with_fate(client, text, jobs, failure).await),
    }
}

/// Adds to a failure what happened to a job that is gone.
pub(super) async fn with_fate(client: &Client, text: &str, jobs: &[JobView], failure: Failure) -> Failure {
    // Errors are ignored: without transitions, there is no hint.
    let transitions = client.transitions().await.unwrap_or_default();
    match fate(text, jobs, &transitions) {
        Some(fate) => failure.hint(fate),
        None => failure,
    }
}

/// What happened to the job that `text` names; none if it exists or is unknown. `transitions`: newest first.
fn fate(text: &str, jobs: &[JobView], transitions: &[Transition]) -> Option<String> {
    let names_it = |job: &JobKey| after_job(text, job).is_some();
    if jobs.iter().any(|view| names_it(&view.key)) {
        return None;
    }
    let last = transitions.iter().find(|one| names_it(&one.job))?;
    let (job, age) = (&last.job, show::age(last.at));
    match (last.state, last.cause.as_str()) {
        (TransitionState::Gone, "collected") => Some(format!(
            "job {job} had ended and was collected {age} ago; see what is collected when: herdlet gc --dry-run"
        )),
        (TransitionState::Gone, "job deleted") => Some(format!("job {job} was deleted {age} ago")),
        // The directory had been collected before.
        (TransitionState::Gone, "removed") => {
            Some(format!("job {job} has been gone for {age}: it was deleted, or had ended and was collected"))
        }
        (TransitionState::Gone, _)
        | (
            TransitionState::Converged
            | TransitionState::Progressing
            | TransitionState::Waiting
            | TransitionState::Failed
            | TransitionState::Held,
            _,
        ) => None,
    }
}

/// Resolves `text`.
pub fn resolve(text: &str, jobs: &[JobView], allocs: &[AllocView]) -> Result<Target, Failure> {
    let text = plain_name(text, jobs);
    let keys = jobs.iter().map(|view| &view.key).chain(allocs.iter().map(|view| &view.spec.job_key));
    let readings = keys.filter_map(|key| {
        after_job(text, key).map(|rest| (rest, key.full() != text[..text.len() - rest.len()], key))
    });
    let mut readings: Vec<(&str, bool, &JobKey)> = readings.collect();
    readings.sort_by_key(|(rest, is_short, key)| (rest.len(), *is_short, *key));
    readings.dedup();
    let mut near = None;
    for (rest, _, key) in readings {
        match within_job(rest, key, allocs) {
            Ok(target) => return Ok(target),
            Err(failure) => near = near.or(Some(failure)),
        }
    }
    match by_id(text, allocs) {
        Some(found) => found,
        // The name of a missing child looks like a task of its parent.
        None => Err(near
            .filter(|_| children::collected(text, jobs).is_none())
            .unwrap_or_else(|| unknown(text, jobs, allocs))),
    }
}

fn within_job(rest: &str, key: &JobKey, allocs: &[AllocView]) -> Result<Target, Failure> {
    let of_job: Vec<&AllocView> = allocs.iter().filter(|view| view.spec.job_key == *key).collect();
    // A task may be named without a group: JOB/TASK.
    if let Some(task) = rest.strip_prefix('/') {
        return with_task(key, current(of_job), task);
    }
    if rest.is_empty() {
        return Ok(Target { job: Some(key.clone()), allocs: current(of_job), task: None });
    }
    let place = |view: &AllocView| {
        let (group, index) = (&view.spec.group, view.spec.index);
        [format!(".{group}[{index}]"), format!(".{group}.{index}"), format!(".{group}")]
    };
    // Again the longest match, since names of groups may contain dots too.
    let mut best: (usize, Vec<&AllocView>) = (0, Vec::new());
    for view in of_job {
        for place in place(view) {
            let fits = rest.strip_prefix(&place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            if fits && place.len() > best.0 {
                best = (place.len(), Vec::new());
            }
            if fits && place.len() == best.0 {
                best.1.push(view);
            }
        }
    }
    let (length, found) = best;
    if found.is_empty() {
        let message = format!("job {key} has no {:?}", rest.trim_start_matches('.'));
        return Err(Failure::new(message).hint(candidates(&places_of(key, allocs))));
    }
    match rest[length..].strip_prefix('/') {
        Some(task) => with_task(key, current(found), task),
        None => Ok(Target { job: Some(key.clone()), allocs: current(found), task: None }),
    }
}

fn with_task(key: &JobKey, allocs: Vec<AllocView>, task: &str) -> Result<Target, Failure> {
    let has = |view: &AllocView| view.tasks.iter().any(|known| *known.name == *task);
    let found: Vec<_> = allocs.iter().filter(|view| has(view)).cloned().collect();
    if found.is_empty() {
        let mut names: Vec<_> =
            allocs.iter().flat_map(|view| view.tasks.iter().map(|task| task.name.to_string())).collect();
        names.sort();
        names.dedup();
        return Err(Failure::new(format!("job {key} has no task {task:?}")).hint(candidates(&names)));
    }
    Ok(Target { job: Some(key.clone()), allocs: found, task: Some(task.to_owned()) })
}

/// For each slot, the live allocations, else the newest one.
fn current(allocs: Vec<&AllocView>) -> Vec<AllocView> {
    let mut slots: BTreeMap<(String, u32), Vec<&AllocView>> = BTreeMap::new();
    for view in allocs {
        slots.entry((view.spec.group.clone(), view.spec.index)).or_default().push(view);
    }
    slots.into_values().flat_map(of_slot).cloned().collect()
}

fn of_slot(mut views: Vec<&AllocView>) -> Vec<&AllocView> {
    views.sort_by_key(|view| view.spec.create_index);
    let newest = views.last().copied();
    views.retain(|view| !view.status.is_terminal());
    if views.is_empty() { newest.into_iter().collect() } else { views }
}

/// Length of the shortest id prefix; this many digits are printed. With fewer digits, the name of a missing job such as `db`
/// could match an id.
const DIGITS_MIN: usize = 8;

/// The allocation with the id prefix `text` (before a `/TASK`). None if no id has that prefix.
fn by_id(text: &str, allocs: &[AllocView]) -> Option<Result<Target, Failure>> {
    let (prefix, task) = text.split_once('/').map_or((text, None), |(prefix, task)| (prefix, Some(task)));
    if prefix.len() < DIGITS_MIN {
        return None;
    }
    let wanted = prefix.to_ascii_lowercase();
    let fits = |view: &&AllocView| {
        let id = &view.spec.id.0;
        id.as_hyphenated().to_string().starts_with(&wanted) || id.as_simple().to_string().starts_with(&wanted)
    };
    let found: Vec<&AllocView> = allocs.iter().filter(fits).collect();
    match found.as_slice() {
        [] => None,
        [view] => Some(match task {
            Some(task) => with_task(&view.spec.job_key, vec![(*view).clone()], task),
            None => Ok(Target { job: None, allocs: vec![(*view).clone()], task: None }),
        }),
        several => {
            let names: Vec<_> =
                several.iter().map(|view| format!("{} ({})", view.spec.id, view.spec.name())).collect();
            let message = format!("{prefix:?} is a prefix of {} allocation ids", names.len());
            Some(Err(Failure::new(message).code(USAGE).hint(candidates(&names))))
        }
    }
}

fn unknown(text: &str, jobs: &[JobView], allocs: &[AllocView]) -> Failure {
    let names: Vec<String> = jobs.iter().map(|view| view.key.to_string()).collect();
    let failure = Failure::new(format!("there is no job or allocation {text:?}"));
    if let Some(collected) = children::collected(text, jobs) {
        return failure.hint(collected);
    }
    let has = |view: &&AllocView| view.tasks.iter().any(|task| *task.name == *text);
    let mut of_task: Vec<String> =
        allocs.iter().filter(has).map(|view| format!("{}/{text}", view.spec.job_key)).collect();
    of_task.sort();
    of_task.dedup();
    if !of_task.is_empty() {
        of_task.truncate(CANDIDATES_LEN_MAX);
        return failure.hint(format!("name a task with its job: {}", of_task.join(", ")));
    }
    let is_short = |view: &AllocView| view.spec.id.0.as_simple().to_string().starts_with(text);
    if allocs.iter().any(is_short) {
        return failure.hint(format!("name an allocation by at least {DIGITS_MIN} digits of its id"));
    }
    match herdlet_manifest::yaml::nearest(text, names.iter().map(String::as_str)) {
        Some(near) => failure.hint(format!("did you mean {near:?}?")),
        None if jobs.is_empty() && allocs.is_empty() => {
            failure.hint("there are no jobs; apply one: herdlet apply -f FILE")
        }
        None => failure.hint(candidates(&names)),
    }
}

fn places_of(key: &JobKey, allocs: &[AllocView]) -> Vec<String> {
    let of_job = allocs.iter().filter(|view| view.spec.job_key == *key);
    let mut names: Vec<_> = of_job.map(|view| view.spec.name()).collect();
    names.sort();
    names.dedup();
    names
}

fn candidates(names: &[String]) -> String {
    let mut text = names.iter().take(CANDIDATES_LEN_MAX).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > CANDIDATES_LEN_MAX {
        text.push_str(&format!(" and {} more", names.len() - CANDIDATES_LEN_MAX));
    }
    if text.is_empty() { "it has no allocations yet".to_owned() } else { format!("available: {text}") }
}

impl Target {
    /// Restricts the target to the task of `--task`, if given.
    pub(super) fn only(self, task: Option<String>) -> Result<Self, Failure> {
        match (&self.task, task) {
            (_, None) => Ok(self),
            (Some(one), Some(other)) if *one != other => {
                let message = format!("the target names task {one:?}, --task names {other:?}");
                Err(Failure::new(message).code(USAGE))
            }
            (_, Some(task)) => match self.allocs.first().map(|view| view.spec.job_key.clone()) {
                Some(key) => Ok(Self { job: self.job, ..with_task(&key, self.allocs, &task)? }),
                None => Ok(Self { task: Some(task), ..self }),
            },
        }
    }

    /// Adds the failed allocations that explain the state of the job's roll-out, if the target is a whole job.
    pub(super) fn with_failed(mut self, text: &str, jobs: &[JobView], allocs: &[AllocView]) -> Self {
        let is_whole = |view: &&JobView| {
            self.job.as_ref() == Some(&view.key)
                && after_job(text, &view.key).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let Some(job) = jobs.iter().find(is_whole) else { return self };
        let of_job = allocs.iter().filter(|view| view.spec.job_key == job.key);
        for view in failed_allocs::of_rollout(job, of_job) {
            let has_task =
                self.task.as_ref().is_none_or(|task| view.tasks.iter().any(|one| *one.name == **task));
            if has_task && !self.allocs.iter().any(|known| known.spec.id == view.spec.id) {
                self.allocs.push(view.clone());
            }
        }
        self.allocs.sort_by_key(|view| (view.spec.group.clone(), view.spec.index, view.spec.create_index));
        self
    }

    /// Every targeted task, with its allocation.
    pub(super) fn tasks(&self) -> impl Iterator<Item = (&AllocView, &herdlet_api_types::view::TaskView)> {
        self.allocs.iter().flat_map(|view| {
            let meant = |name: &str| self.task.as_deref().is_none_or(|task| task == name);
            view.tasks.iter().filter(move |task| meant(&task.name)).map(move |task| (view, task))
        })
    }

    /// The running allocations, or an error if there are none.
    pub(super) fn running(&self, text: &str) -> Result<Vec<&AllocView>, Failure> {
        let running: Vec<_> = self.allocs.iter().filter(|view| is_running(view)).collect();
        if running.is_empty() { Err(self.nothing_runs(text)) } else { Ok(running) }
    }

    pub(super) fn nothing_runs(&self, text: &str) -> Failure {
        let failed = self.allocs.iter().find(|view| can_be_retried(view));
        let again =
            failed.map(|view| format!("; try again: herdlet restart {}", shell_word(view.spec.name())));
        let hint =
            format!("see why: herdlet explain {}{}", shell_word(text.to_owned()), again.unwrap_or_default());
        Failure::new(format!("no task of {text} is running")).hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, UnixNanos};

    use super::*;
    use herdlet_manifest::fixture::{job, job_view};

    // A collected job was reported as if it had never existed.
    #[test]
    fn missing_job_is_reported_with_its_fate() {
        let gone = |id: &str, state: TransitionState, cause: &str| Transition {
            at: UnixNanos(1),
            job: JobKey { namespace: "default".into(), id: id.into() },
            name: format!("{id}.g[0]"),
            alloc: Some(AllocId::from_hash([1; 16])),
            state,
            cause: cause.to_owned(),
        };
        let transitions = [
            gone("old", TransitionState::Gone, "job deleted"),
            gone("old", TransitionState::Gone, "collected"),
            gone("backup", TransitionState::Gone, "collected"),
            gone("web", TransitionState::Gone, "collected"),
            gone("bare", TransitionState::Gone, "removed"),
            gone("lives", TransitionState::Converged, "version 0 was applied"),
        ];
        let jobs = [job_view(&job("web", "g", "t"), 0)];
        let fate_of = |text: &str| fate(text, &jobs, &transitions);
        for text in ["backup", "backup.g[0]", "backup/t"] {
            let message = fate_of(text).unwrap();
            assert!(
                message.starts_with("job backup had ended and was collected ")
                    && message.contains("gc --dry-run"),
                "{message}"
            );
        }
        assert!(fate_of("old").unwrap().starts_with("job old was deleted "));
        assert!(fate_of("bare").unwrap().ends_with(": it was deleted, or had ended and was collected"));
        for text in ["web", "web/x", "lives", "backups", "nobody"] {
            assert_eq!(fate_of(text), None, "{text}");
        }
    }
}
