//! "Expected …, found …; write …".
//!
//! In: the schema of a place and a node. Out: whether its type fits, and the message if not.

use serde_json::Value as Json;

use super::facets::Facets;
use super::{describe_node, one_of, shorten};
use crate::yaml::node::{Node, Style, Value};
use crate::yaml::phrases::nearest;
use crate::yaml::scalar::resolve_plain;

pub(super) fn type_fits(facets: &Facets<'_>, node: &Node) -> bool {
    let types = facets.types();
    types.is_empty() || types.iter().any(|name| is_type(name, node))
}

/// Compares a node with a value of the schema.
pub(super) fn equals(node: &Node, value: &Json) -> bool {
    match value {
        Json::Null => node.value == Value::Null,
        Json::Bool(value) => node.value == Value::Bool(*value),
        Json::Number(number) => match node.value {
            Value::Int(value) => number.as_i128() == Some(value),
            Value::Float(value) => number.as_f64() == Some(value),
            Value::Null | Value::Bool(_) | Value::Str | Value::Seq(_) | Value::Map(_) | Value::Refused => {
                false
            }
        },
        Json::String(text) => node.value == Value::Str && *node.text == **text,
        Json::Array(_) | Json::Object(_) => false,
    }
}

/// Returns the message for an empty value.
pub(super) fn empty(facets: &Facets<'_>) -> String {
    if facets.is("x-text") && facets.types().iter().all(|name| !matches!(*name, "object" | "array")) {
        return "is empty; write \"\" for an empty string, or remove it".to_owned();
    }
    "is empty; remove it or give it a value".to_owned()
}

/// Returns the message for a node of a wrong type.
pub(super) fn message(facets: &Facets<'_>, node: &Node) -> String {
    let sentence = format!("expected {}, found {}", one_of(&expected(facets)), describe_node(node));
    let hint = facets.text("x-hint").map(str::to_owned);
    match special(facets, node).or(hint).or_else(|| remedy(facets, node)) {
        Some(remedy) => format!("{sentence}; {remedy}"),
        None => sentence,
    }
}

/// Returns the message for a value that is not one of the allowed ones.
pub(super) fn not_one_of(values: &[&Json], node: &Node) -> String {
    let names: Vec<String> =
        values.iter().filter(|value| !value.is_null()).map(|value| ticked(value)).collect();
    let sentence = format!("expected {}, found {}", one_of(&names), describe_node(node));
    let candidates = values.iter().filter_map(|value| value.as_str());
    match nearest(&node.text, candidates) {
        Some(name) if names.len() > 1 => format!("{sentence}; did you mean `{name}`?"),
        _ => sentence,
    }
}

/// Returns the allowed types or values as phrases.
pub(super) fn expected(facets: &Facets<'_>) -> Vec<String> {
    if let Some(values) = facets.constants() {
        return values.iter().filter(|value| !value.is_null()).map(|value| ticked(value)).collect();
    }
    let types = facets.types();
    if types.is_empty() {
        let mut phrases = Vec::new();
        for choice in facets.choices().unwrap_or_default() {
            for phrase in expected(&facets.beside(choice)) {
                if !phrases.contains(&phrase) {
                    phrases.push(phrase);
                }
            }
        }
        return phrases;
    }
    types.iter().filter(|name| **name != "null").map(|name| phrase(name).to_owned()).collect()
}

fn is_type(name: &str, node: &Node) -> bool {
    match &node.value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Int(_) => matches!(name, "integer" | "number"),
        Value::Float(_) => name == "number",
        Value::Str => name == "string",
        Value::Seq(_) => name == "array",
        Value::Map(_) => name == "object",
        Value::Refused => true,
    }
}

fn phrase(name: &str) -> &str {
    match name {
        "integer" => "an integer",
        "number" => "a number",
        "string" => "a string",
        "boolean" => "true or false",
        "array" => "a list",
        "object" => "a map",
        other => other,
    }
}

fn ticked(value: &Json) -> String {
    value.as_str().map_or_else(|| format!("`{value}`"), |text| format!("`{text}`"))
}

