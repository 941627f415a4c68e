//! Kinds of values with the conversions of Nomad's agent: numbers and booleans may be quoted, and a text may
//! replace a list of one.
//!
//! In: a node. Out: the node as our config expects it; or what was expected, and what was found.

use std::sync::Arc;

use herdlet_api_types::Duration;
use herdlet_fingerprint::Interface;
use herdlet_manifest::yaml::{Node, Value, phrases::describe_node};

use super::{draft, sockaddr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Text,
    /// A text that may be a template of an address.
    SockAddress,
    /// A text with an address, or with a template of several. The first one is used.
    Address,
    Flag,
    /// A non-negative integer.
    Whole,
    /// A percentage; the fraction is truncated.
    Percent,
    /// A duration with a unit.
    Span,
    Texts,
}

impl ValueKind {
    /// Converts a value to the form that our config expects.
    ///
    /// # Errors
    /// What was expected, and what was found.
    pub(super) fn take(
        self,
        node: &Arc<Node>,
        interfaces: &dyn Fn() -> Vec<Interface>,
    ) -> Result<Arc<Node>, String> {
        let position = node.position;
        let misfit = |expected: &str| format!("expected {expected}, found {}", describe_node(node));
        match self {
            Self::Text => {
                let text = node.scalar_text().ok_or_else(|| misfit("a string"))?;
                Ok(draft::text(text, position))
            }
            Self::SockAddress => {
                let text = node.scalar_text().ok_or_else(|| misfit("a string"))?;
                Ok(draft::text(expanded(text, interfaces)?, position))
            }
            Self::Address => {
                let text = node.scalar_text().ok_or_else(|| misfit("an address"))?;
                let text = expanded(text, interfaces)?;
                // Nomad can listen on several addresses; only the first one is used.
                let first = text.split_whitespace().next().unwrap_or_default();
                Ok(draft::text(first, position))
            }
            Self::Flag => {
                let value = match &node.value {
                    Value::Bool(value) => Some(*value),
                    Value::Str | Value::Int(_) => as_bool(&node.text),
                    Value::Null | Value::Float(_) | Value::Seq(_) | Value::Map(_) | Value::Refused => None,
                };
                value.map(|value| draft::flag(value, position)).ok_or_else(|| misfit("true or false"))
            }
            Self::Whole => {
                let value = match &node.value {
                    Value::Int(value) => Some(*value),
                    Value::Str => node.text.parse().ok(),
                    Value::Null
                    | Value::Bool(_)
                    | Value::Float(_)
                    | Value::Seq(_)
                    | Value::Map(_)
                    | Value::Refused => None,
                };
                let value = value.filter(|value| *value >= 0);
                let value = value.ok_or_else(|| misfit("a whole number, 0 or more"))?;
                Ok(draft::whole(value, position))
            }
            Self::Percent => {
                let value = match &node.value {
                    Value::Int(value) => Some(*value as f64),
                    Value::Float(value) => Some(*value),
                    Value::Str => node.text.parse().ok(),
                    Value::Null | Value::Bool(_) | Value::Seq(_) | Value::Map(_) | Value::Refused => None,
                };
                let value = value.filter(|value: &f64| (0.0..=100.0).contains(value));
                let value = value.ok_or_else(|| misfit("a number from 0 to 100"))?;
                Ok(draft::whole(value as i128, position))
            }
            Self::Span => {
                let text = node.scalar_text().ok_or_else(|| misfit("a duration such as 30s or 1h30m"))?;
                let span = text.parse::<Duration>().ok().filter(|span| !span.is_negative());
                if span.is_none() {
                    return Err(misfit("a duration such as 30s or 1h30m"));
                }
                Ok(draft::text(text, position))
            }
            Self::Texts => {
                let alone = [Arc::clone(node)];
                let items = node.items().unwrap_or(&alone).iter();
                let texts: Option<Vec<_>> =
                    items.map(|item| Some(draft::text(item.scalar_text()?, item.position))).collect();
                let texts = texts.ok_or_else(|| misfit("a list of strings"))?;
                Ok(Arc::new(Node { value: Value::Seq(texts), ..Node::clone(node) }))
            }
        }
    }
}

/// Replaces the templates of go-sockaddr in an address.
pub(super) fn expanded(text: &str, interfaces: &dyn Fn() -> Vec<Interface>) -> Result<String, String> {
    if text.contains("{{") { sockaddr::expand(text, &interfaces()) } else { Ok(text.to_owned()) }
}

/// Parses a boolean like Go's `strconv.ParseBool`.
pub(super) fn as_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
