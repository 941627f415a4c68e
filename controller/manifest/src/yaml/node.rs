//! The tree of a YAML text: values with their source text and position.
//!
//! In: the output of [`super::parse()`]. Out: nodes, and lookup of places by path. Nodes that aliases repeat
//! are shared. This module must not know what the names mean.

use std::sync::Arc;

use super::{
    path::{self, OwnedStep},
    printable::printable,
    problem::{Position, Problem},
};

#[derive(Debug, Clone)]
pub struct Document {
    pub source: Arc<str>,
    /// Index in the source, from 0. Empty documents don't count.
    pub index: usize,
    pub root: Arc<Node>,
}

/// A value with its source text and position.
///
/// A node that an alias repeats has the position of its anchor.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub value: Value,
    /// The text of a scalar: as written if plain, otherwise without quotes and escapes. Empty for lists, maps
    /// and absent values.
    pub text: Box<str>,
    pub style: Style,
    /// Where it begins; for an absent value, where its key begins.
    pub position: Position,
}

/// The type of a node, by the core schema of YAML 1.2.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`; never `yes` or `no`.
    Bool(bool),
    /// An integer: decimal, `0x` or `0o`.
    Int(i128),
    /// A number with a fraction or an exponent, an integer beyond 128 bits, `.inf`, `.nan`.
    Float(f64),
    /// A string, stored in the node's `text`.
    Str,
    Seq(Vec<Arc<Node>>),
    /// A map with unique keys in source order, merged ones (`<<`) last.
    Map(Vec<Entry>),
    /// An unreadable value that is already reported.
    Refused,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: Box<str>,
    pub key_position: Position,
    pub value: Arc<Node>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    /// In single or double quotes.
    Quoted,
    /// A block whose lines are joined: `>` in YAML.
    Block,
    /// Lines of the source, one for one: a `|` block, or a heredoc of HCL. The first one begins here.
    Lines(Position),
    /// A list or a map, in block or flow style.
    Collection,
}

/// A node and its location.
#[derive(Debug, Clone)]
pub struct Located<'a> {
    pub source: &'a str,
    /// Path from the root of its document; empty for the root.
    pub path: String,
    pub node: &'a Node,
}

impl Document {
    pub fn root(&self) -> Located<'_> {
        Located { source: &self.source, path: String::new(), node: &self.root }
    }

    /// Returns the node at a path such as `spec.groups[0].config`, if it exists.
    pub fn at(&self, path: &str) -> Option<Located<'_>> {
        let (node, found) = self.walk(path);
        found.then(|| Located { source: &self.source, path: path.to_owned(), node })
    }

    /// Returns a problem at a path. Its position is that of the innermost existing node on the path.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        let Position { line, column } = self.walk(path).0.position;
        let source = self.source.to_string();
        Problem { source, line, column, path: path.to_owned(), message: printable(message.into()) }
    }

    /// Returns a problem at a place in a text, which counts from 1. Its position is exact where the language writes the text
    /// as it is; otherwise the message says where in the text.
    pub fn problem_in_text(&self, path: &str, (line, column): (usize, usize), message: &str) -> Problem {
        match self.walk(path).0.position_in_text(line, column) {
            Some(Position { line, column }) => Problem { line, column, ..self.problem(path, message) },
            None => self.problem(path, format!("line {line}, column {column} of the text: {message}")),
        }
    }

    /// Removes the root's keys with this prefix: extension fields for anchors and notes.
    pub fn ignore_fields(&mut self, prefix: &str) {
        let Value::Map(entries) = &self.root.value else { return };
        if entries.iter().any(|entry| entry.key.starts_with(prefix)) {
            let kept = entries.iter().filter(|entry| !entry.key.starts_with(prefix)).cloned().collect();
            self.root = Arc::new(Node { value: Value::Map(kept), ..Node::clone(&self.root) });
        }
    }

    /// Returns the innermost existing node on a path, and whether it is the end of the path.
    fn walk(&self, path: &str) -> (&Node, bool) {
        let mut node = &*self.root;
        let Some(steps) = path::parse(path) else { return (node, false) };
        for step in &steps {
            let next = match step {
                OwnedStep::Field(name) => node.get(name),
                OwnedStep::Item(index) => node.item(*index),
            };
            match next {
                Some(next) => node = next,
                None => return (node, false),
            }
        }
        (node, true)
    }
}

impl Node {
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries()?.iter().find(|entry| &*entry.key == key).map(|entry| &*entry.value)
    }

    pub fn item(&self, index: usize) -> Option<&Self> {
        self.items()?.get(index).map(|item| &**item)
    }

    pub fn entries(&self) -> Option<&[Entry]> {
        if let Value::Map(entries) = &self.value { Some(entries) } else { None }
    }

    pub fn items(&self) -> Option<&[Arc<Self>]> {
        if let Value::Seq(items) = &self.value { Some(items) } else { None }
    }

    /// Returns the source position of a place in the text, which counts from 1; `None` if the text is not written as it is.
    pub fn position_in_text(&self, line: usize, column: usize) -> Option<Position> {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let first = match self.style {
            Style::Lines(first) => first,
            Style::Plain if line == 1 && !self.text.is_empty() => self.position,
            Style::Plain | Style::Quoted | Style::Block | Style::Collection => return None,
        };
        Some(Position {
            line: first.line.saturating_add(count(line - line.min(1))),
            column: first.column.saturating_add(count(column - column.min(1))),
        })
    }

    /// The text of a scalar other than null, as written.
    pub fn scalar_text(&self) -> Option<&str> {
        match self.value {
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str => Some(&self.text),
            Value::Null | Value::Seq(_) | Value::Map(_) | Value::Refused => None,
        }
    }
}

impl Located<'_> {
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        let Position { line, column } = self.node.position;
        Problem {
            source: self.source.to_owned(),
            line,
            column,
            path: self.path.clone(),
            message: printable(message.into()),
        }
    }
}
