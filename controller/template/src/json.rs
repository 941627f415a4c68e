//! JSON: reading, and writing as Go's `encoding/json` does.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::{
    context::{Context, VALUE_BYTES},
    error::{Fault, Outcome},
    format::{Output, json_number},
    text::split_char,
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
    context.charge(text.len())?;
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let mut bound = None;
    let parsed = Document { context, bound: &mut bound }.deserialize(&mut deserializer);
    let parsed = parsed.and_then(|value| deserializer.end().map(|()| value));
    match bound {
        Some(fault) => Err(fault),
        None => parsed.map_err(|error| Fault::new(format!("invalid JSON: {}", without_data(&error)))),
    }
}

/// Reads a document, and counts each value before the next one. The parser bounds its depth.
struct Document<'d, 'r> {
    context: &'d mut Context<'r>,
    /// The bound that ended it.
    bound: &'d mut Option<Fault>,
}

impl<'r> Document<'_, 'r> {
    fn inner(&mut self) -> Document<'_, 'r> {
        Document { context: self.context, bound: self.bound }
    }

    fn count<T, E: serde::de::Error>(
        &mut self,
        make: impl FnOnce(&mut Context<'r>) -> Outcome<T>,
    ) -> Result<T, E> {
        make(self.context).map_err(|fault| {
            self.bound.get_or_insert(fault);
            E::custom("a bound of rendering")
        })
    }
}

impl<'de> DeserializeSeed<'de> for Document<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Float(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Float(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: serde::de::Error>(mut self, text: &str) -> Result<Value, E> {
        self.count(|context| context.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self.inner())? {
            self.count::<_, A::Error>(|context| context.step().and_then(|()| context.charge(VALUE_BYTES)))?;
            items.push(item);
        }
        self.count(|context| context.list(items, Element::Any))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(key) = access.next_key::<Cow<'_, str>>()? {
            let item = access.next_value_seed(self.inner())?;
            let bytes = key.len() + VALUE_BYTES;
            self.count::<_, A::Error>(|context| context.step().and_then(|()| context.charge(bytes)))?;
            entries.insert(Key::Str((&*key).into()), item);
        }
        self.count(|context| context.map(entries, Element::Any))
    }
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
    context.written(|out| Writer { out, style }.value(value, 0))
}

struct Writer<'o, 'l> {
    out: &'o mut Output<'l>,
    style: Style,
}

impl Writer<'_, '_> {
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
        self.out.fill(b' ', 2 * depth)
    }

    fn string(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.out.push(b"\"")?;
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| !IS_PLAIN[usize::from(*byte)]) {
            let (plain, special) = rest.split_at(at);
            self.out.push(plain)?;
            let Some((char, after)) = split_char(special) else { break };
            match self.escape(char) {
                Some(escape) => self.out.push(escape.as_bytes())?,
                None => self.out.push(char.encode_utf8(&mut [0; 4]).as_bytes())?,
            }
            rest = after;
        }
        self.out.push(rest)?;
        self.out.push(b"\"")
    }

    /// What is written instead of a character.
    fn escape(&self, char: char) -> Option<Cow<'static, str>> {
        let short = match char {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\x08' => "\\b",
            '\x0c' => "\\f",
            '\0'..='\x1f' | '\u{2028}' | '\u{2029}' => return Some(format!("\\u{:04x}", char as u32).into()),
            '<' | '>' | '&' if self.style.html => return Some(format!("\\u{:04x}", char as u32).into()),
            _ => return None,
        };
        Some(short.into())
    }
}

/// For each byte, whether it is a character that is never escaped.
const IS_PLAIN: [bool; 256] = {
    let mut is_plain = [false; 256];
    let mut byte = b' ';
    while byte.is_ascii() {
        is_plain[byte as usize] = !matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&');
        byte += 1;
    }
    is_plain
};
