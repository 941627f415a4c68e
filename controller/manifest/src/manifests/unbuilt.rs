//! Reports features of Nomad that this release lacks, so that nobody takes them for typing errors.
//!
//! In: a tree and its schema, whose maps and values have `x-not-built`: a list of names, in which `cni/*`
//! matches a prefix. Out: a problem for each use of such a name.

use schemars::Schema;
use serde_json::{Map, Value as Json};

use super::schema::parts;
use crate::yaml::{Document, Node, Problem, Trail, Value};

/// Finds all unbuilt features in a document.
pub(super) fn find(document: &Document, schema: &Schema) -> Vec<Problem> {
    let mut search = Search { root: schema.as_value(), document, found: Vec::new() };
    search.node(schema.as_value(), &document.root, &Trail::begin(""));
    search.found
}

struct Search<'s> {
    root: &'s Json,
    document: &'s Document,
    found: Vec<Problem>,
}

impl<'s> Search<'s> {
    fn node(&mut self, schema: &'s Json, node: &Node, trail: &Trail<'_>) {
        let parts = parts(self.root, schema);
        match &node.value {
            Value::Map(entries) => {
                for entry in entries {
                    let trail = trail.field(&entry.key);
                    if let Some(schema) = field(&parts, &entry.key) {
                        self.node(schema, &entry.value, &trail);
                    } else if lists(&parts, &entry.key) {
                        let message =
                            format!("`{}` is known from Nomad, but not built in this release", entry.key);
                        let mut problem = self.document.problem(&trail.to_string(), message);
                        (problem.line, problem.column) = (entry.key_position.line, entry.key_position.column);
                        self.found.push(problem);
                    }
                }
            }
            Value::Seq(items) => {
                let Some(schema) = parts.iter().find_map(|part| part.get("items")) else { return };
                for (index, item) in items.iter().enumerate() {
                    self.node(schema, item, &trail.item(index));
                }
            }
            Value::Str if lists(&parts, &node.text) => {
                let message = format!("`{}` is known from Nomad, but not built in this release", node.text);
                self.found.push(self.document.problem(&trail.to_string(), message));
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str | Value::Refused => {}
        }
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
pub(super) fn lists(parts: &[&Map<String, Json>], name: &str) -> bool {
    let names = parts.iter().filter_map(|part| part.get("x-not-built")).filter_map(Json::as_array).flatten();
    names.filter_map(Json::as_str).any(|listed| match listed.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == listed,
    })
}
