//! The allocations that made a roll-out fail: which they are, why they failed, and their last output. Also the last output of tasks
//! that wait for their restart.
//!
//! In: a job's view with its deployments, and its allocations. Out: those allocations, and lines about them. They have ended, and
//! other allocations run in their slots, so commands that show only what is current would not show the cause.

use futures_util::StreamExt as _;
use herdlet_api_types::{
    DeploymentId,
    alloc::ClientStatus,
    deployment::{Deployment, DeploymentStatus},
    task::{TaskEventKind, TaskPhase},
    view::{AllocView, JobView, TaskView},
};

use super::{
    client::{Client, LogRequest},
    show,
    table::plain,
};

/// At most this many lines of each stream are shown.
pub(super) const LINES_LEN: u64 = 5;
/// At most this many allocations are shown: many copies of one group usually fail for the same reason.
const ALLOCS_LEN_MAX: usize = 3;
/// A longer line is cut.
const LINE_CHARS_MAX: usize = 300;

/// Whether the allocation has failed, or was found unhealthy by its deployment.
pub(super) fn has_failed(view: &AllocView) -> bool {
    view.status == ClientStatus::Failed || view.verdict == Some(false)
}

/// The failed allocations of the deployments that decided about the job's current version: its own, and the one whose failure has
/// reverted the job to this version.
pub(super) fn of_rollout<'v>(
    job: &JobView,
    allocs: impl IntoIterator<Item = &'v AllocView>,
) -> Vec<&'v AllocView> {
    let decisive: Vec<DeploymentId> =
        job.deployments.iter().filter(|known| is_decisive(job, known)).map(|known| known.id).collect();
    let is_of_one = |view: &&AllocView| view.spec.deployment.is_some_and(|of| decisive.contains(&of.id));
    allocs.into_iter().filter(|view| is_of_one(view) && has_failed(view)).collect()
}

fn is_decisive(job: &JobView, known: &Deployment) -> bool {
    let has_reverted = job.reverted().is_some_and(|reverted| reverted.id == known.id);
    match known.status {
        DeploymentStatus::Running => known.job_version == job.version,
        DeploymentStatus::Failed => known.job_version == job.version || has_reverted,
        DeploymentStatus::Successful | DeploymentStatus::Cancelled => false,
    }
}

/// A line about the version whose failure has reverted the job to its current one, with the cause; `None` if there is none.
pub(super) fn revert<'v>(job: &JobView, allocs: impl IntoIterator<Item = &'v AllocView>) -> Option<String> {
    let failed = job.reverted()?;
    let is_of_it = |view: &&AllocView| view.spec.deployment.is_some_and(|of| of.id == failed.id);
    let culprit = allocs.into_iter().filter(is_of_it).find(|view| has_failed(view));
    let why = culprit.map_or_else(
        || failed.description.clone(),
        |view| {
            let id = view.spec.id.short();
            format!("{} {}; see: herdlet explain {id}", view.spec.title(), causes(view).join("; "))
        },
    );
    Some(format!("{}: {}", failed.revert_message(), plain(&why)))
}

/// Why the allocation failed: a line for each failed task or, if none failed, what its health watch found.
pub(super) fn causes(view: &AllocView) -> Vec<String> {
    let failed = view.tasks.iter().filter(|task| task.failed);
    let mut causes: Vec<String> = failed.map(|task| format!("task {}: {}", task.name, cause(task))).collect();
    if causes.is_empty() {
        let unhealthy = |task: &TaskView| {
            let event = task.events.iter().rfind(|event| event.kind == TaskEventKind::AllocUnhealthy)?;
            Some(format!("task {}: {}", task.name, plain(&event.message)))
        };
        causes.extend(view.tasks.iter().filter_map(unhealthy));
    }
    causes
}

/// The last events that explain the failure of a task.
fn cause(task: &TaskView) -> String {
    let explains = |kind: TaskEventKind| match kind {
        TaskEventKind::SetupFailure
        | TaskEventKind::FailedValidation
        | TaskEventKind::FailedArtifactDownload
        | TaskEventKind::DriverFailure
        | TaskEventKind::Terminated
        | TaskEventKind::HookFailed
        | TaskEventKind::NotRestarting
        | TaskEventKind::SiblingFailed
        | TaskEventKind::LeaderDead
        | TaskEventKind::PluginUnhealthy
        | TaskEventKind::AllocUnhealthy => true,
        TaskEventKind::Received
        | TaskEventKind::TaskSetup
        | TaskEventKind::DownloadingArtifacts
        | TaskEventKind::Driver
        | TaskEventKind::Started
        | TaskEventKind::Restarting
        | TaskEventKind::RestartSignaled
        | TaskEventKind::Signaling
        | TaskEventKind::Killing
        | TaskEventKind::Killed
        | TaskEventKind::MainDead
        | TaskEventKind::WaitingShutdownDelay
        | TaskEventKind::HookMessage
        | TaskEventKind::PluginHealthy
        | TaskEventKind::Template
        | TaskEventKind::Reconnected => false,
    };
    let messages: Vec<String> =
        task.events.iter().filter(|event| explains(event.kind)).map(|event| plain(&event.message)).collect();
    match messages.as_slice() {
        [] => show::phase(task),
        [.., before, last] if before != last => format!("{before}; {last}"),
        [.., last] => last.clone(),
    }
}