/// Returns remedies for the notation of other tools.
fn special(facets: &Facets<'_>, node: &Node) -> Option<String> {
    if facets.is("x-port")
        && let Some(text) = node.scalar_text()
    {
        return Some(match text.split_once(':') {
            None if is_port(text) => {
                format!("write {{static: {text}}}, or {{to: {text}}} for a dynamic port")
            }
            Some((host, task)) if is_port(host) && is_port(task) => {
                format!("write {{static: {host}, to: {task}}}")
            }
            _ => "write {static: 8080} or {to: 80}, or {} for a dynamic port".to_owned(),
        });
    }
    if facets.is("x-command")
        && let Some([command, args @ ..]) = node.items()
    {
        let command = command.scalar_text().map(shorten)?;
        let args: Vec<String> = args.iter().filter_map(|arg| arg.scalar_text()).map(flow_scalar).collect();
        let args = args.join(", ");
        return Some(format!("write command: {command} and args: [{args}]"));
    }
    None
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Formats a string for a list in brackets.
fn flow_scalar(text: &str) -> String {
    let plain = !text.is_empty()
        && text.chars().all(|char| char.is_alphanumeric() || matches!(char, '-' | '_' | '.' | '/' | '='))
        && text.chars().any(char::is_alphanumeric);
    if plain { shorten(text) } else { format!("\"{}\"", shorten(text)) }
}

/// Returns a remedy that follows from the types alone.
fn remedy(facets: &Facets<'_>, node: &Node) -> Option<String> {
    facets.types().iter().find_map(|name| match *name {
        "integer" | "number" => to_number(name, node),
        "boolean" => to_boolean(node),
        "string" => to_string(node),
        "array" => to_list(facets, node),
        "object" => to_map(facets, node),
        _ => None,
    })
}

fn to_number(name: &str, node: &Node) -> Option<String> {
    match node.value {
        Value::Str => {
            let fits = |text: &str| match resolve_plain(text) {
                Value::Int(_) => true,
                Value::Float(_) => name == "number",
                Value::Null
                | Value::Bool(_)
                | Value::Str
                | Value::Seq(_)
                | Value::Map(_)
                | Value::Refused => false,
            };
            let digits = node.text.trim().replace(['_', ',', ' '], "");
            if node.style == Style::Quoted && fits(&node.text) {
                Some("remove the quotes".to_owned())
            } else {
                fits(&digits).then(|| format!("write {digits}"))
            }
        }
        Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e15 => Some(format!("write {value}")),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Seq(_)
        | Value::Map(_)
        | Value::Refused => None,
    }
}

fn to_boolean(node: &Node) -> Option<String> {
    let text = node.scalar_text()?;
    let quoted = matches!(text, "true" | "false") && node.style == Style::Quoted;
    match text.to_lowercase().as_str() {
        _ if quoted => Some("remove the quotes".to_owned()),
        "true" | "yes" | "y" | "on" | "1" => Some("write true".to_owned()),
        "false" | "no" | "n" | "off" | "0" => Some("write false".to_owned()),
        _ => None,
    }
}

fn to_string(node: &Node) -> Option<String> {
    match node.value {
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
            Some(format!("write \"{}\"", shorten(&node.text)))
        }
        Value::Null | Value::Str | Value::Seq(_) | Value::Map(_) | Value::Refused => None,
    }
}

fn to_list(facets: &Facets<'_>, node: &Node) -> Option<String> {
    let item = facets.get("items").map(|items| facets.beside(items));
    if node.entries().is_some() {
        let named = item.is_some_and(|item| item.field("name").is_some());
        return Some(match node.entries().and_then(|entries| entries.first()) {
            Some(first) if named && &*first.key != "name" && first.value.entries().is_some() => {
                format!("write list items with a name: `- name: {}`", shorten(&first.key))
            }
            _ => "begin each item with `- `".to_owned(),
        });
    }
    let text = node.scalar_text()?;
    item.is_none_or(|item| type_fits(&item, node)).then(|| format!("write [{}]", flow_scalar(text)))
}

fn to_map(facets: &Facets<'_>, node: &Node) -> Option<String> {
    if let (Style::Plain, Some((key, _))) = (node.style, node.text.split_once(':')) {
        return Some(format!("put a space after `{}:`", shorten(key)));
    }
    if let Some(text) = node.scalar_text() {
        let mut required =
            facets.all("required").filter_map(Json::as_array).flatten().filter_map(Json::as_str);
        let (Some(only), None) = (required.next(), required.next()) else { return None };
        let field = facets.beside(facets.field(only)?);
        let fits = type_fits(&field, node)
            && field.constants().is_none_or(|values| values.iter().any(|value| equals(node, value)));
        return fits.then(|| format!("write {{{only}: {}}}", flow_scalar(text)));
    }
    match node.items()? {
        [] => Some("write {}".to_owned()),
        [only] if only.entries().is_some() && !facets.field_names().is_empty() => {
            Some("there is only one of these; remove the `- `".to_owned())
        }
        _ if facets.field_names().is_empty() => Some("write `key: value` lines without `- `".to_owned()),
        _ => None,
    }
}
