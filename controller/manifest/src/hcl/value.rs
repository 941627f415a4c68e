//! Values of HCL expressions.
//!
//! In: results of evaluation. Out: their text, their weight, and the tree from which a manifest is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::yaml::{Entry, Node, Position, Style, Value as Tree};

/// A value. Objects and maps are the same; their keys are sorted, as in Nomad's iteration.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Self>),
    Map(BTreeMap<String, Self>),
}

impl Value {
    /// Names the type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Str(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }

    /// The cost of a copy: the number of values, plus one for every 64 bytes of text.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) => 1,
            Self::Str(text) => 1 + text.len() / 64,
            Self::List(items) => 1 + items.iter().map(Self::weight).sum::<usize>(),
            Self::Map(entries) => {
                1 + entries.iter().map(|(key, value)| key.len() / 64 + value.weight()).sum::<usize>()
            }
        }
    }

    /// The nesting depth of lists and objects.
    pub(super) fn depth(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Str(_) => 0,
            Self::List(items) => 1 + items.iter().map(Self::depth).max().unwrap_or_default(),
            Self::Map(entries) => 1 + entries.values().map(Self::depth).max().unwrap_or_default(),
        }
    }

    /// The text of a scalar, as in templates and string arguments.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Bool(value) => Some(value.to_string()),
            Self::Int(value) => Some(value.to_string()),
            Self::Float(value) => Some(value.to_string()),
            Self::Str(text) => Some(text.clone()),
            Self::Null | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Converts to a number. Strings are parsed.
    pub(super) fn number(&self) -> Option<Self> {
        match self {
            Self::Int(_) | Self::Float(_) => Some(self.clone()),
            Self::Str(text) => {
                let integer = text.parse().ok().map(Self::Int);
                integer
                    .or_else(|| text.parse().ok().filter(|number: &f64| number.is_finite()).map(Self::float))
            }
            Self::Null | Self::Bool(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Converts to a floating-point number.
    pub(super) fn as_f64(&self) -> Option<f64> {
        match self.number()? {
            Self::Int(value) => Some(value as f64),
            Self::Float(value) => Some(value),
            Self::Null | Self::Bool(_) | Self::Str(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Converts to an integer if the number has no fraction.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self.number()? {
            Self::Int(value) => Some(value),
            Self::Null | Self::Bool(_) | Self::Float(_) | Self::Str(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Converts to a boolean. Strings are parsed.
    pub(super) fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            Self::Str(text) => text.parse().ok(),
            Self::Null | Self::Int(_) | Self::Float(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// A number without a fraction becomes an integer, whatever its origin.
    pub(super) fn float(value: f64) -> Self {
        // 2^53: up to here every integer has its own representation.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() <= EXACT {
            Self::Int(value as i128)
        } else {
            Self::Float(value)
        }
    }

    /// Converts to a tree in which every node has the position of the expression.
    pub(super) fn into_node(self, position: Position) -> Arc<Node> {
        let text: Box<str> = self.text().unwrap_or_default().into();
        let (value, style) = match self {
            Self::Null => (Tree::Null, Style::Plain),
            Self::Bool(value) => (Tree::Bool(value), Style::Plain),
            Self::Int(value) => (Tree::Int(value), Style::Plain),
            Self::Float(value) => (Tree::Float(value), Style::Plain),
            Self::Str(_) => (Tree::Str, Style::Quoted),
            Self::List(items) => {
                let items = items.into_iter().map(|item| item.into_node(position)).collect();
                (Tree::Seq(items), Style::Collection)
            }
            Self::Map(entries) => {
                let entries = entries.into_iter().map(|(key, value)| Entry {
                    key: key.into(),
                    key_position: position,
                    value: value.into_node(position),
                });
                (Tree::Map(entries.collect()), Style::Collection)
            }
        };
        Arc::new(Node { value, text, style, position })
    }
}
