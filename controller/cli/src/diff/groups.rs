//! What a change of a job does to the allocations of its groups.
//!
//! In: the agent's job with the versions that its allocations run, the wanted job, and the fields that differ. Out: one
//! change for each group. The planner decides which fields require a replacement.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    alloc::Allocation,
    job::Job,
    view::{AllocView, JobVersion, JobView},
};
use herdlet_plan::job::difference::replacing;
use serde::Serialize;

use super::fields::FieldChange;

/// What happens to the allocations of a group.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct GroupChange {
    pub(super) group: String,
    pub(super) change: GroupKind,
    /// The increase of the count; negative for a decrease.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) more: i64,
    /// Number of canaries, which run beside the old allocations until they are promoted.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) canaries: u32,
    /// Number of allocations that are replaced at a time; missing if all are replaced at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at_a_time: Option<u32>,
    /// Paths of the fields that cause it.
    pub(super) because: Vec<String>,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum GroupKind {
    /// They stay unchanged.
    Nothing,
    /// They continue under the new version.
    InPlace,
    /// They are stopped and replaced.
    Replace,
    Create,
    Stop,
}

impl GroupKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::InPlace => "in-place",
            Self::Replace => "replace",
            Self::Create => "create",
            Self::Stop => "stop",
        }
    }
}

/// Whether an allocation has an older version, whose job must be fetched.
pub(super) fn runs_older(view: &JobView, allocs: &[AllocView]) -> bool {
    running_allocs(view, allocs).any(|spec| spec.job_version != view.version)
}

/// The present state of a job.
pub(super) struct CurrentJob<'k> {
    job: &'k Job,
    /// By group, the versions of running allocations, including older ones while canaries wait or after a failed
    /// roll-out.
    runs: BTreeMap<&'k str, Vec<Arc<Job>>>,
}

impl<'k> CurrentJob<'k> {
    pub(super) fn of(view: &'k JobView, allocs: &'k [AllocView], versions: &[JobVersion]) -> Self {
        let mut runs: BTreeMap<&str, Vec<Arc<Job>>> = BTreeMap::new();
        for spec in running_allocs(view, allocs) {
            let older = versions.iter().find(|kept| kept.version == spec.job_version);
            let text = older.map_or(&view.job, |older| &older.job);
            let of_group = runs.entry(&spec.group).or_default();
            if !of_group.iter().any(|known| Arc::ptr_eq(known, text)) {
                of_group.push(Arc::clone(text));
            }
        }
        Self { job: &view.job, runs }
    }

    /// Paths of the fields that require a replacement of the group's allocations.
    fn replacing(&self, wanted: &Job, group: &str) -> Vec<String> {
        let running = self.runs.get(group).into_iter().flatten().map(|job| &**job);
        let running = running.chain((!self.runs.contains_key(group)).then_some(self.job));
        let asking: BTreeSet<String> = running.flat_map(|job| replacing(job, wanted, group)).collect();
        asking.into_iter().collect()
    }
}

/// The job's allocations that run and should continue.
fn running_allocs<'k>(view: &'k JobView, allocs: &'k [AllocView]) -> impl Iterator<Item = &'k Allocation> {
    let of_job = allocs.iter().filter(|alloc| alloc.spec.job_key == view.key && alloc.fills_a_place());
    of_job.map(|alloc| &*alloc.spec)
}

