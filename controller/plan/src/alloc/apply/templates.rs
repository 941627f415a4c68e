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
    state::{LastValue, PartState},
    time::Deadline,
};

impl Writer<'_> {
    /// The data that the part is made from may have changed.
    pub fn source_changed(&mut self, part: Part) {
        match self.state.parts.get(part) {
            PartState::Up => {
                let Some(facts) = self.state.facts.get(part) else {
                    return self.state.parts.set_part(part, PartState::Unknown);
                };
                let renew_at = Some(Deadline::after(self.now, Duration::ZERO));
                self.state.facts.set(part, Arc::new(Facts { renew_at, ..Facts::clone(facts) }));
            }
            // What the operation has read may be older than the change.
            PartState::Busy { .. } => self.state.parts.supersede_part(part),
            PartState::Pending { .. } => self.state.parts.set_part(part, PartState::Unknown),
            PartState::Failed { .. } => self.state.parts.retry_now(part),
            PartState::Unknown | PartState::Suspect(_) | PartState::Absent => {}
        }
    }

    /// Something that the part needs does not exist.
    pub(super) fn await_need(&mut self, part: Part, on: String, (ask_in, last): (Duration, LastValue)) {
        let now_ns = self.now.boot_ns;
        let ask_at_ns = now_ns.saturating_add(ask_in.as_nanos().max(1).unsigned_abs());
        let last = if self.state.facts.get(part).is_some() { last } else { LastValue::Gone };
        let is_news = self.state.missing.get(&part) != Some(&on);
        if let (Part::Task(index, TaskPart::Templates), true) = (part, is_news) {
            // Nomad's text.
            self.note(index, TaskEventKind::Template, format!("Missing: {on}"));
        }
        if is_news {
            self.state.missing.insert(part, on.clone());
        }
        self.state.parts.await_need(part, on, (now_ns, ask_at_ns), last);
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
