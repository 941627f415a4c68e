//! Functions for lists and objects.

use std::collections::BTreeMap;

use super::{Answer, Arguments, Function, Refusal};
use crate::hcl::eval::operators::equal;
use crate::hcl::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    Function { name: "chunklist", arguments: (2, 2), call: chunklist },
    Function { name: "coalesce", arguments: (1, usize::MAX), call: coalesce },
    Function { name: "coalescelist", arguments: (1, usize::MAX), call: coalescelist },
    Function { name: "compact", arguments: (1, 1), call: compact },
    Function { name: "concat", arguments: (1, usize::MAX), call: concat },
    Function { name: "contains", arguments: (2, 2), call: contains },
    Function {
        name: "distinct",
        arguments: (1, 1),
        call: |all| Ok(Value::List(distinct(all, all.list(0)?)?)),
    },
    Function { name: "element", arguments: (2, 2), call: element },
    Function { name: "flatten", arguments: (1, 1), call: flatten },
    Function { name: "index", arguments: (2, 2), call: index },
    Function { name: "keys", arguments: (1, 1), call: keys },
    Function { name: "length", arguments: (1, 1), call: length },
    Function { name: "lookup", arguments: (2, 3), call: lookup },
    Function { name: "merge", arguments: (1, usize::MAX), call: merge },
    Function { name: "range", arguments: (1, 3), call: range },
    Function { name: "reverse", arguments: (1, 1), call: reverse },
    Function { name: "setintersection", arguments: (1, usize::MAX), call: setintersection },
    Function { name: "setproduct", arguments: (2, usize::MAX), call: setproduct },
    Function { name: "setsubtract", arguments: (2, 2), call: setsubtract },
    Function { name: "setunion", arguments: (1, usize::MAX), call: setunion },
    Function { name: "slice", arguments: (3, 3), call: slice },
    Function { name: "sort", arguments: (1, 1), call: sort },
    Function { name: "tolist", arguments: (1, 1), call: |all| Ok(Value::List(all.list(0)?.to_vec())) },
    Function { name: "tomap", arguments: (1, 1), call: |all| Ok(Value::Map(all.map(0)?.clone())) },
    Function { name: "toset", arguments: (1, 1), call: |all| Ok(Value::List(distinct(all, all.list(0)?)?)) },
    Function {
        name: "values",
        arguments: (1, 1),
        call: |all| Ok(Value::List(all.map(0)?.values().cloned().collect())),
    },
    Function { name: "zipmap", arguments: (2, 2), call: zipmap },
];

fn list(items: impl IntoIterator<Item = Value>) -> Answer {
    Ok(Value::List(items.into_iter().collect()))
}

fn chunklist(all: &Arguments<'_>) -> Answer {
    match usize::try_from(all.int(1)?) {
        Ok(size) if size > 0 => list(all.list(0)?.chunks(size).map(|chunk| Value::List(chunk.to_vec()))),
        Ok(_) | Err(_) => Err("the size must be at least 1".into()),
    }
}

fn coalesce(all: &Arguments<'_>) -> Answer {
    let is_there =
        |value: &&Value| !matches!(value, Value::Null) && value.text().is_none_or(|text| !text.is_empty());
    all.all().iter().find(is_there).cloned().ok_or_else(|| "all arguments are empty".into())
}

fn coalescelist(all: &Arguments<'_>) -> Answer {
    for number in 0..all.len() {
        let items = all.list(number)?;
        if !items.is_empty() {
            return list(items.to_vec());
        }
    }
    Err("all lists are empty".into())
}

fn compact(all: &Arguments<'_>) -> Answer {
    let texts = all.texts(0)?.into_iter().filter(|text| !text.is_empty());
    list(texts.map(Value::Str))
}

fn concat(all: &Arguments<'_>) -> Answer {
    let mut items = Vec::new();
    for number in 0..all.len() {
        items.extend_from_slice(all.list(number)?);
    }
    list(items)
}

fn contains(all: &Arguments<'_>) -> Answer {
    Ok(Value::Bool(all.list(0)?.iter().any(|item| equal(item, all.value(1)))))
}

/// Removes duplicates. The comparisons are charged because their number is quadratic.
fn distinct(all: &Arguments<'_>, items: &[Value]) -> Result<Vec<Value>, Refusal> {
    let mut once: Vec<Value> = Vec::new();
    for item in items {
        all.spend(once.len())?;
        if !once.iter().any(|other| equal(other, item)) {
            once.push(item.clone());
        }
    }
    Ok(once)
}

fn element(all: &Arguments<'_>) -> Answer {
    let (items, index) = (all.list(0)?, all.int(1)?);
    if items.is_empty() {
        return Err("the list is empty".into());
    }
    let at = usize::try_from(index.rem_euclid(items.len() as i128)).unwrap_or_default();
    Ok(items[at].clone())
}

fn flatten(all: &Arguments<'_>) -> Answer {
    fn into(items: &[Value], flat: &mut Vec<Value>) {
        for item in items {
            if let Value::List(items) = item {
                into(items, flat);
            } else {
                flat.push(item.clone());
            }
        }
    }
    let mut flat = Vec::new();
    into(all.list(0)?, &mut flat);
    list(flat)
}

