//! A document with structural problems → the part of it that can be typed.
//!
//! In: a tree. Out: a value without the parts that don't fit, and their paths. Items of lists keep their
//! indexes, so that paths into the value are paths into the document.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::yaml::{
    Document, Entry, Located, Node, PathStep, Problem, Problems, Value, from_node, parse_path,
};

/// A value and the paths that are missing in it.
pub(super) struct Pruned<T> {
    pub(super) value: T,
    pub(super) lost: Vec<String>,
}

/// Maximum number of parts left out: each costs another deserialization.
const MISFITS_MAX: usize = Problems::SHOWN_MAX;

/// Types a document without the parts that don't fit. The fields of `whole` replace top-level fields that are
/// missing or don't fit.
///
/// # Errors
/// The first misfit of a document that can't be typed at all.
pub(super) fn typed<T: DeserializeOwned>(document: &Document, whole: &Node) -> Result<Pruned<T>, Problem> {
    let mut root = Arc::clone(&document.root);
    let mut lost: Vec<String> = Vec::new();
    if let Some(completed) = completed(&root, whole, &mut lost) {
        root = completed;
    }
    loop {
        let problem = match from_node(&Located { source: &document.source, path: String::new(), node: &root })
        {
            Ok(value) => return Ok(Pruned { value, lost }),
            Err(problem) => problem,
        };
        let steps = parse_path(&problem.path).unwrap_or_default();
        // An emptied item that still doesn't fit is removed with its list.
        let (steps, path) = match (lost.contains(&problem.path), steps.split_last(), problem.path.rfind('['))
        {
            (true, Some((_, list)), Some(end)) => (list, problem.path[..end].to_owned()),
            (true | false, _, _) => (&steps[..], problem.path.clone()),
        };
        let Some(next) = without(&root, steps).filter(|_| lost.len() < MISFITS_MAX) else {
            return Err(problem);
        };
        root = next;
        lost.push(path);
    }
}

/// Returns the tree with its mandatory fields, or `None` if it has them.
fn completed(root: &Node, whole: &Node, lost: &mut Vec<String>) -> Option<Arc<Node>> {
    let Value::Map(entries) = &root.value else { return None };
    let fits = |entry: &Entry, wanted: &Entry| match &wanted.value.value {
        Value::Map(_) => matches!(entry.value.value, Value::Map(_)),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Str
        | Value::Seq(_)
        | Value::Refused => entry.value == wanted.value || entry.value.text == wanted.value.text,
    };
    let mut entries = entries.clone();
    for wanted in whole.entries().unwrap_or_default() {
        match entries.iter_mut().find(|entry| entry.key == wanted.key) {
            Some(entry) if fits(entry, wanted) => continue,
            Some(entry) => entry.value = Arc::clone(&wanted.value),
            None => entries.push(wanted.clone()),
        }
        lost.push(wanted.key.to_string());
    }
    (!lost.is_empty()).then(|| Arc::new(Node { value: Value::Map(entries), ..root.clone() }))
}

/// Returns the tree without the end of a path: a field is removed, an item becomes an empty map.
fn without(node: &Node, steps: &[PathStep]) -> Option<Arc<Node>> {
    let (step, rest) = steps.split_first()?;
    let mut node = node.clone();
    match (step, &mut node.value) {
        (PathStep::Field(name), Value::Map(entries)) => {
            let at = entries.iter().position(|entry| *entry.key == **name)?;
            if rest.is_empty() {
                entries.remove(at);
            } else {
                let entry = entries.get_mut(at)?;
                entry.value = without(&entry.value, rest)?;
            }
        }
        (PathStep::Item(index), Value::Seq(items)) => {
            let item = items.get_mut(*index)?;
            *item = match rest {
                [] => Arc::new(Node { value: Value::Map(Vec::new()), ..Node::clone(item) }),
                rest => without(item, rest)?,
            };
        }
        (PathStep::Field(_) | PathStep::Item(_), _) => return None,
    }
    Some(Arc::new(node))
}
