//! Fields and values of Nomad that this release lacks, or that have no effect on a single machine: the only place where
//! they are refused, warned of or accepted, whatever language the job is written in.
//!
//! In: a tree and its schema, whose maps and values have these keywords:
//!
//! | keyword | value | meaning |
//! | --- | --- | --- |
//! | `x-not-built` | `[name]`; `cni/*` matches a prefix | refused |
//! | `x-instead` | advice | ends the refusal of a value |
//! | `x-no-effect` | `{name: reason}` | accepted with a warning |
//! | `x-default` | `{name: [value]}` | values of such fields that are accepted silently |
//! | `x-default-warning` | `{name: reason}` | the warning about a default of an unbuilt field; in jobs of servers it is refused |
//!
//! `false`, 0, an empty text and an empty list always turn a feature off. Out: the tree without what was accepted, a
//! problem for each refused use, and warnings.

use std::sync::Arc;

use herdlet_api_types::parse_duration;
use schemars::Schema;
use serde_json::{Map, Value as Json};

use super::Judge;
use super::schema::parts;
use crate::yaml::{Document, Entry, Node, Problem, Problems, Trail, Value};

/// The result of a search.
pub(super) struct Unbuilt {
    /// The document without accepted uses.
    pub(super) document: Document,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

/// Finds all unbuilt features in a document.
pub(super) fn find(document: &Document, schema: &Schema, judge: Judge) -> Unbuilt {
    let root = schema.as_value();
    let mut search = Search { root, document, judge, problems: Vec::new(), warnings: Vec::new() };
    let node = search.node(root, &document.root, &Trail::begin(""));
    let Search { problems, warnings, .. } = search;
    Unbuilt { document: Document { root: node, ..document.clone() }, problems, warnings }
}

/// The verdict on a use.
enum Verdict {
    /// It is another feature, or none.
    Other,
    Accepted,
    Warned(String),
    Refused,
}

struct Search<'s> {
    root: &'s Json,
    document: &'s Document,
    judge: Judge,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl<'s> Search<'s> {
    /// Returns the node without accepted uses.
    fn node(&mut self, schema: &'s Json, node: &Arc<Node>, trail: &Trail<'_>) -> Arc<Node> {
        let parts = parts(self.root, schema);
        let value = match &node.value {
            Value::Map(entries) => Value::Map(
                entries
                    .iter()
                    .filter_map(|entry| self.entry(&parts, entry, &trail.field(&entry.key)))
                    .collect(),
            ),
            Value::Seq(items) => {
                let Some(schema) = parts.iter().find_map(|part| part.get("items")) else {
                    return Arc::clone(node);
                };
                let items = items.iter().enumerate();
                Value::Seq(items.map(|(index, item)| self.node(schema, item, &trail.item(index))).collect())
            }
            Value::Str => {
                if lists(&parts, &node.text) {
                    let instead = parts.iter().find_map(|part| part.get("x-instead")?.as_str());
                    let message = match instead {
                        Some(instead) => format!("{}: {instead}", not_built(&node.text)),
                        None => not_built(&node.text),
                    };
                    let problem = self.document.problem(&trail.to_string(), message);
                    self.problems.push(problem);
                }
                return Arc::clone(node);
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Refused => {
                return Arc::clone(node);
            }
        };
        Arc::new(Node { value, ..Node::clone(node) })
    }

    fn entry(&mut self, parts: &[&'s Map<String, Json>], entry: &Entry, trail: &Trail<'_>) -> Option<Entry> {
        if let Some(schema) = field(parts, &entry.key) {
            let value = self.node(schema, &entry.value, trail);
            return Some(Entry { value, ..entry.clone() });
        }
        let found = |message: String| {
            let mut problem = self.document.problem(&trail.to_string(), message);
            (problem.line, problem.column) = (entry.key_position.line, entry.key_position.column);
            problem
        };
        match verdict(parts, entry, self.judge) {
            Verdict::Other => return Some(entry.clone()),
            Verdict::Accepted => {}
            Verdict::Warned(message) => {
                let warning = found(message);
                if self.warnings.len() < Problems::SHOWN_MAX {
                    self.warnings.push(warning);
                }
            }
            Verdict::Refused => {
                let problem = found(not_built(&entry.key));
                self.problems.push(problem);
                return Some(entry.clone());
            }
        }
        None
    }
}

fn verdict(parts: &[&Map<String, Json>], entry: &Entry, judge: Judge) -> Verdict {
    let text = |keyword: &str| {
        let reason = parts.iter().find_map(|part| part.get(keyword)?.get(&*entry.key)?.as_str());
        reason.map(|reason| format!("`{}` {reason}", entry.key))
    };
    let no_effect = text("x-no-effect");
    if no_effect.is_none() && !lists(parts, &entry.key) {
        return Verdict::Other;
    }
    let defaults = parts.iter().find_map(|part| part.get("x-default")?.get(&*entry.key)?.as_array());
    let is_default = defaults.into_iter().flatten().any(|default| asks_for(&entry.value, default));
    match (no_effect, text("x-default-warning")) {
        _ if is_off(&entry.value) => Verdict::Accepted,
        (_, Some(warning)) if is_default && judge == Judge::Here => Verdict::Warned(warning),
        (_, None) if is_default => Verdict::Accepted,
        (Some(warning), _) => Verdict::Warned(warning),
        (None, _) => Verdict::Refused,
    }
}

/// What does the same as a feature, or its useful part.
const INSTEAD: [(&str, &str); 3] = [
    (
        "connect",
        "let clients find the service by its address: with `nomadService` in a template, or in DNS; tasks encrypt themselves",
    ),
    ("csi", "mount the storage on this machine, and use it as a host volume with `host_path`"),
    ("expose", "let the check use a port of the task"),
];

fn not_built(name: &str) -> String {
    let instead = INSTEAD.iter().find(|(known, _)| *known == name);
    let instead = instead.map_or(String::new(), |(_, instead)| format!("; instead {instead}"));
    format!("`{name}` is not supported{instead}")
}

/// Returns whether a value turns a feature off.
fn is_off(node: &Node) -> bool {
    match &node.value {
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Float(value) => *value == 0.0,
        Value::Str => node.text.is_empty(),
        Value::Seq(items) => items.is_empty(),
        Value::Null | Value::Map(_) | Value::Refused => false,
    }
}

/// Returns whether a value asks for no more than a default: in a map, other fields are off.
fn asks_for(node: &Node, default: &Json) -> bool {
    match (&node.value, default) {
        (Value::Map(entries), Json::Object(fields)) => entries.iter().all(|entry| {
            let is_nothing = is_off(&entry.value) || entry.value.value == Value::Null;
            is_nothing || fields.get(&*entry.key).is_some_and(|field| asks_for(&entry.value, field))
        }),
        (Value::Str, Json::String(text)) if *node.text == **text => true,
        (Value::Str, Json::String(text)) => {
            parse_duration(&node.text).is_ok_and(|length| parse_duration(text) == Ok(length))
        }
        // The API writes durations in nanoseconds.
        (Value::Int(nanos), Json::String(text)) => {
            parse_duration(text).is_ok_and(|length| i128::from(length) == *nanos)
        }
        (Value::Int(value), Json::Number(number)) => number.as_i128() == Some(*value),
        (Value::Bool(value), Json::Bool(other)) => value == other,
        _ => false,
    }
}

/// Returns the schema of a field.
fn field<'s>(parts: &[&'s Map<String, Json>], name: &str) -> Option<&'s Json> {
    let named = parts.iter().find_map(|part| part.get("properties")?.get(name));
    named.or_else(|| {
        parts.iter().find_map(|part| part.get("additionalProperties")).filter(|schema| schema.is_object())
    })
}

/// Returns whether a name is listed as not built.
fn lists(parts: &[&Map<String, Json>], name: &str) -> bool {
    let names = parts.iter().filter_map(|part| part.get("x-not-built")).filter_map(Json::as_array).flatten();
    names.filter_map(Json::as_str).any(|listed| match listed.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == listed,
    })
}

/// Returns whether this release knows the name of a field that it lacks, or that has no effect.
pub(super) fn knows(parts: &[&Map<String, Json>], name: &str) -> bool {
    let has_no_effect =
        parts.iter().any(|part| part.get("x-no-effect").is_some_and(|all| all.get(name).is_some()));
    has_no_effect || lists(parts, name)
}
