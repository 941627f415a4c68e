//! JSON: reading, and writing as Go's `encoding/json` does.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    context::Context,
    error::{Fault, Outcome},
    format::{Output, json_number},
    value::{Element, Key, Value},
};

/// What numbers without a fraction become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// `float64`, as Go reads JSON into an interface.
    Floats,
    Ints,
}

/// Parses a text.
pub(crate) fn parse(context: &mut Context<'_>, text: &[u8]) -> Outcome<Value> {
    context.charge(text.len() * 4)?;
    let parsed: serde_json::Value = serde_json::from_slice(text)
        .map_err(|error| Fault::new(format!("invalid JSON: {}", without_data(&error))))?;
    value(context, &parsed, Numbers::Floats)
}

/// The error without the text that it is about, which may be secret.
fn without_data(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Data => "syntax error",
    };
    format!("{what} at line {} column {}", error.line(), error.column())
}

/// Converts a tree. The parser bounds its depth.
pub(crate) fn value(context: &mut Context<'_>, tree: &serde_json::Value, numbers: Numbers) -> Outcome<Value> {
    context.step()?;
    match tree {
        serde_json::Value::Null => Ok(Value::Nil),
        serde_json::Value::Bool(value) => Ok(Value::Bool(*value)),
        serde_json::Value::Number(number) => Ok(match (number.as_i64(), numbers) {
            (Some(int), Numbers::Ints) => Value::Int64(int),
            (_, _) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        }),
        serde_json::Value::String(text) => context.text(text.as_str()),
        serde_json::Value::Array(items) => {
            let items =
                items.iter().map(|item| value(context, item, numbers)).collect::<Outcome<Vec<_>>>()?;
            context.list(items, Element::Any)
        }
        serde_json::Value::Object(object) => {
            let mut entries = BTreeMap::new();
            for (key, item) in object {
                entries.insert(Key::Str(key.as_str().into()), value(context, item, numbers)?);
            }
            context.map(entries, Element::Any)
        }
    }
}

/// How JSON is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) pretty: bool,
    /// Whether `<`, `>` and `&` are escaped.
    pub(crate) html: bool,
}

/// Writes a value.
pub(crate) fn write(context: &mut Context<'_>, value: &Value, style: Style) -> Outcome<Value> {
    let mut writer = Writer { out: Output::new(context.limits()), style };
    writer.value(value, 0)?;
    let bytes = writer.out.bytes;
    context.text(bytes)
}

struct Writer<'l> {
    out: Output<'l>,
    style: Style,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Outcome<()> {
        match value {
            Value::Nil => self.out.push(b"null"),
            Value::Bool(value) => self.out.push(if *value { b"true" } else { b"false" }),
            Value::Int(value) | Value::Int64(value) => self.out.push(value.to_string().as_bytes()),
            Value::Uint(value) => self.out.push(value.to_string().as_bytes()),
            Value::Float(value) if value.is_finite() => self.out.push(json_number(*value).as_bytes()),
            Value::Float(_) => Err(Fault::new("json: unsupported value: not a finite number")),
            Value::Str(text) => self.string(text),
            Value::List(list) => {
                let inner = self.out.descend(depth)?;
                self.out.push(b"[")?;
                for (index, item) in list.items.iter().enumerate() {
                    self.separate(index, inner)?;
                    self.value(item, inner)?;
                }
                self.close(list.items.len(), depth, b"]")
            }
            Value::Map(map) => {
                let inner = self.out.descend(depth)?;
                self.out.push(b"{")?;
                for (index, (key, item)) in map.entries().iter().enumerate() {
                    self.separate(index, inner)?;
                    match key {
                        Key::Str(text) => self.string(text)?,
                        Key::Int(number) => self.string(number.to_string().as_bytes())?,
                        Key::Bool(value) => self.string(value.to_string().as_bytes())?,
                    }
                    self.colon()?;
                    self.value(item, inner)?;
                }
                self.close(map.len(), depth, b"}")
            }
            Value::Struct(object) => {
                if let (Some(shown), false) = (&object.shown, object.type_name.ends_with("Meta")) {
                    return self.string(shown);
                }
                let inner = self.out.descend(depth)?;
                self.out.push(b"{")?;
                for (index, (name, item)) in object.fields.iter().enumerate() {
                    self.separate(index, inner)?;
                    self.string(name.as_bytes())?;
                    self.colon()?;
                    self.value(item, inner)?;
                }
                self.close(object.fields.len(), depth, b"}")
            }
            Value::Sequence(..) | Value::Scratch => {
                Err(Fault::new(format!("json: unsupported type: {}", value.type_name())))
            }
        }
    }

    fn colon(&mut self) -> Outcome<()> {
        self.out.push(if self.style.pretty { b": " } else { b":" })
    }

    fn separate(&mut self, index: usize, depth: usize) -> Outcome<()> {
        if index > 0 {
            self.out.push(b",")?;
        }
        self.line(depth)
    }

    fn close(&mut self, items: usize, depth: usize, bracket: &[u8]) -> Outcome<()> {
        if items > 0 {
            self.line(depth)?;
        }
        self.out.push(bracket)
    }

    fn line(&mut self, depth: usize) -> Outcome<()> {
        if !self.style.pretty {
            return Ok(());
        }
        self.out.push(b"\n")?;
        self.out.repeat(' ', 2 * depth)
    }

    fn string(&mut self, bytes: &[u8]) -> Outcome<()> {
        let mut out = String::with_capacity(bytes.len() + 2);
        out.push('"');
        for chunk in bytes.utf8_chunks() {
            for char in chunk.valid().chars() {
                self.escape(&mut out, char);
            }
            for _ in chunk.invalid() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        out.push('"');
        self.out.push(out.as_bytes())
    }

    fn escape(&self, out: &mut String, char: char) {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\u{2028}' | '\u{2029}' => _ = write!(out, "\\u{:04x}", char as u32),
            '<' | '>' | '&' if self.style.html => _ = write!(out, "\\u{:04x}", char as u32),
            _ if (char as u32) < 0x20 => _ = write!(out, "\\u{:04x}", char as u32),
            _ => out.push(char),
        }
    }
}
