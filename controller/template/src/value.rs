//! Values while rendering, with the distinctions of Go that a template can observe.
//!
//! Values are shared within one render. Maps can change (`set`, `scratch`); [`crate::context::Context`] creates them, keeps
//! each that may contain maps until the end and then empties it, so that neither a cycle nor a deep value outlives a render.

use std::{
    cell::{OnceCell, Ref, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use crate::{moment::Moment, query::Variable, text::Text};

#[derive(Clone, Default)]
pub(crate) enum Value {
    /// A nil of any type.
    #[default]
    Nil,
    Bool(bool),
    /// Go's `int`: literals, lengths, indexes.
    Int(i64),
    /// Go's `int64`: results of functions.
    Int64(i64),
    Uint(u64),
    Float(f64),
    Str(Text),
    List(Rc<List>),
    Map(Rc<Map>),
    Struct(Rc<Struct>),
    /// The numbers from the first up to, and without, the second: a channel in Go.
    Sequence(i64, i64),
    /// The values that a template keeps by itself.
    Scratch,
}

/// A list. Never changes.
pub(crate) struct List {
    pub(crate) items: Vec<Value>,
    pub(crate) element: Element,
    /// Lists within each other; bounded, because dropping them recurses.
    depth: usize,
}

pub(crate) struct Map {
    entries: RefCell<BTreeMap<Key, Value>>,
    pub(crate) element: Element,
    /// The variable whose items these are.
    pub(crate) variable: Option<Described>,
}

/// A variable whose metadata a template may use. Few do.
pub(crate) struct Described {
    pub(crate) variable: Arc<Variable>,
    /// The metadata as a value, once it was used.
    pub(crate) meta: OnceCell<Value>,
}

/// A struct of Go.
pub(crate) struct Struct {
    pub(crate) type_name: &'static str,
    pub(crate) fields: Vec<(&'static str, Value)>,
    /// What its `String` method returns.
    pub(crate) shown: Option<Text>,
    /// The time that it is.
    pub(crate) time: Option<Box<Moment>>,
}

/// The type of the elements of a list or map: decides what a missing key yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Any,
    Str,
    /// A list of any values.
    List,
    /// A map of any values.
    Map,
    Int,
    /// An item of a variable.
    Item,
    /// A struct of the catalogue.
    Struct,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Bool(bool),
    Int(i64),
    Str(Text),
}

impl Key {
    /// The bytes of a string; 0 for other keys.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Str(text) => text.len(),
            Self::Bool(_) | Self::Int(_) => 0,
        }
    }

    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Str(text) => Value::Str(text.clone()),
        }
    }
}

impl Element {
    pub(crate) fn zero(self) -> Value {
        match self {
            Self::Any | Self::Map | Self::Struct => Value::Nil,
            Self::Str => Value::from(""),
            Self::Int => Value::Int(0),
            Self::List => Value::List(Rc::new(List::new(Vec::new(), Self::Any))),
            Self::Item => item(Text::from(""), ""),
        }
    }

    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Any => "interface {}",
            Self::Str => "string",
            Self::Int => "int",
            Self::List => "[]interface {}",
            Self::Map => "map[string]interface {}",
            Self::Item => "dependency.NomadVarItem",
            Self::Struct => "struct",
        }
    }
}

/// An item of a variable.
pub(crate) fn item(key: Text, value: &str) -> Value {
    let value = Text::from(value);
    Value::Struct(Rc::new(Struct {
        type_name: "dependency.NomadVarItem",
        fields: vec![("Key", Value::Str(key)), ("Value", Value::Str(value.clone()))],
        shown: Some(value),
        time: None,
    }))
}

impl List {
    pub(crate) fn new(items: Vec<Value>, element: Element) -> Self {
        let depth = items.iter().map(Value::depth).max().unwrap_or(0) + 1;
        Self { items, element, depth }
    }
}

impl Map {
    pub(crate) fn new(entries: BTreeMap<Key, Value>, element: Element) -> Self {
        Self { entries: RefCell::new(entries), element, variable: None }
    }

    /// The items of a variable.
    pub(crate) fn of_variable(entries: BTreeMap<Key, Value>, variable: Arc<Variable>) -> Self {
        let variable = Some(Described { variable, meta: OnceCell::new() });
        Self { variable, ..Self::new(entries, Element::Item) }
    }

