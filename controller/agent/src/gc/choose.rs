//! Chooses what to collect, and why, from the published state.
//!
//! In: jobs, allocations, disk usage, the rules. Out: everything that has ended, in the order of collection, with the
//! due ones marked. Failed allocations come last, because their logs are the ones that people want to read.
//! Quarantined objects (planning them panicked) are never chosen: the planner would not give them up, and they would
//! block all others.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::{
    AllocId, Duration, JobKey, UnixNanos,
    alloc::{ClientStatus, Desired},
    deployment::{Deployment, DeploymentStatus},
    gc::{Collectable, CollectableKind, Due},
    task::TaskStatus,
    view::{AllocView, ConvergenceState, JobView},
};
use herdlet_config::gc::Rules;

/// The usage, in percent, of the file system that holds the directories of allocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of its bytes.
    pub disk: u8,
    pub inodes: u8,
}

/// The input of the decision.
#[expect(missing_debug_implementations, reason = "has a closure")]
pub struct CollectorInput<'s> {
    pub jobs: &'s [Arc<JobView>],
    pub allocs: &'s [Arc<AllocView>],
    /// Whether a folder of manifests defines the job: if it were forgotten, it would run again.
    pub is_owned: &'s dyn Fn(&JobKey) -> bool,
    pub usage: Usage,
    pub now: UnixNanos,
}

/// Something that has ended, and the object to name in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub ended: Collectable,
    pub what: What,
    /// Whether it is a failed allocation that explains the state of its job.
    pub explains_job: bool,
}

/// A job or an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Job(JobKey),
    Alloc(AllocId),
}

/// Everything that has ended, the due ones first.
pub fn choose(rules: &Rules, seen: &CollectorInput<'_>) -> Vec<Choice> {
    let mut of_job: BTreeMap<&JobKey, Vec<&AllocView>> = BTreeMap::new();
    for view in seen.allocs {
        of_job.entry(&view.spec.job_key).or_default().push(view);
    }
    let mut choices = Vec::new();
    for job in seen.jobs {
        let allocs = of_job.get(&job.key).map(Vec::as_slice).unwrap_or_default();
        if is_over(job, allocs) && !(seen.is_owned)(&job.key) {
            choices.push(over(rules, seen.now, job, allocs));
        }
    }
    choices.sort_by_key(|choice| choice.ended.ended_at);
    // A job takes its allocations with it.
    for choice in &choices {
        if let (What::Job(key), Some(_)) = (&choice.what, choice.ended.due) {
            of_job.remove(key);
        }
    }
    let mut ended: Vec<&AllocView> =
        of_job.into_values().flatten().filter(|view| can_be_collected(view)).collect();
    ended.sort_by_key(|view| (has_failed(view), ended_at(view), view.spec.id));
    let excess = ended.len().saturating_sub(usize::try_from(rules.gc_max_allocs).unwrap_or(usize::MAX));
    let full = fullness(rules, seen.usage);
    let count = ended.len();
    let jobs: BTreeMap<&JobKey, &JobView> = seen.jobs.iter().map(|job| (&job.key, &**job)).collect();
    choices.extend(ended.into_iter().enumerate().map(|(at, view)| {
        let (due, message) = if at < excess {
            (
                Some(Due::Count),
                format!("{count} allocations have ended; gc_max_allocs is {}", rules.gc_max_allocs),
            )
        } else if let Some((due, message)) = full.clone().filter(|_| at == excess) {
            // One at a time: the disk usage is read again in between.
            (Some(due), message)
        } else {
            (
                None,
                format!(
                    "kept until more than gc_max_allocs ({}) allocations have ended or the disk is full",
                    rules.gc_max_allocs
                ),
            )
        };
        let ended = Collectable {
            kind: CollectableKind::Alloc,
            namespace: view.spec.job_key.namespace.to_string(),
            name: view.spec.name(),
            id: view.spec.id.to_string(),
            ended_at: ended_at(view),
            failed: has_failed(view),
            due,
            message,
        };
        let explains_job = jobs.get(&view.spec.job_key).is_some_and(|job| explains(job, view));
        Choice { ended, what: What::Alloc(view.spec.id), explains_job }
    }));
    choices.sort_by_key(|choice| choice.ended.due.is_none());
    choices
}