fn index(all: &Arguments<'_>) -> Answer {
    let at = all.list(0)?.iter().position(|item| equal(item, all.value(1)));
    at.map(|at| Value::Int(at as i128)).ok_or_else(|| "the item is not in the list".into())
}

fn keys(all: &Arguments<'_>) -> Answer {
    list(all.map(0)?.keys().map(|key| Value::Str(key.clone())))
}

fn length(all: &Arguments<'_>) -> Answer {
    let length = match all.value(0) {
        Value::List(items) => items.len(),
        Value::Map(entries) => entries.len(),
        Value::Str(text) => text.chars().count(),
        other @ (Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_)) => {
            return Err(format!("{} has no length", other.kind()).into());
        }
    };
    Ok(Value::Int(length as i128))
}

fn lookup(all: &Arguments<'_>) -> Answer {
    let key = all.text(1)?;
    match (all.map(0)?.get(&key), all.len()) {
        (Some(value), _) => Ok(value.clone()),
        (None, 3) => Ok(all.value(2).clone()),
        (None, _) => Err(format!("the object has no `{key}`").into()),
    }
}

fn merge(all: &Arguments<'_>) -> Answer {
    let mut merged = BTreeMap::new();
    for number in 0..all.len() {
        merged.extend(all.map(number)?.clone());
    }
    Ok(Value::Map(merged))
}

/// Maximum length of a `range`.
const RANGE_MAX: usize = 1_024;

fn range(all: &Arguments<'_>) -> Answer {
    let (begin, end) = if all.len() == 1 { (0, all.int(0)?) } else { (all.int(0)?, all.int(1)?) };
    let step = match all.len() {
        3 => all.int(2)?,
        _ if end < begin => -1,
        _ => 1,
    };
    if step == 0 {
        return Err("the step must not be 0".into());
    }
    let (mut items, mut next) = (Vec::new(), begin);
    while if step > 0 { next < end } else { next > end } {
        if items.len() == RANGE_MAX {
            return Err(format!("gives more than {RANGE_MAX} numbers").into());
        }
        items.push(Value::Int(next));
        next = next.saturating_add(step);
    }
    list(items)
}

/// Nomad's `reverse` takes strings too.
fn reverse(all: &Arguments<'_>) -> Answer {
    match all.value(0) {
        Value::List(items) => list(items.iter().rev().cloned()),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) | Value::Map(_) => {
            Ok(Value::Str(all.text(0)?.chars().rev().collect()))
        }
    }
}

/// The Cartesian product of the lists. The last list varies fastest.
fn setproduct(all: &Arguments<'_>) -> Answer {
    let mut product = vec![Vec::new()];
    for number in 0..all.len() {
        let items = distinct(all, all.list(number)?)?;
        all.spend(product.len().saturating_mul(items.len()).saturating_mul(number + 1))?;
        let longer = |begun: &Vec<Value>| {
            let begun = begun.clone();
            items
                .iter()
                .map(move |item| [&begun[..], std::slice::from_ref(item)].concat())
                .collect::<Vec<_>>()
        };
        product = product.iter().flat_map(longer).collect();
    }
    list(product.into_iter().map(Value::List))
}

fn setunion(all: &Arguments<'_>) -> Answer {
    let mut items = Vec::new();
    for number in 0..all.len() {
        items.extend_from_slice(all.list(number)?);
    }
    list(distinct(all, &items)?)
}

fn setintersection(all: &Arguments<'_>) -> Answer {
    let mut kept = distinct(all, all.list(0)?)?;
    for number in 1..all.len() {
        let other = all.list(number)?;
        all.spend(kept.len().saturating_mul(other.len()))?;
        kept.retain(|item| other.iter().any(|one| equal(one, item)));
    }
    list(kept)
}

fn setsubtract(all: &Arguments<'_>) -> Answer {
    let (from, without) = (distinct(all, all.list(0)?)?, all.list(1)?);
    all.spend(from.len().saturating_mul(without.len()))?;
    list(from.into_iter().filter(|item| !without.iter().any(|one| equal(one, item))))
}

fn slice(all: &Arguments<'_>) -> Answer {
    let (items, begin, end) = (all.list(0)?, all.int(1)?, all.int(2)?);
    let range = usize::try_from(begin).ok().zip(usize::try_from(end).ok());
    match range.and_then(|(begin, end)| items.get(begin..end)) {
        Some(items) => list(items.to_vec()),
        None => Err(format!("there are no items {begin} to {end} in a list of {}", items.len()).into()),
    }
}

fn sort(all: &Arguments<'_>) -> Answer {
    let mut texts = all.texts(0)?;
    texts.sort();
    list(texts.into_iter().map(Value::Str))
}

fn zipmap(all: &Arguments<'_>) -> Answer {
    let (keys, values) = (all.texts(0)?, all.list(1)?);
    if keys.len() != values.len() {
        return Err(format!("has {} keys and {} values", keys.len(), values.len()).into());
    }
    Ok(Value::Map(keys.into_iter().zip(values.iter().cloned()).collect()))
}
