//! Values that mean the same as another one in Nomad, or the same as an absent field.
//!
//! In: a field of a block and its value, in the types of manifests. Out: the value to use. The rules are those of
//! `Canonicalize` in Nomad's `api` and `nomad/structs`; those that hold for every language are in the conversion of
//! manifests.

use std::sync::Arc;

use super::shape::Shape;
use super::text;
use crate::yaml::{Node, Value};

/// Fields in which 0 means the same as an absent field.
const ZERO_IS_ABSENT: [(&str, &str); 3] = [("Identity", "ttl"), ("Port", "static"), ("Port", "to")];

/// Fields in which servers replace 0 by the default.
const ZERO_IS_DEFAULT: [(&str, &str); 1] = [("TaskSpec", "kill_timeout")];

/// Fields in which a negative number means the same as an absent field: `to = -1` is the host's port.
const NEGATIVE_IS_ABSENT: [(&str, &str); 7] = [
    ("Check", "failures_before_critical"),
    ("Check", "failures_before_warning"),
    ("Check", "success_before_passing"),
    ("Port", "to"),
    ("Reschedule", "attempts"),
    ("Weights", "passing"),
    ("Weights", "warning"),
];

/// Fields whose values may be in any case.
const ANY_CASE: [(&str, &str); 2] = [("Check", "type"), ("Check", "protocol")];

/// Returns the value of a field of a block; `None` if it is the same as an absent field.
pub(super) fn value(block: &Shape<'_>, field: &str, value: Arc<Node>) -> Option<Arc<Node>> {
    let Some(name) = block.block() else { return Some(value) };
    let is_in = |table: &[(&str, &str)]| table.contains(&(name, field));
    match &value.value {
        Value::Str if value.text.is_empty() => None,
        Value::Str if is_in(&ZERO_IS_ABSENT) && is_zero(&value.text) => None,
        Value::Str if is_in(&ANY_CASE) => Some(text(&value.text.to_lowercase(), value.position)),
        Value::Int(0) if is_in(&ZERO_IS_ABSENT) => None,
        Value::Int(..0) if is_in(&NEGATIVE_IS_ABSENT) => None,
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Str
        | Value::Seq(_)
        | Value::Map(_)
        | Value::Refused => Some(value),
    }
}

/// Returns whether servers would replace the value of a field by the default.
pub(super) fn is_replaced(block: &Shape<'_>, field: &str, value: &Node) -> bool {
    let is_listed = block.block().is_some_and(|name| ZERO_IS_DEFAULT.contains(&(name, field)));
    is_listed && (value.value == Value::Int(0) || is_zero(&value.text))
}

/// Returns whether a duration is 0.
fn is_zero(text: &str) -> bool {
    herdlet_api_types::parse_duration(text) == Ok(0)
}
