//! Names of variables, and which of them are visible. Look-ups do not depend on the number of variables.

use std::collections::BTreeMap;

use crate::ast::{ROOT_VARIABLE, VariableId};

/// All names of variables of a text, with their ids.
pub(super) struct Names<'t>(BTreeMap<&'t str, VariableId>);

impl<'t> Names<'t> {
    pub(super) fn new() -> Self {
        Self(BTreeMap::from([("$", ROOT_VARIABLE)]))
    }

    pub(super) fn get(&self, name: &str) -> Option<VariableId> {
        self.0.get(name).copied()
    }

    /// Returns the id of a name; none if the text has too many names.
    pub(super) fn intern(&mut self, name: &'t str) -> Option<VariableId> {
        let next = VariableId::try_from(self.0.len()).ok();
        self.get(name).or_else(|| next.inspect(|id| _ = self.0.insert(name, *id)))
    }
}

/// The variables that are visible at a place.
pub(super) struct Scope {
    /// In the order of their declarations, which may repeat a name.
    declared: Vec<VariableId>,
    /// Declarations of each variable.
    counts: BTreeMap<VariableId, usize>,
}

impl Scope {
    /// The scope of a template: `$`.
    pub(super) fn new() -> Self {
        Self { declared: vec![ROOT_VARIABLE], counts: BTreeMap::from([(ROOT_VARIABLE, 1)]) }
    }

    pub(super) fn len(&self) -> usize {
        self.declared.len()
    }

    pub(super) fn contains(&self, id: VariableId) -> bool {
        self.counts.contains_key(&id)
    }

    pub(super) fn declare(&mut self, id: VariableId) {
        self.declared.push(id);
        *self.counts.entry(id).or_default() += 1;
    }

    /// Forgets all declarations but the first ones.
    pub(super) fn truncate(&mut self, length: usize) {
        for id in self.declared.drain(length.min(self.declared.len())..) {
            if let Some(count) = self.counts.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&id);
                }
            }
        }
    }
}
