//! Parser events → the tree of a document.
//!
//! In: events in order. Out: the root of each document, and problems with positions and paths. Makes keys
//! unique, shares aliased nodes, resolves merge keys (`<<`), checks tags, enforces limits.

use std::collections::HashMap;
use std::sync::Arc;

use granit_parser::{Event, ScalarStyle, Span, Tag};

use super::super::node::{Entry, Node, Style, Value};
use super::super::path::{Step, write_steps};
use super::super::phrases::shorten;
use super::super::problem::{Position, Problem, Problems};
use super::super::scalar::{resolve_plain, resolve_tagged};
use super::{Limits, count, position};

/// Why parsing stops.
#[derive(Debug)]
pub(super) enum Stop {
    /// The rest of this document is unreadable.
    Document(Problem),
    /// The rest of the text is not read.
    Source(Problem),
}

/// Builds one document after the other.
pub(super) struct Builder {
    source: Arc<str>,
    limits: Limits,
    /// The problems of all documents so far.
    pub(super) problems: Problems,
    /// Incomplete collections, outermost first.
    open: Vec<Frame>,
    /// Complete nodes with an anchor, by the parser's number of the anchor.
    anchors: HashMap<usize, Part>,
    /// The root of the current document once it is complete.
    root: Option<Arc<Node>>,
    /// Values in all documents so far, including expanded aliases.
    nodes: usize,
    /// Bytes in expanded aliases so far.
    repeated_bytes: usize,
}

/// A node with its cost when an alias repeats it.
#[derive(Clone)]
struct Part {
    node: Arc<Node>,
    nodes: usize,
    bytes: usize,
    height: usize,
}

/// An incomplete collection.
struct Frame {
    content: Content,
    anchor: usize,
    position: Position,
    nodes: usize,
    bytes: usize,
    height: usize,
}

enum Content {
    Seq(Vec<Arc<Node>>),
    Map(MapContent),
}

#[derive(Default)]
struct MapContent {
    entries: Vec<Entry>,
    /// Position of the first occurrence of each key.
    seen: HashMap<Box<str>, Position>,
    /// Position of `<<`.
    merge: Option<Position>,
    /// Values of `<<`, merged at the end of the map.
    merged: Vec<Arc<Node>>,
    expecting: Expecting,
}

#[derive(Default)]
enum Expecting {
    #[default]
    Key,
    /// The value of this key.
    Value(Box<str>, Position),
    /// The value of `<<`.
    Merge(Position),
    /// The value of a refused key.
    Refused,
}

impl Builder {
    pub(super) fn new(source: Arc<str>, limits: Limits) -> Self {
        Self {
            source,
            limits,
            problems: Problems::new(),
            open: Vec::new(),
            anchors: HashMap::new(),
            root: None,
            nodes: 0,
            repeated_bytes: 0,
        }
    }

    /// Processes an event; returns the root at the end of a document with a value.
    pub(super) fn event(&mut self, event: Event<'_>, span: &Span) -> Result<Option<Arc<Node>>, Stop> {
        let at = position(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let node = self.scalar(&text, style, tag.as_deref(), span);
                self.complete(
                    Part { nodes: 1, bytes: node.text.len(), height: 0, node: Arc::new(node) },
                    anchor,
                )?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.collection_tag(tag.as_deref(), "seq", span);
                self.begin(Content::Seq(Vec::new()), anchor, at)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                self.collection_tag(tag.as_deref(), "map", span);
                self.begin(Content::Map(MapContent::default()), anchor, at)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => self.alias(anchor, at)?,
            Event::UnresolvedAlias(name) => {
                let problem = self.problem(
                    at,
                    format!(
                        "there is no anchor `&{0}` above; put a value that begins with `*` in quotes",
                        shorten(&name)
                    ),
                );
                self.problems.push(problem);
                self.complete(Part::refused(at), 0)?;
            }
            Event::DocumentEnd => {
                let root = self.root.take();
                self.abandon();
                return Ok(root);
            }
            // Nothing to build. `Event` is non-exhaustive.
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(..)
            | Event::Anchor(..)
            | Event::Comment(..)
            | _ => {}
        }
        Ok(None)
    }

    /// Discards the current document.
    pub(super) fn abandon(&mut self) {
        self.open.clear();
        self.anchors.clear();
        self.root = None;
    }

    /// Returns a problem with the current path.
    pub(super) fn problem(&self, at: Position, message: String) -> Problem {
        let mut path = String::new();
        // Writing to a string can't fail.
        let _ = write_steps(&mut path, &self.steps());
        let Position { line, column } = at;
        Problem { source: self.source.to_string(), line, column, path, message }
    }

