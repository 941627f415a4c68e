//! YAML: reading, and writing in the block style of Go's `yaml.v2`.

use std::{collections::BTreeMap, fmt};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::{
    context::Context,
    error::{Fault, Outcome},
    format::{Output, general},
    value::{Element, Key, Value},
};

/// Parses the first document of a text, as YAML 1.1: octal numbers begin with 0, and of equal keys the last one counts.
pub(super) fn parse(context: &mut Context<'_>, text: &str) -> Outcome<Value> {
    context.charge(text.len().saturating_mul(16))?;
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
    };
    let mut bytes = text.as_bytes();
    let first = serde_saphyr::read_with_options::<_, Tree>(&mut bytes, options).next();
    let tree = first.unwrap_or(Ok(Tree::Nil)).map_err(|error| {
        let place = error.location().map(|at| format!(" at line {} column {}", at.line(), at.column()));
        Fault::new(format!("invalid YAML{}", place.unwrap_or_default()))
    })?;
    value(context, tree)
}

/// A parsed document. The parser bounds its depth and size.
enum Tree {
    Nil,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Str(String),
    List(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(i64::try_from(value).map_or(Tree::Uint(value), Tree::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Str(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Str(value))
    }

    fn visit_bytes<E: serde::de::Error>(self, value: &[u8]) -> Result<Tree, E> {
        String::from_utf8(value.to_vec()).map(Tree::Str).map_err(|_| E::custom("binary data"))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Nil)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Nil)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut entries: Vec<(Tree, Tree)> = Vec::new();
        while let Some(entry) = access.next_entry()? {
            if matches!(entry, (Tree::List(_) | Tree::Map(_) | Tree::Nil | Tree::Float(_), _)) {
                return Err(A::Error::custom("keys are strings, integers or booleans"));
            }
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

fn value(context: &mut Context<'_>, tree: Tree) -> Outcome<Value> {
    context.step()?;
    match tree {
        Tree::Nil => Ok(Value::Nil),
        Tree::Bool(value) => Ok(Value::Bool(value)),
        Tree::Int(value) => Ok(Value::Int(value)),
        Tree::Uint(value) => Ok(Value::Uint(value)),
        Tree::Float(value) => Ok(Value::Float(value)),
        Tree::Str(text) => context.text(text),
        Tree::List(items) => {
            let items = items.into_iter().map(|item| value(context, item)).collect::<Outcome<Vec<_>>>()?;
            context.list(items, Element::Any)
        }
        Tree::Map(pairs) => {
            let mut entries = BTreeMap::new();
            for (key, item) in pairs {
                let key = value(context, key)?.as_key().ok_or_else(|| Fault::new("invalid key of a map"))?;
                entries.insert(key, value(context, item)?);
            }
            context.map(entries, Element::Any)
        }
    }
}

/// Writes a value, without a line end.
pub(super) fn write(context: &mut Context<'_>, value: &Value) -> Outcome<Value> {
    let mut out = Output::new(context.limits());
    block(&mut out, value, Place { indent: 0, depth: 0 }, Before::Start)?;
    let length = out.bytes.trim_ascii().len();
    let start = out.bytes.len() - out.bytes.trim_ascii_start().len();
    let bytes = &out.bytes[start..start + length];
    context.text(bytes)
}

#[derive(Debug, Clone, Copy)]
struct Place {
    indent: usize,
    depth: usize,
}

/// What is on the line before a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Start,
    Key,
    Dash,
}

fn block(out: &mut Output<'_>, value: &Value, place: Place, before: Before) -> Outcome<()> {
    let depth = out.descend(place.depth)?;
    let place = Place { depth, ..place };
    if let Value::Map(map) = value
        && map.len() > 0
    {
        let entries = map.entries();
        entries.keys().try_for_each(|key| out.reserve(key.len()))?;
        return pairs(out, entries.iter().map(|(key, value)| (key_text(key), value)), place, before);
    }
    if let Value::Struct(object) = value
        && object.shown.is_none()
    {
        let fields = object.fields.iter().map(|(name, value)| (name.to_lowercase(), value));
        return pairs(out, fields, place, before);
    }
    if let Value::List(list) = value
        && !list.items.is_empty()
    {
        for (index, item) in list.items.iter().enumerate() {
            if index == 0 && before == Before::Dash {
                out.push(b" ")?;
            } else {
                start_line(out, place.indent, before, index)?;
            }
            out.push(b"-")?;
            block(out, item, Place { indent: place.indent + 2, depth }, Before::Dash)?;
        }
        return Ok(());
    }
    if before != Before::Start {
        out.push(b" ")?;
    }
    scalar(out, value, place.indent)?;
    out.push(b"\n")
}

fn start_line(out: &mut Output<'_>, indent: usize, before: Before, index: usize) -> Outcome<()> {
    if index == 0 && before == Before::Key {
        out.push(b"\n")?;
    }
    out.fill(b' ', indent)
}

fn pairs<'v>(
    out: &mut Output<'_>,
    entries: impl Iterator<Item = (String, &'v Value)>,
    place: Place,
    before: Before,
) -> Outcome<()> {
    for (index, (key, value)) in entries.enumerate() {
        match (index, before) {
            (0, Before::Dash) => out.push(b" ")?,
            (0, Before::Key) => {
                out.push(b"\n")?;
                out.fill(b' ', place.indent)?;
            }
            (_, _) => out.fill(b' ', place.indent)?,
        }
        out.push(key.as_bytes())?;
        out.push(b":")?;
        // A list in a map has the map's indentation.
        let indent = if matches!(value, Value::List(_)) { place.indent } else { place.indent + 2 };
        block(out, value, Place { indent, ..place }, Before::Key)?;
    }
    Ok(())
}

fn key_text(key: &Key) -> String {
    match key {
        Key::Bool(value) => value.to_string(),
        Key::Int(value) => value.to_string(),
        Key::Str(text) => plain_or_quoted(&text.lossy()),
    }
}

fn scalar(out: &mut Output<'_>, value: &Value, indent: usize) -> Outcome<()> {
    match value {
        Value::Nil => out.push(b"null"),
        Value::Bool(value) => out.push(value.to_string().as_bytes()),
        Value::Int(value) | Value::Int64(value) => out.push(value.to_string().as_bytes()),
        Value::Uint(value) => out.push(value.to_string().as_bytes()),
        Value::Float(value) if value.is_nan() => out.push(b".nan"),
        Value::Float(value) if value.is_infinite() => out.push(if *value > 0.0 { b".inf" } else { b"-.inf" }),
        Value::Float(value) => out.push(general(*value).as_bytes()),
        Value::List(_) => out.push(b"[]"),
        Value::Map(_) => out.push(b"{}"),
        Value::Str(_) | Value::Struct(_) => {
            out.reserve(value.as_text().map_or(0, |text| text.len()))?;
            let text = value.as_text().map(|text| text.lossy()).unwrap_or_default();
            if text.contains('\n') && is_literal(&text) {
                return literal(out, &text, indent);
            }
            out.push(plain_or_quoted(&text).as_bytes())
        }
        Value::Sequence(..) | Value::Scratch => {
            Err(Fault::new(format!("cannot write {} as YAML", value.type_name())))
        }
    }
}

/// Whether a text with several lines can be a literal block.
fn is_literal(text: &str) -> bool {
    !text.starts_with([' ', '\n', '\t'])
        && !text.contains(|char: char| char.is_control() && char != '\n' && char != '\t')
        && !text.contains(" \n")
}

fn literal(out: &mut Output<'_>, text: &str, indent: usize) -> Outcome<()> {
    let body = text.trim_end_matches('\n');
    let chomping: &[u8] = match text.len() - body.len() {
        0 => b"|-",
        1 => b"|",
        _ => b"|+",
    };
    out.push(chomping)?;
    // The last line end is written by the caller.
    let lines = if chomping == b"|+" { &text[..text.len() - 1] } else { body };
    for line in lines.split('\n') {
        out.push(b"\n")?;
        if !line.is_empty() {
            out.fill(b' ', indent.max(2))?;
            out.push(line.as_bytes())?;
        }
    }
    Ok(())
}

/// A text in the form that is read back as the same string.
fn plain_or_quoted(text: &str) -> String {
    let needs_escapes =
        text.contains(|char: char| char.is_control() || char == '\u{feff}' || char == '\u{2028}');
    if needs_escapes || resolves(text) {
        return double_quoted(text);
    }
    let indicators =
        ['-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`'];
    let begins_badly = text.starts_with(indicators)
        && !(text.starts_with(['-', '?', ':']) && text[1..].starts_with(|next: char| next != ' '));
    let is_plain = !begins_badly
        && !text.starts_with("---")
        && !text.starts_with("...")
        && !text.starts_with(' ')
        && !text.ends_with(' ')
        && !text.ends_with(':')
        && !text.contains(": ")
        && !text.contains(" #");
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) }
}

