//! The variables of a render. Look-ups do not depend on the number of variables.

use crate::{ast::VariableId, value::Value};

/// Visible variables; of several with one name, the last counts.
pub(super) struct Variables {
    declared: Vec<Declared>,
    /// For each id, the place of its last declaration, plus 1.
    last: Vec<usize>,
    /// The first declaration of the template in progress. Those before it belong to its callers.
    first: usize,
}

struct Declared {
    id: VariableId,
    value: Value,
    /// What `last` was before.
    shadowed: usize,
}

/// Where the variables of a caller end.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    length: usize,
    first: usize,
}

impl Variables {
    pub(super) fn new() -> Self {
        Self { declared: Vec::new(), last: Vec::new(), first: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.declared.len()
    }

    pub(super) fn declare(&mut self, id: VariableId, value: Value) {
        let at = usize::from(id);
        if at >= self.last.len() {
            self.last.resize(at + 1, 0);
        }
        self.declared.push(Declared { id, value, shadowed: self.last[at] });
        self.last[at] = self.declared.len();
    }

    /// Forgets all declarations but the first ones.
    pub(super) fn truncate(&mut self, length: usize) {
        while self.declared.len() > length {
            let Some(declared) = self.declared.pop() else { return };
            self.last[usize::from(declared.id)] = declared.shadowed;
        }
    }

    pub(super) fn get(&self, id: VariableId) -> Option<&Value> {
        self.place(id).map(|at| &self.declared[at].value)
    }

    pub(super) fn get_mut(&mut self, id: VariableId) -> Option<&mut Value> {
        self.place(id).map(|at| &mut self.declared[at].value)
    }

    /// Replaces the value of a declaration.
    pub(super) fn set(&mut self, at: usize, value: Value) {
        self.declared[at].value = value;
    }

    /// Begins a template, which sees no variable of its caller.
    pub(super) fn enter(&mut self) -> Frame {
        let frame = Frame { length: self.declared.len(), first: self.first };
        self.first = frame.length;
        frame
    }

    pub(super) fn leave(&mut self, frame: Frame) {
        self.truncate(frame.length);
        self.first = frame.first;
    }

    fn place(&self, id: VariableId) -> Option<usize> {
        let at = self.last.get(usize::from(id))?.checked_sub(1)?;
        (at >= self.first).then_some(at)
    }
}
