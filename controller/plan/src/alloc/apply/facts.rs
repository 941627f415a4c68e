//! What parts have produced: taken in, stored where the table says so, and passed on to those who read it.

use std_alloc::sync::Arc;

use super::{Writer, look_at};
use crate::{
    facts::Facts,
    op::{Part, TaskIndex},
    parts::{Memory, Need, Read, ReadWhen, TASK_PARTS},
};

impl Writer<'_> {
    /// What a part has produced takes the place of what it had.
    pub(super) fn learn_facts(&mut self, part: Part, facts: Arc<Facts>) {
        let before = self.state.facts.get(part).cloned();
        if before.as_ref() == Some(&facts) {
            return;
        }
        if part.row().memory == Memory::Stored {
            self.state.durable.facts.insert(part, facts.clone());
        }
        self.state.facts.learn(part, facts);
        if before.is_some() {
            self.look_at_readers(part);
        }
    }

    /// The part is gone, and what it had produced.
    pub(super) fn forget_facts(&mut self, part: Part) {
        self.state.facts.forget(part);
        if self.state.durable.facts.contains_key(&part) {
            self.state.durable.facts.remove(&part);
        }
    }

    /// It is about to be brought up: whoever holds it can't always be asked.
    pub(super) fn expect_part(&mut self, part: Part) {
        if part.row().memory == Memory::MayExist && part.services(self.spec).is_none() {
            self.remember_offer(part);
        }
    }

    /// From now on the part may exist.
    pub(super) fn remember_offer(&mut self, part: Part) {
        if !self.state.durable.may_be_held(part) {
            self.state.durable.offer(part);
        }
    }

    /// Parts that read these facts as they are now may be other than they should be.
    fn look_at_readers(&mut self, source: Part) {
        let tasks: core::ops::Range<TaskIndex> = 0..self.task_count();
        let own = [Part::Services, Part::Checks].into_iter();
        let of_tasks =
            tasks.flat_map(|index| TASK_PARTS.into_iter().map(move |row| Part::Task(index, row.part)));
        for reader in own.chain(of_tasks) {
            let reads =
                |read: &Read| read.when == ReadWhen::Live && read.source.part(reader.task()) == Some(source);
            if reader.row().reads.iter().any(reads) && self.spec.need(reader) == Need::Needed {
                look_at(reader, self.state);
            }
        }
    }
}
