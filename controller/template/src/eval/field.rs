//! Fields and methods: `.Name` after a value.

use std::{collections::BTreeMap, rc::Rc};

use crate::{
    context::Context,
    error::{Fault, Outcome},
    format::quote,
    functions::{data, time},
    moment::Moment,
    options::MissingKey,
    text::Text,
    value::{Element, Key, Map, Struct, Value},
};

use super::State;

/// A value in a chain of fields.
pub(super) struct Found {
    pub(super) value: Value,
    /// Whether a nil is no value at all, whose fields are nil too. Fields of other nils are errors.
    is_untyped: bool,
}

impl State<'_, '_> {
    /// Follows a chain of fields.
    pub(super) fn fields(&mut self, value: Value, names: &[Text]) -> Outcome<Found> {
        let is_untyped = matches!(value, Value::Nil);
        names.iter().try_fold(Found { value, is_untyped }, |found, name| found.field(self.context, name, &[]))
    }
}

impl Found {
    /// Returns a field, an entry of a map, or the result of a method.
    pub(super) fn field(&self, context: &mut Context<'_>, name: &Text, arguments: &[Value]) -> Outcome<Self> {
        context.step()?;
        context.charge(name.len() / 8)?;
        let found = |value| Ok(Self { value, is_untyped: false });
        match &self.value {
            Value::Nil if self.is_untyped => match context.options.missing_key {
                MissingKey::Zero => Ok(Self { value: Value::Nil, is_untyped: true }),
                MissingKey::Error => Err(Fault::new(format!("nil data; no entry for key {}", quote(name)))),
            },
            Value::Nil => Err(Fault::new(format!("nil pointer evaluating interface {{}}.{}", name.lossy()))),
            Value::Scratch => found(scratch(context, name, arguments)?),
            Value::Map(map) if map.element == Element::Item && is_method_of_items(name) => {
                no_arguments(name, arguments)?;
                found(method_of_items(context, map, name)?)
            }
            Value::Map(map) => {
                no_arguments(name, arguments)?;
                match (map.get(&Key::Str(name.clone())), context.options.missing_key) {
                    (Some(value), _) => found(value),
                    (None, MissingKey::Zero) => found(map.element.zero()),
                    (None, MissingKey::Error) => {
                        Err(Fault::new(format!("map has no entry for key {}", quote(name))))
                    }
                }
            }
            Value::Struct(object) => match object.field(name) {
                Some(value) => {
                    no_arguments(name, arguments)?;
                    found(value.clone())
                }
                None => match (&**name, &object.shown, &object.time) {
                    (b"String", Some(shown), _) => found(Value::Str(shown.clone())),
                    (b"Format", _, Some(time)) => found(formatted(context, time, arguments)?),
                    _ => Err(self.unknown(name)),
                },
            },
            // Tags of services have this method.
            Value::List(list) if list.element == Element::Str && &**name == b"Contains" => match arguments {
                [Value::Str(tag)] => {
                    context.charge(list.items.len().saturating_mul(1 + tag.len() / 8))?;
                    let is_tag = |item: &Value| matches!(item, Value::Str(own) if own == tag);
                    found(Value::Bool(list.items.iter().any(is_tag)))
                }
                _ => Err(Fault::new("wrong arguments for Contains: want a string")),
            },
            Value::Bool(_)
            | Value::Int(_)
            | Value::Int64(_)
            | Value::Uint(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::List(_)
            | Value::Sequence(..) => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &Text) -> Fault {
        Fault::new(format!("can't evaluate field {} in type {}", name.lossy(), self.value.type_name()))
    }
}

fn no_arguments(name: &Text, arguments: &[Value]) -> Outcome<()> {
    if arguments.is_empty() {
        return Ok(());
    }
    Err(Fault::new(format!("{} has arguments but cannot be invoked as function", name.lossy())))
}

/// A time in a layout.
fn formatted(context: &mut Context<'_>, time: &Moment, arguments: &[Value]) -> Outcome<Value> {
    let [Value::Str(layout)] = arguments else {
        return Err(Fault::new("wrong arguments for Format: want a layout"));
    };
    // Each character is compared with all elements of layouts.
    context.charge(layout.len().saturating_mul(8))?;
    context.text(time::format(&layout.lossy(), time))
}

fn is_method_of_items(name: &[u8]) -> bool {
    matches!(name, b"Keys" | b"Values" | b"Tuples" | b"Metadata" | b"Parent" | b"ItemsMap")
}

/// Methods of the items of a variable.
fn method_of_items(context: &mut Context<'_>, map: &Rc<Map>, name: &[u8]) -> Outcome<Value> {
    match name {
        b"Keys" => {
            let keys = texts(map).into_iter().map(|(key, _)| Value::Str(key)).collect();
            context.list(keys, Element::Str)
        }
        b"Values" => {
            let values = texts(map).into_iter().map(|(_, value)| value).collect();
            context.list(values, Element::Str)
        }
        b"Tuples" => {
            let mut tuples = Vec::with_capacity(map.len());
            for (key, value) in texts(map) {
                let fields = vec![("K", Value::Str(key)), ("V", value)];
                tuples.push(context.structure(Struct {
                    type_name: "struct { K, V string }",
                    fields,
                    shown: None,
                    time: None,
                })?);
            }
            context.list(tuples, Element::Struct)
        }
        b"ItemsMap" => {
            let entries = texts(map).into_iter().map(|(key, value)| (Key::Str(key), value));
            context.map(entries.collect(), Element::Any)
        }
        b"Parent" => {
            let Value::Struct(meta) = meta(context, map)? else { return Ok(Value::Nil) };
            let mut fields = meta.fields.clone();
            fields.push(("Items", Value::Map(Rc::clone(map))));
            context.structure(Struct {
                type_name: "dependency.NomadVariable",
                fields,
                shown: None,
                time: None,
            })
        }
        _ => meta(context, map),
    }
}

/// The metadata of a variable; nil if the items are of none. The same value for each use.
fn meta(context: &mut Context<'_>, map: &Map) -> Outcome<Value> {
    let Some(described) = &map.variable else { return Ok(Value::Nil) };
    if let Some(meta) = described.meta.get() {
        return Ok(meta.clone());
    }
    let meta = data::meta(context, &described.variable.meta)?;
    Ok(described.meta.get_or_init(|| meta).clone())
}

/// The keys and values of items.
fn texts(map: &Map) -> Vec<(Text, Value)> {
    let entries = map.entries();
    let texts = entries.iter().map(|(key, value)| match (key, value.as_text()) {
        (Key::Str(key), Some(text)) => (key.clone(), Value::Str(text.clone())),
        (Key::Str(key), None) => (key.clone(), Value::Nil),
        (Key::Bool(_) | Key::Int(_), _) => (Text::from(""), Value::Nil),
    });
    texts.collect()
}

/// Methods of `scratch`: values that live as long as the render.
fn scratch(context: &mut Context<'_>, name: &Text, arguments: &[Value]) -> Outcome<Value> {
    let values = context.scratch()?;
    let key = |index: usize| {
        let text = arguments.get(index).and_then(Value::as_text);
        text.map(|text| Key::Str(text.clone())).ok_or_else(|| Fault::new("expected a string as key"))
    };
    let count = match &**name {
        b"Key" | b"Get" | b"MapValues" => 1,
        b"Set" | b"SetX" => 2,
        b"MapSet" | b"MapSetX" => 3,
        _ => {
            return Err(Fault::new(format!(
                "can't evaluate field {} in type *template.Scratch",
                name.lossy()
            )));
        }
    };
    if arguments.len() != count {
        let message =
            format!("wrong number of args for {}: want {count} got {}", name.lossy(), arguments.len());
        return Err(Fault::new(message));
    }
    let last = arguments[count - 1].clone();
    match &**name {
        b"Key" => Ok(Value::Bool(values.get(&key(0)?).is_some())),
        b"Get" => Ok(values.get(&key(0)?).unwrap_or_default()),
        b"Set" => context.insert(&values, key(0)?, last).map(|()| Value::from("")),
        b"SetX" => {
            if values.get(&key(0)?).is_none() {
                context.insert(&values, key(0)?, last)?;
            }
            Ok(Value::from(""))
        }
        b"MapValues" => match values.get(&key(0)?) {
            Some(Value::Map(map)) => {
                let items = map.entries().values().cloned().collect();
                context.list(items, Element::Any)
            }
            Some(_) | None => context.list(Vec::new(), Element::Any),
        },
        _ => {
            let map = match values.get(&key(0)?) {
                Some(map) => map,
                None => {
                    let map = context.map(BTreeMap::new(), Element::Any)?;
                    context.insert(&values, key(0)?, map.clone())?;
                    map
                }
            };
            let Value::Map(map) = map else {
                return Err(Fault::new(format!(
                    "{:?} is not a map",
                    arguments[0].as_text().map(|text| text.lossy().into_owned()).unwrap_or_default()
                )));
            };
            if &**name == b"MapSet" || map.get(&key(1)?).is_none() {
                context.insert(&map, key(1)?, last)?;
            }
            Ok(Value::from(""))
        }
    }
}
