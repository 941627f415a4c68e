//! Problems of a text, with their positions and remedies.
//!
//! In: problems in any order, from the parser, the schema check and validation. Out: the first hundred by
//! position, as lines or JSON. This module must not know what the texts are about.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in a source text. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// A problem at one place of a text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    /// Name of the text as its author knows it: a file name, or `<stdin>`.
    pub source: String,
    /// Line, from 1; 0 for the text as a whole.
    pub line: u32,
    /// Column in characters, from 1; 0 for the text as a whole.
    pub column: u32,
    /// Path in the data, such as `spec.groups[0].tasks[1].resources.cpu`; empty for the whole document.
    pub path: String,
    /// What is wrong and, where possible, what to write instead. Follows the path in output.
    pub message: String,
}

impl Problem {
    pub fn position(&self) -> Position {
        Position { line: self.line, column: self.column }
    }

    /// Returns whether another problem at the same position differs only in the indexes of list items.
    fn differs_only_in_indexes(&self, other: &Self) -> bool {
        fn without_indexes(path: &str) -> impl Iterator<Item = &str> {
            path.split('[').map(|part| part.trim_start_matches(|char: char| char.is_ascii_digit()))
        }
        self.message == other.message
            && self.line > 0
            && without_indexes(&self.path).eq(without_indexes(&other.path))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Problem {}

/// Problems, ordered by source and position.
///
/// Keeps the first [`Problems::SHOWN_MAX`] and counts the rest, which bounds the memory for a hostile text.
/// Displays one problem per line, then `and N more`. As JSON: `{"problems": [...], "more": N}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problems {
    /// Sorted, at most [`Problems::SHOWN_MAX`].
    problems: Vec<Problem>,
    /// Number of problems beyond `problems`.
    more: usize,
}

impl Problems {
    /// Maximum number of problems kept: people correct the first few and try again.
    pub const SHOWN_MAX: usize = 100;

    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Total number of problems, kept or not.
    pub fn len(&self) -> usize {
        self.problems.len() + self.more
    }

    /// Number of problems that were only counted.
    pub fn more(&self) -> usize {
        self.more
    }

    /// The kept problems, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.problems.iter()
    }

    /// Inserts a problem in order, after others at the same position. Drops it if it repeats a problem at the
    /// same position, as when an alias repeats a mistake in other items of a list.
    pub fn push(&mut self, problem: Problem) {
        let place = (problem.source.as_str(), problem.position());
        let place_of = |other: &Problem| (other.source.as_str(), other.position()).cmp(&place);
        let first = self.problems.partition_point(|other| place_of(other).is_lt());
        let at = self.problems.partition_point(|other| place_of(other).is_le());
        if self.problems[first..at].iter().any(|other| other.differs_only_in_indexes(&problem)) {
            return;
        }
        if at < Self::SHOWN_MAX {
            self.problems.insert(at, problem);
        } else {
            self.more += 1;
        }
        if self.problems.len() > Self::SHOWN_MAX {
            self.problems.truncate(Self::SHOWN_MAX);
            self.more += 1;
        }
    }

    /// Inserts a problem; all must have the same source. Its text is built only if it is kept.
    pub(crate) fn push_with(&mut self, position: Position, problem: impl FnOnce() -> Problem) {
        let full = self.problems.len() >= Self::SHOWN_MAX;
        if full && self.problems.last().is_some_and(|last| last.position() <= position) {
            self.more += 1;
        } else {
            self.push(problem());
        }
    }

    /// Adds to the number of problems that were only counted.
    pub(crate) fn add_more(&mut self, more: usize) {
        self.more += more;
    }

    pub fn append(&mut self, others: Self) {
        self.add_more(others.more);
        for problem in others.problems {
            self.push(problem);
        }
    }

    /// The kept problems, in order.
    pub fn into_vec(self) -> Vec<Problem> {
        self.problems
    }

    /// Returns an error if there are problems.
    ///
    /// # Errors
    /// The problems.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem], more: 0 }
    }
}

impl Extend<Problem> for Problems {
    fn extend<I: IntoIterator<Item = Problem>>(&mut self, problems: I) {
        for problem in problems {
            self.push(problem);
        }
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, problem) in self.problems.iter().enumerate() {
            if nth > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