/// What happens to each group when `known` (if any) becomes `wanted`. `fields`: the differences.
pub(super) fn groups(
    known: Option<&CurrentJob<'_>>,
    wanted: &Job,
    fields: &[FieldChange],
) -> Vec<GroupChange> {
    let current = known.map(|known| known.job);
    let gone = current.iter().flat_map(|known| &known.groups);
    let gone = gone.filter(|group| wanted.group(&group.name).is_none());
    let names = wanted.groups.iter().chain(gone).map(|group| group.name.as_str());
    let change = |group: &str| {
        let own = format!("spec.groups[{group}].");
        let is_of_job = |path: &str| !path.starts_with("spec.groups[");
        let differing = fields.iter().map(|field| field.path.as_str());
        let because: Vec<String> = differing
            .filter(|path| is_of_job(path) || path.strip_prefix(&own).is_some_and(|rest| rest != "count"))
            .map(|path| path.strip_prefix(&own).unwrap_or(path).to_owned())
            .collect();
        let asking = known.map_or_else(Vec::new, |known| known.replacing(wanted, group));
        let count = |job: &Job| job.group(group).map_or(0, |group| i64::from(job.desired_count(group)));
        // Stopped jobs and parents have no allocations.
        let runs = |job: &'_ Job| !job.makes_children() && count(job) > 0;
        let (change, because) = match (current.is_some_and(runs), runs(wanted)) {
            (false, false) => (GroupKind::Nothing, Vec::new()),
            (false, true) => (GroupKind::Create, Vec::new()),
            (true, false) => (GroupKind::Stop, Vec::new()),
            (true, true) if !asking.is_empty() => (GroupKind::Replace, written_of(asking, &because)),
            (true, true) if because.is_empty() => (GroupKind::Nothing, Vec::new()),
            (true, true) => (GroupKind::InPlace, because),
        };
        let update = wanted.group(group).and_then(|group| group.update.as_ref());
        let update = update.filter(|_| change == GroupKind::Replace);
        let at_a_time = update.map(|update| update.max_parallel);
        let canaries = update.map_or(0, |update| update.canary);
        let before = current.filter(|known| runs(known)).map_or(0, count);
        let more = if runs(wanted) { count(wanted) - before } else { 0 };
        GroupChange { group: group.to_owned(), change, more, canaries, at_a_time, because }
    };
    // A new parent only creates nothing yet.
    let is_told = |one: &GroupChange| known.is_some() || one.change != GroupKind::Nothing;
    names.map(change).filter(is_told).collect()
}

/// The changed fields below the paths that require a replacement; the paths themselves if there are none.
fn written_of(asking: Vec<String>, differing: &[String]) -> Vec<String> {
    let lies_in = |field: &str, path: &str| {
        field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let fields = differing.iter().filter(|field| asking.iter().any(|path| lies_in(field, path)));
    let fields: Vec<String> = fields.cloned().collect();
    if fields.is_empty() { asking } else { fields }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_manifest::fixture::{alloc_view, job_view};

    /// It was reported as a replacement of allocations that an apply leaves running.
    #[test]
    fn diff_compares_with_running_version_during_canaries() {
        let blue = herdlet_manifest::fixture::job("web", "front", "httpd");
        let mut green = (*blue).clone();
        green.groups[0].tasks[0].env.insert("COLOR".to_owned(), "green".to_owned());
        let green = Arc::new(green);
        let view = job_view(&green, 1);
        let (runs, mut canary) = (alloc_view(&blue, 0, 1), alloc_view(&green, 0, 2));
        let spec = Arc::make_mut(&mut canary.spec);
        let id = herdlet_api_types::DeploymentId::from_hash([1; 16]);
        spec.deployment = Some(herdlet_api_types::alloc::AllocDeployment { id, canary: true });
        spec.job_version = 1;
        let allocs = [runs, canary];
        let kept = [(1, &green), (0, &blue)].map(|(version, job)| JobVersion {
            version,
            index: 0,
            submit_time: herdlet_api_types::UnixNanos(0),
            job: Arc::clone(job),
            tag: None,
        });
        let change_to =
            |wanted: &Job| groups(Some(&CurrentJob::of(&view, &allocs, &kept)), wanted, &[])[0].change;
        assert_eq!(change_to(&blue), GroupKind::Nothing);
        assert_eq!(change_to(&green), GroupKind::Replace);
    }

    /// It was reported as an in-place change, although the job had no allocations.
    #[test]
    fn parameterized_or_periodic_job_changes_no_group() {
        let plain = (*herdlet_manifest::fixture::job("web", "front", "httpd")).clone();
        let mut periodic = plain.clone();
        periodic.parameterized = Some(herdlet_api_types::job::Parameterized::default());
        let change_between = |known: &Job, wanted: &Job| groups(Some(&idle(known)), wanted, &[])[0].change;
        assert_eq!(change_between(&periodic, &plain), GroupKind::Create);
        assert_eq!(change_between(&plain, &periodic), GroupKind::Stop);
        assert_eq!(change_between(&periodic, &periodic), GroupKind::Nothing);
    }

    fn idle(job: &Job) -> CurrentJob<'_> {
        CurrentJob { job, runs: BTreeMap::new() }
    }
}
