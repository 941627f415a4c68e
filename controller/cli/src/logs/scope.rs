//! Which logs are read: of which tasks now, and of which allocations in the future.
//!
//! In: the names of the command line, and the agent's views. Out: tasks whose logs exist.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, JobKey,
    view::{AllocView, JobView},
};

use crate::{
    children,
    client::Client,
    failure::Failure,
    target::{self, Target},
    watch::Shown,
};

/// A task whose log is read.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) alloc: AllocId,
    pub(super) task: String,
    pub(super) name: String,
}

/// The targets with these names; without names, every job, as far as it has the task.
pub(super) async fn chosen(
    client: &Client,
    names: &[String],
    (jobs, allocs): (&[JobView], &[AllocView]),
    task: Option<&str>,
) -> Result<Vec<Target>, Failure> {
    let task = || task.map(str::to_owned);
    if names.is_empty() {
        let all = jobs.iter().filter_map(|view| target::resolve(&view.key.to_string(), jobs, allocs).ok());
        let found: Vec<Target> = all.filter_map(|target| target.only(task()).ok()).collect();
        return match task() {
            Some(task) if found.iter().all(|target| target.tasks().next().is_none()) => {
                Err(Failure::new(format!("no job has a task {task:?}")))
            }
            Some(_) | None => Ok(found),
        };
    }
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let target = target::find_among(client, name, jobs, allocs).await?;
        let target = target.with_failed(name, jobs, allocs).only(task())?;
        let job = jobs.iter().find(|view| target.job.as_ref() == Some(&view.key));
        if let Some(failure) = job.and_then(|parent| children::instead("logs", parent, jobs)) {
            return Err(failure);
        }
        found.push(target);
    }
    Ok(found)
}

/// What a reader that follows reads in the future too.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Everything, of all jobs, or only tasks of this name.
    all: Option<Option<String>>,
    of_jobs: Vec<Scope>,
}

/// A job, or a part of it.
#[derive(Debug)]
struct Scope {
    job: JobKey,
    /// Groups and indexes; none for the whole job.
    slots: Option<BTreeSet<(String, u32)>>,
    task: Option<String>,
}

impl Scopes {
    pub(super) fn of(names: &[String], targets: &[Target], task: Option<&str>) -> Self {
        if names.is_empty() {
            return Self { all: Some(task.map(str::to_owned)), of_jobs: Vec::new() };
        }
        let of_job = |(name, target): (&String, &Target)| {
            let job = target.job.clone()?;
            let rest = name.strip_prefix(&job.to_string()).unwrap_or_default();
            let is_whole = rest.is_empty() || rest.starts_with('/');
            let slot = |view: &AllocView| (view.spec.group.clone(), view.spec.index);
            let slots = (!is_whole).then(|| target.allocs.iter().map(slot).collect());
            Some(Scope { job, slots, task: target.task.clone() })
        };
        Self { all: None, of_jobs: names.iter().zip(targets).filter_map(of_job).collect() }
    }

    /// Whether new allocations and tasks can come.
    pub(super) fn can_grow(&self) -> bool {
        self.all.is_some() || !self.of_jobs.is_empty()
    }

    /// The live tasks, as targets.
    pub(super) fn live(&self, shown: &Shown) -> Vec<Target> {
        let is_live = |view: &&AllocView| !view.status.is_terminal();
        let of_all = self.all.iter().map(|task| {
            let allocs = shown.allocs.values().map(AsRef::as_ref).filter(is_live).cloned().collect();
            Target { job: None, allocs, task: task.clone() }
        });
        let of_jobs = self.of_jobs.iter().map(|scope| {
            let is_meant = |view: &&AllocView| {
                scope
                    .slots
                    .as_ref()
                    .is_none_or(|slots| slots.contains(&(view.spec.group.clone(), view.spec.index)))
            };
            let allocs =
                shown.allocs_of(&scope.job).into_iter().filter(is_live).filter(is_meant).cloned().collect();
            Target { job: Some(scope.job.clone()), allocs, task: scope.task.clone() }
        });
        of_all.chain(of_jobs).collect()
    }

