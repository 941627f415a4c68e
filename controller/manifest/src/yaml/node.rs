//! The tree of a YAML text: values with their source text and their place.
//!
//! In: what [`super::parse`] built. Out: nodes, and places found by path, for whoever checks or reads them. Parts that
//! aliases repeat are shared, not copied. It must not know what the names mean.

use std::sync::Arc;

use super::{
    path::{self, OwnedStep},
    printable::printable,
    problem::{Position, Problem},
};

/// One document of a source text.
#[derive(Debug, Clone)]
pub struct Document {
    /// Name of the source text.
    pub source: Arc<str>,
    /// Its number in the source, from 0, empty documents not counted.
    pub index: usize,
    /// The value it holds.
    pub root: Arc<Node>,
}

/// A value, what was written for it, and where.
///
/// A node that an alias repeats stands where its anchor is.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub value: Value,
    /// The text of a scalar: as written when plain, without quotes and escapes otherwise. Empty for lists and maps, and
    /// for a value that was left out.
    pub text: Box<str>,
    /// How it was written.
    pub style: Style,
    /// Where it begins; for a value that was left out, where its key is.
    pub position: Position,
}

/// What a node is, by the core schema of YAML 1.2.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`; never `yes` or `no`.
    Bool(bool),
    /// An integer, decimal, `0x` or `0o`.
    Int(i128),
    /// A number with a fraction or an exponent, an integer beyond 128 bits, `.inf`, `.nan`.
    Float(f64),
    /// A string; it is the node's `text`.
    Str,
    Seq(Vec<Arc<Node>>),
    /// A map; keys are unique, in the order written, merged ones (`<<`) last.
    Map(Vec<Entry>),
    /// Something that could not be read; the reader has told why.
    Refused,
}

/// A key of a map with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key's text, as written.
    pub key: Box<str>,
    /// Where the key begins.
    pub key_position: Position,
    pub value: Arc<Node>,
}

/// How a node was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    /// In single or double quotes.
    Quoted,
    /// A `|` or `>` block.
    Block,
    /// A list or a map, indented or in brackets.
    Collection,
}

/// A node together with where it stands in which text.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// Name of the source text.
    pub source: &'a str,
    /// Path from the root of its document, empty for the root.
    pub path: String,
    pub node: &'a Node,
}

impl Document {
    /// The root with its place.
    pub fn root(&self) -> Place<'_> {
        Place { source: &self.source, path: String::new(), node: &self.root }
    }

    /// The node at a path such as `spec.groups[0].config`, if there is one.
    pub fn at(&self, path: &str) -> Option<Place<'_>> {
        let (node, found) = self.walk(path);
        found.then(|| Place { source: &self.source, path: path.to_owned(), node })
    }

    /// A problem with what is at a path, placed at the nearest thing that was written on the way there.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        let Position { line, column } = self.walk(path).0.position;
        let source = self.source.to_string();
        Problem { source, line, column, path: path.to_owned(), message: printable(message.into()) }
    }

    /// Forgets the root's keys that begin so: extension fields which hold anchors and notes.
    pub fn ignore_fields(&mut self, prefix: &str) {
        let Value::Map(entries) = &self.root.value else { return };
        if entries.iter().any(|entry| entry.key.starts_with(prefix)) {
            let kept = entries.iter().filter(|entry| !entry.key.starts_with(prefix)).cloned().collect();
            self.root = Arc::new(Node { value: Value::Map(kept), ..Node::clone(&self.root) });
        }
    }

    /// The last node on the way along a path, and whether the way goes on to its end.
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
    /// The value of a key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries()?.iter().find(|entry| &*entry.key == key).map(|entry| &*entry.value)
    }

    /// An item counted from 0, if this is a list that long.
    pub fn item(&self, index: usize) -> Option<&Self> {
        self.items()?.get(index).map(|item| &**item)
    }

    /// Keys and values, if this is a map.
    pub fn entries(&self) -> Option<&[Entry]> {
        if let Value::Map(entries) = &self.value { Some(entries) } else { None }
    }

    /// Items, if this is a list.
    pub fn items(&self) -> Option<&[Arc<Self>]> {
        if let Value::Seq(items) = &self.value { Some(items) } else { None }
    }

    /// The text of a scalar that is not null, as written.
    pub fn scalar_text(&self) -> Option<&str> {
        match self.value {
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str => Some(&self.text),
            Value::Null | Value::Seq(_) | Value::Map(_) | Value::Refused => None,
        }
    }
}

impl Place<'_> {
    /// A problem with this place.
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
