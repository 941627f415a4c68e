//! Two trees of a config as one.
//!
//! In: what an earlier and a later text say. Out: both together.

use std::sync::Arc;

use herdlet_manifest::yaml::{Entry, Node, Value};

/// Both together: of what both say, the later counts.
pub(super) fn merged(earlier: &Arc<Node>, later: &Arc<Node>) -> Arc<Node> {
    match (&earlier.value, &later.value) {
        (Value::Map(first), Value::Map(second)) => {
            let mut entries = first.clone();
            for entry in second {
                match entries.iter_mut().find(|other| other.key == entry.key) {
                    Some(other) => {
                        *other = Entry { value: merged(&other.value, &entry.value), ..entry.clone() };
                    }
                    None => entries.push(entry.clone()),
                }
            }
            Arc::new(Node { value: Value::Map(entries), ..Node::clone(later) })
        }
        (Value::Seq(first), Value::Seq(second)) => {
            let name = |node: &Node| node.get("name").and_then(Node::scalar_text).map(str::to_owned);
            let is_anew = |node: &Arc<Node>| {
                second.iter().any(|other| match (name(node), name(other)) {
                    (Some(name), Some(other)) => name == other,
                    (None, None) => node.value == other.value && node.text == other.text,
                    (Some(_), None) | (None, Some(_)) => false,
                })
            };
            let kept = first.iter().filter(|node| !is_anew(node)).chain(second);
            Arc::new(Node { value: Value::Seq(kept.cloned().collect()), ..Node::clone(later) })
        }
        // Nothing is written: nothing is said.
        (_, Value::Null) => Arc::clone(earlier),
        _ => Arc::clone(later),
    }
}
