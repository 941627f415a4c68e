//! Applies the facts that parts have produced: stores them where the table demands it, passes them on to their readers,
//! and finds changes that concern a running task.

use std_alloc::sync::Arc;

use super::{Writer, mark_for_inspection};
use crate::{
    facts::{Facts, Notification, Revision},
    launch::Launch,
    op::{Part, TaskIndex, TaskPart},
    parts::{Memory, Need, Read, ReadWhen, Source, TASK_PARTS},
    state::Doing,
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
        let facts = with_revision(reported.unwrap_or_default(), counted);
        let is_news = known.map_or(is_renewed, |known| known != facts.revision);
        let action = self.concern(part, before.as_deref(), &facts).filter(|_| is_news);
        self.owe(part, action, facts.revision);
        if before.as_ref() == Some(&facts) {
            return;
        }
        if part.row().is_stored() && self.state.durable.facts.get(&part) != Some(&facts) {
            self.state.durable.facts.insert(part, facts.clone());
        }
        if part == Part::Network && facts.network.is_some() && facts.network != self.state.durable.network {
            self.state.durable.network.clone_from(&facts.network);
        }
        self.state.facts.set(part, facts);
        if let Some(before) = before {
            self.complete_launches(part, before.revision);
            self.inspect_readers(part);
        }
    }

    /// Facts of an allocation's part change. Running attempts without a complete launch record, as their state was lost, have
    /// read the value before or an older one.
    fn complete_launches(&mut self, source: Part, read: Revision) {
        for index in 0..self.task_count() {
            let mut reads = Part::Task(index, TaskPart::Process).row().reads.iter();
            if !reads.any(|read| read.source == Source::Shared(source)) {
                continue;
            }
            let Some(known) = self.known(index) else { continue };
            let Some(attempt) = known.live_attempt() else { continue };
            let launch = known.launch_of(attempt).map(|launch| Launch::clone(launch));
            let mut launch = launch.unwrap_or_else(|| Launch::of(attempt));
            if launch.revisions.contains_key(&source) {
                continue;
            }
            launch.revisions.insert(source, read);
            if let Some(known) = self.known_mut(index) {
                known.launch = launch.into_record();
            }
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

    /// How a change of a part's facts concerns its task, if that runs.
    fn concern(&self, part: Part, before: Option<&Facts>, after: &Facts) -> Option<Notification> {
        let Part::Task(index, own) = part else { return None };
        (own.row().on_change)(self.task(index)?, before.unwrap_or(&Facts::none()), after)
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
        let of_tasks =
            tasks.flat_map(|index| TASK_PARTS.into_iter().map(move |row| Part::Task(index, row.part)));
        for reader in Part::OWN.into_iter().chain(of_tasks) {
            let reads =
                |read: &Read| read.when == ReadWhen::Live && read.source.part(reader.task()) == Some(source);
            if reader.row().reads.iter().any(reads) && self.spec.need(reader) == Need::Needed {
                mark_for_inspection(reader, self.state);
            }
        }
    }
}

/// Keeps the facts' own revision, or derives it from their outputs, or else sets the counted one.
fn with_revision(facts: Arc<Facts>, counted: Revision) -> Arc<Facts> {
    if facts.revision != Revision::COUNTED {
        return facts;
    }
    let revision = if facts.outputs.is_empty() { counted } else { Revision::of_outputs(&facts.outputs) };
    Arc::new(Facts { revision, ..Facts::clone(&facts) })
}
