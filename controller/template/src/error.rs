//! Errors of templates, with their position in the text.

use std::{fmt, sync::Arc};

/// A place in the text of a template. Lines and columns begin with 1; a column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    /// Returns the position of the byte `at`.
    pub(crate) fn of(source: &str, at: usize) -> Self {
        let mut end = at.min(source.len());
        while !source.is_char_boundary(end) {
            end -= 1;
        }
        let before = &source[..end];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text is not a template.
    Syntax,
    /// The template does not fit its data: a missing key, a wrong type, a function's error.
    Evaluation,
    /// A function or a source is not available.
    Refused,
    /// A bound was exceeded.
    Limit,
}

/// Why a template cannot be parsed or rendered. Its text contains data of the template, and so maybe secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    /// The name of the template: its path, or what describes it.
    pub name: Arc<str>,
    pub position: Position,
    /// The part of the text that failed; empty for syntax errors.
    pub context: String,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.position;
        write!(f, "{}:{line}:{column}: ", self.name)?;
        if !self.context.is_empty() {
            write!(f, "at <{}>: ", self.context)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// An error before its position is known. Boxed: every value is returned beside one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault(Box<FaultDetails>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FaultDetails {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// The bytes of the text that failed, once known.
    pub(crate) span: Option<(u32, u32)>,
}

impl Fault {
    #[cold]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Evaluation, message)
    }

    #[cold]
    fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(FaultDetails { kind, message: message.into(), span: None }))
    }

    /// The text is not a template.
    pub(crate) fn syntax(message: impl Into<String>, span: (u32, u32)) -> Self {
        Self::of_kind(ErrorKind::Syntax, message).at(span)
    }

    pub(crate) fn into_details(self) -> FaultDetails {
        *self.0
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Refused, message)
    }

    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Limit, message)
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Sets the place, unless an inner one is known.
    #[cold]
    pub(crate) fn at(mut self, span: (u32, u32)) -> Self {
        self.0.span.get_or_insert(span);
        self
    }

    /// Adds the name of the function that failed.
    #[cold]
    pub(crate) fn of_call(mut self, function: &str) -> Self {
        let details = &mut *self.0;
        if details.span.is_none() && details.kind == ErrorKind::Evaluation {
            details.message = format!("{function}: {}", details.message);
        }
        self
    }
}

pub(crate) type Outcome<T> = Result<T, Fault>;
