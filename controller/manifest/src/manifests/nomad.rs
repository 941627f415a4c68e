//! Nomad's own job files → documents of a manifest, to be checked and read as if they had been written in YAML.
//!
//! In: evaluated HCL, or the tree of an API job (`{"Job": {…}}` or the job itself). Out: the tree that YAML would have
//! given, every node with the place where its text stands, so that all that is said of YAML is said of these. Names are
//! translated by the schema of manifests: a block that repeats becomes an item of the list under its plural, a label
//! becomes a name. What the schema doesn't know keeps its name, and is told there. Where the two formats mean something
//! else by what is left out ([`defaults`]), Nomad's meaning is written in.

mod defaults;
mod hcl;
mod json;
mod names;
mod shape;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(super) use hcl::documents as from_hcl;
pub(super) use json::{Unknown, document as from_json, is_job};
pub(super) use names::in_api_words;
pub use names::in_manifest_words;

use crate::yaml::{Entry, Node, Position, Problem, Style, Value};

/// A map in the making.
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

    /// Adds a field; false where there is one of that name.
    #[must_use]
    fn insert(&mut self, key: &str, key_position: Position, value: Arc<Node>) -> bool {
        let is_new = self.get(key).is_none();
        if is_new {
            self.entries.push(Entry { key: key.into(), key_position, value });
        }
        is_new
    }

    /// Adds a field that nobody has written.
    fn insert_default(&mut self, key: &str, value: Arc<Node>) {
        let _ = self.insert(key, self.position, value);
    }

    /// Adds an item to the list of that name; false where it is no list.
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

/// The document of a job.
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
