//! What can be wrong with an answer.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use herdlet_nomad::wire::AllocId;

/// What goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The answer is an error with this text, and nothing is done.
    Error(String),
    /// What was asked is done, and the answer is an error with this text.
    Late(String),
    /// The answer comes so much later. What was asked is done at once.
    Slow(Duration),
    /// What was asked is done, and the connection breaks before the answer.
    Drop,
    /// There is no answer.
    Hang,
    /// A list comes at once, with this index and nothing in it.
    EmptyList(u64),
    /// What was asked is done, and each field of the answer is a list.
    WrongTypes,
    /// The answer is just these bytes.
    Raw(Vec<u8>),
    /// These allocations are missing from what is fetched.
    Missing(Vec<AllocId>),
}

/// Faults that wait for calls.
#[derive(Debug, Default)]
pub struct Faults(BTreeMap<String, VecDeque<Fault>>);

impl Faults {
    /// The next `times` calls of a method fail so.
    pub fn add(&mut self, method: &str, times: usize, fault: &Fault) {
        let waiting = self.0.entry(method.to_owned()).or_default();
        waiting.extend(std::iter::repeat_n(fault.clone(), times));
    }

    /// What goes wrong with a call that comes now.
    pub fn next(&mut self, method: &str) -> Option<Fault> {
        self.0.get_mut(method)?.pop_front()
    }

    /// Everything is well again.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
