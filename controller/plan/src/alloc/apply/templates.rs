//! Templates of a task: data that is missing or has changed, and scripts that run after a render.

use std_alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
};

use herdlet_api_types::{
    Duration,
    job::{ChangeScript, TemplateChange},
    task::TaskEventKind,
};

use super::Writer;
use crate::{
    action::{Outcome, Verb},
    facts::{ChangeAction, Facts, Notification},
    limits::SCRIPT_REPORT,
    op::{Part, TaskIndex, TaskPart, TemplateIndex},
    parts::Need,
    state::{LastValue, PartState},
    time::Deadline,
};

impl Writer<'_> {
    /// The data that the part is made from has changed. What is not up is made from the new data anyway.
    pub fn source_changing(&mut self, part: Part) {
        let is_old = match self.state.parts.get(part) {
            PartState::Up | PartState::Busy { .. } | PartState::Suspect(_) => true,
            PartState::Unknown | PartState::Absent | PartState::Pending { .. } | PartState::Failed { .. } => {
                false
            }
        };
        if is_old {
            self.state.changed_sources.insert(part, *self.generation);
        }
    }

    /// An operation that read the part's data, or removed the part, has ended.
    pub(super) fn source_read(&mut self, part: Part, generation: u64) {
        if self.state.changed_sources.get(&part).is_some_and(|last| generation > *last) {
            self.state.changed_sources.remove(&part);
        }
    }

    /// The data that the part is made from may have changed.
    pub fn source_changed(&mut self, part: Part) {
        self.source_changing(part);
        match self.state.parts.get(part) {
            PartState::Up => {
                let Some(facts) = self.state.facts.get(part) else {
                    return self.state.parts.set_part(part, PartState::Unknown);
                };
                let renew_at = Some(Deadline::after(self.now, Duration::ZERO));
                self.state.facts.set(part, Arc::new(Facts { renew_at, ..Facts::clone(facts) }));
            }
            // What the operation has read may be older than the change. Its outcome counts nevertheless: data that
            // changes all the time would otherwise never be rendered. An inspection that follows reads no data either.
            PartState::Busy { .. } | PartState::Suspect(_) => self.state.parts.note_source_change(part),
            PartState::Pending { .. } => self.state.parts.set_part(part, PartState::Unknown),
            PartState::Failed { .. } => self.state.parts.retry_now(part),
            PartState::Unknown | PartState::Absent => {}
        }
    }

    /// Something that the part needs does not exist.
    pub(super) fn await_need(&mut self, part: Part, on: String, (ask_in, last): (Duration, LastValue)) {
        let now_ns = self.now.boot_ns;
        let ask_at_ns = now_ns.saturating_add(ask_in.as_nanos().max(1).unsigned_abs());
        let last = if self.state.facts.get(part).is_some() { last } else { LastValue::Gone };
        if let (Part::Task(index, own @ (TaskPart::Templates | TaskPart::Secrets)), LastValue::Gone) =
            (part, last)
        {
            // Nomad's text, also for secrets: it renders a template for them.
            self.record_once((index, own), TaskEventKind::Template, format!("Missing: {on}"));
        }
        self.state.parts.await_need(part, on, (now_ns, ask_at_ns), last);
    }

    /// A running task keeps the last output if new data can't be rendered. Nomad kills the task; but then one wrong
    /// value would end all tasks that use it at once, although they run well with what they have. The event and
    /// `explain` show the error, and the next start of the task, which could not be told from a good one, fails.
    pub(super) fn note_fatal_render(&mut self, part: Part, why: &str) {
        let Part::Task(index, TaskPart::Templates) = part else { return };
        if self.known(index).is_some_and(|known| known.live_attempt().is_some()) {
            let message = format!("templates: {why}; the task keeps the last output");
            self.record_once((index, TaskPart::Templates), TaskEventKind::HookFailed, message);
        }
    }

    /// Records an event of a part, unless its last one was the same.
    fn record_once(&mut self, (index, own): (TaskIndex, TaskPart), kind: TaskEventKind, message: String) {
        let part = Part::Task(index, own);
        if self.state.recorded.get(&part) != Some(&message) {
            self.state.recorded.insert(part, message.clone());
            self.note(index, kind, message);
        }
    }

    /// The task starts again, and demands that its templates are rendered for each start.
    pub(super) fn render_for_restart(&mut self, index: TaskIndex) {
        let part = Part::Task(index, TaskPart::Templates);
        let is_demanded = self.task(index).is_some_and(|task| task.restart.render_templates);
        if is_demanded && self.spec.need(part) == Need::Needed {
            self.source_changed(part);
        }
    }

    /// Scripts that also run after the first start of the task.
    pub(super) fn owe_first_scripts(&mut self, index: TaskIndex) {
        let part = Part::Task(index, TaskPart::Templates);
        let Some(task) = self.task(index) else { return };
        let runs_first = |change: &TemplateChange| match change {
            TemplateChange::Script(script) => script.run_on_first_render,
            TemplateChange::Noop | TemplateChange::Restart | TemplateChange::Signal(_) => false,
        };
        let first = (0..).zip(&task.templates).filter(|(_, template)| runs_first(&template.on_change));
        let scripts = first.map(|(template, _)| template).collect();
        let action = ChangeAction::run(Default::default(), scripts);
        let revision = self.state.facts.get(part).map(|facts| facts.revision).unwrap_or_default();
        if matches!(action, ChangeAction::Run { .. }) {
            self.owe(part, Some(Notification::at_once(action)), revision);
        }
    }

    /// Runs the script of a template inside the task, if that runs. Returns the number of the operation.
    pub(super) fn run_script(&mut self, index: TaskIndex, template: TemplateIndex) -> Option<u64> {
        let timeout = self.script(index, template)?.timeout;
        let attempt = self.known(index)?.signalled_attempt()?;
        let timeout = Duration(timeout.as_nanos().saturating_add(SCRIPT_REPORT.as_nanos()));
        Some(self.issue_beside(index, Verb::Script { attempt, template }, timeout))
    }

    /// Whether a script that its driver can't run now may still be run: for as long as it may take itself.
    pub(super) fn may_run_later(&mut self, index: TaskIndex, template: TemplateIndex) -> bool {
        let Some(timeout) = self.script(index, template).map(|script| script.timeout) else { return false };
        let now_ns = self.now.boot_ns;
        let since_ns = *self.state.delayed_scripts.entry((index, template)).or_insert(now_ns);
        now_ns.saturating_sub(since_ns) < timeout.as_nanos().max(0).unsigned_abs()
    }

    /// Records how a script has ended. Texts and events are Nomad's.
    pub(super) fn note_script(&mut self, index: TaskIndex, template: TemplateIndex, outcome: &Outcome) {
        let Some(script) = self.script(index, template) else { return };
        let (command, args) = (&script.command, script.args.join(" "));
        let fails = script.fail_on_error;
        let why = match outcome {
            Outcome::Failed { why, .. } => why.to_string(),
            Outcome::Done(_) => {
                let text = format!(
                    "Template successfully ran script {command} with arguments: {args}. Exit code: 0"
                );
                return self.note(index, TaskEventKind::HookMessage, text);
            }
            // The process is gone, and with it the reason to run the script.
            Outcome::Started(_)
            | Outcome::Present(_)
            | Outcome::Absent
            | Outcome::Lost { .. }
            | Outcome::Foreign { .. }
            | Outcome::Recovered(_)
            | Outcome::Pending { .. }
            | Outcome::Outdated { .. }
            | Outcome::Overdue
            | Outcome::Checking(_) => return,
        };
        self.note(index, TaskEventKind::HookFailed, why);
        if fails {
            let message = String::from("Template script failed, task is being killed");
            self.fail_permanently(index, TaskEventKind::Killing, message);
        }
    }

    fn script(&self, index: TaskIndex, template: TemplateIndex) -> Option<&ChangeScript> {
        match &self.task(index)?.templates.get(usize::from(template))?.on_change {
            TemplateChange::Script(script) => Some(script),
            TemplateChange::Noop | TemplateChange::Restart | TemplateChange::Signal(_) => None,
        }
    }
}
