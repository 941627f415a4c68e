//! Values as text, as Go's package `fmt` prints them.

mod float;
mod quote;
pub(crate) mod spew;
mod verbs;

pub(crate) use float::{general, json_number};
pub(crate) use quote::quote;
pub(crate) use verbs::sprintf;

use std::ops::Deref;

use crate::{
    error::{Fault, Outcome},
    limits::Limits,
    value::{Key, Value},
};

/// Text under construction, bounded in size and in the nesting of values.
pub(crate) struct Output<'l> {
    pub(crate) bytes: Vec<u8>,
    limits: &'l Limits,
    /// Most bytes of this text.
    most: usize,
}

impl<'l> Output<'l> {
    pub(crate) fn new(limits: &'l Limits) -> Self {
        Self { bytes: Vec::new(), limits, most: limits.output_bytes }
    }

    /// Begins a text that probably has about this many bytes.
    pub(crate) fn with_capacity(limits: &'l Limits, bytes: usize) -> Self {
        Self::within(limits, Vec::with_capacity(bytes.min(limits.output_bytes)))
    }

    /// Begins a text in the memory of another one, which is over.
    pub(crate) fn within(limits: &'l Limits, mut memory: Vec<u8>) -> Self {
        memory.clear();
        Self { bytes: memory, ..Self::new(limits) }
    }

    /// Begins a text within another one. Both together have at most the bytes of one.
    pub(crate) fn nested(&self) -> Self {
        Self { bytes: Vec::new(), limits: self.limits, most: self.most.saturating_sub(self.bytes.len()) }
    }

    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.reserve(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Pushes one byte several times.
    pub(crate) fn fill(&mut self, byte: u8, times: usize) -> Outcome<()> {
        self.reserve(times)?;
        self.bytes.resize(self.bytes.len() + times, byte);
        Ok(())
    }

    /// Checks that more bytes fit. To be called before a text of at least that size is made.
    #[inline]
    pub(crate) fn reserve(&self, bytes: usize) -> Outcome<()> {
        if bytes <= self.most.saturating_sub(self.bytes.len()) { Ok(()) } else { Err(self.too_long()) }
    }

    #[cold]
    fn too_long(&self) -> Fault {
        Fault::limit(format!("the output has more than {} bytes", self.limits.output_bytes))
    }

    pub(crate) fn descend(&self, depth: usize) -> Outcome<usize> {
        if depth >= self.limits.depth {
            return Err(Fault::limit(format!("values are nested more than {} deep", self.limits.depth)));
        }
        Ok(depth + 1)
    }
}

/// Prints the value of an action.
pub(crate) fn print_action(out: &mut Output<'_>, value: &Value) -> Outcome<()> {
    match value {
        Value::Str(text) => out.push(text),
        Value::Nil => out.push(b"<no value>"),
        Value::Sequence(..) => Err(Fault::new("can't print a sequence: use range")),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::List(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Scratch => print(out, value),
    }
}

/// Prints a value as `%v` does.
pub(crate) fn print(out: &mut Output<'_>, value: &Value) -> Outcome<()> {
    print_at(out, value, 0)
}

fn print_at(out: &mut Output<'_>, value: &Value, depth: usize) -> Outcome<()> {
    match value {
        Value::Nil => out.push(b"<nil>"),
        Value::Bool(value) => out.push(if *value { b"true" } else { b"false" }),
        Value::Int(value) | Value::Int64(value) => print_int(out, *value),
        Value::Uint(value) => out.push(&Digits::new(*value)),
        Value::Float(value) => out.push(general(*value).as_bytes()),
        Value::Str(text) => out.push(text),
        Value::List(list) => {
            let depth = out.descend(depth)?;
            out.push(b"[")?;
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    out.push(b" ")?;
                }
                print_at(out, item, depth)?;
            }
            out.push(b"]")
        }
        Value::Map(map) => {
            let depth = out.descend(depth)?;
            out.push(b"map[")?;
            for (index, (key, value)) in map.entries().iter().enumerate() {
                if index > 0 {
                    out.push(b" ")?;
                }
                print_key(out, key)?;
                out.push(b":")?;
                print_at(out, value, depth)?;
            }
            out.push(b"]")
        }
        Value::Struct(value) => {
            if let Some(shown) = &value.shown {
                return out.push(shown);
            }
            let depth = out.descend(depth)?;
            out.push(b"{")?;
            for (index, (_, value)) in value.fields.iter().enumerate() {
                if index > 0 {
                    out.push(b" ")?;
                }
                print_at(out, value, depth)?;
            }
            out.push(b"}")
        }
        Value::Sequence(..) => out.push(b"<-chan int64"),
        Value::Scratch => out.push(b"scratch"),
    }
}

fn print_int(out: &mut Output<'_>, value: i64) -> Outcome<()> {
    if value < 0 {
        out.push(b"-")?;
    }
    out.push(&Digits::new(value.unsigned_abs()))
}

/// The decimal digits of an integer, without memory of their own.
struct Digits {
    bytes: [u8; Self::MOST],
    start: usize,
}

impl Digits {
    /// The digits of the largest integer.
    const MOST: usize = 20;

    fn new(mut value: u64) -> Self {
        let (mut bytes, mut start) = ([b'0'; Self::MOST], Self::MOST - 1);
        while value >= 10 {
            bytes[start] += (value % 10) as u8;
            value /= 10;
            start -= 1;
        }
        bytes[start] += value as u8;
        Self { bytes, start }
    }
}

impl Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

fn print_key(out: &mut Output<'_>, key: &Key) -> Outcome<()> {
    match key {
        Key::Bool(value) => out.push(value.to_string().as_bytes()),
        Key::Int(value) => out.push(value.to_string().as_bytes()),
        Key::Str(text) => out.push(text),
    }
}

/// Go's `print`: spaces between two operands of which none is a string.
pub(crate) fn sprint(out: &mut Output<'_>, values: &[Value]) -> Outcome<()> {
    for (index, value) in values.iter().enumerate() {
        let is_string = |value: &Value| matches!(value, Value::Str(_));
        if index > 0 && !is_string(value) && !is_string(&values[index - 1]) {
            out.push(b" ")?;
        }
        print(out, value)?;
    }
    Ok(())
}

/// Go's `println`.
pub(crate) fn sprintln(out: &mut Output<'_>, values: &[Value]) -> Outcome<()> {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(b" ")?;
        }
        print(out, value)?;
    }
    out.push(b"\n")
}

/// The text of one value as `%v` prints it.
pub(crate) fn shown(limits: &Limits, value: &Value) -> Outcome<Vec<u8>> {
    let mut out = Output::new(limits);
    print(&mut out, value)?;
    Ok(out.bytes)
}
