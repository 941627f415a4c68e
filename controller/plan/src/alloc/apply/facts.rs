//! Applies the facts that parts have produced: stores them where the table demands it, passes them on to their readers,
//! and notifies a running task of changes that concern it.

use std_alloc::sync::Arc;

use herdlet_api_types::{Duration, task::TaskEventKind};

use super::{Writer, mark_for_inspection};
use crate::{
    facts::{ChangeAction, Facts, Owed, Revision},
    op::{Part, TaskIndex, TaskPart},
    parts::{Memory, Need, Read, ReadWhen, TASK_PARTS},
    state::{Doing, Run, SignalledPart, TaskState},
    time::Deadline,
};

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
        let (name, Some(owed)) = (known.name.clone(), known.owed.get(&part).cloned()) else { return };
        match owed.action {
            ChangeAction::Restart(why) => {
                self.note(index, TaskEventKind::RestartSignaled, why);
                if let Some(known) = self.known_mut(index) {
                    known.restart_requested = true;
                    known.owed.remove(&part);
                }
            }
            ChangeAction::Signal(signals) => {
                let signalled = SignalledPart { task: index, part, revision: owed.revision };
                for signal in &signals {
                    if self.signal(Some(&name), signal).is_ok() {
                        self.state.signals_in_flight.insert(*self.generation, signalled);
                    }
                }
                self.on_signal_delivered(signalled);
            }
        }
    }

    /// A signal has arrived, or there was no process left to receive it.
    pub(super) fn on_signal_delivered(&mut self, signalled: SignalledPart) {
        let SignalledPart { task, part, revision } = signalled;
        if self.state.signals_in_flight.values().any(|other| *other == signalled) {
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
    fn concern(&self, part: Part, before: Option<&Facts>, after: &Facts) -> Option<ChangeAction> {
        let Part::Task(index, own) = part else { return None };
        (own.row().on_change)(self.task(index)?, before.unwrap_or(&Facts::none()), after)
    }

    /// Records a notification for a running task. A task that does not run reads the facts when it starts.
    fn owe(&mut self, part: Part, action: Option<ChangeAction>, revision: Revision) {
        let Part::Task(index, own) = part else { return };
        let Some(known) = self.known(index) else { return };
        let action = action.filter(|_| matches!(known.run, Run::Running { .. }));
        if action.is_none() && !known.changing.contains(&own) {
            return;
        }
        let due = Deadline::after(self.now, Duration::ZERO);
        if let Some(known) = self.known_mut(index) {
            known.changing.remove(&own);
            known.owed.extend(action.map(|action| (own, Owed { action, revision, due })));
        }
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
