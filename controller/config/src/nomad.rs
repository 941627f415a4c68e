//! Nomad's own agent files, in HCL or JSON, translated into the names of our config.
//!
//! In: the tree of the file, see [`parse`]. Out: the tree of a config file of ours with the original
//! positions, and the original name of each field. Unused and unknown keys are warnings. A value of a wrong
//! kind is a problem, and so is a setting that herdlet can't honour (being a server).
//!
//! Facts: <https://developer.hashicorp.com/nomad/docs/configuration>,
//! `hashicorp/nomad:command/agent/config.go`.

mod draft;
mod keys;
mod kinds;
mod sockaddr;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use herdlet_fingerprint::Interface;
use herdlet_manifest::yaml::{
    Entry, Node, Position, Problem, Problems, nearest, phrases, printable::printable,
};

use self::{
    draft::Draft,
    keys::{Key, Keys, TOP},
};

pub(super) use herdlet_manifest::hcl1::parse;

/// A translated file.
#[derive(Debug)]
pub(super) struct Translated {
    pub(super) root: Arc<Node>,
    /// The path of each field in our config and in the file.
    pub(super) names: Vec<(String, String)>,
    pub(super) problems: Problems,
    /// Unused and unknown keys.
    pub(super) warnings: Problems,
}

/// Translates the tree of a file.
pub(super) fn translate(source: &str, root: &Node) -> Translated {
    let interfaces = || herdlet_fingerprint::interfaces().unwrap_or_default();
    translate_on(source, root, &interfaces)
}

fn translate_on(source: &str, root: &Node, interfaces: &dyn Fn() -> Vec<Interface>) -> Translated {
    let (problems, warnings) = (Problems::new(), Problems::new());
    let mut reading =
        Reading { source, interfaces, draft: Draft::default(), names: Vec::new(), problems, warnings };
    reading.body(root, TOP, "");
    let Reading { draft, names, problems, warnings, .. } = reading;
    Translated { root: draft.into_node(), names, problems, warnings }
}

/// A translation in progress.
struct Reading<'r> {
    source: &'r str,
    interfaces: &'r dyn Fn() -> Vec<Interface>,
    draft: Draft,
    names: Vec<(String, String)>,
    problems: Problems,
    warnings: Problems,
}

impl Reading<'_> {
    /// Translates a body.
    fn body(&mut self, node: &Node, keys: Keys, path: &str) {
        for entry in node.entries().unwrap_or_default() {
            let path = join(path, &entry.key);
            let known = keys.iter().find(|(name, _)| *name == &*entry.key);
            match known.map(|(_, key)| key) {
                None => self.unknown(entry, &path, keys.iter().map(|(name, _)| *name)),
                Some(Key::Unused) => self.unused(entry, &path),
                Some(Key::Satisfied) => {}
                Some(Key::Field(kind, ours)) => match kind.take(&entry.value, self.interfaces) {
                    Ok(value) => self.put(ours, &path, value),
                    Err(message) => self.report(entry.value.position, &path, message),
                },
                Some(Key::Block(keys)) => {
                    for body in self.bodies(entry, &path) {
                        self.body(&body, keys, &path);
                    }
                }
                Some(Key::Special(read)) => read(self, entry, &path),
            }
        }
    }

    /// Returns the bodies of a block, which may be repeated.
    fn bodies(&mut self, entry: &Entry, path: &str) -> Vec<Arc<Node>> {
        let mut bodies = Vec::new();
        let alone = [Arc::clone(&entry.value)];
        for node in entry.value.items().unwrap_or(&alone) {
            if node.entries().is_some() {
                bodies.push(Arc::clone(node));
            } else {
                let message = format!(
                    "expected a block `{} {{ … }}`, found {}",
                    entry.key,
                    phrases::describe_node(node)
                );
                self.report(node.position, path, message);
            }
        }
        bodies
    }

    /// Returns the labelled blocks of a kind: the entry of each label, with its body.
    fn labelled(&mut self, entry: &Entry, path: &str) -> Vec<(Entry, Arc<Node>)> {
        let mut found = Vec::new();
        for by_label in self.bodies(entry, path) {
            for label in by_label.entries().unwrap_or_default() {
                let bodies = self.bodies(label, &join(path, &label.key));
                found.extend(bodies.into_iter().map(|body| (label.clone(), body)));
            }
        }
        found
    }

    fn put(&mut self, ours: &str, theirs: &str, value: Arc<Node>) {
        self.names.push((ours.to_owned(), theirs.to_owned()));
        self.draft.put(ours, value);
    }

    /// Appends an item to a list.
    fn add(&mut self, ours: &str, theirs: &str, item: Arc<Node>) {
        let index = self.draft.items(ours).len();
        self.names.push((format!("{ours}[{index}]"), theirs.to_owned()));
        self.draft.put(ours, draft::list(item));
    }

    /// Warns of an unknown key.
    fn unknown<'n>(&mut self, entry: &Entry, path: &str, known: impl Iterator<Item = &'n str> + Clone) {
        let message = format!("is not a known key{}", meant(&entry.key, known));
        self.warn(entry.key_position, path, message);
    }

    fn unused(&mut self, entry: &Entry, path: &str) {
        self.warn(entry.key_position, path, "is not used by herdlet".to_owned());
    }

    fn warn(&mut self, position: Position, path: &str, message: String) {
        let problem = self.problem(position, path, message);
        self.warnings.push(problem);
    }

    fn report(&mut self, position: Position, path: &str, message: String) {
        let problem = self.problem(position, path, message);
        self.problems.push(problem);
    }

    fn problem(&self, Position { line, column }: Position, path: &str, message: String) -> Problem {
        let message = printable(message);
        Problem { source: self.source.to_owned(), line, column, path: path.to_owned(), message }
    }
}

/// Appends a key to a path, in printable form: a key can be any text.
fn join(path: &str, key: &str) -> String {
    let key = printable(key.to_owned());
    match path {
        "" => key,
        path => format!("{path}.{key}"),
    }
}

/// Returns the end of a message that suggests the likely intended name.
fn meant<'n>(name: &str, known: impl Iterator<Item = &'n str> + Clone) -> String {
    nearest(name, known).map(|meant| format!("; did you mean {meant}?")).unwrap_or_default()
}
