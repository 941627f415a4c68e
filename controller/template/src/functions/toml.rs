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
    let mut out = Output::new(context.limits());
    let entries =
        entries(value).ok_or_else(|| Fault::new(format!("TOML needs a map, not a {}", value.type_name())))?;
    table(&mut out, &entries, &mut Vec::new())?;
    let bytes = out.bytes.trim_ascii().to_vec();
    context.text(bytes)
}

type Entries = BTreeMap<String, Value>;

fn entries(value: &Value) -> Option<Entries> {
    if let Value::Map(map) = value {
        return Some(map.entries().iter().map(|(key, value)| (key_text(key), value.clone())).collect());
    }
    let Value::Struct(object) = value else { return None };
    let fields = object.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    object.shown.is_none().then(|| fields.collect())
}

fn key_text(key: &Key) -> String {
    match key {
        Key::Bool(value) => value.to_string(),
        Key::Int(value) => value.to_string(),
        Key::Str(text) => text.lossy().into_owned(),
    }
}

fn table(out: &mut Output<'_>, all: &Entries, path: &mut Vec<String>) -> Outcome<()> {
    out.descend(path.len())?;
    let indent = path.len().saturating_sub(1) * 2;
    let is_table = |value: &Value| entries(value).is_some() || is_table_list(value);
    let inner = if path.is_empty() { 0 } else { indent + 2 };
    for (key, value) in all.iter().filter(|(_, value)| !is_table(value) && !matches!(value, Value::Nil)) {
        out.repeat(' ', inner)?;
        out.push(format!("{} = ", written_key(key)).as_bytes())?;
        scalar(out, value, 0)?;
        out.push(b"\n")?;
    }
    for (key, value) in all.iter().filter(|(_, value)| is_table(value)) {
        path.push(key.clone());
        let (items, brackets) = if let Value::List(list) = value {
            (list.items.as_slice(), ("[[", "]]"))
        } else {
            (std::slice::from_ref(value), ("[", "]"))
        };
        for item in items {
            header(out, path, inner, brackets)?;
            table(out, &entries(item).unwrap_or_default(), path)?;
        }
        path.pop();
    }
    Ok(())
}

fn is_table_list(value: &Value) -> bool {
    let Value::List(list) = value else { return false };
    !list.items.is_empty() && list.items.iter().all(|item| entries(item).is_some())
}

fn header(out: &mut Output<'_>, path: &[String], indent: usize, (open, close): (&str, &str)) -> Outcome<()> {
    let keys: Vec<String> = path.iter().map(|key| written_key(key)).collect();
    if !out.bytes.is_empty() && path.len() == 1 {
        out.push(b"\n")?;
    }
    out.repeat(' ', indent)?;
    out.push(format!("{open}{}{close}\n", keys.join(".")).as_bytes())
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
        Value::Str(_) => out.push(quote(value.as_text().map(|text| &**text).unwrap_or_default()).as_bytes()),
        Value::Struct(object) => out.push(quote(object.shown.as_deref().unwrap_or_default()).as_bytes()),
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
