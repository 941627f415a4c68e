//! Maps of sprig.

use std::{collections::BTreeMap, rc::Rc};

use super::{
    super::{
        ANY, arguments,
        collections::{self, Overwrite},
        row,
    },
    text_of,
};
use crate::{
    context::{Context, VALUE_BYTES},
    error::{Fault, Outcome},
    function::{Function, Group::Sprig},
    value::{Element, Key, Map, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_deepCopy", (1, 1), |context, values| copy(context, &values[0], 0)),
    row(Sprig, "sprig_dict", (0, ANY), dict),
    row(Sprig, "sprig_dig", (3, ANY), dig),
    row(Sprig, "sprig_get", (2, 2), |_, values| {
        Ok(map(&values[0])?.get(&key(&values[1])?).unwrap_or_else(|| Value::from("")))
    }),
    row(Sprig, "sprig_hasKey", (2, 2), |_, values| {
        Ok(Value::Bool(map(&values[0])?.get(&key(&values[1])?).is_some()))
    }),
    row(Sprig, "sprig_keys", (0, ANY), keys),
    row(Sprig, "sprig_merge", (1, ANY), |context, values| merge(context, values, Overwrite::Empty)),
    row(Sprig, "sprig_mergeOverwrite", (1, ANY), |context, values| merge(context, values, Overwrite::All)),
    row(Sprig, "sprig_mustDeepCopy", (1, 1), |context, values| copy(context, &values[0], 0)),
    row(Sprig, "sprig_mustMerge", (1, ANY), |context, values| merge(context, values, Overwrite::Empty)),
    row(Sprig, "sprig_mustMergeOverwrite", (1, ANY), |context, values| {
        merge(context, values, Overwrite::All)
    }),
    row(Sprig, "sprig_omit", (1, ANY), |context, values| filtered(context, values, Kept::Others)),
    row(Sprig, "sprig_pick", (1, ANY), |context, values| filtered(context, values, Kept::Listed)),
    row(Sprig, "sprig_pluck", (1, ANY), pluck),
    row(Sprig, "sprig_set", (3, 3), |context, values| {
        context.insert(map(&values[0])?, key(&values[1])?, values[2].clone())?;
        Ok(values[0].clone())
    }),
    row(Sprig, "sprig_unset", (2, 2), |_, values| {
        map(&values[0])?.remove(&key(&values[1])?);
        Ok(values[0].clone())
    }),
    row(Sprig, "sprig_values", (1, 1), |context, values| {
        let items = map(&values[0])?.entries().values().cloned().collect();
        context.list(items, Element::Any)
    }),
];

fn map(value: &Value) -> Outcome<&Rc<Map>> {
    arguments::map(value)?.ok_or_else(|| Fault::new("expected a map; got nil"))
}

fn key(value: &Value) -> Outcome<Key> {
    arguments::text(value).map(|text| Key::Str(text.clone()))
}

fn dict(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut entries = BTreeMap::new();
    for pair in values.chunks(2) {
        let key = text_of(context, &pair[0])?;
        entries.insert(Key::Str(key), pair.get(1).cloned().unwrap_or_else(|| Value::from("")));
    }
    context.map(entries, Element::Any)
}

fn pluck(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let key = key(&values[0])?;
    let mut found = Vec::new();
    for value in &values[1..] {
        found.extend(map(value)?.get(&key));
    }
    context.list(found, Element::Any)
}

fn keys(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut keys = Vec::new();
    for value in values {
        let map = map(value)?;
        context.charge(map.len() * VALUE_BYTES)?;
        keys.extend(map.entries().keys().map(Key::value));
    }
    context.list(keys, Element::Str)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Listed,
    Others,
}

/// The entries whose keys are listed, or are not.
fn filtered(context: &mut Context<'_>, values: &[Value], kept: Kept) -> Outcome<Value> {
    let listed = values[1..].iter().map(key).collect::<Outcome<Vec<_>>>()?;
    let source = map(&values[0])?;
    let longest = listed.iter().map(Key::len).max().unwrap_or(0);
    context.charge(source.len().saturating_mul(listed.len()).saturating_mul(1 + longest / 8))?;
    let is_kept = |(key, _): &(&Key, &Value)| listed.contains(key) == (kept == Kept::Listed);
    let kept =
        source.entries().iter().filter(is_kept).map(|(key, value)| (key.clone(), value.clone())).collect();
    context.map(kept, Element::Any)
}

fn merge(context: &mut Context<'_>, values: &[Value], overwrite: Overwrite) -> Outcome<Value> {
    let target = map(&values[0])?;
    for source in &values[1..] {
        if let Some(source) = arguments::map(source)? {
            collections::merge(context, (target, source), overwrite, 0)?;
        }
    }
    Ok(values[0].clone())
}

fn copy(context: &mut Context<'_>, value: &Value, depth: usize) -> Outcome<Value> {
    context.step()?;
    if depth > context.limits().depth {
        return Err(Fault::limit("values are nested too deep to be copied"));
    }
    if let Value::List(list) = value {
        let items =
            list.items.iter().map(|item| copy(context, item, depth + 1)).collect::<Outcome<Vec<_>>>()?;
        return context.list(items, list.element);
    }
    let Value::Map(source) = value else { return Ok(value.clone()) };
    // Each level of a map that contains itself makes a list.
    context.charge(source.len() * 2 * VALUE_BYTES)?;
    let pairs: Vec<(Key, Value)> =
        source.entries().iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut entries = BTreeMap::new();
    for (key, value) in pairs {
        entries.insert(key, copy(context, &value, depth + 1)?);
    }
    context.map(entries, source.element)
}

/// Follows keys through nested maps: the keys, a default, the map.
fn dig(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let [keys @ .., default, first] = values else {
        return Err(Fault::new("dig needs at least three arguments"));
    };
    let mut here = first.clone();
    for name in keys {
        match map(&here)?.get(&key(name)?) {
            Some(value) => here = value,
            None => return Ok(default.clone()),
        }
    }
    Ok(here)
}