    /// Whether nothing more can come.
    pub(super) fn are_over(&self, shown: &Shown) -> bool {
        self.all.is_none() && self.live(shown).iter().all(|target| target.allocs.is_empty())
    }
}

/// Started tasks of these targets whose logs exist, each once. Tasks of several allocations at one place, such as a failed one
/// and its replacement, have the allocation's id in their names.
pub(super) fn sources<'t>(targets: impl Iterator<Item = &'t Target>) -> Vec<Source> {
    let mut found: Vec<Source> = Vec::new();
    for (view, task) in targets.flat_map(Target::tasks) {
        let is_known = |known: &Source| known.alloc == view.spec.id && known.task == *task.name;
        if task.attempt > 0 && !view.collected && !found.iter().any(is_known) {
            let name = view.spec.task_title(&task.name);
            found.push(Source { alloc: view.spec.id, task: task.name.to_string(), name });
        }
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for source in &found {
        *counts.entry(source.name.clone()).or_default() += 1;
    }
    for source in found.iter_mut().filter(|source| counts.get(&source.name).is_some_and(|count| *count > 1)) {
        source.name = format!("{} {}", source.name, source.alloc.short());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_manifest::fixture::{alloc_view, job};

    fn names(found: &[Source]) -> Vec<&str> {
        found.iter().map(|source| source.name.as_str()).collect()
    }

    #[test]
    fn a_task_that_several_targets_name_is_read_once() {
        let (web, db) = (job("web", "front", "httpd"), job("db", "g", "t"));
        let (first, other) = (alloc_view(&web, 0, 1), alloc_view(&db, 0, 2));
        let target = |allocs: &[&AllocView], task: Option<&str>| Target {
            job: None,
            allocs: allocs.iter().map(|view| (*view).clone()).collect(),
            task: task.map(str::to_owned),
        };
        let targets = [target(&[&first, &other], None), target(&[&first], Some("httpd"))];
        assert_eq!(names(&sources(targets.iter())), ["web.front[0]/httpd", "db.g[0]/t"]);
        let replacement = alloc_view(&web, 0, 3);
        let id = |view: &AllocView| view.spec.id.short().to_string();
        let both = [
            format!("web.front[0]/httpd {}", id(&first)),
            format!("web.front[0]/httpd {}", id(&replacement)),
        ];
        assert_eq!(names(&sources([target(&[&first, &replacement], None)].iter())), both);
    }

    /// `logs -f web.front` used to show new allocations of all groups.
    #[test]
    fn followed_logs_stay_within_the_job_or_slot() {
        let web = job("web", "front", "httpd");
        let mut shown = Shown::default();
        for (index, seed) in [(0, 1), (1, 2)] {
            let mut view = alloc_view(&web, index, seed);
            view.status = herdlet_api_types::alloc::ClientStatus::Running;
            shown.allocs.insert(view.spec.id, view.into());
        }
        let target = |only: Option<u32>| Target {
            job: Some(web.key()),
            allocs: shown
                .allocs_of(&web.key())
                .into_iter()
                .filter(|view| only.is_none_or(|only| view.spec.index == only))
                .cloned()
                .collect(),
            task: None,
        };
        let live = |names: &[&str], targets: &[Target]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let scopes = Scopes::of(&names, targets, None);
            assert!(scopes.can_grow() && !scopes.are_over(&shown));
            scopes.live(&shown).iter().map(|target| target.allocs.len()).collect::<Vec<_>>()
        };
        assert_eq!(live(&["web"], &[target(None)]), [2]);
        assert_eq!(live(&["web/httpd"], &[target(None)]), [2]);
        assert_eq!(live(&["web.front[0]"], &[target(Some(0))]), [1]);
        assert_eq!(live(&[], &[target(None)]), [2]);
        let of_id = Target { job: None, ..target(Some(0)) };
        assert!(!Scopes::of(&["0123abcd".to_owned()], &[of_id], None).can_grow());
    }
}
