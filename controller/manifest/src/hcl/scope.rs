//! The names that an expression may refer to, and its work budget.
//!
//! In: `var`, `local`, and the names bound by loops. Out: values. Any other name resolves only when a task
//! runs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::source::Source;
use super::value::Value;
use crate::yaml::{Position, Problem, Problems};

/// Maximum number of values copied and expressions evaluated for one text. A large job file takes some
/// thousand.
const WORK_MAX: usize = 1_000_000;

/// The declarations of a text.
#[derive(Debug)]
pub(super) struct Scope<'s> {
    pub(super) source: &'s Source<'s>,
    /// `var.NAME`.
    pub(super) variables: BTreeMap<String, Value>,
    /// `local.NAME`.
    pub(super) locals: BTreeMap<String, Value>,
    pub(super) references: References,
    work: Cell<usize>,
    warnings: RefCell<Vec<Problem>>,
}

/// How to treat a bare name that only resolves when a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum References {
    /// As the text `${NAME}`: in a job.
    Kept,
    /// As an error: in a value for a variable.
    Refused,
}

/// Why an expression has no value.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The expression is wrong. `Exhausted` is separate because `try` and `can` must not catch it.
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

/// Names bound by enclosing loops, innermost first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<'b> {
    pub(super) name: &'b str,
    pub(super) value: &'b Value,
    pub(super) outer: Option<&'b Bound<'b>>,
}

impl<'s> Scope<'s> {
    /// The scope of a job file, without declarations.
    pub(super) fn new(source: &'s Source<'s>) -> Self {
        Self {
            source,
            variables: BTreeMap::new(),
            locals: BTreeMap::new(),
            references: References::Kept,
            work: Cell::new(0),
            warnings: RefCell::default(),
        }
    }

    /// The scope of literal values.
    pub(super) fn literal(source: &'s Source<'s>) -> Self {
        Self { references: References::Refused, ..Self::new(source) }
    }

    /// Adds a warning.
    pub(super) fn warn(&self, position: Position, message: impl Into<String>) {
        let mut warnings = self.warnings.borrow_mut();
        let warning = self.source.problem_at(position, message);
        if warnings.len() < Problems::SHOWN_MAX && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// Removes and returns all warnings.
    pub(super) fn take_warnings(&self) -> Vec<Problem> {
        self.warnings.take()
    }

    /// Charges work to the budget.
    pub(super) fn spend(&self, work: usize, position: Position) -> Result<(), Fault> {
        let spent = self.work.get().saturating_add(work);
        self.work.set(spent);
        if spent > WORK_MAX {
            let message = format!("the expressions up to here create more than {WORK_MAX} values");
            return Err(Fault::Exhausted(self.source.problem_at(position, message)));
        }
        Ok(())
    }

    /// Returns a problem at a position.
    pub(super) fn fail<T>(&self, position: Position, message: impl Into<String>) -> Result<T, Fault> {
        Err(Fault::Wrong(self.source.problem_at(position, message)))
    }
}

/// Looks up the value that an enclosing loop bound to a name.
pub(super) fn bound<'b>(mut bound: Option<&Bound<'b>>, name: &str) -> Option<&'b Value> {
    while let Some(binding) = bound {
        if binding.name == name {
            return Some(binding.value);
        }
        bound = binding.outer;
    }
    None
}
