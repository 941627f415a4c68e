//! Notifications of running tasks: a part has changed under a task, which restarts, gets signals, or runs scripts.
//!
//! In: a change that concerns a task, the ends of signals and scripts. Out: what the task is still owed. That is stored
//! before anything is sent, and cleared once the last signal or script has ended: a crash repeats a notification and
//! loses none.

use std_alloc::{collections::BTreeSet, string::String, sync::Arc};

use herdlet_api_types::{Duration, task::TaskEventKind};

use super::Writer;
use crate::{
    action::{FailureClass, Outcome},
    backoff::fraction,
    facts::{ChangeAction, Notification, Owed, Revision},
    limits::{SCRIPT_RETRY, SIGNAL_RETRY},
    op::{Part, TaskIndex, TaskPart, TemplateIndex},
    state::{LaterNotice, Notice, NoticeInFlight, PartState, Run},
    time::Deadline,
};

/// Nomad's text for a signal after a render.
const RENDERED: &str = "Template re-rendered";

impl Writer<'_> {
    /// Records a notification for a running task, together with one that is still owed. A task that has not begun reads
    /// the facts when it starts.
    pub(super) fn owe(&mut self, part: Part, notification: Option<Notification>, revision: Revision) {
        let Part::Task(index, own) = part else { return };
        let Some(known) = self.known(index) else { return };
        let may_have_read = match known.run {
            Run::Running { .. } => true,
            // An inspection may have shown that the start of an earlier agent did not happen.
            Run::Starting { .. } => {
                *self.state.parts.get(Part::Task(index, TaskPart::Process)) != PartState::Absent
            }
            Run::Waiting | Run::BackingOff { .. } | Run::Stopping { .. } | Run::Dead => false,
        };
        let notification = notification.filter(|_| may_have_read);
        if notification.is_none() && !known.changing.contains(&own) {
            return;
        }
        let (now, seed) = (self.now, (self.spec.id, part, revision.0));
        let is_in_flight = self.state.is_notice_in_flight(index, own);
        let Some(known) = self.known_mut(index) else { return };
        known.changing.remove(&own);
        let Some(Notification { action, splay }) = notification else { return };
        let due = Deadline::after(now, Duration(fraction(splay.as_nanos(), seed)));
        let owed = match known.owed.remove(&own) {
            // Several changes before the first is due are one.
            Some(before) => Owed { action: before.action.merged(action.clone()), revision, due: before.due },
            None => Owed { action: action.clone(), revision, due },
        };
        known.owed.insert(own, owed);
        if is_in_flight {
            self.send_later(index, own, LaterNotice { action, due });
        }
    }

    /// Notifies the task of a change. A restart is stored with the notification; signals and scripts stay due until
    /// they have ended.
    pub(super) fn settle(&mut self, index: TaskIndex, part: TaskPart) {
        let Some(owed) = self.known(index).and_then(|known| known.owed.get(&part)).cloned() else { return };
        match owed.action {
            ChangeAction::Restart(why) => {
                self.note(index, TaskEventKind::RestartSignaled, why);
                if let Some(known) = self.known_mut(index) {
                    known.restart_requested = true;
                    known.owed.remove(&part);
                }
                if part == TaskPart::Templates && self.spec.policy().parallel_restarts.is_some() {
                    self.state.durable.takes_turn = true;
                }
            }
            ChangeAction::Signal(signals) => self.send_notices(index, part, (&signals, &BTreeSet::new())),
            ChangeAction::Run { signals, scripts } => self.send_notices(index, part, (&signals, &scripts)),
        }
    }

    /// Sends the signals and runs the scripts.
    fn send_notices(
        &mut self,
        task: TaskIndex,
        part: TaskPart,
        (signals, scripts): (&BTreeSet<String>, &BTreeSet<TemplateIndex>),
    ) {
        let Some(known) = self.known(task) else { return };
        let Some(revision) = known.owed.get(&part).map(|owed| owed.revision) else { return };
        let Some(attempt) = known.signalled_attempt() else { return };
        let text = (part == TaskPart::Templates).then_some(RENDERED);
        for signal in signals {
            if let Some(sent) = self.send_signal(task, signal, text) {
                let notice = Notice::Signal(signal.clone());
                let in_flight = NoticeInFlight { task, attempt, part, revision, notice };
                self.state.notices_in_flight.insert(sent, in_flight);
            }
        }
        for script in scripts {
            if let Some(sent) = self.run_script(task, *script) {
                let notice = Notice::Script(*script);
                let in_flight = NoticeInFlight { task, attempt, part, revision, notice };
                self.state.notices_in_flight.insert(sent, in_flight);
            }
        }
        self.on_notice_delivered(task, part, revision);
    }

    /// A signal has arrived, or a script has ended. What an attempt that is gone would have done does not concern the
    /// next one, which has started with the new facts.
    pub(super) fn notice_ended(&mut self, ended: NoticeInFlight, outcome: &Outcome) {
        let NoticeInFlight { task, attempt, part, revision, notice } = ended;
        if self.known(task).and_then(|known| known.signalled_attempt()) != Some(attempt) {
            return;
        }
        // The driver can't deliver it now.
        let is_delayed = matches!(outcome, Outcome::Failed { class: FailureClass::Retry, .. });
        let later = match notice {
            Notice::Signal(signal) => {
                is_delayed.then(|| (ChangeAction::Signal([signal].into()), SIGNAL_RETRY))
            }
            Notice::Script(script) if is_delayed && self.may_run_later(task, script) => {
                Some((ChangeAction::run(BTreeSet::new(), [script].into()), SCRIPT_RETRY))
            }
            Notice::Script(script) => {
                self.state.delayed_scripts.remove(&(task, script));
                self.note_script(task, script, outcome);
                None
            }
        };
        if let Some((action, delay)) = later {
            let due = Deadline::after(self.now, delay);
            self.send_later(task, part, LaterNotice { action, due });
        }
        self.on_notice_delivered(task, part, revision);
    }

    /// Adds to what is left once the notices in flight have ended.
    fn send_later(&mut self, task: TaskIndex, part: TaskPart, more: LaterNotice) {
        let later = match self.state.later_notices.remove(&(task, part)) {
            Some(LaterNotice { action, due }) => LaterNotice { action: action.merged(more.action), due },
            None => more,
        };
        self.state.later_notices.insert((task, part), later);
    }

    /// Once nothing is in flight for this part any more, the task has been notified of all but later changes.
    fn on_notice_delivered(&mut self, task: TaskIndex, part: TaskPart, revision: Revision) {
        if self.state.is_notice_in_flight(task, part) {
            return;
        }
        let later = self.state.later_notices.remove(&(task, part));
        if self.known(task).is_none_or(|known| !known.owed.contains_key(&part)) {
            return;
        }
        let Some(known) = self.known_mut(task) else { return };
        match later {
            Some(LaterNotice { action, due }) => {
                if let Some(owed) = known.owed.get_mut(&part) {
                    (owed.action, owed.due) = (action, due);
                }
            }
            None => {
                known.owed.remove(&part);
                if let Some(launch) = &mut known.launch {
                    Arc::make_mut(launch).revisions.insert(Part::Task(task, part), revision);
                }
            }
        }
    }
}
