//! What validation found in one document.
//!
//! In: sentences, and the trail to what they are about. Out: placed problems and warnings. A sentence that only follows
//! from something that could not be read ("there is no such volume" when the volumes are unreadable) is left out.

use crate::yaml::{Document, PathStep, Problem, Problems, Trail, parse_path};

/// Findings in the making.
pub(super) struct Findings<'d> {
    /// The document they are about.
    pub(super) document: &'d Document,
    /// Paths of what could not be read.
    lost: Vec<String>,
    pub(super) problems: Problems,
    /// What is accepted, but worth saying.
    pub(super) warnings: Vec<Problem>,
}

impl<'d> Findings<'d> {
    /// Nothing was found yet.
    pub(super) fn new(document: &'d Document, lost: Vec<String>) -> Self {
        Self { document, lost, problems: Problems::new(), warnings: Vec::new() }
    }

    /// Something is wrong.
    pub(super) fn problem(&mut self, at: &Trail<'_>, message: impl Into<String>) {
        self.problems.push(self.document.problem(&at.to_string(), message));
    }

    /// Something is not there; left out when it may be in a part that could not be read.
    pub(super) fn absent(&mut self, within: &Trail<'_>, at: &Trail<'_>, message: impl Into<String>) {
        self.absent_with(within, at, || message.into());
    }

    /// The same for a message that is costly to find, as one that names the nearest of many is.
    pub(super) fn absent_with(
        &mut self,
        within: &Trail<'_>,
        at: &Trail<'_>,
        message: impl FnOnce() -> String,
    ) {
        if !self.is_unread(within) {
            let is_told = self.problems.len() < Problems::SHOWN_MAX;
            self.problem(at, if is_told { message() } else { "refers to what is not there".to_owned() });
        }
    }

    /// Something that follows from the job's type; left out when that could not be read.
    pub(super) fn of_type(&mut self, at: &Trail<'_>, message: impl Into<String>) {
        self.absent(&Trail::begin("spec").field("type"), at, message);
    }

    /// Something is accepted, but worth saying.
    pub(super) fn warning(&mut self, at: &Trail<'_>, message: impl Into<String>) {
        if self.warnings.len() < Problems::SHOWN_MAX {
            self.warnings.push(self.document.problem(&at.to_string(), message));
        }
    }

    /// Whether a list or map, something around it, one of its items or an item's name could not be read.
    pub(super) fn is_unread(&self, within: &Trail<'_>) -> bool {
        let within = within.to_string();
        self.lost
            .iter()
            .any(|lost| below(&within, lost).is_some() || below(lost, &within).is_some_and(is_item))
    }
}

/// What follows in a path after another that it leads through.
fn below<'p>(path: &'p str, outer: &str) -> Option<&'p str> {
    path.strip_prefix(outer).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Whether the rest of a path is one step, or leads to the name of an item.
fn is_item(rest: &str) -> bool {
    let steps = parse_path(rest.strip_prefix('.').unwrap_or(rest)).unwrap_or_default();
    match steps.as_slice() {
        [] | [_] => true,
        [_, PathStep::Field(name)] => name == "name",
        _ => false,
    }
}
