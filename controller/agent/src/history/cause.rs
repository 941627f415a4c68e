//! Why the view of an allocation changed, in a short sentence: the cause of the change, not what the allocation waits
//! for.
//!
//! In: its view before and after, its job, its predecessor. Out: a sentence. It is derived only from committed state:
//! the job's version and its origin, who requested a stop, the events of tasks, the results of checks.

use herdlet_api_types::{
    alloc::Desired,
    job::Job,
    service::{CheckResult, CheckStatus},
    task::TaskEventKind,
    view::{AllocView, ConvergenceState, JobView, TaskView},
};
use herdlet_plan::job::rollout::{COUNT_LOWERED, GROUP_REMOVED, OUTDATED};

/// The cause for an allocation that is published without having changed.
pub(super) const ADOPTED: &str = "adopted by a new agent";

/// A changed view, with its context.
#[derive(Debug, Clone, Copy)]
pub struct Change<'c> {
    /// The view before; `None` if it is published for the first time.
    pub before: Option<&'c AllocView>,
    /// The view now.
    pub after: &'c AllocView,
    pub job: Option<&'c JobView>,
    /// The allocation that it replaces.
    pub previous: Option<&'c AllocView>,
}

impl Change<'_> {
    pub(super) fn cause(&self) -> String {
        let Some(before) = self.before else { return self.with_wait(&self.made()) };
        let (was, is) = (&before.spec, &self.after.spec);
        if was.desired != is.desired && is.desired != Desired::Run {
            return self.stopped();
        }
        if was.job_version != is.job_version {
            return format!("updated in place: {}", self.version(is.job_version));
        }
        if !before.collected && self.after.collected {
            return self.after.loss().unwrap_or_default().to_owned();
        }
        match self.after.convergence.state {
            ConvergenceState::Converged => self.arrived(before),
            ConvergenceState::Progressing => self.trigger(before).unwrap_or_else(|| self.text()),
            ConvergenceState::Waiting | ConvergenceState::Failed => self.text(),
        }
    }

    /// Appends what the allocation waits for, or why it failed, if it does so from the start.
    pub(super) fn with_wait(&self, cause: &str) -> String {
        match (self.after.convergence.state, self.after.convergence.message.as_str()) {
            (ConvergenceState::Waiting | ConvergenceState::Failed, message) if !message.is_empty() => {
                format!("{cause}; {message}")
            }
            _ => cause.to_owned(),
        }
    }

    /// Why the allocation was created.
    fn made(&self) -> String {
        let spec = &self.after.spec;
        let version = || self.version(spec.job_version);
        if spec.deployment.is_some_and(|of| of.canary) {
            return format!("canary: {}", version());
        }
        let Some(previous) = self.previous else { return version() };
        let place = format!("replaces {}", previous.spec.id.short());
        if spec.rescheduled.last().is_some_and(|event| event.previous == previous.spec.id) {
            return format!("{place}, which failed");
        }
        match previous.spec.desired_description.as_str() {
            why if previous.spec.job_version == spec.job_version && !why.is_empty() => {
                format!("{place}: {why}")
            }
            _ => version(),
        }
    }

    /// Why the allocation is stopped.
    fn stopped(&self) -> String {
        let why = self.after.spec.desired_description.as_str();
        match self.job {
            Some(job) if [OUTDATED, COUNT_LOWERED, GROUP_REMOVED].contains(&why) => {
                format!("{why}: {}", self.version(job.version))
            }
            Some(_) | None => why.to_owned(),
        }
    }

    /// Why the allocation has converged.
    fn arrived(&self, before: &AllocView) -> String {
        let has_checks = !self.after.checks.is_empty();
        if before.verdict != Some(true) && self.after.verdict == Some(true) {
            return "marked healthy by its deployment".to_owned();
        }
        let started = self.new_events(before).last();
        match started {
            Some(event) => event,
            None if has_checks && !before.is_healthy() && self.after.is_healthy() => {
                "its checks pass".to_owned()
            }
            None => "matches the desired state".to_owned(),
        }
    }

    /// Why the allocation is no longer converged.
    fn trigger(&self, before: &AllocView) -> Option<String> {
        let triggers = |task: &TaskView, was: Option<&TaskView>| {
            let event = news(task, was).find(|event| is_trigger(event.kind))?;
            Some(format!("task {}: {}", task.name, event.message))
        };
        let tasks = self.after.tasks.iter().enumerate();
        let by_task = || tasks.clone().find_map(|(at, task)| triggers(task, before.tasks.get(at)));
        let failing = || {
            let is_bad =
                |result: &&CheckResult| result.status != CheckStatus::Pending && !result.is_as_required();
            let failed = self.after.checks.iter().find(is_bad)?;
            let how = if failed.status == CheckStatus::Warning { "warns" } else { "fails" };
            let output = failed.output.lines().next().unwrap_or_default();
            Some(format!("check {} of service {} {how}: {output}", failed.check, failed.service))
        };
        by_task().or_else(failing)
    }

    /// The message of the verdict, or else the last event.
    fn text(&self) -> String {
        match self.after.convergence.message.as_str() {
            "" => self.last_event().unwrap_or_default(),
            message => message.to_owned(),
        }
    }

    fn last_event(&self) -> Option<String> {
        let last = |task: &TaskView| Some((task.events.last()?.time, event_of(task)?));
        self.after.tasks.iter().filter_map(last).max_by_key(|(time, _)| *time).map(|(_, event)| event)
    }

    fn new_events(&self, before: &AllocView) -> impl Iterator<Item = String> {
        let tasks = self.after.tasks.iter().enumerate();
        let mut fresh: Vec<&TaskView> = tasks
            .filter(|(at, task)| news(task, before.tasks.get(*at)).next().is_some())
            .map(|(_, task)| task)
            .collect();
        fresh.sort_by_key(|task| task.events.last().map(|event| event.time));
        fresh.into_iter().filter_map(event_of)
    }

    /// The origin of a version of its job.
    fn version(&self, version: u64) -> String {
        let plain = || format!("version {version} was applied");
        let Some(job) = self.job else { return plain() };
        let (text, time) = if job.version == version {
            (&job.job, job.submit_time)
        } else {
            match job.past.iter().find(|past| past.version == version) {
                Some(past) => (&past.job, past.submit_time),
                None => return plain(),
            }
        };
        let failed = job.deployments.iter().find(|known| known.job_version + 1 == version);
        if let Some((failed, to)) = failed.and_then(|failed| Some((failed, failed.reverted_to?))) {
            return format!("the deployment of version {} failed: back to version {to}", failed.job_version);
        }
        let mut scaled = job.scaled.newest_first(&self.after.spec.group).filter(|event| event.time == time);
        if let Some((event, count)) = scaled.find_map(|event| Some((event, event.count?))) {
            return format!("scaled from {} to {count}, as version {version}", event.previous_count);
        }
        let before = job.past.iter().find(|past| past.version + 1 == version);
        if before.is_some_and(|before| before.job.stop && !text.stop) {
            return format!("started again, as version {version}");
        }
        let is_same = |past: &&std::sync::Arc<_>| is_older(past, version, text);
        if let Some(same) = job.past.iter().rev().find(is_same) {
            return format!("back to version {}, as version {version}", same.version);
        }
        match text.parent_id() {
            Some(parent) if text.dispatched().is_some() => format!("dispatched from {parent}"),
            Some(parent) => format!("launched by {parent}"),
            None => plain(),
        }
    }
}

