//! Nomad's own job files → documents of a manifest, which are then checked and read like YAML.
//!
//! In: evaluated HCL, or the tree of an API job (`{"Job": {…}}` or the job itself). Out: the tree of the
//! equivalent YAML, in which every node has the position of its source, so that all messages about YAML apply
//! here too. The schema of manifests controls the translation: a repeated block becomes an item of the list
//! named by its plural, a label becomes a name. A field that the schema lacks keeps its name, and the schema
//! check reports it. Where the formats differ in the meaning of an absent field ([`defaults`]), Nomad's
//! default is written out.

mod defaults;
mod hcl;
mod implied;
mod json;
mod names;
mod shape;
mod values;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(super) use hcl::documents as from_hcl;
pub(super) use json::{Unknown, document as from_json, is_job};
pub(super) use names::to_api_path;
pub use names::to_manifest_name;

use crate::yaml::{Entry, Node, Position, Problem, Style, Value};

/// A map under construction.
struct Fields {
    position: Position,
    entries: Vec<Entry>,
}

impl Fields {
    fn new(position: Position) -> Self {
        Self { position, entries: Vec::new() }
    }

    fn get(&self, key: &str) -> Option<&Arc<Node>> {
        self.entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value)
    }

    /// Adds a field; returns false if the name is taken.
    #[must_use]
    fn insert(&mut self, key: &str, key_position: Position, value: Arc<Node>) -> bool {
        let is_new = self.get(key).is_none();
        if is_new {
            self.entries.push(Entry { key: key.into(), key_position, value });
        }
        is_new
    }

    /// Adds a field that the source doesn't contain.
    fn insert_default(&mut self, key: &str, value: Arc<Node>) {
        let _ = self.insert(key, self.position, value);
    }

    /// Adds an item to a list field; returns false if the field is not a list.
    #[must_use]
    fn push(&mut self, key: &str, key_position: Position, item: Arc<Node>) -> bool {
        let Some(entry) = self.entries.iter_mut().find(|entry| &*entry.key == key) else {
            let list = collection(Value::Seq(vec![item]), key_position);
            self.entries.push(Entry { key: key.into(), key_position, value: list });
            return true;
        };
        let mut list = Node::clone(&entry.value);
        let Value::Seq(items) = &mut list.value else { return false };
        items.push(item);
        entry.value = Arc::new(list);
        true
    }

    fn into_node(self) -> Arc<Node> {
        collection(Value::Map(self.entries), self.position)
    }
}

fn collection(value: Value, position: Position) -> Arc<Node> {
    Arc::new(Node { value, text: "".into(), style: Style::Collection, position })
}

fn text(text: &str, position: Position) -> Arc<Node> {
    Arc::new(Node { value: Value::Str, text: text.into(), style: Style::Quoted, position })
}

/// Builds the document of a job.
fn document(metadata: Fields, spec: Fields) -> Arc<Node> {
    let position = metadata.position;
    let mut root = Fields::new(position);
    root.insert_default("apiVersion", text(herdlet_api_types::manifest::API_VERSION, position));
    root.insert_default("kind", text("Job", position));
    root.insert_default("metadata", metadata.into_node());
    root.insert_default("spec", spec.into_node());
    root.into_node()
}

fn problem(source: &str, position: Position, path: &str, message: String) -> Problem {
    let Position { line, column } = position;
    Problem { source: source.to_owned(), line, column, path: path.to_owned(), message }
}
