//! The schema of manifests at one place, for translations into it.
//!
//! In: schemas. Out: fields, items, and scalars of the type that the place expects, with the conversions of
//! Nomad's parser: `"500"` to a number, `1` to a text, nanoseconds to a duration.

use std::sync::Arc;

use schemars::Schema;
use serde_json::{Map, Value as Json};

use super::super::{schema::parts, unbuilt};
use super::collection;
use crate::yaml::{Entry, Node, Style, Value};

/// The schema of a place. Without parts, the place is unknown to the schema.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape<'s> {
    root: Option<&'s Json>,
    parts: Vec<&'s Map<String, Json>>,
}

impl<'s> Shape<'s> {
    pub(super) fn of(schema: &'s Schema) -> Self {
        Self { root: Some(schema.as_value()), parts: parts(schema.as_value(), schema.as_value()) }
    }

    fn at(&self, schema: &'s Json) -> Self {
        let parts = self.root.map(|root| parts(root, schema)).unwrap_or_default();
        Self { root: self.root, parts }
    }

    fn get(&self, keyword: &str) -> Option<&'s Json> {
        self.parts.iter().find_map(|part| part.get(keyword))
    }

    pub(super) fn field(&self, name: &str) -> Option<Self> {
        let schema = self.parts.iter().find_map(|part| part.get("properties")?.get(name))?;
        Some(self.at(schema))
    }

    pub(super) fn items(&self) -> Option<Self> {
        self.get("items").map(|schema| self.at(schema))
    }

    /// The values of a map with user-defined keys.
    pub(super) fn values(&self) -> Option<Self> {
        let schema = self.get("additionalProperties").filter(|schema| schema.is_object())?;
        Some(self.at(schema))
    }

    fn is(&self, kind: &str) -> bool {
        match self.get("type") {
            Some(Json::String(name)) => name == kind,
            Some(_) | None => false,
        }
    }

    /// Returns whether the place is a map with fixed fields.
    pub(super) fn field_names(&self) -> bool {
        self.get("properties").is_some()
    }

    /// Returns whether the field is one of Nomad's that this release lacks, or that has no effect.
    pub(super) fn is_unbuilt(&self, name: &str) -> bool {
        unbuilt::knows(&self.parts, name)
    }

    /// The name of the block, as the type that defines it.
    pub(super) fn block(&self) -> Option<&'s str> {
        let reference = self.parts.iter().find_map(|part| part.get("$ref")?.as_str())?;
        reference.rsplit('/').next()
    }

    /// Returns whether the schema has this place.
    pub(super) fn is_known(&self) -> bool {
        !self.parts.is_empty()
    }

    pub(super) fn is_duration(&self) -> bool {
        self.get("x-duration").is_some()
    }

    /// Converts a value to the type of this place, if it can be converted.
    pub(super) fn fit(&self, node: &Arc<Node>) -> Arc<Node> {
        let scalar = |value: Value, text: &str, style: Style| {
            Arc::new(Node { value, text: text.into(), style, position: node.position })
        };
        match &node.value {
            Value::Int(0) if self.is_duration() => scalar(Value::Str, "0s", Style::Quoted),
            Value::Int(nanos) if self.is_duration() => {
                scalar(Value::Str, &format!("{nanos}ns"), Style::Quoted)
            }
            Value::Str if self.is("integer") => match node.text.parse() {
                Ok(value) => scalar(Value::Int(value), &node.text, Style::Plain),
                Err(_) => Arc::clone(node),
            },
            Value::Str if self.is("boolean") => match node.text.parse() {
                Ok(value) => scalar(Value::Bool(value), &node.text, Style::Plain),
                Err(_) => Arc::clone(node),
            },
            Value::Int(_) | Value::Float(_) | Value::Bool(_) if self.is("string") => {
                scalar(Value::Str, &node.text, Style::Quoted)
            }
            Value::Seq(items) => {
                let shape = self.items().unwrap_or_default();
                collection(Value::Seq(items.iter().map(|item| shape.fit(item)).collect()), node.position)
            }
            Value::Map(entries) => {
                let written = entries.iter().filter(|entry| entry.value.value != Value::Null);
                let entries = written.map(|entry| {
                    let shape = self.field(&entry.key).or_else(|| self.values()).unwrap_or_default();
                    Entry { value: shape.fit(&entry.value), ..entry.clone() }
                });
                collection(Value::Map(entries.collect()), node.position)
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str | Value::Refused => {
                Arc::clone(node)
            }
        }
    }
}
