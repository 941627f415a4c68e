//! A config file of ours under construction.
//!
//! In: values by dotted paths. Out: the tree.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_manifest::yaml::{Entry, Node, Position, Style, Value};

/// The fields so far.
#[derive(Default)]
pub(super) struct Draft(BTreeMap<String, Slot>);

enum Slot {
    Value(Arc<Node>),
    Map(Draft),
}

impl Draft {
    /// Sets a field. A later value overrides an earlier one, except that lists are concatenated.
    pub(super) fn put(&mut self, path: &str, value: Arc<Node>) {
        match path.split_once('.') {
            Some((outer, inner)) => {
                let slot = self.0.entry(outer.to_owned()).or_insert_with(|| Slot::Map(Self::default()));
                if let Slot::Map(draft) = slot {
                    draft.put(inner, value);
                }
            }
            None => {
                let items =
                    value.items().map(|items| self.items(path).iter().chain(items).cloned().collect());
                let value = match items {
                    Some(all) => Arc::new(Node { value: Value::Seq(all), ..Node::clone(&value) }),
                    None => value,
                };
                self.0.insert(path.to_owned(), Slot::Value(value));
            }
        }
    }

    /// The items of a list so far.
    pub(super) fn items(&self, path: &str) -> &[Arc<Node>] {
        match path.split_once('.') {
            Some((outer, inner)) => match self.0.get(outer) {
                Some(Slot::Map(draft)) => draft.items(inner),
                Some(Slot::Value(_)) | None => &[],
            },
            None => match self.0.get(path) {
                Some(Slot::Value(list)) => list.items().unwrap_or_default(),
                Some(Slot::Map(_)) | None => &[],
            },
        }
    }

    /// Sets a field unless it is set already.
    pub(super) fn put_default(&mut self, path: &str, value: Arc<Node>) {
        if !self.has(path) {
            self.put(path, value);
        }
    }

    fn has(&self, path: &str) -> bool {
        match path.split_once('.') {
            Some((outer, inner)) => {
                matches!(self.0.get(outer), Some(Slot::Map(draft)) if draft.has(inner))
            }
            None => self.0.contains_key(path),
        }
    }

    /// Adds a value to a map whose keys may contain dots.
    pub(super) fn put_into(&mut self, map: &str, key: &str, value: Arc<Node>) {
        let slot = self.0.entry(map.to_owned()).or_insert_with(|| Slot::Map(Self::default()));
        if let Slot::Map(draft) = slot {
            draft.0.insert(key.to_owned(), Slot::Value(value));
        }
    }

    pub(super) fn into_node(self) -> Arc<Node> {
        let entries: Vec<Entry> = self
            .0
            .into_iter()
            .map(|(key, slot)| {
                let value = match slot {
                    Slot::Value(value) => value,
                    Slot::Map(draft) => draft.into_node(),
                };
                Entry { key: key.into(), key_position: value.position, value }
            })
            .collect();
        let first = entries.iter().map(|entry| entry.key_position).min();
        map(entries, first.unwrap_or(Position { line: 1, column: 1 }))
    }
}

pub(super) fn map(entries: Vec<Entry>, position: Position) -> Arc<Node> {
    Arc::new(Node { value: Value::Map(entries), text: "".into(), style: Style::Collection, position })
}

/// Builds a list of one value.
pub(super) fn list(item: Arc<Node>) -> Arc<Node> {
    let position = item.position;
    Arc::new(Node { value: Value::Seq(vec![item]), text: "".into(), style: Style::Collection, position })
}

pub(super) fn text(text: impl Into<Box<str>>, position: Position) -> Arc<Node> {
    Arc::new(Node { value: Value::Str, text: text.into(), style: Style::Quoted, position })
}

pub(super) fn flag(value: bool, position: Position) -> Arc<Node> {
    Arc::new(Node {
        value: Value::Bool(value),
        text: value.to_string().into(),
        style: Style::Plain,
        position,
    })
}

pub(super) fn whole(value: i128, position: Position) -> Arc<Node> {
    let text = value.to_string().into();
    Arc::new(Node { value: Value::Int(value), text, style: Style::Plain, position })
}