    fn steps(&self) -> Vec<Step<'_>> {
        self.open
            .iter()
            .filter_map(|frame| match &frame.content {
                Content::Seq(items) => Some(Step::Item(items.len())),
                Content::Map(map) => match &map.expecting {
                    Expecting::Value(key, _) => Some(Step::Field(key)),
                    Expecting::Merge(_) => Some(Step::Field("<<")),
                    Expecting::Key | Expecting::Refused => None,
                },
            })
            .collect()
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: &Span) -> Node {
        let mut at = position(span.start);
        let plain = style == ScalarStyle::Plain;
        // The parser reports `~` for an absent value. Place it at its key, which is what people see.
        let left_out = plain && span.start.index() == span.end.index();
        let text = if left_out { "" } else { text };
        if left_out && let Some(Frame { content: Content::Map(map), .. }) = self.open.last() {
            match &map.expecting {
                Expecting::Value(_, key) | Expecting::Merge(key) => at = *key,
                Expecting::Key | Expecting::Refused => {}
            }
        }
        let value = match tag.map(|tag| (tag, tag.core_suffix())) {
            None if plain => resolve_plain(text),
            None => Value::Str,
            Some((tag, _)) if is_non_specific(tag) => Value::Str,
            Some((tag, None)) => {
                self.refuse_tag(tag, span);
                Value::Refused
            }
            Some((tag, Some(kind))) => resolve_tagged(text, kind).unwrap_or_else(|| {
                let problem = self.problem(at, format!("does not match its tag `{}`", tag.original()));
                self.problems.push(problem);
                Value::Refused
            }),
        };
        let style = match style {
            ScalarStyle::Plain => Style::Plain,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
            ScalarStyle::Literal => Style::Lines(first_line(text, at)),
            ScalarStyle::Folded => Style::Block,
        };
        Node { value, text: text.into(), style, position: at }
    }

    fn collection_tag(&mut self, tag: Option<&Tag>, kind: &str, span: &Span) {
        if let Some(tag) = tag
            && !is_non_specific(tag)
            && tag.core_suffix() != Some(kind)
        {
            self.refuse_tag(tag, span);
        }
    }

    fn refuse_tag(&mut self, tag: &Tag, span: &Span) {
        let at = position(span.tag_start().unwrap_or(span.start));
        let problem = self.problem(
            at,
            format!(
                "the tag `{}` is not supported; remove it, or put a value that begins with `!` in quotes",
                tag.original()
            ),
        );
        self.problems.push(problem);
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), Stop> {
        let Some(part) = self.anchors.get(&anchor).cloned() else {
            let problem = self.problem(at, "an alias can't be inside the value that it repeats".to_owned());
            self.problems.push(problem);
            return self.complete(Part::refused(at), 0);
        };
        self.repeated_bytes = self.repeated_bytes.saturating_add(part.bytes);
        // `complete` counts the node itself.
        self.nodes = self.nodes.saturating_add(part.nodes - 1);
        if self.repeated_bytes > self.limits.repeated_bytes_max {
            let mib = self.limits.repeated_bytes_max >> 20;
            return Err(Stop::Source(
                self.problem(at, format!("aliases repeat more than {mib} MiB of text")),
            ));
        }
        if self.open.len() + part.height > self.limits.depth_max {
            return Err(Stop::Document(self.too_deep(at)));
        }
        // The node keeps its own position, because a mistake in it is corrected there.
        self.complete_at(part, 0, at)
    }

    fn begin(&mut self, content: Content, anchor: usize, at: Position) -> Result<(), Stop> {
        if self.open.len() >= self.limits.depth_max {
            return Err(Stop::Document(self.too_deep(at)));
        }
        self.open.push(Frame { content, anchor, position: at, nodes: 1, bytes: 0, height: 1 });
        Ok(())
    }

    /// Returns the problem for exceeding the parser's nesting limit or ours.
    pub(super) fn too_deep(&self, at: Position) -> Problem {
        self.problem(at, format!("lists and maps are nested more than {} deep", self.limits.depth_max))
    }

    fn end(&mut self) -> Result<(), Stop> {
        let Some(frame) = self.open.pop() else { return Ok(()) };
        let value = match frame.content {
            Content::Seq(items) => Value::Seq(items),
            Content::Map(map) => Value::Map(self.merge(map)),
        };
        let node = Node { value, text: "".into(), style: Style::Collection, position: frame.position };
        let Frame { anchor, nodes, bytes, height, .. } = frame;
        self.complete(Part { node: Arc::new(node), nodes, bytes, height }, anchor)
    }

    /// Adds the entries of merged maps whose keys are in neither the map itself nor an earlier merged map
    /// (<https://yaml.org/type/merge.html>).
    fn merge(&mut self, map: MapContent) -> Vec<Entry> {
        let MapContent { mut entries, mut seen, merged, .. } = map;
        for node in merged {
            for part in node.items().unwrap_or(std::slice::from_ref(&node)) {
                match part.entries() {
                    Some(others) => add_missing(&mut entries, &mut seen, others),
                    None if part.value == Value::Refused => {}
                    None => {
                        let message = "`<<` takes a map, or a list of maps".to_owned();
                        let problem = self.problem(part.position, message);
                        self.problems.push(problem);
                    }
                }
            }
        }
        entries
    }

    fn complete(&mut self, part: Part, anchor: usize) -> Result<(), Stop> {
        let at = part.node.position;
        self.complete_at(part, anchor, at)
    }

    /// Adds a complete node to its collection. `at` is the source position, which differs from the node's own
    /// for an alias.
    fn complete_at(&mut self, part: Part, anchor: usize, at: Position) -> Result<(), Stop> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > self.limits.nodes_max {
            let message = format!(
                "has more than {} values, including those that aliases repeat",
                self.limits.nodes_max
            );
            return Err(Stop::Source(self.problem(at, message)));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, part.clone());
        }
        let Some(frame) = self.open.last_mut() else {
            let left_out = part.node.text.is_empty() && part.node.value == Value::Null;
            self.root = (!left_out).then_some(part.node);
            return Ok(());
        };
        frame.nodes = frame.nodes.saturating_add(part.nodes);
        frame.bytes = frame.bytes.saturating_add(part.bytes);
        frame.height = frame.height.max(part.height + 1);
        match &mut frame.content {
            Content::Seq(items) => items.push(part.node),
            Content::Map(map) => match std::mem::take(&mut map.expecting) {
                Expecting::Key => self.key(&part.node, at),
                Expecting::Value(key, key_position) => {
                    map.entries.push(Entry { key, key_position, value: part.node });
                }
                Expecting::Merge(_) => map.merged.push(part.node),
                Expecting::Refused => {}
            },
        }
        Ok(())
    }

    fn key(&mut self, node: &Node, at: Position) {
        let (expecting, complaint) = self.judge_key(node, at);
        if let Some(complaint) = complaint {
            let problem = self.problem(at, complaint);
            self.problems.push(problem);
        }
        if let Some(Frame { content: Content::Map(map), .. }) = self.open.last_mut() {
            map.expecting = expecting;
        }
    }

    fn judge_key(&mut self, node: &Node, at: Position) -> (Expecting, Option<String>) {
        let Some(Frame { content: Content::Map(map), .. }) = self.open.last_mut() else {
            return (Expecting::Refused, None);
        };
        let Some(text) = node.scalar_text() else {
            let complaint = match node.value {
                Value::Refused => None,
                Value::Seq(_) => Some("a key must be a word, not a list".to_owned()),
                Value::Map(_) => Some(
                    "a key must be a word, not a map; put a value that begins with `{` in quotes".to_owned(),
                ),
                Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str => Some(format!(
                    "a key must be a word; put it in quotes if it is meant to be {:?}",
                    node.text
                )),
            };
            return (Expecting::Refused, complaint);
        };
        let is_merge = text == "<<" && node.style == Style::Plain;
        if let Some(first) = if is_merge { map.merge.as_ref() } else { map.seen.get(text) } {
            let Position { line, column } = *first;
            let key = shorten(text);
            let complaint = format!("duplicate key `{key}`; it is already at line {line}, column {column}");
            return (Expecting::Refused, Some(complaint));
        }
        if is_merge {
            map.merge = Some(at);
            return (Expecting::Merge(at), None);
        }
        map.seen.insert(text.into(), at);
        (Expecting::Value(text.into(), at), None)
    }
}

impl Part {
    /// Returns a placeholder for an unreadable value.
    fn refused(at: Position) -> Self {
        let node = Node { value: Value::Refused, text: "".into(), style: Style::Plain, position: at };
        Self { node: Arc::new(node), nodes: 1, bytes: 0, height: 0 }
    }
}

/// Returns where the first line of a `|` block begins. The block's own position is that of its first line with content.
fn first_line(text: &str, content: Position) -> Position {
    let empty_lines = text.bytes().take_while(|byte| *byte == b'\n').count();
    Position { line: content.line.saturating_sub(count(empty_lines)), ..content }
}

fn add_missing(entries: &mut Vec<Entry>, seen: &mut HashMap<Box<str>, Position>, others: &[Entry]) {
    for other in others {
        if !seen.contains_key(&other.key) {
            seen.insert(other.key.clone(), other.key_position);
            entries.push(other.clone());
        }
    }
}

/// Returns whether the tag is a lone `!`, which makes any scalar a string.
fn is_non_specific(tag: &Tag) -> bool {
    tag.handle().is_empty() && tag.suffix() == "!"
}
