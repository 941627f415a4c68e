//! One layer of the environment: variables that may refer to each other.
//!
//! In: the environment so far, names with texts. Out: the environment with their values. Deterministic: entries are
//! resolved in the order of their dependencies, regardless of the order in which they were written.
//!
//! | an entry refers to | its value contains |
//! | --- | --- |
//! | itself (`PATH=${PATH}:/opt/bin`) | the value of an earlier layer |
//! | another entry of the layer | that entry's value |
//! | an entry that refers back to it, even indirectly | `${…}` as written |
//! | anything else | the environment's or the node's value, else `${…}` as written |

use std_alloc::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use super::{TaskEnv, VALUES_BYTES_MAX, Variables, key};
use crate::interpolate::{OUTPUT_BYTES_MAX, replace, variables};

/// Texts by name.
pub(super) type Layer<'a> = BTreeMap<Cow<'a, str>, &'a str>;

pub(super) fn borrowed(entries: &Variables) -> Layer<'_> {
    entries.iter().map(|(name, text)| (Cow::Borrowed(name.as_str()), text.as_str())).collect()
}

pub(super) fn add(env: &mut TaskEnv, layer: Layer<'_>) {
    let mut open = Open::new(&layer);
    loop {
        while let Some(index) = open.ready.pop_first() {
            let value = replace(open.entries[index].text, room(env), |name| env.get(name));
            open.settle(env, index, value);
        }
        // The rest is on a cycle or depends on one. Settling the cycles makes it ready.
        let cyclic = open.cyclic();
        if cyclic.is_empty() {
            return;
        }
        let names: BTreeSet<&str> = cyclic.iter().map(|&index| open.entries[index].name.as_str()).collect();
        let known =
            |name: &str| if names.contains(key::cleaned(name).as_ref()) { None } else { env.get(name) };
        let room = room(env) / cyclic.len();
        let values: Vec<String> =
            cyclic.iter().map(|&index| replace(open.entries[index].text, room, known)).collect();
        for (index, value) in cyclic.into_iter().zip(values) {
            open.settle(env, index, value);
        }
        open.ready.retain(|&index| !open.entries[index].settled);
    }
}

/// Maximum length of the next value.
fn room(env: &TaskEnv) -> usize {
    OUTPUT_BYTES_MAX.min(VALUES_BYTES_MAX.saturating_sub(env.bytes))
}

struct Entry<'a> {
    name: String,
    text: &'a str,
    /// Entries that it refers to, except itself.
    needs: BTreeSet<usize>,
    /// Entries that refer to it.
    needed_by: Vec<usize>,
    /// Number of `needs` that are not settled.
    waits: usize,
    settled: bool,
}

/// The entries of a layer while it is being added.
struct Open<'a> {
    entries: Vec<Entry<'a>>,
    /// Entries that wait for nothing.
    ready: BTreeSet<usize>,
}

impl<'a> Open<'a> {
    fn new(layer: &Layer<'a>) -> Self {
        let cleaned: BTreeMap<String, &'a str> =
            layer.iter().map(|(name, text)| (key::cleaned(name).into_owned(), *text)).collect();
        let index_of: BTreeMap<&str, usize> =
            cleaned.keys().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
        let mut entries: Vec<Entry<'a>> = cleaned
            .iter()
            .enumerate()
            .map(|(own, (name, text))| {
                let named = variables(text).filter_map(|name| index_of.get(key::cleaned(name).as_ref()));
                let needs: BTreeSet<usize> = named.copied().filter(|&index| index != own).collect();
                let waits = needs.len();
                Entry { name: name.clone(), text, needs, needed_by: Vec::new(), waits, settled: false }
            })
            .collect();
        for index in 0..entries.len() {
            for need in entries[index].needs.clone() {
                entries[need].needed_by.push(index);
            }
        }
        let ready = (0..entries.len()).filter(|&index| entries[index].waits == 0).collect();
        Self { entries, ready }
    }

    fn settle(&mut self, env: &mut TaskEnv, index: usize, value: String) {
        self.entries[index].settled = true;
        env.insert(self.entries[index].name.clone(), value);
        for dependent in self.entries[index].needed_by.clone() {
            self.entries[dependent].waits -= 1;
            if self.entries[dependent].waits == 0 {
                self.ready.insert(dependent);
            }
        }
    }

    /// Unsettled entries that other unsettled entries depend on: all cycles, and what lies between two of them.
    fn cyclic(&self) -> Vec<usize> {
        let mut left: BTreeSet<usize> =
            (0..self.entries.len()).filter(|&index| !self.entries[index].settled).collect();
        let mut users: Vec<usize> = self
            .entries
            .iter()
            .map(|entry| entry.needed_by.iter().filter(|&user| left.contains(user)).count())
            .collect();
        let mut unused: Vec<usize> = left.iter().copied().filter(|&index| users[index] == 0).collect();
        while let Some(index) = unused.pop() {
            left.remove(&index);
            for &need in self.entries[index].needs.iter().filter(|need| !self.entries[**need].settled) {
                users[need] -= 1;
                if users[need] == 0 {
                    unused.push(need);
                }
            }
        }
        left.into_iter().collect()
    }
}
