//! `-o jsonpath=TEMPLATE` and `-o custom-columns=NAME:PATH,…`, with the habits of kubectl.
//!
//! In: a template, and the documents that `-o json` prints. Out: text. Paths are RFC 9535 queries without the leading `$`;
//! `.items[*]` stands for all objects, and a path without it is applied to each object.

use std::fmt::Write as _;

use serde_json::Value;
use serde_json_path::JsonPath;

use crate::table::{Heading, Table};

/// A template of texts and paths.
#[derive(Debug, Clone)]
pub(super) struct Template(Vec<Piece>);

#[derive(Debug, Clone)]
enum Piece {
    Text(String),
    Path(Query),
    /// The pieces for each node that the path finds.
    Range(Query, Vec<Piece>),
}

#[derive(Debug, Clone)]
struct Query {
    path: JsonPath,
    scope: Scope,
}

/// What a path starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The list of all objects.
    List,
    /// Each object.
    Each,
}

/// A column with its heading.
#[derive(Debug, Clone)]
pub(super) struct Column {
    heading: String,
    path: JsonPath,
}

/// The longest template, and the deepest nesting in it: the parsers recurse.
const BYTES_MAX: usize = 4096;
const DEPTH_MAX: usize = 16;

/// What a column shows where its path finds nothing.
const NONE: &str = "<none>";

impl Template {
    /// Parses a template such as `{range .items[*]}{.key.id}{"\n"}{end}`; a path alone needs no braces.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        check_bounds(text)?;
        if !text.contains('{') && text.starts_with(['.', '[', '$']) {
            return Ok(Self(vec![Piece::Path(Query::parse(text)?)]));
        }
        let mut rest = text;
        let pieces = pieces(&mut rest, 0)?;
        Ok(Self(pieces))
    }

    pub(super) fn render(&self, documents: &[Value]) -> String {
        let list = Value::Array(documents.to_vec());
        let mut text = String::new();
        render(&self.0, &list, documents, &mut text);
        text
    }
}

fn check_bounds(text: &str) -> Result<(), String> {
    if text.len() > BYTES_MAX {
        return Err(format!("is longer than {BYTES_MAX} bytes"));
    }
    let mut depth = 0_usize;
    for char in text.chars() {
        match char {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(format!("has brackets that are nested more than {DEPTH_MAX} deep"));
        }
    }
    Ok(())
}

/// The pieces up to the end, or within ranges up to the `{end}` of the innermost one.
fn pieces(rest: &mut &str, ranges: usize) -> Result<Vec<Piece>, String> {
    if ranges > DEPTH_MAX {
        return Err(format!("has ranges that are nested more than {DEPTH_MAX} deep"));
    }
    let mut found = Vec::new();
    loop {
        let Some(open) = rest.find('{') else {
            if ranges > 0 {
                return Err("{range} has no {end}".to_owned());
            }
            if !rest.is_empty() {
                found.push(Piece::Text((*rest).to_owned()));
            }
            return Ok(found);
        };
        let (before, inside) = rest.split_at(open);
        if !before.is_empty() {
            found.push(Piece::Text(before.to_owned()));
        }
        let close = closing(inside).ok_or_else(|| format!("{inside:?} has no closing brace"))?;
        let expression = inside.get(1..close).unwrap_or_default().trim();
        *rest = inside.get(close + 1..).unwrap_or_default();
        match expression {
            "end" if ranges > 0 => return Ok(found),
            "end" => return Err("{end} without {range}".to_owned()),
            quoted if quoted.starts_with(['"', '\'']) => found.push(Piece::Text(literal(quoted)?)),
            path => match path.strip_prefix("range ") {
                Some(path) => {
                    let query = Query::parse(path.trim())?;
                    found.push(Piece::Range(query, pieces(rest, ranges + 1)?));
                }
                None => found.push(Piece::Path(Query::parse(path)?)),
            },
        }
    }
}

/// The position of the brace that closes the first one, outside quotes.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, char) in text.char_indices() {
        match (quote, char) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), char) if char == open => quote = None,
            (None, '"' | '\'') => quote = Some(char),
            (None, '}') => return Some(at),
            (Some(_) | None, _) => {}
        }
    }
    None
}

/// Unquotes a text.
fn literal(quoted: &str) -> Result<String, String> {
    let error = || format!("{quoted} is no quoted text");
    let quote = quoted.chars().next().ok_or_else(error)?;
    let inner = quoted.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)).ok_or_else(error)?;
    let mut text = String::new();
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some(other) => text.push(other),
                None => return Err(error()),
            },
            other => text.push(other),
        }
    }
    Ok(text)
}

