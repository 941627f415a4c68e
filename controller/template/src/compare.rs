//! Comparisons: of basic values as Go's templates do, and of content.

use crate::{
    context::Context,
    error::{Fault, Outcome},
    value::Value,
};

/// Go's `eq`, for the first value and one of the others.
pub(crate) fn equal(one: &Value, other: &Value) -> Outcome<bool> {
    if let (Some(one), Some(other)) = (one.as_int(), other.as_int()) {
        return Ok(one == other);
    }
    match (one, other) {
        (Value::Nil, _) | (_, Value::Nil) => Ok(is_nil(one) && is_nil(other)),
        (Value::List(_), Value::List(_)) | (Value::Map(_), Value::Map(_)) => {
            Err(Fault::new(format!("non-comparable type {}", other.type_name())))
        }
        _ if std::mem::discriminant(one) == std::mem::discriminant(other) => Ok(identical(one, other)),
        _ if basic(one).is_none() && basic(other).is_none() => {
            Err(Fault::new(format!("non-comparable types {}, {}", one.type_name(), other.type_name())))
        }
        _ => Err(incompatible(one, other)),
    }
}

fn is_nil(value: &Value) -> bool {
    matches!(value, Value::Nil)
}

/// Go's `lt`.
pub(crate) fn less(one: &Value, other: &Value) -> Outcome<bool> {
    if let (Some(one), Some(other)) = (one.as_int(), other.as_int()) {
        return Ok(one < other);
    }
    match (one, other) {
        (Value::Float(one), Value::Float(other)) => Ok(one < other),
        (Value::Str(one), Value::Str(other)) => Ok(one < other),
        (Value::Bool(_), Value::Bool(_)) => Err(Fault::new("invalid type for comparison")),
        _ if basic(one).is_none() || basic(other).is_none() => Err(Fault::new("invalid type for comparison")),
        _ => Err(incompatible(one, other)),
    }
}

fn incompatible(one: &Value, other: &Value) -> Fault {
    let (one, other) = (one.type_name(), other.type_name());
    Fault::new(format!("incompatible types for comparison: {one} and {other}"))
}

/// Basic values can be compared with others of their kind.
fn basic(value: &Value) -> Option<()> {
    match value {
        Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Str(_) => Some(()),
        Value::Nil
        | Value::List(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => None,
    }
}

/// Whether two values are the same object or equal scalars of the same type: Go's `==` on interfaces.
pub(crate) fn identical(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Nil, Value::Nil) | (Value::Scratch, Value::Scratch) => true,
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::Int(one), Value::Int(other)) | (Value::Int64(one), Value::Int64(other)) => one == other,
        (Value::Uint(one), Value::Uint(other)) => one == other,
        (Value::Float(one), Value::Float(other)) => one == other,
        (Value::Str(one), Value::Str(other)) => one == other,
        (Value::Sequence(..), Value::Sequence(..)) => false,
        (Value::Struct(one), Value::Struct(other)) => std::rc::Rc::ptr_eq(one, other),
        (Value::List(one), Value::List(other)) => std::rc::Rc::ptr_eq(one, other),
        (Value::Map(one), Value::Map(other)) => std::rc::Rc::ptr_eq(one, other),
        (_, _) => false,
    }
}

/// Whether two values have equal content: Go's `reflect.DeepEqual`.
pub(crate) fn deep_equal(context: &mut Context<'_>, one: &Value, other: &Value) -> Outcome<bool> {
    deep(context, one, other, 0)
}

fn deep(context: &mut Context<'_>, one: &Value, other: &Value, depth: usize) -> Outcome<bool> {
    context.step()?;
    if depth > context.limits().depth {
        return Err(Fault::limit(format!("values are nested more than {} deep", context.limits().depth)));
    }
    match (one, other) {
        (Value::List(one), Value::List(other)) => {
            if one.items.len() != other.items.len() || one.element != other.element {
                return Ok(false);
            }
            for (one, other) in one.items.iter().zip(&other.items) {
                if !deep(context, one, other, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Map(one), Value::Map(other)) => {
            let (one, other) = (one.entries(), other.entries());
            if one.len() != other.len() {
                return Ok(false);
            }
            for ((key, value), (other_key, other_value)) in one.iter().zip(other.iter()) {
                if key != other_key || !deep(context, value, other_value, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Struct(one), Value::Struct(other)) => {
            if one.type_name != other.type_name {
                return Ok(false);
            }
            for ((_, one), (_, other)) in one.fields.iter().zip(&other.fields) {
                if !deep(context, one, other, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Str(one), Value::Str(other)) => {
            context.charge(one.len().min(other.len()) / 8)?;
            Ok(one == other)
        }
        (one, other) => Ok(identical(one, other)),
    }
}
