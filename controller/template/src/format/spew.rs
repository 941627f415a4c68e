//! `spew_sdump` and `spew_sprintf`: values with their types, as go-spew prints them.
//!
//! Maps are in the order of their keys. The capacity of a list is its length.

use super::{Output, print, quote, sprintf};
use crate::{
    error::Outcome,
    limits::Limits,
    value::{Key, Value},
};

/// Each value in lines of its own.
pub(crate) fn dump(limits: &Limits, values: &[Value]) -> Outcome<Vec<u8>> {
    let mut out = Output::new(limits);
    for value in values {
        dump_at(&mut out, value, 0)?;
        out.push(b"\n")?;
    }
    Ok(out.bytes)
}

fn dump_at(out: &mut Output<'_>, value: &Value, depth: usize) -> Outcome<()> {
    push_type(out, value)?;
    out.push(b" ")?;
    let inner = out.descend(depth)?;
    match value {
        Value::Str(text) => {
            push_length(out, text.len(), "")?;
            out.reserve(text.len())?;
            out.push(quote(text).as_bytes())
        }
        Value::List(list) => {
            let length = list.items.len();
            push_length(out, length, &format!(" cap={length}"))?;
            out.push(b"{\n")?;
            for (index, item) in list.items.iter().enumerate() {
                out.fill(b' ', inner)?;
                dump_at(out, item, inner)?;
                push_end(out, (index, length))?;
            }
            out.fill(b' ', depth)?;
            out.push(b"}")
        }
        Value::Map(map) => {
            let length = map.len();
            push_length(out, length, "")?;
            out.push(b"{\n")?;
            for (index, (key, item)) in map.entries().iter().enumerate() {
                out.fill(b' ', inner)?;
                dump_at(out, &key.value(), inner)?;
                out.push(b": ")?;
                dump_at(out, item, inner)?;
                push_end(out, (index, length))?;
            }
            out.fill(b' ', depth)?;
            out.push(b"}")
        }
        Value::Struct(object) if object.shown.is_none() => {
            out.push(b"{\n")?;
            for (index, (name, item)) in object.fields.iter().enumerate() {
                out.fill(b' ', inner)?;
                out.push(name.as_bytes())?;
                out.push(b": ")?;
                dump_at(out, item, inner)?;
                push_end(out, (index, object.fields.len()))?;
            }
            out.fill(b' ', depth)?;
            out.push(b"}")
        }
        Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => print(out, value),
    }
}

fn push_type(out: &mut Output<'_>, value: &Value) -> Outcome<()> {
    let name = if matches!(value, Value::Nil) { "interface {}".to_owned() } else { value.type_name() };
    out.push(format!("({name})").as_bytes())
}

/// The length of what is not empty.
fn push_length(out: &mut Output<'_>, length: usize, more: &str) -> Outcome<()> {
    if length == 0 {
        return Ok(());
    }
    out.push(format!("(len={length}{more}) ").as_bytes())
}

/// The end of one of several values.
fn push_end(out: &mut Output<'_>, (index, length): (usize, usize)) -> Outcome<()> {
    out.push(if index + 1 < length { b",\n" } else { b"\n" })
}

/// `printf`, but `%v` ignores widths, and `%#v` prints types.
pub(crate) fn print_format(limits: &Limits, format: &[u8], values: &[Value]) -> Outcome<Vec<u8>> {
    let mut out = Output::new(limits);
    let (mut rest, mut values) = (format, values.iter());
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        out.push(&rest[..at])?;
        let flags = rest[at + 1..].iter().take_while(|byte| b"+-# .0123456789".contains(byte)).count();
        let end = (at + 1 + flags + 1).min(rest.len());
        let (verb, after) = (&rest[at..end], &rest[end..]);
        rest = after;
        if verb == b"%%" {
            out.push(b"%")?;
            continue;
        }
        let value = values.next();
        match (value, verb.ends_with(b"v")) {
            (Some(value), true) if verb.contains(&b'#') => typed(&mut out, value, (0, TypeLabel::Printed))?,
            (Some(value), true) => {
                let plain: &[u8] = if verb.contains(&b'+') { b"%+v" } else { b"%v" };
                sprintf(&mut out, plain, std::slice::from_ref(value))?;
            }
            (value, _) => {
                sprintf(&mut out, verb, value.map(std::slice::from_ref).unwrap_or_default())?;
            }
        }
    }
    out.push(rest)?;
    let extra = values.as_slice();
    if !extra.is_empty() {
        sprintf(&mut out, b"", extra)?;
    }
    Ok(out.bytes)
}

/// Whether the type of a value follows from that of the value around it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TypeLabel {
    Implied,
    Printed,
}

fn typed(out: &mut Output<'_>, value: &Value, (depth, label): (usize, TypeLabel)) -> Outcome<()> {
    if label == TypeLabel::Printed {
        push_type(out, value)?;
    }
    let depth = out.descend(depth)?;
    match value {
        Value::List(list) => {
            let label =
                if value.type_name() == "[]interface {}" { TypeLabel::Printed } else { TypeLabel::Implied };
            out.push(b"[")?;
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    out.push(b" ")?;
                }
                typed(out, item, (depth, label))?;
            }
            out.push(b"]")
        }
        Value::Map(map) => {
            let label = if value.type_name().ends_with("]interface {}") {
                TypeLabel::Printed
            } else {
                TypeLabel::Implied
            };
            out.push(b"map[")?;
            for (index, (key, item)) in map.entries().iter().enumerate() {
                if index > 0 {
                    out.push(b" ")?;
                }
                print(out, &Key::value(key))?;
                out.push(b":")?;
                typed(out, item, (depth, label))?;
            }
            out.push(b"]")
        }
        Value::Struct(object) if object.shown.is_none() => {
            out.push(b"{")?;
            for (index, (name, item)) in object.fields.iter().enumerate() {
                if index > 0 {
                    out.push(b" ")?;
                }
                out.push(name.as_bytes())?;
                out.push(b":")?;
                typed(out, item, (depth, TypeLabel::Printed))?;
            }
            out.push(b"}")
        }
        Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => print(out, value),
    }
}