/// Whether a plain text would be read as something else than a string: YAML 1.1.
fn resolves(text: &str) -> bool {
    let words = [
        "", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "<<", ".nan", ".inf", "-.inf",
        "+.inf",
    ];
    if words.contains(&text.to_ascii_lowercase().as_str()) {
        return true;
    }
    let digits = text.trim_start_matches(['-', '+']).replace('_', "");
    let first = digits.bytes().next().unwrap_or_default();
    if !(first.is_ascii_digit() || first == b'.') {
        return false;
    }
    digits.parse::<f64>().is_ok()
        || crate::number::integer(&digits).is_some()
        || is_sexagesimal(&digits)
        || is_date(text)
}

fn is_sexagesimal(text: &str) -> bool {
    text.contains(':')
        && text.split(':').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 8
        && bytes[..4].iter().all(u8::is_ascii_digit)
        && bytes[4] == b'-'
        && text
            .split(['-', 'T', 't', ' '])
            .take(3)
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn double_quoted(text: &str) -> String {
    use fmt::Write as _;
    let mut out = String::from("\"");
    for char in text.chars() {
        let _ = match char {
            '"' => write!(out, "\\\""),
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\0' => write!(out, "\\0"),
            '\x07' => write!(out, "\\a"),
            '\x08' => write!(out, "\\b"),
            '\x0b' => write!(out, "\\v"),
            '\x0c' => write!(out, "\\f"),
            '\x1b' => write!(out, "\\e"),
            '\u{feff}' => write!(out, "\\uFEFF"),
            '\u{2028}' => write!(out, "\\L"),
            _ if char.is_control() => write!(out, "\\x{:02X}", char as u32),
            _ => write!(out, "{char}"),
        };
    }
    out.push('"');
    out
}
