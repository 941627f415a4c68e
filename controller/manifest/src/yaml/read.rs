//! Tree → Rust types, through serde.
//!
//! In: a place in a tree that was checked against its schema. Out: a value, or the first problem with its
//! position and path. A `String` takes the source text of any scalar (`8080`, `1.10`, `no`); numbers and
//! booleans follow YAML 1.2; there are no other conversions.

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};

use super::node::{Entry, Located, Node, Value};
use super::path::Trail;
use super::phrases::describe_node;
use super::problem::{Position, Problem};

mod key;

use key::KeyReader;

/// Deserializes a value of type `T` from a place.
///
/// # Errors
/// The first misfit with its position.
pub fn from_node<T: DeserializeOwned>(place: &Located<'_>) -> Result<T, Problem> {
    let trail = Trail::begin(&place.path);
    T::deserialize(NodeReader { node: place.node, trail: &trail }).map_err(|error| {
        let Misfit { message, spot } = error;
        let (Position { line, column }, path) =
            spot.map_or_else(|| (place.node.position, place.path.clone()), |spot| *spot);
        Problem { source: place.source.to_owned(), line, column, path, message }
    })
}

/// A node as a serde deserializer.
#[derive(Clone, Copy)]
struct NodeReader<'a> {
    node: &'a Node,
    trail: &'a Trail<'a>,
}

/// A deserialization error, with its position once it is known.
#[derive(Debug)]
struct Misfit {
    message: String,
    spot: Option<Box<(Position, String)>>,
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), spot: None }
    }
}

impl Misfit {
    /// Sets the position unless an inner node already has.
    fn at(mut self, position: Position, trail: &Trail<'_>) -> Self {
        self.spot.get_or_insert_with(|| Box::new((position, trail.to_string())));
        self
    }
}

impl NodeReader<'_> {
    fn misfit(&self, expected: &str) -> Misfit {
        let message = match self.node.value {
            Value::Null => "is empty; remove it or give it a value".to_owned(),
            Value::Refused => "could not be read".to_owned(),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str | Value::Seq(_) | Value::Map(_) => {
                format!("expected {expected}, found {}", describe_node(self.node))
            }
        };
        Misfit { message, spot: None }.at(self.node.position, self.trail)
    }

    fn here<T>(&self, result: Result<T, Misfit>) -> Result<T, Misfit> {
        result.map_err(|misfit| misfit.at(self.node.position, self.trail))
    }

    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let Value::Int(value) = self.node.value else { return Err(self.misfit("an integer")) };
        self.here(match (u64::try_from(value), i64::try_from(value)) {
            (Ok(value), _) => visitor.visit_u64(value),
            (_, Ok(value)) => visitor.visit_i64(value),
            (Err(_), Err(_)) => visitor.visit_i128(value),
        })
    }

    fn float<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.node.value {
            Value::Float(value) => self.here(visitor.visit_f64(value)),
            Value::Int(value) => self.here(visitor.visit_f64(value as f64)),
            Value::Null | Value::Bool(_) | Value::Str | Value::Seq(_) | Value::Map(_) | Value::Refused => {
                Err(self.misfit("a number"))
            }
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.node.scalar_text() {
            Some(text) => self.here(visitor.visit_str(text)),
            None => Err(self.misfit("a string")),
        }
    }

    fn seq<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let Some(items) = self.node.items() else { return Err(self.misfit("a list")) };
        let mut reader = ItemReader { items: items.iter().enumerate(), trail: self.trail };
        let value = self.here(visitor.visit_seq(&mut reader))?;
        match reader.items.next() {
            None => Ok(value),
            Some((index, _)) => self.here(Err(de::Error::invalid_length(items.len(), &&*index.to_string()))),
        }
    }

    fn map<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let Some(entries) = self.node.entries() else { return Err(self.misfit("a map")) };
        self.here(visitor.visit_map(EntryReader { entries: entries.iter(), value: None, trail: self.trail }))
    }
}

macro_rules! deserialize {
    ($($kind:ident: $($method:ident)*;)*) => {
        $($(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
            self.$kind(visitor)
        })*)*
    };
}

