//! The history of a task: Nomad's events, for people and tools.

use std_alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use herdlet_api_types::{
    job::Lifecycle,
    task::{ExitResult, TaskEvent, TaskEventKind},
};

use super::Writer;
use crate::{
    alloc::health,
    op::{Part, TaskIndex, TaskPart},
    policy::EventTexts,
    state::{AfterStop, PartState, Progress, Run, StopReason, StopStep, TaskState},
    status::OUTLIVED,
    turn::Note,
};

impl Writer<'_> {
    /// Records a driver's message about a task.
    pub fn driver_message(&mut self, task: &str, message: String) {
        if let Some(index) = self.index_of(task) {
            self.note(index, TaskEventKind::Driver, message);
        }
    }

    /// Notes how far the preparation of a task's start is, for as long as the start lasts.
    pub fn progress(&mut self, task: &str, what: String) {
        let Some(index) = self.index_of(task) else { return };
        let known = self.state.progress.remove(&index);
        if let PartState::Busy { since_ns, .. } = self.state.parts.get(Part::Task(index, TaskPart::Process))
            && !what.is_empty()
        {
            // What is left of an earlier start counts no more.
            let known = known.filter(|known| known.since_ns >= *since_ns);
            let since_ns = known.map_or(self.now.boot_ns, |known| known.since_ns);
            self.state.progress.insert(index, Progress { what, since_ns });
        }
    }

    /// Records that the servers have contact with the node again.
    pub fn reconnected(&mut self) {
        for index in 0..self.task_count() {
            self.note(index, TaskEventKind::Reconnected, String::from("Client reconnected"));
        }
    }

    /// Records that the task's directory is about to be created for the first time, for servers only, as stock clients
    /// do.
    pub(super) fn note_setup(&mut self, part: Part) {
        let Part::Task(index, TaskPart::Dir) = part else { return };
        let is_first = |known: &TaskState| {
            known.attempt == 0 && !known.events.iter().any(|event| event.kind == TaskEventKind::TaskSetup)
        };
        if self.spec.policy().events == EventTexts::Nomad && self.known(index).is_some_and(is_first) {
            self.note(index, TaskEventKind::TaskSetup, String::from("Building Task Directory"));
        }
    }

    pub(super) fn note(&mut self, index: TaskIndex, kind: TaskEventKind, message: String) {
        self.note_with(index, kind, message, BTreeMap::new());
    }

    pub(super) fn note_with(
        &mut self,
        index: TaskIndex,
        kind: TaskEventKind,
        message: String,
        details: BTreeMap<String, String>,
    ) {
        let time = self.now.wall;
        if let Some(known) = self.known_mut(index) {
            known.remember(TaskEvent { kind, time, message, details });
        }
    }

    pub(super) fn note_stop(&mut self, reason: &StopReason) {
        let (kind, message, cause) = match reason {
            StopReason::Desired => (None, String::new(), "stop"),
            StopReason::Outlived => (None, String::new(), "outlived"),
            StopReason::LeaderDead => {
                (Some(TaskEventKind::LeaderDead), String::from("Leader Task in Group dead"), "leader")
            }
            StopReason::SiblingFailed(sibling) => (
                Some(TaskEventKind::SiblingFailed),
                format!("Task's sibling \"{sibling}\" failed"),
                "sibling",
            ),
            StopReason::MainDead => {
                (Some(TaskEventKind::MainDead), String::from("Main tasks in the group died"), "main")
            }
        };
        if let Some(kind) = kind {
            self.note_live_tasks(kind, &message);
        }
        // An allocation whose tasks never ran, or have all ended, is not disrupted.
        if self.state.durable.tasks.iter().any(|known| known.live_attempt().is_some()) {
            self.notes.push(Note::Disruption { job: self.spec.job_key.clone(), cause });
        }
    }

    pub(super) fn note_live_tasks(&mut self, kind: TaskEventKind, message: &str) {
        for index in 0..self.task_count() {
            let poststop = self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop);
            if !poststop && self.known(index).is_some_and(TaskState::status_live) {
                self.note(index, kind, message.to_string());
            }
        }
    }

    /// Records an event for all tasks that have ended, except poststop tasks.
    pub(super) fn note_dead_tasks(&mut self, kind: TaskEventKind, message: &str) {
        for index in 0..self.task_count() {
            let poststop = self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop);
            if !poststop && self.known(index).is_some_and(|known| !known.status_live()) {
                self.note(index, kind, message.to_string());
            }
        }
    }

    pub(super) fn note_step(&mut self, index: TaskIndex, step: &StopStep) {
        match step {
            StopStep::Delay { until } => {
                let message =
                    format!("Waiting for shutdown_delay of {} before killing the task.", until.length);
                self.note(index, TaskEventKind::WaitingShutdownDelay, message);
            }
            StopStep::Prestop { .. } => {
                self.note(index, TaskEventKind::HookMessage, String::from("Running prestop command"));
            }
            StopStep::Kill { .. } => self.note_kill_signal(index),
        }
    }

    /// Records that the `prestop` command did not run: at each try the machine lacked something, until its time was
    /// over.
    pub(super) fn note_prestop_not_run(&mut self, index: TaskIndex) {
        let is_step =
            |known: &TaskState| matches!(known.run, Run::Stopping { step: StopStep::Prestop { .. }, .. });
        if self.known(index).is_some_and(is_step)
            && let PartState::Failed { why, .. } = self.state.parts.get(Part::Task(index, TaskPart::Prestop))
        {
            let message = format!("prestop did not run: {why}");
            self.note(index, TaskEventKind::HookMessage, message);
        }
    }

    /// Records that a task is ended for good. Servers get this event at the decision, before a `shutdown_delay`, as
    /// from stock clients.
    pub(super) fn note_decided_kill(&mut self, index: TaskIndex) {
        if self.spec.policy().events == EventTexts::Nomad {
            self.note_killing(index);
        }
    }

    /// Records that a task's kill signal is due. Without servers this is the kill event, unless the task is to start
    /// again.
    fn note_kill_signal(&mut self, index: TaskIndex) {
        let Some(known) = self.known(index) else { return };
        let is_poststop = self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop);
        let group_stops = self.state.durable.stop.is_some() && !is_poststop;
        let for_good = group_stops || matches!(known.run, Run::Stopping { then: AfterStop::Dead, .. });
        if for_good && self.spec.policy().events == EventTexts::Own {
            self.note_killing(index);
        }
    }

    fn note_killing(&mut self, index: TaskIndex) {
        let timeout = self.kill_timeout(index);
        let details = BTreeMap::from([(String::from("kill_timeout"), timeout.to_string())]);
        let message = match self.spec.policy().events {
            _ if self.state.durable.is_outlived() => String::from(OUTLIVED),
            EventTexts::Nomad => format!("Sent interrupt. Waiting {timeout} before force killing"),
            // Its driver may end it in another way than by a signal.
            EventTexts::Own => format!("Stopping. Waiting {timeout} before force killing"),
        };
        self.note_with(index, TaskEventKind::Killing, message, details);
    }

    /// The kill event of a task without a process, which waits for its first or next start. Servers get the same event
    /// as from stock clients; without servers the event explains why the task does not start.
    pub(super) fn note_killing_unstarted(&mut self, index: TaskIndex) {
        let Some(known) = self.known(index) else { return };
        let waits = matches!(known.run, Run::Waiting | Run::BackingOff { .. });
        let has_run = known.attempt > 0;
        let is_poststop = self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop);
        let Some(stop) = self.state.durable.stop.as_ref().filter(|_| waits && !is_poststop) else { return };
        if self.spec.policy().events == EventTexts::Nomad {
            return self.note_killing(index);
        }
        let why = match &stop.reason {
            StopReason::Desired => String::from("its allocation is being stopped"),
            StopReason::Outlived => String::from(OUTLIVED),
            StopReason::LeaderDead => String::from("the leader of its group has ended"),
            StopReason::SiblingFailed(sibling) => format!("task {sibling} failed"),
            StopReason::MainDead => String::from("the main tasks of its group have ended"),
        };
        let what = if has_run { "Not started again" } else { "Not started" };
        self.note(index, TaskEventKind::Killing, format!("{what}: {why}"));
    }

    /// The event of [`Self::note_decided_kill`] for tasks that were being stopped to start again; without servers only
    /// for those that have got the signal.
    pub(super) fn note_killing_restarted(&mut self) {
        for index in 0..self.task_count() {
            let tells_decisions = self.spec.policy().events == EventTexts::Nomad;
            let is_restarted = |known: &TaskState| match &known.run {
                Run::Stopping { then, step, .. } => {
                    *then != AfterStop::Dead && (tells_decisions || matches!(step, StopStep::Kill { .. }))
                }
                Run::Waiting
                | Run::BackingOff { .. }
                | Run::Starting { .. }
                | Run::Running { .. }
                | Run::Dead => false,
            };
            let is_poststop = self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop);
            if !is_poststop && self.known(index).is_some_and(is_restarted) {
                self.note_killing(index);
            }
        }
    }

    /// Records that the allocation is not healthy. In deployments of servers, each task gets its own reason, in Nomad's
    /// texts. If no task has one (the group's checks do), all living tasks get the general message.
    pub(super) fn note_unhealthy(&mut self, message: &str) {
        let spec = self.spec;
        if spec.policy().events == EventTexts::Own {
            return self.note_live_tasks(TaskEventKind::AllocUnhealthy, message);
        }
        let Some(terms) = spec.policy().health.filter(|_| spec.deployment.is_some()) else { return };
        let tasks = (0..).zip(spec.group().into_iter().flat_map(|group| &group.tasks));
        let why = |(index, task)| {
            Some((index, health::why_unhealthy(task, self.known(index)?, self.state, &terms)?))
        };
        let reasons: Vec<_> = tasks.filter_map(why).collect();
        if reasons.is_empty() {
            self.note_live_tasks(TaskEventKind::AllocUnhealthy, message);
        }
        for (index, why) in reasons {
            self.note(index, TaskEventKind::AllocUnhealthy, why);
        }
    }

    pub(super) fn note_exit(&mut self, index: TaskIndex, result: &ExitResult) {
        let mut message = format!("Exit Code: {}", result.code);
        if result.signal != 0 {
            message.push_str(&format!(", Signal: {}", result.signal));
        }
        if result.oom_killed {
            message.push_str(", out of memory");
            let limit = self.task(index).and_then(|task| task.resources.memory_limit_mib());
            message.extend(limit.map(|limit| format!(" (limit {limit} MiB)")));
        }
        if !result.error.is_empty() {
            message.push_str(&format!(", Exit Message: \"{}\"", result.error));
        }
        let mut details = BTreeMap::from([
            (String::from("exit_code"), result.code.to_string()),
            (String::from("signal"), result.signal.to_string()),
            (String::from("oom_killed"), result.oom_killed.to_string()),
        ]);
        if !result.error.is_empty() {
            details.insert(String::from("exit_message"), result.error.clone());
        }
        self.note_with(index, TaskEventKind::Terminated, message, details);
    }
}
