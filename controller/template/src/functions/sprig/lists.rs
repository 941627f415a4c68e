//! Lists of sprig.

use std::collections::BTreeMap;

use super::{
    super::{ANY, arguments, refused, row, strings},
    RANDOM, is_empty, numbers, text_of,
};
use crate::{
    compare,
    context::{Context, VALUE_BYTES},
    error::{Fault, Outcome},
    function::{Function, Group::Sprig},
    text::Text,
    value::{Element, Key, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_all", (0, ANY), |_, values| Ok(Value::Bool(!values.iter().any(is_empty)))),
    row(Sprig, "sprig_any", (0, ANY), |_, values| Ok(Value::Bool(!values.iter().all(is_empty)))),
    row(Sprig, "sprig_append", (2, 2), push),
    row(Sprig, "sprig_chunk", (2, 2), chunk),
    row(Sprig, "sprig_coalesce", (0, ANY), |_, values| {
        Ok(values.iter().find(|value| !is_empty(value)).cloned().unwrap_or_default())
    }),
    row(Sprig, "sprig_compact", (1, 1), |context, values| {
        let items = items(&values[0])?.iter().filter(|value| !is_empty(value)).cloned().collect();
        context.list(items, Element::Any)
    }),
    row(Sprig, "sprig_concat", (0, ANY), concat),
    row(Sprig, "sprig_first", (1, 1), |_, values| {
        Ok(items(&values[0])?.first().cloned().unwrap_or_default())
    }),
    row(Sprig, "sprig_has", (2, 2), |context, values| {
        contains(context, arguments::items(&values[1])?, &values[0]).map(Value::Bool)
    }),
    row(Sprig, "sprig_initial", (1, 1), |context, values| {
        let items = items(&values[0])?;
        context.list(items[..items.len().saturating_sub(1)].to_vec(), Element::Any)
    }),
    row(Sprig, "sprig_join", (2, 2), join),
    row(Sprig, "sprig_last", (1, 1), |_, values| Ok(items(&values[0])?.last().cloned().unwrap_or_default())),
    row(Sprig, "sprig_list", (0, ANY), |context, values| context.list(values.to_vec(), Element::Any)),
    row(Sprig, "sprig_mustAppend", (2, 2), push),
    row(Sprig, "sprig_mustChunk", (2, 2), chunk),
    row(Sprig, "sprig_mustCompact", (1, 1), |context, values| {
        let items = items(&values[0])?.iter().filter(|value| !is_empty(value)).cloned().collect();
        context.list(items, Element::Any)
    }),
    row(Sprig, "sprig_mustFirst", (1, 1), |_, values| {
        Ok(items(&values[0])?.first().cloned().unwrap_or_default())
    }),
    row(Sprig, "sprig_mustHas", (2, 2), |context, values| {
        contains(context, arguments::items(&values[1])?, &values[0]).map(Value::Bool)
    }),
    row(Sprig, "sprig_mustInitial", (1, 1), |context, values| {
        let items = items(&values[0])?;
        context.list(items[..items.len().saturating_sub(1)].to_vec(), Element::Any)
    }),
    row(Sprig, "sprig_mustLast", (1, 1), |_, values| {
        Ok(items(&values[0])?.last().cloned().unwrap_or_default())
    }),
    row(Sprig, "sprig_mustPrepend", (2, 2), prepend),
    row(Sprig, "sprig_mustPush", (2, 2), push),
    row(Sprig, "sprig_mustRest", (1, 1), |context, values| {
        let items = items(&values[0])?;
        context.list(items.get(1..).unwrap_or_default().to_vec(), Element::Any)
    }),
    row(Sprig, "sprig_mustReverse", (1, 1), |context, values| {
        let items = items(&values[0])?.iter().rev().cloned().collect();
        context.list(items, Element::Any)
    }),
    row(Sprig, "sprig_mustSlice", (1, ANY), slice),
    row(Sprig, "sprig_mustUniq", (1, 1), uniq),
    row(Sprig, "sprig_mustWithout", (1, ANY), without),
    row(Sprig, "sprig_prepend", (2, 2), prepend),
    row(Sprig, "sprig_push", (2, 2), push),
    row(Sprig, "sprig_rest", (1, 1), |context, values| {
        let items = items(&values[0])?;
        context.list(items.get(1..).unwrap_or_default().to_vec(), Element::Any)
    }),
    row(Sprig, "sprig_reverse", (1, 1), |context, values| {
        let items = items(&values[0])?.iter().rev().cloned().collect();
        context.list(items, Element::Any)
    }),
    refused(Sprig, "sprig_shuffle", RANDOM),
    row(Sprig, "sprig_slice", (1, ANY), slice),
    row(Sprig, "sprig_sortAlpha", (1, 1), |context, values| {
        let mut texts = texts(context, &values[0])?;
        // Each text is compared with a few others.
        let length: usize = texts.iter().map(|text| text.len()).sum();
        context.charge(length)?;
        texts.sort_unstable();
        context.list(texts.into_iter().map(Value::Str).collect(), Element::Str)
    }),
    row(Sprig, "sprig_split", (2, 2), |context, values| {
        let parts = pieces(context, &values[0], &values[1])?;
        numbered(context, parts)
    }),
    row(Sprig, "sprig_splitList", (2, 2), |context, values| {
        let parts = pieces(context, &values[0], &values[1])?;
        context.strings(parts)
    }),
    row(Sprig, "sprig_splitn", (3, 3), split_n),
    row(Sprig, "sprig_toStrings", (1, 1), |context, values| {
        let texts = texts(context, &values[0])?;
        context.list(texts.into_iter().map(Value::Str).collect(), Element::Str)
    }),
    row(Sprig, "sprig_tuple", (0, ANY), |context, values| context.list(values.to_vec(), Element::Any)),
    row(Sprig, "sprig_uniq", (1, 1), uniq),
    row(Sprig, "sprig_without", (1, ANY), without),
];

/// The items of a list, which must not be nil.
fn items(value: &Value) -> Outcome<&[Value]> {
    match arguments::list(value)? {
        Some(list) => Ok(&list.items),
        None => Err(Fault::new("expected a list; got nil")),
    }
}

fn push(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut items = items(&values[0])?.to_vec();
    items.push(values[1].clone());
    context.list(items, Element::Any)
}

fn prepend(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let items = [&[values[1].clone()], items(&values[0])?].concat();
    context.list(items, Element::Any)
}

fn contains(context: &mut Context<'_>, items: &[Value], value: &Value) -> Outcome<bool> {
    for item in items {
        if compare::deep_equal(context, value, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn uniq(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for item in items(&values[0])? {
        if !contains(context, &kept, item)? {
            kept.push(item.clone());
        }
    }
    context.list(kept, Element::Any)
}

fn without(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut kept = Vec::new();
    for item in items(&values[0])? {
        if !contains(context, &values[1..], item)? {
            kept.push(item.clone());
        }
    }
    context.list(kept, Element::Any)
}

fn slice(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let Some(list) = arguments::list(&values[0])? else { return Err(Fault::new("expected a list; got nil")) };
    let bound = |index: usize, default: usize| {
        let given = values.get(index).map(numbers::int);
        given.map_or(Some(default), |given| usize::try_from(given).ok())
    };
    let range = bound(1, 0).zip(bound(2, list.items.len()));
    let found = range.and_then(|(start, end)| list.items.get(start..end));
    if list.items.is_empty() {
        return Ok(Value::Nil);
    }
    let found = found.ok_or_else(|| Fault::new("slice bounds out of range"))?.to_vec();
    context.list(found, list.element)
}

fn chunk(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let size = usize::try_from(arguments::int(&values[0])?).ok().filter(|size| *size > 0);
    let size = size.ok_or_else(|| Fault::new("the size of a chunk must be positive"))?;
    let mut chunks = Vec::new();
    for part in items(&values[1])?.chunks(size) {
        chunks.push(context.list(part.to_vec(), Element::Any)?);
    }
    context.list(chunks, Element::List)
}

fn concat(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut all = Vec::new();
    for value in values {
        let items = items(value)?;
        context.charge(size_of_val(items))?;
        all.extend_from_slice(items);
    }
    context.list(all, Element::Any)
}

fn pieces(context: &mut Context<'_>, separator: &Value, value: &Value) -> Outcome<Vec<String>> {
    let (separator, text) = (arguments::string(separator)?, arguments::string(value)?);
    context.charge(text.len() * 24)?;
    Ok(strings::pieces(&text, &separator))
}

/// `_0`, `_1`, …
fn numbered(context: &mut Context<'_>, parts: Vec<String>) -> Outcome<Value> {
    let mut entries = BTreeMap::new();
    for (index, part) in parts.into_iter().enumerate() {
        entries.insert(Key::Str(format!("_{index}").into()), context.text(part)?);
    }
    context.map(entries, Element::Str)
}

fn split_n(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let count = arguments::int(&values[1])?;
    let mut parts = pieces(context, &values[0], &values[2])?;
    match usize::try_from(count) {
        Ok(0) => parts.clear(),
        Ok(count) if parts.len() > count => {
            let rest = parts.split_off(count - 1).join(&*arguments::string(&values[0])?);
            parts.push(rest);
        }
        Ok(_) | Err(_) => {}
    }
    numbered(context, parts)
}

/// The texts of the items of a list, without nils; other values are a list of one.
fn texts(context: &mut Context<'_>, value: &Value) -> Outcome<Vec<Text>> {
    let items = if let Value::List(list) = value { &list.items } else { std::slice::from_ref(value) };
    let mut texts = Vec::new();
    for item in items.iter().filter(|item| !matches!(item, Value::Nil)) {
        context.charge(VALUE_BYTES)?;
        texts.push(text_of(context, item)?);
    }
    Ok(texts)
}

fn join(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let separator = arguments::text(&values[0])?;
    let texts = texts(context, &values[1])?;
    let mut out = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        context.charge(separator.len() + text.len())?;
        if index > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(text);
    }
    context.text(out)
}
