//! Functions of consul-template on lists and maps.

use std::{collections::BTreeMap, rc::Rc};

use super::{ANY, arguments, row};
use crate::{
    context::{Context, VALUE_BYTES},
    error::{Fault, Outcome},
    format::quote,
    function::{Function, Group::Collections},
    text::Text,
    value::{Element, Key, Map, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Collections, "byKey", (1, 1), by_key),
    row(Collections, "byMeta", (2, 2), by_meta),
    row(Collections, "byPort", (1, 1), by_port),
    row(Collections, "byTag", (1, 1), by_tag),
    row(Collections, "contains", (2, 2), |context, values| {
        is_in(context, &values[1], &values[0]).map(Value::Bool)
    }),
    row(Collections, "containsAll", (2, 2), |context, values| {
        some(context, values, Quantifier { otherwise: true, expected: true })
    }),
    row(Collections, "containsAny", (2, 2), |context, values| {
        some(context, values, Quantifier { otherwise: false, expected: false })
    }),
    row(Collections, "containsNone", (2, 2), |context, values| {
        some(context, values, Quantifier { otherwise: true, expected: false })
    }),
    row(Collections, "containsNotAll", (2, 2), |context, values| {
        some(context, values, Quantifier { otherwise: false, expected: true })
    }),
    row(Collections, "explode", (1, 1), explode),
    row(Collections, "explodeMap", (1, 1), explode_map),
    row(Collections, "in", (2, 2), |context, values| is_in(context, &values[0], &values[1]).map(Value::Bool)),
    row(Collections, "loop", (1, 2), sequence),
    row(Collections, "mergeMap", (2, ANY), |context, values| merge_maps(context, values, Overwrite::Empty)),
    row(Collections, "mergeMapWithOverride", (2, 2), |context, values| {
        merge_maps(context, values, Overwrite::All)
    }),
];

/// Whether a list contains a value of the same kind, or a string a string.
fn is_in(context: &mut Context<'_>, list: &Value, value: &Value) -> Outcome<bool> {
    match list {
        Value::List(list) => {
            let length = value.as_text().map_or(0, |text| text.len());
            context.charge(list.items.len().saturating_mul(1 + length / 8))?;
            Ok(list.items.iter().any(|item| match (item, value) {
                (Value::Float(one), Value::Float(other)) => one == other,
                (Value::Str(one), Value::Str(other)) => one == other,
                (Value::Int(one) | Value::Int64(one), Value::Int(other) | Value::Int64(other)) => {
                    one == other
                }
                (_, _) => false,
            }))
        }
        Value::Str(text) => {
            let Value::Str(part) = value else { return Ok(false) };
            context.charge(text.len())?;
            Ok(text.lossy().contains(&*part.lossy()))
        }
        Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => Ok(false),
    }
}

/// How a test of several values ends.
struct Quantifier {
    /// The result if all values are as expected; its negation at the first that is not.
    otherwise: bool,
    /// Whether a value is expected in the list.
    expected: bool,
}

/// Whether all, any, none or not all values are in a list.
fn some(context: &mut Context<'_>, values: &[Value], quantifier: Quantifier) -> Outcome<Value> {
    let Quantifier { otherwise, expected } = quantifier;
    for value in arguments::items(&values[0])? {
        if is_in(context, &values[1], value)? != expected {
            return Ok(Value::Bool(!otherwise));
        }
    }
    Ok(Value::Bool(otherwise))
}