impl Query {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('$').or_else(|| text.strip_prefix('@')).unwrap_or(text);
        let (scope, rest) = match text.strip_prefix(".items") {
            Some(rest) if rest.is_empty() || rest.starts_with(['[', '.']) => (Scope::List, rest),
            Some(_) | None if text.starts_with("[") => (Scope::List, text),
            Some(_) | None => (Scope::Each, text),
        };
        Ok(Self { path: path(rest)?, scope })
    }

    /// The nodes, from all objects at the top or from the node of a range.
    fn nodes<'v>(&self, list: &'v Value, each: &'v [Value]) -> Vec<&'v Value> {
        match self.scope {
            Scope::List => self.path.query(list).all(),
            Scope::Each => each.iter().flat_map(|document| self.path.query(document).all()).collect(),
        }
    }
}

fn path(text: &str) -> Result<JsonPath, String> {
    let text = if text == "." { "" } else { text };
    if !text.is_empty() && !text.starts_with(['.', '[']) {
        return Err(format!("{text:?} is no path; examples: .key.id, .items[*].key.id"));
    }
    JsonPath::parse(&format!("${text}")).map_err(|error| format!("{text:?} is no path: {error}"))
}

fn render(pieces: &[Piece], list: &Value, each: &[Value], text: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Text(plain) => text.push_str(plain),
            Piece::Path(query) => {
                let nodes: Vec<String> = query.nodes(list, each).into_iter().map(shown).collect();
                text.push_str(&nodes.join(" "));
            }
            Piece::Range(query, inner) => {
                for node in query.nodes(list, each) {
                    render(inner, node, std::slice::from_ref(node), text);
                }
            }
        }
    }
}

/// A text without quotes, anything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

/// Parses `NAME:PATH,…`.
pub(super) fn columns(text: &str) -> Result<Vec<Column>, String> {
    let column = |text: &str| {
        let (heading, at) =
            text.split_once(':').filter(|(heading, _)| !heading.is_empty()).ok_or_else(|| {
                format!("{text:?} is no column: expected NAME:PATH, as in JOB:.key.id,VERSION:.version")
            })?;
        check_bounds(text)?;
        Ok(Column { heading: heading.to_owned(), path: path(at)? })
    };
    outside_brackets(text).map(column).collect()
}

/// The parts between commas outside brackets.
fn outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |char| {
        match char {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        char == ',' && depth == 0
    })
}

/// The documents as a table.
pub(super) fn table(columns: &[Column], documents: &[Value], heading: Heading) -> String {
    let headings: Vec<&str> = columns.iter().map(|column| &*column.heading).collect();
    let mut table = Table::new(&headings);
    for document in documents {
        table.row(columns.iter().map(|column| {
            let nodes: Vec<String> = column.path.query(document).all().into_iter().map(shown).collect();
            let mut cell = nodes.join(",");
            if nodes.is_empty() {
                let _ = cell.write_str(NONE);
            }
            cell
        }));
    }
    table.render(heading)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn documents() -> Vec<Value> {
        vec![
            json!({"key": {"id": "web"}, "version": 3, "tasks": [{"name": "a", "up": true}, {"name": "b", "up": false}]}),
            json!({"key": {"id": "db"}, "version": 0, "tasks": []}),
        ]
    }

    #[test]
    fn templates_are_those_of_kubectl() {
        for (template, text) in [
            ("{.items[*].key.id}", "web db"),
            (".items[*].key.id", "web db"),
            ("{[0].version}", "3"),
            ("{$.items[1].key.id}", "db"),
            ("{.key.id}", "web db"),
            ("{range .items[*]}{.key.id}={.version}{\"\\n\"}{end}", "web=3\ndb=0\n"),
            ("{range .items[*]}{range .tasks[*]}{.name} {end}{end}!", "a b !"),
            ("{.items[0].tasks[?(@.up==true)].name}", "a"),
            ("{.items[0].key}", "{\"id\":\"web\"}"),
            ("{'a}b'}{.none}", "a}b"),
            ("plain", "plain"),
        ] {
            assert_eq!(Template::parse(template).unwrap().render(&documents()), text, "{template}");
        }
        for invalid in ["{.a", "{range .items[*]}", "{end}", "{key}", "{.a[}", "{\"a}"] {
            assert!(Template::parse(invalid).is_err(), "{invalid}");
        }
        // These overflowed the stack.
        let brackets = format!("{{.items[?{}@.a{}]}}", "(".repeat(2000), ")".repeat(2000));
        let ranges = "{range .a}".repeat(400);
        for (template, part) in [(&*brackets, "brackets"), (&ranges, "ranges"), (&"x".repeat(5000), "4096")] {
            let refused = Template::parse(template).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        assert!(columns(&format!("A:.a[?{}@.b{}]", "(".repeat(20), ")".repeat(20))).is_err());
    }

    #[test]
    fn columns_are_paths_with_headings() {
        let parsed = columns("JOB:.key.id,V:.version,TASKS:.tasks[*].name,FIRST:.tasks[0,1].name").unwrap();
        assert_eq!(
            table(&parsed, &documents(), Heading::Shown),
            "JOB  V  TASKS   FIRST\nweb  3  a,b     a,b\ndb   0  <none>  <none>\n"
        );
        for invalid in ["", "JOB", ":.a", "JOB:a"] {
            assert!(columns(invalid).is_err(), "{invalid}");
        }
    }
}
