//! Values of unknown type: Go's `interface{}`, such as the configuration of a task driver.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
    ser::SerializeMap as _,
};

/// A value of a message. If a stock peer encoded it, encoding it again gives the same bytes.
#[derive(Clone, PartialEq, Default)]
pub enum Value {
    /// `nil`, the zero value of any type.
    #[default]
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer that was encoded as signed, or is below 128.
    Int(i64),
    /// An integer that was encoded as unsigned.
    Uint(u64),
    /// A number.
    Float(f64),
    /// A text, or bytes that happen to be UTF-8.
    Text(String),
    /// Bytes that are not UTF-8: a time, for example.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A map, in the order in which it was sent. Keys are nearly always texts.
    Map(Vec<(Value, Value)>),
}

impl Value {
    /// The value of a map's field; `None` if the field is missing or this is not a map.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(key, _)| matches!(key, Self::Text(key) if key == name)).map(|(_, value)| value)
    }

    /// A whole number; `None` if this is another type or negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Uint(number) => Some(*number),
            Self::Int(number) => u64::try_from(*number).ok(),
            Self::Nil
            | Self::Bool(_)
            | Self::Float(_)
            | Self::Text(_)
            | Self::Bytes(_)
            | Self::List(_)
            | Self::Map(_) => None,
        }
    }

    /// A text; `None` if this is another type.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// Prints types and sizes only: a message may hold secrets.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Bool(_) => f.write_str("a boolean"),
            Self::Int(_) | Self::Uint(_) => f.write_str("an integer"),
            Self::Float(_) => f.write_str("a float"),
            Self::Text(text) => write!(f, "a text of {} bytes", text.len()),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::List(list) => f.debug_list().entries(list).finish(),
            Self::Map(map) => {
                let name = |key: &Self| key.as_text().unwrap_or("?").to_owned();
                f.debug_map().entries(map.iter().map(|(key, value)| (name(key), value))).finish()
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::Uint(value) => serializer.serialize_u64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Self::List(list) => serializer.collect_seq(list),
            Self::Map(map) => {
                let mut out = serializer.serialize_map(Some(map.len()))?;
                map.iter().try_for_each(|(key, value)| out.serialize_entry(key, value))?;
                out.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Uint(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Value, E> {
        Ok(Value::Bytes(value.to_owned()))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}