fn sequence(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let bound = |value: &Value| match value {
        Value::Str(text) if text.is_empty() => Ok(0),
        Value::Str(text) => text.lossy().parse().map_err(|_| Fault::new("invalid syntax of an integer")),
        Value::Uint(number) => Ok(number.cast_signed()),
        Value::Int(number) | Value::Int64(number) => Ok(*number),
        Value::Nil
        | Value::Bool(_)
        | Value::Float(_)
        | Value::List(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => Err(Fault::new(format!("bad argument type: {}", value.type_name()))),
    };
    match values {
        [end] => Ok(Value::Sequence(0, bound(end)?)),
        values => Ok(Value::Sequence(bound(&values[0])?, bound(&values[1])?)),
    }
}

/// A field of an object of a source: a struct, or a map for data of Consul.
fn field(value: &Value, name: &str) -> Option<Value> {
    if let Value::Struct(object) = value {
        return object.field(name.as_bytes()).cloned();
    }
    let Value::Map(map) = value else { return None };
    map.get(&Key::Str(name.into()))
}

fn text_field(value: &Value, name: &str) -> String {
    field(value, name)
        .and_then(|value| value.as_text().map(|text| text.lossy().into_owned()))
        .unwrap_or_default()
}

/// A copy of a text in an object, which counts as a new value.
fn charged_field(context: &mut Context<'_>, value: &Value, name: &str) -> Outcome<String> {
    let length = field(value, name).and_then(|value| value.as_text().map(|text| text.len())).unwrap_or(0);
    context.charge(VALUE_BYTES + length)?;
    Ok(text_field(value, name))
}

/// Groups values by keys.
fn grouped(context: &mut Context<'_>, groups: BTreeMap<Key, Vec<Value>>) -> Outcome<Value> {
    let mut entries = BTreeMap::new();
    for (key, items) in groups {
        entries.insert(key, context.list(items, Element::Any)?);
    }
    context.map(entries, Element::List)
}

fn by_tag(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut groups: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    for service in arguments::items(&values[0])? {
        let tags = field(service, "Tags").or_else(|| field(service, "ServiceTags"));
        let Some(tags) = tags else {
            return Err(Fault::new(format!("wrong argument type: {} has no tags", service.type_name())));
        };
        for tag in arguments::items(&tags)? {
            context.charge(VALUE_BYTES)?;
            groups.entry(Key::Str(arguments::text(tag)?.clone())).or_default().push(service.clone());
        }
    }
    grouped(context, groups)
}

fn by_port(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut groups: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    for service in arguments::items(&values[0])? {
        let port = field(service, "Port").or_else(|| field(service, "ServicePort"));
        let Some(port) = port else {
            return Err(Fault::new(format!("wrong argument type: {} has no port", service.type_name())));
        };
        groups.entry(Key::Int(arguments::int(&port)?)).or_default().push(service.clone());
    }
    grouped(context, groups)
}

/// Groups services by the values of one or more keys of their meta. `KEY|int` pads numbers.
fn by_meta(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let keys = arguments::string(&values[0])?.into_owned();
    let mut groups: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    for service in arguments::items(&values[1])? {
        let meta = field(service, "ServiceMeta").unwrap_or_default();
        let mut parts = Vec::new();
        for key in keys.split(',') {
            context.charge(key.len() + VALUE_BYTES)?;
            let value = charged_field(context, &meta, key.trim_end_matches("|int"))?;
            let part = match (key.strip_suffix("|int"), value.as_str()) {
                (None, "") => format!("_no_{key}_"),
                (None, value) => value.to_owned(),
                (Some(_), value) => {
                    let value = if value.is_empty() { "0" } else { value };
                    let number: i64 =
                        value.parse().map_err(|_| Fault::new(format!("cannot parse {value} as number")))?;
                    format!("{number:05}")
                }
            };
            let is_kept = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
            parts.push(part.chars().map(|char| if is_kept(char) { char } else { '_' }).collect::<String>());
        }
        groups.entry(Key::Str(parts.join("_").into())).or_default().push(service.clone());
    }
    grouped(context, groups)
}

/// Groups pairs by the first part of their keys.
fn by_key(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut tops: BTreeMap<Key, BTreeMap<Key, Value>> = BTreeMap::new();
    for pair in arguments::items(&values[0])? {
        let path = charged_field(context, pair, "Key")?;
        let Some((top, key)) = path.split_once('/').filter(|(_, key)| !key.is_empty()) else { continue };
        let Value::Map(known) = pair else { return Err(Fault::new("wrong argument type: expected pairs")) };
        context.charge(2 * path.len() + known.len() * 3 * VALUE_BYTES)?;
        let mut entries = known.entries().clone();
        entries.insert(Key::Str("Key".into()), Value::from(key));
        let copy = context.map(entries, known.element)?;
        tops.entry(Key::Str(top.into())).or_default().insert(Key::Str(key.into()), copy);
    }
    let mut entries = BTreeMap::new();
    for (top, pairs) in tops {
        entries.insert(top, context.map(pairs, Element::Struct)?);
    }
    context.map(entries, Element::Map)
}

fn explode(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut pairs = Vec::new();
    for pair in arguments::items(&values[0])? {
        pairs.push((charged_field(context, pair, "Key")?, field(pair, "Value").unwrap_or_default()));
    }
    nest(context, pairs)
}

fn explode_map(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let pairs = match arguments::map(&values[0])? {
        Some(map) => {
            let entries = map.entries();
            context.charge(entries.keys().map(|key| VALUE_BYTES + key.len()).sum())?;
            let pair = |(key, value): (&Key, &Value)| match key {
                Key::Str(text) => Some((text.lossy().into_owned(), value.clone())),
                Key::Bool(_) | Key::Int(_) => None,
            };
            entries.iter().filter_map(pair).collect()
        }
        None => Vec::new(),
    };
    nest(context, pairs)
}

/// Makes nested maps of paths.
fn nest(context: &mut Context<'_>, pairs: Vec<(String, Value)>) -> Outcome<Value> {
    let root = context.map(BTreeMap::new(), Element::Any)?;
    for (path, value) in pairs {
        // Its parts are the keys of the maps.
        context.charge(path.len())?;
        let mut here = root.clone();
        let mut rest = path.as_str();
        while let Some((top, below)) = rest.split_once('/') {
            let Value::Map(map) = &here else { break };
            let key = Key::Str(top.into());
            let next = match map.get(&key) {
                Some(known @ Value::Map(_)) => known,
                Some(_) => {
                    let (path, top) = (quote(path.as_bytes()), quote(top.as_bytes()));
                    return Err(Fault::new(format!("not a map: {path}: {top} already has a value")));
                }
                None => {
                    let made = context.map(BTreeMap::new(), Element::Any)?;
                    context.insert(map, key, made.clone())?;
                    made
                }
            };
            here = next;
            rest = below;
        }
        if let (Value::Map(map), false) = (&here, rest.is_empty()) {
            context.insert(map, Key::Str(Text::from(rest)), value)?;
        }
    }
    Ok(root)
}

/// Which values of the first map a merge replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overwrite {
    Empty,
    All,
}

