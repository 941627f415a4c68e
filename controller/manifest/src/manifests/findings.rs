//! Findings of validation in one document.
//!
//! In: messages, and the trail to their subject. Out: problems and warnings with positions. A message that
//! only follows from an unreadable part ("there is no such volume" if the volumes are unreadable) is dropped.

use crate::yaml::{Document, PathStep, Problem, Problems, Trail, parse_path};

/// Collects the findings of a document.
pub(super) struct Findings<'d> {
    pub(super) document: &'d Document,
    /// Paths of unreadable parts.
    lost: Vec<String>,
    pub(super) problems: Problems,
    /// Accepted, but worth reporting.
    pub(super) warnings: Vec<Problem>,
}

impl<'d> Findings<'d> {
    pub(super) fn new(document: &'d Document, lost: Vec<String>) -> Self {
        Self { document, lost, problems: Problems::new(), warnings: Vec::new() }
    }

    /// Adds a problem.
    pub(super) fn problem(&mut self, at: &Trail<'_>, message: impl Into<String>) {
        self.problems.push(self.document.problem(&at.to_string(), message));
    }

    /// Adds a problem at a path.
    pub(super) fn problem_at(&mut self, path: &str, message: impl Into<String>) {
        self.problems.push(self.document.problem(path, message));
    }

    /// Whether there is a problem at or below a field.
    pub(super) fn has_problem_in(&self, field: &Trail<'_>) -> bool {
        let field = field.to_string();
        self.problems.iter().any(|problem| below(&problem.path, &field).is_some())
    }

    /// Adds a problem at a line and column of a text.
    pub(super) fn problem_in_text(&mut self, at: &Trail<'_>, place: (usize, usize), message: &str) {
        self.problems.push(self.document.problem_in_text(&at.to_string(), place, message));
    }

    /// Reports a missing item, unless it may be in an unreadable part.
    pub(super) fn absent(&mut self, within: &Trail<'_>, at: &Trail<'_>, message: impl Into<String>) {
        self.absent_with(within, at, || message.into());
    }

    /// Like `absent`, for a message that is expensive to compute, such as a search for the nearest name.
    pub(super) fn absent_with(
        &mut self,
        within: &Trail<'_>,
        at: &Trail<'_>,
        message: impl FnOnce() -> String,
    ) {
        if !self.is_unread(within) {
            let is_told = self.problems.len() < Problems::SHOWN_MAX;
            self.problem(
                at,
                if is_told { message() } else { "refers to something that does not exist".to_owned() },
            );
        }
    }

    /// Reports a problem that follows from the job's type, unless the type is unreadable.
    pub(super) fn of_type(&mut self, at: &Trail<'_>, message: impl Into<String>) {
        self.absent(&Trail::begin("spec").field("type"), at, message);
    }

    /// Adds a warning.
    pub(super) fn warning(&mut self, at: &Trail<'_>, message: impl Into<String>) {
        self.warning_at(&at.to_string(), message);
    }

    /// Adds a warning at a path.
    pub(super) fn warning_at(&mut self, path: &str, message: impl Into<String>) {
        if self.warnings.len() < Problems::SHOWN_MAX {
            self.warnings.push(self.document.problem(path, message));
        }
    }

    /// Returns whether a list or map, one of its ancestors, its items or an item's name is unreadable.
    pub(super) fn is_unread(&self, within: &Trail<'_>) -> bool {
        let within = within.to_string();
        self.lost
            .iter()
            .any(|lost| below(&within, lost).is_some() || below(lost, &within).is_some_and(is_item))
    }
}

/// Returns the rest of a path after a prefix of whole steps.
fn below<'p>(path: &'p str, outer: &str) -> Option<&'p str> {
    path.strip_prefix(outer).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Returns whether the rest of a path is one step, or the name of an item.
fn is_item(rest: &str) -> bool {
    let steps = parse_path(rest.strip_prefix('.').unwrap_or(rest)).unwrap_or_default();
    match steps.as_slice() {
        [] | [_] => true,
        [_, PathStep::Field(name)] => name == "name",
        _ => false,
    }
}