impl<'de> Deserializer<'de> for NodeReader<'_> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.node.value {
            Value::Null => self.here(visitor.visit_unit()),
            Value::Bool(value) => self.here(visitor.visit_bool(value)),
            Value::Int(_) => self.integer(visitor),
            Value::Float(_) => self.float(visitor),
            Value::Str => self.text(visitor),
            Value::Seq(_) => self.seq(visitor),
            Value::Map(_) => self.map(visitor),
            Value::Refused => Err(self.misfit("")),
        }
    }

    deserialize! {
        integer: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
            deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128;
        float: deserialize_f32 deserialize_f64;
        text: deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
            deserialize_identifier;
        seq: deserialize_seq;
        map: deserialize_map;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.node.value {
            Value::Bool(value) => self.here(visitor.visit_bool(value)),
            Value::Null
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str
            | Value::Seq(_)
            | Value::Map(_)
            | Value::Refused => Err(self.misfit("true or false")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.node.value {
            Value::Null => self.here(visitor.visit_none()),
            Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str
            | Value::Seq(_)
            | Value::Map(_)
            | Value::Refused => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.node.value {
            Value::Null => self.here(visitor.visit_unit()),
            Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str
            | Value::Seq(_)
            | Value::Map(_)
            | Value::Refused => Err(self.misfit("nothing")),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let result = visitor.visit_newtype_struct(self);
        self.here(result)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Misfit> {
        self.seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.map(visitor)
    }

    /// A variant without content is its name; a variant with content is a map with one key.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let variant = match self.node.entries() {
            Some([entry]) => {
                VariantReader { name: &entry.key, content: Some(&entry.value), trail: self.trail }
            }
            Some(_) => return Err(self.misfit("a name, or a map with one key")),
            None => match self.node.scalar_text() {
                Some(name) => VariantReader { name, content: None, trail: self.trail },
                None => return Err(self.misfit("a name")),
            },
        };
        let result = visitor.visit_enum(variant);
        self.here(result)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_unit()
    }
}

struct ItemReader<'a, I> {
    items: I,
    trail: &'a Trail<'a>,
}

impl<'a, 'de, I> de::SeqAccess<'de> for &mut ItemReader<'a, I>
where
    I: ExactSizeIterator<Item = (usize, &'a std::sync::Arc<Node>)>,
{
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let trail = self.trail.item(index);
        let reader = NodeReader { node, trail: &trail };
        reader.here(seed.deserialize(reader)).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct EntryReader<'a> {
    entries: std::slice::Iter<'a, Entry>,
    value: Option<&'a Entry>,
    trail: &'a Trail<'a>,
}

impl<'de> de::MapAccess<'de> for EntryReader<'_> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.value = Some(entry);
        seed.deserialize(KeyReader(&entry.key))
            .map(Some)
            .map_err(|misfit: Misfit| misfit.at(entry.key_position, &self.trail.field(&entry.key)))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Misfit> {
        let Some(entry) = self.value.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        let trail = self.trail.field(&entry.key);
        let reader = NodeReader { node: &entry.value, trail: &trail };
        reader.here(seed.deserialize(reader))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

struct VariantReader<'a> {
    name: &'a str,
    content: Option<&'a Node>,
    trail: &'a Trail<'a>,
}

impl<'de> de::EnumAccess<'de> for VariantReader<'_> {
    type Error = Misfit;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Misfit> {
        let name: StrDeserializer<'_, Misfit> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl VariantReader<'_> {
    fn content<T>(self, read: impl FnOnce(NodeReader<'_>) -> Result<T, Misfit>) -> Result<T, Misfit> {
        let Some(node) = self.content else {
            return Err(de::Error::custom(format!("`{}` needs a value: `{}: …`", self.name, self.name)));
        };
        let trail = self.trail.field(self.name);
        let reader = NodeReader { node, trail: &trail };
        let result = read(reader);
        reader.here(result)
    }
}

impl<'de> de::VariantAccess<'de> for VariantReader<'_> {
    type Error = Misfit;

    fn unit_variant(self) -> Result<(), Misfit> {
        match self.content {
            None => Ok(()),
            Some(Node { value: Value::Null, .. }) => Ok(()),
            Some(_) => Err(de::Error::custom(format!("`{}` takes no value", self.name))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Misfit> {
        self.content(|reader| seed.deserialize(reader))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Misfit> {
        self.content(|reader| reader.seq(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.content(|reader| reader.map(visitor))
    }
}
