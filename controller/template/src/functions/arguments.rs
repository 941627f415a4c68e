//! Typed access to the arguments of a call.

use std::{borrow::Cow, rc::Rc};

use crate::{
    error::{Fault, Outcome},
    text::Text,
    value::{List, Map, Value},
};

fn wrong(wanted: &str, value: &Value) -> Fault {
    Fault::new(format!("wrong type for value; expected {wanted}; got {}", value.type_name()))
}

/// A string.
pub(super) fn text(value: &Value) -> Outcome<&Text> {
    value.as_text().ok_or_else(|| wrong("string", value))
}

/// A string for functions that work on characters.
pub(super) fn string(value: &Value) -> Outcome<Cow<'_, str>> {
    text(value).map(Text::lossy)
}

/// An integer, or a floating-point number without a fraction.
pub(super) fn int(value: &Value) -> Outcome<i64> {
    if let Value::Float(number) = value
        && number.fract() == 0.0
        && number.abs() < 9e15
    {
        return Ok(*number as i64);
    }
    value.as_int().and_then(|value| i64::try_from(value).ok()).ok_or_else(|| wrong("int", value))
}

/// A list. A nil is an empty one.
pub(super) fn list(value: &Value) -> Outcome<Option<&Rc<List>>> {
    match value {
        Value::List(list) => Ok(Some(list)),
        Value::Nil => Ok(None),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => Err(wrong("a list", value)),
    }
}

/// The items of a list.
pub(super) fn items(value: &Value) -> Outcome<&[Value]> {
    Ok(list(value)?.map_or(&[], |list| list.items.as_slice()))
}

/// A map. A nil is none.
pub(super) fn map(value: &Value) -> Outcome<Option<&Rc<Map>>> {
    match value {
        Value::Map(map) => Ok(Some(map)),
        Value::Nil => Ok(None),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::List(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => Err(wrong("a map", value)),
    }
}
