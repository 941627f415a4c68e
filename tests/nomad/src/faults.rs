//! Faults of answers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use herdlet_nomad::wire::AllocId;

/// What goes wrong with a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The answer is an error with this text, and the call has no effect.
    Error(String),
    /// The call takes effect, and the answer is an error with this text.
    Late(String),
    /// The call takes effect at once, and the answer is delayed.
    Slow(Duration),
    /// The call takes effect, and the connection breaks before the answer.
    Drop,
    /// There is no answer.
    Hang,
    /// An empty list is returned at once, with this index.
    EmptyList(u64),
    /// The call takes effect, and each field of the answer is a list.
    WrongTypes,
    /// The answer consists of these bytes.
    Raw(Vec<u8>),
    /// These allocations are missing from the answer.
    Missing(Vec<AllocId>),
}

/// Faults for the next calls, by method.
#[derive(Debug, Default)]
pub struct Faults(BTreeMap<String, VecDeque<Fault>>);

impl Faults {
    /// The next `times` calls of a method fail in this way.
    pub fn add(&mut self, method: &str, times: usize, fault: &Fault) {
        let waiting = self.0.entry(method.to_owned()).or_default();
        waiting.extend(std::iter::repeat_n(fault.clone(), times));
    }

    /// The fault of a call that arrives now.
    pub fn next(&mut self, method: &str) -> Option<Fault> {
        self.0.get_mut(method)?.pop_front()
    }

    /// Removes all faults.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