/// Why the allocation was removed.
pub(super) fn gone(last: &AllocView) -> String {
    match last.spec.desired_description.as_str() {
        "" => "removed".to_owned(),
        why => why.to_owned(),
    }
}

fn is_older(past: &herdlet_api_types::view::JobVersion, version: u64, text: &Job) -> bool {
    past.version < version && *past.job == *text
}

fn event_of(task: &TaskView) -> Option<String> {
    task.events.last().map(|event| format!("task {}: {}", task.name, event.message))
}

/// The events of a task that were not there before, oldest first.
fn news<'t>(
    task: &'t TaskView,
    was: Option<&TaskView>,
) -> impl Iterator<Item = &'t herdlet_api_types::task::TaskEvent> {
    let last = was.and_then(|was| was.events.last()).cloned();
    let fresh: Vec<_> = task.events.iter().rev().take_while(|event| last.as_ref() != Some(event)).collect();
    fresh.into_iter().rev()
}

/// Whether the event gives the reason why a task ends or starts again, rather than the fact.
fn is_trigger(kind: TaskEventKind) -> bool {
    match kind {
        TaskEventKind::RestartSignaled
        | TaskEventKind::Terminated
        | TaskEventKind::DriverFailure
        | TaskEventKind::FailedArtifactDownload
        | TaskEventKind::SetupFailure
        | TaskEventKind::FailedValidation
        | TaskEventKind::HookFailed
        | TaskEventKind::SiblingFailed
        | TaskEventKind::LeaderDead
        | TaskEventKind::MainDead
        | TaskEventKind::PluginUnhealthy
        | TaskEventKind::AllocUnhealthy => true,
        TaskEventKind::Reconnected
        | TaskEventKind::Received
        | TaskEventKind::TaskSetup
        | TaskEventKind::DownloadingArtifacts
        | TaskEventKind::Driver
        | TaskEventKind::Started
        | TaskEventKind::Restarting
        | TaskEventKind::NotRestarting
        | TaskEventKind::Signaling
        | TaskEventKind::Killing
        | TaskEventKind::Killed
        | TaskEventKind::WaitingShutdownDelay
        | TaskEventKind::HookMessage
        | TaskEventKind::PluginHealthy
        | TaskEventKind::Template => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::{
        AllocId, Duration,
        alloc::RescheduleEvent,
        scaling::{ScalingEvent, ScalingEvents, ScalingNote},
        task::TaskEvent,
        view::JobVersion,
    };

    use super::*;
    use herdlet_manifest::fixture::{THEN, alloc_view, job, job_view, verdict};

    fn view_at(version: u64, seed: u8) -> AllocView {
        let mut view = alloc_view(&job("web", "g", "t"), 0, seed);
        Arc::make_mut(&mut view.spec).job_version = version;
        view
    }

    fn progressing(mut view: AllocView, message: &str) -> AllocView {
        view.convergence = verdict(ConvergenceState::Progressing, message);
        view
    }

    fn cause(before: Option<&AllocView>, after: &AllocView, job: &JobView) -> String {
        Change { before, after, job: Some(job), previous: None }.cause()
    }

    fn event(kind: TaskEventKind, message: &str) -> TaskEvent {
        TaskEvent { kind, time: THEN, message: message.to_owned(), details: Default::default() }
    }

    #[test]
    fn allocation_cause_is_that_of_its_version() {
        let mut other = (*job("web", "g", "t")).clone();
        other.priority += 1;
        let version = |version, job: &Job| {
            Arc::new(JobVersion {
                version,
                index: 1,
                submit_time: THEN,
                job: Arc::new(job.clone()),
                tag: None,
            })
        };
        let web = job("web", "g", "t");
        let plain = job_view(&web, 0);
        assert_eq!(cause(None, &view_at(0, 1), &plain), "version 0 was applied");
        let mut waiting = view_at(0, 1);
        waiting.convergence = verdict(ConvergenceState::Waiting, "task t: waits for volume \"v\"");
        assert_eq!(cause(None, &waiting, &plain), "version 0 was applied; task t: waits for volume \"v\"");
        let mut changed = job_view(&web, 1);
        changed.past = vec![version(0, &other)];
        assert_eq!(cause(None, &view_at(1, 1), &changed), "version 1 was applied");
        changed.version = 2;
        changed.past = vec![version(0, &web), version(1, &other)];
        assert_eq!(cause(None, &view_at(2, 1), &changed), "back to version 0, as version 2");
        let stopped = Arc::new(herdlet_api_types::job::Job { stop: true, ..(*web).clone() });
        changed.past = vec![version(0, &web), version(1, &stopped)];
        assert_eq!(cause(None, &view_at(2, 1), &changed), "started again, as version 2");
        let mut scaled = ScalingEvents::default();
        let note = ScalingNote::default();
        let event = ScalingEvent { time: THEN, count: Some(3), previous_count: 1, note, create_index: 1 };
        scaled.remember("g", event, 5);
        changed.scaled = Arc::new(scaled);
        assert_eq!(cause(None, &view_at(2, 1), &changed), "scaled from 1 to 3, as version 2");
        let gone = JobView { version: 9, past: Vec::new(), ..changed };
        assert_eq!(cause(None, &view_at(2, 1), &gone), "version 2 was applied");
    }

    #[test]
    fn replacement_cause_names_its_predecessor() {
        let view = job_view(&job("web", "g", "t"), 0);
        let mut previous = view_at(0, 0x11);
        let after = view_at(0, 0x22);
        Arc::make_mut(&mut previous.spec).desired_description = "stopped by request".to_owned();
        let cause_after = |after: &AllocView, previous: &AllocView| {
            Change { before: None, after, job: Some(&view), previous: Some(previous) }.cause()
        };
        assert_eq!(cause_after(&after, &previous), "replaces 11111111: stopped by request");
        let mut followed = after.clone();
        let event = RescheduleEvent {
            time: THEN,
            previous: AllocId::from_hash([0x11; 16]),
            delay: Duration::from_secs(1),
        };
        Arc::make_mut(&mut followed.spec).rescheduled.push(event);
        assert_eq!(cause_after(&followed, &previous), "replaces 11111111, which failed");
        Arc::make_mut(&mut previous.spec).job_version = 7;
        assert_eq!(cause_after(&after, &previous), "version 0 was applied");
    }

    #[test]
    fn end_cause_names_the_request() {
        let mut view = job_view(&job("web", "g", "t"), 4);
        let before = view_at(3, 1);
        let stopped = |why: &str| {
            let mut after = progressing(before.clone(), "group: about to change");
            let spec = Arc::make_mut(&mut after.spec);
            (spec.desired, spec.desired_description) = (Desired::Stop, why.to_owned());
            after
        };
        for (why, expected) in [
            (OUTDATED, "replaced by a newer version of the job: version 4 was applied"),
            ("stopped by request", "stopped by request"),
        ] {
            assert_eq!(cause(Some(&before), &stopped(why), &view), expected);
        }
        view.deleting = true;
        assert_eq!(cause(Some(&before), &stopped("job deleted"), &view), "job deleted");
        assert_eq!(gone(&stopped("collected")), "collected");
        let mut taken = progressing(before.clone(), "health: waits");
        Arc::make_mut(&mut taken.spec).job_version = 4;
        assert_eq!(cause(Some(&before), &taken, &view), "updated in place: version 4 was applied");
    }

    #[test]
    fn trigger_is_named_between_two_verdicts() {
        let view = job_view(&job("web", "g", "t"), 0);
        let before = view_at(0, 1);
        let mut restarted = progressing(before.clone(), "task t: process: stopping it");
        assert_eq!(cause(Some(&before), &restarted, &view), "task t: process: stopping it");
        for one in [
            event(TaskEventKind::RestartSignaled, "User requested running tasks to restart"),
            event(TaskEventKind::Killing, "Sent interrupt"),
        ] {
            restarted.tasks[0].events.remember(one, 10);
        }
        assert_eq!(
            cause(Some(&before), &restarted, &view),
            "task t: User requested running tasks to restart"
        );
        let mut again = before.clone();
        again.tasks[0].events = restarted.tasks[0].events.clone();
        again.tasks[0].events.remember(event(TaskEventKind::Started, "Task started by client"), 10);
        assert_eq!(cause(Some(&restarted), &again, &view), "task t: Task started by client");
        assert_eq!(
            cause(Some(&restarted), &progressing(before.clone(), ""), &view),
            "task t: Task started by client"
        );
        let unjudged = AllocView { verdict: None, ..progressing(before.clone(), "") };
        assert_eq!(cause(Some(&unjudged), &before, &view), "marked healthy by its deployment");
        let mut failing = progressing(before.clone(), "health: waits for passing checks");
        failing.healthy = Some(false);
        failing.checks.push(herdlet_api_types::service::CheckResult {
            service: "front".to_owned(),
            output: "connection refused\nagain".to_owned(),
            ..herdlet_api_types::fixture::check_result("alive", CheckStatus::Failure)
        });
        assert_eq!(
            cause(Some(&before), &failing, &view),
            "check alive of service front fails: connection refused"
        );
        let mut passing = before.clone();
        passing.checks.clone_from(&failing.checks);
        passing.checks[0].status = CheckStatus::Success;
        assert_eq!(cause(Some(&failing), &passing, &view), "its checks pass");
        assert_eq!(
            cause(Some(&progressing(before.clone(), "")), &before, &view),
            "matches the desired state"
        );
    }
}
