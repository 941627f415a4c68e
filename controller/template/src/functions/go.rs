//! Functions of Go's text/template.

use super::{ANY, arguments, refused, row};
use crate::{
    compare,
    context::Context,
    error::{Fault, Outcome},
    format::{self, Output},
    function::{Body, Function, Group::Go},
    value::{Key, Value},
};

pub(super) static TABLE: &[Function] = &[
    Function { name: "and", group: Go, least: 1, most: ANY, body: Body::And },
    refused(Go, "call", "templates of jobs have no values that are functions"),
    row(Go, "eq", (1, ANY), eq),
    row(Go, "ge", (2, 2), |_, values| compare::less(&values[0], &values[1]).map(|is| Value::Bool(!is))),
    row(Go, "gt", (2, 2), |_, values| less_or_equal(&values[0], &values[1]).map(|is| Value::Bool(!is))),
    row(Go, "html", (0, ANY), |context, values| escaped(context, values, html)),
    row(Go, "index", (1, ANY), index),
    row(Go, "js", (0, ANY), |context, values| escaped(context, values, js)),
    row(Go, "le", (2, 2), |_, values| less_or_equal(&values[0], &values[1]).map(Value::Bool)),
    row(Go, "len", (1, 1), len),
    row(Go, "lt", (2, 2), |_, values| compare::less(&values[0], &values[1]).map(Value::Bool)),
    row(Go, "ne", (2, 2), |_, values| compare::equal(&values[0], &values[1]).map(|is| Value::Bool(!is))),
    row(Go, "not", (1, 1), |_, values| Ok(Value::Bool(!values[0].is_true()))),
    Function { name: "or", group: Go, least: 1, most: ANY, body: Body::Or },
    row(Go, "print", (0, ANY), |context, values| context.written(|out| format::sprint(out, values))),
    row(Go, "printf", (1, ANY), printf),
    row(Go, "println", (0, ANY), |context, values| context.written(|out| format::sprintln(out, values))),
    row(Go, "slice", (1, ANY), slice),
    row(Go, "urlquery", (0, ANY), |context, values| escaped(context, values, urlquery)),
];

fn eq(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    if values.len() < 2 {
        return Err(Fault::new("missing argument for comparison"));
    }
    for other in &values[1..] {
        if compare::equal(&values[0], other)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn less_or_equal(one: &Value, other: &Value) -> Outcome<bool> {
    Ok(compare::less(one, other)? || compare::equal(one, other)?)
}

fn printf(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let format = arguments::text(&values[0])?;
    context.written(|out| format::sprintf(out, format, &values[1..]))
}

fn len(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let length = match &values[0] {
        Value::Str(text) => text.len(),
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.len(),
        Value::Nil => return Err(Fault::new("len of nil pointer")),
        Value::Sequence(..) => 0,
        Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Struct(_)
        | Value::Scratch => return Err(Fault::new(format!("len of type {}", values[0].type_name()))),
    };
    Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn index(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut item = values[0].clone();
    if matches!(item, Value::Nil) {
        return Err(Fault::new("index of untyped nil"));
    }
    for index in &values[1..] {
        item = match &item {
            Value::Nil => return Err(Fault::new("index of nil pointer")),
            Value::List(list) => list.items[position(index, list.items.len(), 0)?].clone(),
            Value::Str(text) => Value::Uint(u64::from(text[position(index, text.len(), 0)?])),
            Value::Map(map) => {
                let key = index.as_key().ok_or_else(|| wrong_key(index))?;
                let found = map.get(&key);
                if found.is_none() && map.entries().keys().next().is_some_and(|own| !same_kind(own, &key)) {
                    return Err(wrong_key(index));
                }
                found.unwrap_or_else(|| map.element.zero())
            }
            Value::Bool(_)
            | Value::Int(_)
            | Value::Int64(_)
            | Value::Uint(_)
            | Value::Float(_)
            | Value::Struct(_)
            | Value::Sequence(..)
            | Value::Scratch => {
                return Err(Fault::new(format!("can't index item of type {}", item.type_name())));
            }
        };
    }
    Ok(item)
}

fn same_kind(one: &Key, other: &Key) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

fn wrong_key(index: &Value) -> Fault {
    if matches!(index, Value::Nil) {
        return Fault::new("value is nil; should be the key of a map");
    }
    Fault::new(format!("value has type {}; the map has other keys", index.type_name()))
}

/// Returns an index below `length`, or up to it with `extra` 1.
fn position(index: &Value, length: usize, extra: usize) -> Outcome<usize> {
    let number = index
        .as_int()
        .ok_or_else(|| Fault::new(format!("cannot index slice/array with type {}", index.type_name())))?;
    let position = usize::try_from(number).ok().filter(|number| *number < length + extra);
    position.ok_or_else(|| Fault::new(format!("index out of range: {number}")))
}

fn slice(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let (item, indexes) = (&values[0], &values[1..]);
    let length = match item {
        Value::Nil => return Err(Fault::new("slice of untyped nil")),
        _ if indexes.len() > 3 => {
            return Err(Fault::new(format!("too many slice indexes: {}", indexes.len())));
        }
        Value::Str(_) if indexes.len() == 3 => return Err(Fault::new("cannot 3-index slice a string")),
        Value::Str(text) => text.len(),
        Value::List(list) => list.items.len(),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => return Err(Fault::new(format!("can't slice item of type {}", item.type_name()))),
    };
    let mut bounds = [0, length, length];
    for (bound, index) in bounds.iter_mut().zip(indexes) {
        *bound = position(index, length, 1)?;
    }
    let [start, end, most] = bounds;
    if start > end || end > most {
        return Err(Fault::new(format!("invalid slice index: {start}, {end}, {most}")));
    }
    if let Value::List(list) = item {
        return context.list(list.items[start..end].to_vec(), list.element);
    }
    context.text(&arguments::text(item)?[start..end])
}

/// Escapes the text of all values, as `print` makes it.
fn escaped(context: &mut Context<'_>, values: &[Value], escape: fn(&[u8]) -> Vec<u8>) -> Outcome<Value> {
    let shown: Vec<Value> = values
        .iter()
        .map(|value| if matches!(value, Value::Nil) { "<no value>".into() } else { value.clone() })
        .collect();
    let mut out = Output::new(context.limits());
    format::sprint(&mut out, &shown)?;
    context.charge(out.bytes.len() * 6)?;
    context.text(escape(&out.bytes))
}

fn html(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            0 => out.extend_from_slice("\u{fffd}".as_bytes()),
            b'"' => out.extend_from_slice(b"&#34;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            _ => out.push(*byte),
        }
    }
    out
}

fn js(bytes: &[u8]) -> Vec<u8> {
    let mut out = String::with_capacity(bytes.len());
    for char in String::from_utf8_lossy(bytes).chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", char as u32)),
            _ if (char as u32) < 0x20 => out.push_str(&format!("\\u{:04X}", char as u32)),
            _ if char.is_control() => out.push_str(&format!("\\u{:04X}", char as u32)),
            _ => out.push(char),
        }
    }
    out.into_bytes()
}

/// As `url.QueryEscape`.
pub(super) fn urlquery(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b' ' => out.push(b'+'),
            b'-' | b'_' | b'.' | b'~' => out.push(*byte),
            _ if byte.is_ascii_alphanumeric() => out.push(*byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out
}