fn merge_maps(context: &mut Context<'_>, values: &[Value], overwrite: Overwrite) -> Outcome<Value> {
    if values.len() > 2 {
        return Err(Fault::new("wrong number of arguments: expected two maps"));
    }
    if let (Some(target), Some(source)) = (arguments::map(&values[0])?, arguments::map(&values[1])?) {
        merge(context, (target, source), overwrite, 0)?;
    }
    Ok(values[0].clone())
}

/// Merges a map into another, and maps within both.
pub(super) fn merge(
    context: &mut Context<'_>,
    (target, source): (&Rc<Map>, &Map),
    overwrite: Overwrite,
    depth: usize,
) -> Outcome<()> {
    if depth > context.limits().depth {
        return Err(Fault::limit("maps are nested too deep to be merged"));
    }
    // Each level of a map that contains itself makes a list.
    context.charge(source.len() * 2 * VALUE_BYTES)?;
    let entries: Vec<(Key, Value)> =
        source.entries().iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    for (key, value) in entries {
        context.step()?;
        match (target.get(&key), &value) {
            (Some(Value::Map(inner)), Value::Map(other)) => {
                merge(context, (&inner, other), overwrite, depth + 1)?
            }
            (Some(known), _) if known.is_true() && overwrite == Overwrite::Empty => {}
            (_, _) => context.insert(target, key, value)?,
        }
    }
    Ok(())
}
