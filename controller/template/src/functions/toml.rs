//! TOML: writing as the encoder of consul-template does, keys in order, tables last.

use std::collections::BTreeMap;

use crate::{
    context::Context,
    error::{Fault, Outcome},
    format::{Output, general, quote},
    value::{Key, Value},
};

/// Writes a map, without a line end.
pub(super) fn write(context: &mut Context<'_>, value: &Value) -> Outcome<Value> {
    if !is_table(value) {
        return Err(Fault::new(format!("TOML needs a map, not a {}", value.type_name())));
    }
    let out = Output::new(context.limits());
    let mut writer = Writer { context, out, path: Vec::new() };
    writer.table(value)?;
    let bytes = writer.out.bytes;
    context.text(bytes.trim_ascii())
}

struct Writer<'c, 'r> {
    context: &'c mut Context<'r>,
    out: Output<'r>,
    /// The keys of the table in progress, as they are written.
    path: Vec<String>,
}

fn is_table(value: &Value) -> bool {
    match value {
        Value::Map(_) => true,
        Value::Struct(object) => object.shown.is_none(),
        Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::List(_)
        | Value::Sequence(..)
        | Value::Scratch => false,
    }
}

fn is_table_list(value: &Value) -> bool {
    let Value::List(list) = value else { return false };
    !list.items.is_empty() && list.items.iter().all(is_table)
}

impl Writer<'_, '_> {
    /// The entries of a table, sorted. Counts each, because an entry that is nil writes nothing.
    fn entries(&mut self, value: &Value) -> Outcome<BTreeMap<String, Value>> {
        let mut entries = BTreeMap::new();
        if let Value::Map(map) = value {
            for (key, value) in map.entries().iter() {
                self.context.step()?;
                self.context.charge(key.len())?;
                entries.insert(key_text(key), value.clone());
            }
        }
        if let Value::Struct(object) = value {
            for (name, value) in &object.fields {
                self.context.step()?;
                entries.insert((*name).to_owned(), value.clone());
            }
        }
        Ok(entries)
    }

    fn table(&mut self, value: &Value) -> Outcome<()> {
        self.out.descend(self.path.len())?;
        let indent = self.path.len().saturating_sub(1) * 2;
        let inner = if self.path.is_empty() { 0 } else { indent + 2 };
        let mut tables = Vec::new();
        for (key, value) in self.entries(value)? {
            if let Value::List(list) = &value {
                self.context.charge(list.items.len())?;
            }
            if is_table(&value) || is_table_list(&value) {
                tables.push((key, value));
            } else if !matches!(value, Value::Nil) {
                self.out.fill(b' ', inner)?;
                self.out.push(written_key(&key).as_bytes())?;
                self.out.push(b" = ")?;
                scalar(&mut self.out, &value, 0)?;
                self.out.push(b"\n")?;
            }
        }
        for (key, value) in tables {
            self.path.push(written_key(&key));
            let (items, brackets) = if let Value::List(list) = &value {
                (list.items.as_slice(), ("[[", "]]"))
            } else {
                (std::slice::from_ref(&value), ("[", "]"))
            };
            for item in items {
                self.header(inner, brackets)?;
                self.table(item)?;
            }
            self.path.pop();
        }
        Ok(())
    }

    fn header(&mut self, indent: usize, (open, close): (&str, &str)) -> Outcome<()> {
        let Self { out, path, .. } = self;
        if !out.bytes.is_empty() && path.len() == 1 {
            out.push(b"\n")?;
        }
        out.fill(b' ', indent)?;
        out.push(open.as_bytes())?;
        for (index, key) in path.iter().enumerate() {
            if index > 0 {
                out.push(b".")?;
            }
            out.push(key.as_bytes())?;
        }
        out.push(close.as_bytes())?;
        out.push(b"\n")
    }
}

fn key_text(key: &Key) -> String {
    match key {
        Key::Bool(value) => value.to_string(),
        Key::Int(value) => value.to_string(),
        Key::Str(text) => text.lossy().into_owned(),
    }
}

fn written_key(key: &str) -> String {
    let is_bare = !key.is_empty()
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if is_bare { key.to_owned() } else { quote(key.as_bytes()) }
}

fn scalar(out: &mut Output<'_>, value: &Value, depth: usize) -> Outcome<()> {
    let depth = out.descend(depth)?;
    match value {
        Value::Bool(value) => out.push(value.to_string().as_bytes()),
        Value::Int(value) | Value::Int64(value) => out.push(value.to_string().as_bytes()),
        Value::Uint(value) => out.push(value.to_string().as_bytes()),
        Value::Float(value) => {
            let text = general(*value).to_lowercase();
            let text = if text.contains(['.', 'e', 'n']) { text } else { format!("{text}.0") };
            out.push(text.as_bytes())
        }
        Value::Str(_) | Value::Struct(_) => {
            let text = value.as_text().map(|text| &**text).unwrap_or_default();
            out.reserve(text.len())?;
            out.push(quote(text).as_bytes())
        }
        Value::List(list) => {
            out.push(b"[")?;
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    out.push(b", ")?;
                }
                scalar(out, item, depth)?;
            }
            out.push(b"]")
        }
        Value::Map(_) => Err(Fault::new("TOML: a list cannot mix tables with other values")),
        Value::Nil => Err(Fault::new("TOML: a list cannot contain nil")),
        Value::Sequence(..) | Value::Scratch => {
            Err(Fault::new(format!("cannot write {} as TOML", value.type_name())))
        }
    }
}