/// How long until the next job becomes due, among those that are not due yet.
pub fn next_due(rules: &Rules, choices: &[Choice], now: UnixNanos) -> Option<Duration> {
    let jobs =
        choices.iter().filter(|choice| matches!(choice.what, What::Job(_)) && choice.ended.due.is_none());
    jobs.map(|choice| left(rules, now, choice.ended.ended_at)).min()
}

fn over(rules: &Rules, now: UnixNanos, job: &JobView, allocs: &[&AllocView]) -> Choice {
    // A job whose allocations ended earlier may have been stopped only now.
    let ended_at = allocs.iter().map(|view| ended_at(view)).fold(job.submit_time, UnixNanos::max);
    let left = left(rules, now, ended_at);
    let threshold = rules.job_gc_threshold;
    let (due, message) = if left == Duration::ZERO {
        (Some(Due::Age), format!("ended longer ago than job_gc_threshold ({threshold})"))
    } else {
        (None, format!("kept for {} more (job_gc_threshold is {threshold})", whole_seconds(left)))
    };
    let ended = Collectable {
        kind: CollectableKind::Job,
        namespace: job.key.namespace.to_string(),
        name: job.key.id.to_string(),
        id: job.key.id.to_string(),
        ended_at,
        failed: job.convergence.state == ConvergenceState::Failed,
        due,
        message,
    };
    Choice { ended, what: What::Job(job.key.clone()), explains_job: false }
}

/// How much longer a job stays. A clock that was set back prolongs this and never causes an early collection.
fn left(rules: &Rules, now: UnixNanos, ended_at: UnixNanos) -> Duration {
    let age = now.0.saturating_sub(ended_at.0);
    Duration(rules.job_gc_threshold.0.saturating_sub(age).max(0))
}

fn whole_seconds(span: Duration) -> Duration {
    const SECOND: i64 = 1_000_000_000;
    Duration((span.0 / SECOND).max(1) * SECOND)
}

/// The reason to remove directories because of disk usage, if there is one.
fn fullness(rules: &Rules, usage: Usage) -> Option<(Due, String)> {
    let above = |due, used: u8, of: &str, name: &str, threshold: u8| {
        let message = format!("{used} % of the disk{of} in use; {name} is {threshold}");
        (used > threshold).then_some((due, message))
    };
    let Rules { gc_disk_usage_threshold: disk, gc_inode_usage_threshold: inodes, .. } = *rules;
    above(Due::Disk, usage.disk, "", "gc_disk_usage_threshold", disk)
        .or_else(|| above(Due::Inodes, usage.inodes, "'s inodes", "gc_inode_usage_threshold", inodes))
}

/// Whether the job will do nothing more.
fn is_over(job: &JobView, allocs: &[&AllocView]) -> bool {
    let ends = job.job.ends() && !job.deleting && !job.quarantined;
    let verdict = matches!(job.convergence.state, ConvergenceState::Converged | ConvergenceState::Failed);
    ends && verdict && allocs.iter().all(|view| has_ended(view) && !view.quarantined)
}

fn has_ended(view: &AllocView) -> bool {
    view.status.is_terminal() && view.tasks.iter().all(|task| task.state == TaskStatus::Dead)
}

fn can_be_collected(view: &AllocView) -> bool {
    has_ended(view) && !view.quarantined && !view.collected && view.spec.desired != Desired::Gone
}

/// Whether the allocation is the reason for the job's state: it failed and was not replaced, or its deployment failed and put the
/// current version in force.
fn explains(job: &JobView, view: &AllocView) -> bool {
    let is_decisive = |known: &Deployment| {
        let is_current = known.status == DeploymentStatus::Failed && known.job_version == job.version;
        is_current || job.reverted().is_some_and(|reverted| reverted.id == known.id)
    };
    let of = view.spec.deployment.as_ref().map(|of| of.id);
    let is_of_rollout = job.deployments.iter().any(|known| Some(known.id) == of && is_decisive(known));
    let is_in_place = view.spec.desired == Desired::Run && has_failed(view);
    !job.deleting && (is_in_place || is_of_rollout && (has_failed(view) || view.verdict == Some(false)))
}

fn has_failed(view: &AllocView) -> bool {
    view.status == ClientStatus::Failed
}

/// When its last task ended; for an allocation whose tasks never ran, when it last changed.
fn ended_at(view: &AllocView) -> UnixNanos {
    let tasks = view.tasks.iter().map(|task| task.finished_at).max();
    tasks.filter(|at| at.0 > 0).unwrap_or(view.modify_time)
}

#[cfg(test)]
mod tests;
