//! Paths into a tree: `spec.groups[0].env["a.b"]`.
//!
//! In: steps, linked on the stack during a walk, so that a path costs nothing until it is formatted. Out: its
//! text, and the parsed steps of a text. This module must not know what the names mean.

use std::fmt;

/// The path from the root to the current node of a walk, linked backwards through the walk's stack frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trail<'a> {
    parent: Option<&'a Trail<'a>>,
    step: Step<'a>,
}

/// A step in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// The start of the walk, which may be inside a larger tree, as a path.
    Begin(&'a str),
    Field(&'a str),
    /// An index in a list, from 0.
    Item(usize),
}

impl<'a> Trail<'a> {
    /// Begins a walk at a path; empty for the root.
    pub(crate) fn begin(path: &'a str) -> Self {
        Self { parent: None, step: Step::Begin(path) }
    }

    pub(crate) fn field<'b>(&'b self, name: &'b str) -> Trail<'b> {
        Trail { parent: Some(self), step: Step::Field(name) }
    }

    pub(crate) fn item(&self, index: usize) -> Trail<'_> {
        Trail { parent: Some(self), step: Step::Item(index) }
    }
}

impl fmt::Display for Trail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = Vec::new();
        let mut trail = Some(self);
        while let Some(at) = trail {
            steps.push(at.step);
            trail = at.parent;
        }
        steps.reverse();
        write_steps(f, &steps)
    }
}

/// Formats steps as a path.
pub(crate) fn write_steps(out: &mut impl fmt::Write, steps: &[Step<'_>]) -> fmt::Result {
    let mut first = true;
    for step in steps {
        match step {
            Step::Begin("") => continue,
            Step::Begin(path) => out.write_str(path)?,
            Step::Item(index) => write!(out, "[{index}]")?,
            Step::Field(name) if is_plain(name) && first => out.write_str(name)?,
            Step::Field(name) if is_plain(name) => write!(out, ".{name}")?,
            Step::Field(name) => match name.char_indices().nth(NAME_CHARS_MAX) {
                Some((end, _)) => write!(out, "[{:?}]", format!("{}…", &name[..end]))?,
                None => write!(out, "[{name:?}]")?,
            },
        }
        first = false;
    }
    Ok(())
}

/// Parses a path into unquoted names and indexes; `None` if it is malformed.
pub(crate) fn parse(path: &str) -> Option<Vec<OwnedStep>> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, after) = take_quoted(quoted)?;
            steps.push(OwnedStep::Field(name));
            rest = after.strip_prefix(']')?;
        } else if let Some(bracket) = rest.strip_prefix('[') {
            let (index, after) = bracket.split_once(']')?;
            steps.push(OwnedStep::Item(index.parse().ok()?));
            rest = after;
        } else {
            let name = if steps.is_empty() { rest } else { rest.strip_prefix('.')? };
            let end = name.find(['.', '[']).unwrap_or(name.len());
            if end == 0 {
                return None;
            }
            steps.push(OwnedStep::Field(name[..end].to_owned()));
            rest = &name[end..];
        }
    }
    Some(steps)
}

/// A parsed step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnedStep {
    Field(String),
    /// An index in a list, from 0.
    Item(usize),
}

/// Maximum length of a name before it is truncated in a formatted path.
const NAME_CHARS_MAX: usize = 60;

/// Returns whether a name needs no quotes in a path.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_CHARS_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

fn take_quoted(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((name, &text[at + 1..])),
            '\\' => name.push(chars.next()?.1),
            char => name.push(char),
        }
    }
    None
}