    pub(crate) fn insert(&self, key: Key, value: Value) {
        self.entries.borrow_mut().insert(key, value);
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.entries.borrow_mut().remove(key);
    }

    pub(crate) fn clear(&self) {
        // Dropped after the borrow has ended.
        drop(self.entries.take());
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Value> {
        self.entries.borrow().get(key).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Must not be held while the map may change.
    pub(crate) fn entries(&self) -> Ref<'_, BTreeMap<Key, Value>> {
        self.entries.borrow()
    }
}

impl Struct {
    pub(crate) fn field(&self, name: &[u8]) -> Option<&Value> {
        self.fields.iter().find(|(own, _)| own.as_bytes() == name).map(|(_, value)| value)
    }
}

impl Value {
    /// Whether `if` takes the branch.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Int(value) | Self::Int64(value) => *value != 0,
            Self::Uint(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => map.len() > 0,
            Self::Struct(_) | Self::Sequence(..) | Self::Scratch => true,
        }
    }

    /// The name of its type in Go.
    pub(crate) fn type_name(&self) -> String {
        match self {
            Self::Nil => "<nil>".to_owned(),
            Self::Bool(_) => "bool".to_owned(),
            Self::Int(_) => "int".to_owned(),
            Self::Int64(_) => "int64".to_owned(),
            Self::Uint(_) => "uint64".to_owned(),
            Self::Float(_) => "float64".to_owned(),
            Self::Str(_) => "string".to_owned(),
            Self::List(list) => format!("[]{}", list.element.type_name()),
            Self::Map(map) if map.element == Element::Item => "dependency.NomadVarItems".to_owned(),
            Self::Map(map) => {
                // Keys are in order: at most two booleans, then integers.
                let has_ints = map.entries().keys().take(3).any(|key| matches!(key, Key::Int(_)));
                format!("map[{}]{}", if has_ints { "int" } else { "string" }, map.element.type_name())
            }
            Self::Struct(value) => value.type_name.to_owned(),
            Self::Sequence(..) => "<-chan int64".to_owned(),
            Self::Scratch => "*template.Scratch".to_owned(),
        }
    }

    /// The kind of its type in Go.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            Self::Nil => "invalid",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Int64(_) => "int64",
            Self::Uint(_) => "uint64",
            Self::Float(_) => "float64",
            Self::Str(_) => "string",
            Self::List(_) => "slice",
            Self::Map(_) => "map",
            Self::Struct(_) => "struct",
            Self::Sequence(..) => "chan",
            Self::Scratch => "ptr",
        }
    }

    /// Lists within each other in this value.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Struct(value) => value.fields.iter().map(|(_, value)| value.depth()).max().unwrap_or(0) + 1,
            Self::Nil
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Int64(_)
            | Self::Uint(_)
            | Self::Float(_)
            | Self::Str(_)
            | Self::Map(_)
            | Self::Sequence(..)
            | Self::Scratch => 0,
        }
    }

    /// The integer of an integer of any type.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) | Self::Int64(value) => Some(i128::from(*value)),
            Self::Uint(value) => Some(i128::from(*value)),
            Self::Nil
            | Self::Bool(_)
            | Self::Float(_)
            | Self::Str(_)
            | Self::List(_)
            | Self::Map(_)
            | Self::Struct(_)
            | Self::Sequence(..)
            | Self::Scratch => None,
        }
    }

    /// The text of a string, or of a struct that shows itself as one.
    pub(crate) fn as_text(&self) -> Option<&Text> {
        match self {
            Self::Str(text) => Some(text),
            Self::Struct(value) => value.shown.as_ref(),
            Self::Nil
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Int64(_)
            | Self::Uint(_)
            | Self::Float(_)
            | Self::List(_)
            | Self::Map(_)
            | Self::Sequence(..)
            | Self::Scratch => None,
        }
    }

    pub(crate) fn as_key(&self) -> Option<Key> {
        match (self.as_text(), self) {
            (Some(text), _) => Some(Key::Str(text.clone())),
            (None, Self::Bool(value)) => Some(Key::Bool(*value)),
            (None, _) => self.as_int().and_then(|value| i64::try_from(value).ok()).map(Key::Int),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}
