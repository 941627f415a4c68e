//! What names mean in an expression, and how much work is left.
//!
//! In: `var`, `local`, and what loops bind. Out: values. What is none of these is known only when a task runs.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::source::Source;
use super::value::Value;
use crate::yaml::{Position, Problem};

/// Values copied and expressions evaluated for one text: a large job file takes some thousand.
const WORK_MAX: usize = 1_000_000;

/// Everything that a text has declared.
#[derive(Debug)]
pub(super) struct Scope<'s> {
    pub(super) source: &'s Source<'s>,
    /// `var.NAME`
    pub(super) variables: BTreeMap<String, Value>,
    /// `local.NAME`
    pub(super) locals: BTreeMap<String, Value>,
    work: Cell<usize>,
}

/// Why an expression has no value.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// It is wrong; or it asks for too much, which nothing may take for an ordinary mistake.
    Wrong(Problem),
    Exhausted(Problem),
}

impl Fault {
    pub(super) fn into_problem(self) -> Problem {
        match self {
            Self::Wrong(problem) | Self::Exhausted(problem) => problem,
        }
    }
}

/// Names bound by loops around an expression, innermost first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<'b> {
    pub(super) name: &'b str,
    pub(super) value: &'b Value,
    pub(super) outer: Option<&'b Bound<'b>>,
}

impl<'s> Scope<'s> {
    pub(super) fn new(source: &'s Source<'s>) -> Self {
        Self { source, variables: BTreeMap::new(), locals: BTreeMap::new(), work: Cell::new(0) }
    }

    /// Accounts for work.
    pub(super) fn spend(&self, work: usize, position: Position) -> Result<(), Fault> {
        let spent = self.work.get().saturating_add(work);
        self.work.set(spent);
        if spent > WORK_MAX {
            let message = format!("the expressions up to here make more than {WORK_MAX} values");
            return Err(Fault::Exhausted(self.source.problem_at(position, message)));
        }
        Ok(())
    }

    /// Something is wrong at a place.
    pub(super) fn wrong<T>(&self, position: Position, message: impl Into<String>) -> Result<T, Fault> {
        Err(Fault::Wrong(self.source.problem_at(position, message)))
    }
}

/// The value that a loop gave a name.
pub(super) fn bound<'b>(mut bound: Option<&Bound<'b>>, name: &str) -> Option<&'b Value> {
    while let Some(binding) = bound {
        if binding.name == name {
            return Some(binding.value);
        }
        bound = binding.outer;
    }
    None
}
