//! Applies the facts that parts have produced: stores them where the table demands it, passes them on to their readers,
//! and notifies a running task of changes that concern it.

use std_alloc::{collections::BTreeSet, string::String, sync::Arc};

use herdlet_api_types::{Duration, task::TaskEventKind};

use super::{Writer, mark_for_inspection};
use crate::{
    action::Outcome,
    backoff::fraction,
    facts::{ChangeAction, Facts, Notification, Owed, Revision},
    op::{Part, TaskIndex, TaskPart, TemplateIndex},
    parts::{Memory, Need, Read, ReadWhen, TASK_PARTS},
    state::{Doing, NoticeInFlight, Run, TaskState},
    time::Deadline,
};

/// Nomad's text for a signal after a render.
const RENDERED: &str = "Template re-rendered";

impl Writer<'_> {
    /// Replaces the facts of a part with new ones, which concern the task if it runs.
    pub(super) fn set_facts(&mut self, part: Part, doing: Doing, reported: Option<Arc<Facts>>) {
        let is_renewed = doing == Doing::Renew || self.is_changing(part);
        if reported.is_none() && !is_renewed {
            return;
        }
        let before = self.state.facts.get(part).cloned();
        let known = before.as_ref().map(|facts| facts.revision).or_else(|| self.stored_revision(part));
        let counted = match known {
            Some(known) if !is_renewed => known,
            Some(_) | None => known.unwrap_or_default().next(),
        };
        let facts = as_revision(reported.unwrap_or_default(), counted);
        let is_news = known.map_or(is_renewed, |known| known != facts.revision);
        let action = self.concern(part, before.as_deref(), &facts).filter(|_| is_news);
        self.owe(part, action, facts.revision);
        if before.as_ref() == Some(&facts) {
            return;
        }
        if part.row().memory == Memory::Stored {
            self.state.durable.facts.insert(part, facts.clone());
        }
        self.state.facts.set(part, facts);
        if before.is_some() {
            self.inspect_readers(part);
        }
    }

    /// A renewal begins: if the agent dies during it, the next agent knows that the task may have to be notified.
    pub(super) fn expect_change(&mut self, part: Part) {
        let Part::Task(index, own) = part else { return };
        let before = self.state.facts.get(part).cloned().unwrap_or_default();
        let after = Facts { revision: before.revision.next(), ..Facts::clone(&before) };
        if self.concern(part, Some(&before), &after).is_some()
            && let Some(known) = self.known_mut(index)
        {
            known.changing.insert(own);
        }
    }

    /// Notifies the task of a change. A restart is stored with the notification; a signal stays due until it has
    /// arrived.
    pub(super) fn settle(&mut self, index: TaskIndex, part: TaskPart) {
        let Some(known) = self.known(index) else { return };
        let Some(owed) = known.owed.get(&part).cloned() else { return };
        match owed.action {
            ChangeAction::Restart(why) => {
                self.note(index, TaskEventKind::RestartSignaled, why);
                if let Some(known) = self.known_mut(index) {
                    known.restart_requested = true;
                    known.owed.remove(&part);
                }
            }
            ChangeAction::Signal(signals) => self.send_notices(index, part, (&signals, &BTreeSet::new())),
            ChangeAction::Run { signals, scripts } => self.send_notices(index, part, (&signals, &scripts)),
        }
    }

    /// Sends the signals and runs the scripts. They stay owed until the last one has arrived.
    fn send_notices(
        &mut self,
        task: TaskIndex,
        part: TaskPart,
        (signals, scripts): (&BTreeSet<String>, &BTreeSet<TemplateIndex>),
    ) {
        let Some(known) = self.known(task) else { return };
        let Some(revision) = known.owed.get(&part).map(|owed| owed.revision) else { return };
        let notice = NoticeInFlight { task, part, revision, script: None };
        for signal in signals {
            if let Some(sent) =
                self.send_signal(task, signal, (part == TaskPart::Templates).then_some(RENDERED))
            {
                self.state.notices_in_flight.insert(sent, notice);
            }
        }
        for script in scripts {
            if let Some(sent) = self.run_script(task, *script) {
                self.state.notices_in_flight.insert(sent, NoticeInFlight { script: Some(*script), ..notice });
            }
        }
        self.on_notice_delivered(notice);
    }

    /// A signal has arrived, or a script has ended, or there was no process left.
    pub(super) fn notice_ended(&mut self, notice: NoticeInFlight, outcome: &Outcome) {
        if let Some(script) = notice.script {
            self.note_script(notice.task, script, outcome);
        }
        self.on_notice_delivered(notice);
    }

    /// Once nothing is in flight for this change any more, the task has been notified of it.
    fn on_notice_delivered(&mut self, notice: NoticeInFlight) {
        let NoticeInFlight { task, part, revision, script: _ } = notice;
        let is_same =
            |other: &NoticeInFlight| (other.task, other.part, other.revision) == (task, part, revision);
        if self.state.notices_in_flight.values().any(is_same) {
            return;
        }
        let is_settled =
            |known: &TaskState| known.owed.get(&part).is_some_and(|owed| owed.revision == revision);
        if !self.known(task).is_some_and(is_settled) {
            return;
        }
        if let Some(known) = self.known_mut(task) {
            known.owed.remove(&part);
            if let Some(launch) = &mut known.launch {
                Arc::make_mut(launch).revisions.insert(Part::Task(task, part), revision);
            }
        }
    }

    /// How a change of a part's facts concerns its task, if that runs.
    fn concern(&self, part: Part, before: Option<&Facts>, after: &Facts) -> Option<Notification> {
        let Part::Task(index, own) = part else { return None };
        (own.row().on_change)(self.task(index)?, before.unwrap_or(&Facts::none()), after)
    }

    /// Records a notification for a running task, together with one that is still owed. A task that has not begun reads
    /// the facts when it starts.
    pub(super) fn owe(&mut self, part: Part, notification: Option<Notification>, revision: Revision) {
        let Part::Task(index, own) = part else { return };
        let Some(known) = self.known(index) else { return };
        let has_begun = matches!(known.run, Run::Running { .. } | Run::Starting { .. });
        let notification = notification.filter(|_| has_begun);
        if notification.is_none() && !known.changing.contains(&own) {
            return;
        }
        let (now, seed) = (self.now, (self.spec.id, part, revision.0));
        let Some(known) = self.known_mut(index) else { return };
        known.changing.remove(&own);
        let Some(Notification { action, splay }) = notification else { return };
        let delay = Duration(fraction(splay.as_nanos(), seed));
        let owed = match known.owed.remove(&own) {
            Some(before) => Owed { action: before.action.merged(action), revision, due: before.due },
            None => Owed { action, revision, due: Deadline::after(now, delay) },
        };
        known.owed.insert(own, owed);
    }

    fn is_changing(&self, part: Part) -> bool {
        let Part::Task(index, own) = part else { return false };
        self.known(index).is_some_and(|known| known.changing.contains(&own))
    }

    /// The newest stored revision: the one that the running attempt must still be notified of, or else the one it has
    /// read.
    fn stored_revision(&self, part: Part) -> Option<Revision> {
        let Part::Task(index, own) = part else { return None };
        let known = self.known(index)?;
        let launched = || known.launch_of(known.attempt)?.revisions.get(&part).copied();
        known.owed.get(&own).map(|owed| owed.revision).or_else(launched)
    }

    /// Drops the facts of a part that is gone.
    pub(super) fn remove_facts(&mut self, part: Part) {
        self.state.facts.remove(part);
        if self.state.durable.facts.contains_key(&part) {
            self.state.durable.facts.remove(&part);
        }
    }

    /// The part is about to be brought up: records that it may exist, because its catalogue can't always be asked.
    pub(super) fn expect_part(&mut self, part: Part) {
        if part.row().memory == Memory::MayExist && part.services(self.spec).is_none() {
            self.remember_offer(part);
        }
    }

    /// Records that the part may exist.
    pub(super) fn remember_offer(&mut self, part: Part) {
        if !self.state.durable.may_be_held(part) {
            self.state.durable.offer(part);
        }
    }

    /// Causes an inspection of the parts that read these facts live.
    fn inspect_readers(&mut self, source: Part) {
        let tasks: core::ops::Range<TaskIndex> = 0..self.task_count();
        let own = [Part::Services, Part::Checks].into_iter();
        let of_tasks =
            tasks.flat_map(|index| TASK_PARTS.into_iter().map(move |row| Part::Task(index, row.part)));
        for reader in own.chain(of_tasks) {
            let reads =
                |read: &Read| read.when == ReadWhen::Live && read.source.part(reader.task()) == Some(source);
            if reader.row().reads.iter().any(reads) && self.spec.need(reader) == Need::Needed {
                mark_for_inspection(reader, self.state);
            }
        }
    }
}

/// Keeps the facts' own revision, or sets the counted one.
fn as_revision(facts: Arc<Facts>, counted: Revision) -> Arc<Facts> {
    if facts.revision != Revision::COUNTED {
        return facts;
    }
    Arc::new(Facts { revision: counted, ..Facts::clone(&facts) })
}