/// Lines about failed allocations: name, id, cause, last output.
pub(super) async fn report(client: &Client, failed: &[&AllocView]) -> Vec<String> {
    let mut lines = Vec::new();
    for view in failed.iter().take(ALLOCS_LEN_MAX) {
        let causes = causes(view).join("; ");
        lines.push(format!("{} {} failed: {causes}", view.spec.title(), view.spec.id.short()));
        lines.extend(last_output(client, view).await);
    }
    if let Some(more) = failed.len().checked_sub(ALLOCS_LEN_MAX).filter(|more| *more > 0) {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// The last lines that its failed tasks wrote or, if none failed, all of its tasks. Empty if they can't be read.
pub(super) async fn last_output(client: &Client, view: &AllocView) -> Vec<String> {
    let any_failed = view.tasks.iter().any(|task| task.failed);
    output_of(client, view, |task| task.failed || !any_failed, LINES_LEN).await
}

/// Whether the task has ended and waits for its restart.
pub(super) fn waits_for_restart(task: &TaskView) -> bool {
    match task.phase {
        TaskPhase::BackingOff => true,
        TaskPhase::Waiting
        | TaskPhase::Starting
        | TaskPhase::Running
        | TaskPhase::Stopping
        | TaskPhase::Dead => false,
    }
}

/// The last lines that these tasks of the allocation wrote, at most `len` of each stream. Empty if they can't be read.
pub(super) async fn output_of(
    client: &Client,
    view: &AllocView,
    is_meant: impl Fn(&TaskView) -> bool,
    len: u64,
) -> Vec<String> {
    let mut lines = Vec::new();
    for task in view.tasks.iter().filter(|task| task.attempt > 0 && is_meant(task)) {
        for stream in ["stdout", "stderr"] {
            let name = task.name.to_string();
            let request = LogRequest {
                task: name,
                stream,
                follow: false,
                tail: Some(len),
                since: None,
                timestamps: false,
            };
            let Ok(mut pieces) = client.logs(view.spec.id, &request).await else { continue };
            let mut bytes = Vec::new();
            while let Some(Ok(piece)) = pieces.next().await {
                bytes.extend(piece);
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let label = format!("  {}/{stream} | ", task.name);
            let cut = |line: &str| plain(&line.chars().take(LINE_CHARS_MAX).collect::<String>());
            lines.extend(text.lines().map(|line| format!("{label}{}", cut(line))));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::alloc::AllocDeployment;
    use herdlet_manifest::fixture::{alloc_view, job, job_view};

    use super::*;

    #[test]
    fn failed_allocations_of_the_version_and_revert_are_found() {
        let web = job("web", "g", "t");
        let id = DeploymentId::from_hash([7; 16]);
        let mut canary = AllocView { status: ClientStatus::Failed, ..alloc_view(&web, 0, 1) };
        Arc::make_mut(&mut canary.spec).deployment = Some(AllocDeployment { id, canary: true });
        let good = alloc_view(&web, 0, 2);
        let found = |status, reverted_to, version| {
            let mut view = job_view(&web, version);
            let deployment = Deployment { id, job_version: 1, status, reverted_to, ..deployment(&view) };
            view.deployments = vec![Arc::new(deployment)];
            of_rollout(&view, [&canary, &good]).len()
        };
        use DeploymentStatus as S;
        assert_eq!(found(S::Failed, None, 1), 1);
        assert_eq!(found(S::Running, None, 1), 1);
        assert_eq!(found(S::Failed, Some(0), 2), 1, "it has reverted the job");
        assert_eq!(found(S::Failed, Some(0), 3), 0, "a newer version was applied since");
        assert_eq!(found(S::Failed, None, 2), 0, "a user went back");
        assert_eq!(found(S::Successful, None, 1), 0);
    }

    fn deployment(job: &JobView) -> Deployment {
        Deployment {
            id: DeploymentId::from_hash([1; 16]),
            job_key: job.key.clone(),
            job_version: 0,
            status: DeploymentStatus::Running,
            description: String::new(),
            groups: Default::default(),
            paused: false,
            reverted_to: None,
            create_index: 0,
            modify_index: 0,
            create_time: Default::default(),
            modify_time: Default::default(),
        }
    }
}
