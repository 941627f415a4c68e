//! Decodes bytes into Rust values; [`codec`](super) lists the conversions.

use std::{borrow::Cow, fmt::Display};

use serde::{
    Deserialize,
    de::{self, IntoDeserializer as _, Visitor},
};

use super::{Extent, LimitError, Limits, extent};

/// Why a message cannot be decoded. Reads after "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message exceeds a limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The message is incomplete.
    #[error("decode a message: it ends within a value")]
    Cut,
    /// Further bytes follow the message.
    #[error("decode a message: {0} bytes follow it")]
    Trailing(usize),
    /// A value has the wrong type.
    #[error("decode {}{why}", FieldPath(path))]
    Value {
        /// The path of the value: field names joined by `.`, list positions as `[0]`; empty for the message itself.
        path: String,
        /// What was expected, and the type found. Never the value itself.
        why: String,
    },
}

struct FieldPath<'a>(&'a str);

impl Display for FieldPath<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

impl DecodeError {
    /// Prefixes the path with `step`, the enclosing field or list position.
    fn within(self, step: impl FnOnce() -> String) -> Self {
        match self {
            Self::Value { path, why } => {
                let (mut outer, dot) =
                    (step(), if path.is_empty() || path.starts_with('[') { "" } else { "." });
                outer.push_str(dot);
                outer.push_str(&path);
                Self::Value { path: outer, why }
            }
            Self::Limit(_) | Self::Cut | Self::Trailing(_) => self,
        }
    }
}

impl de::Error for DecodeError {
    fn custom<T: Display>(why: T) -> Self {
        Self::Value { path: String::new(), why: why.to_string() }
    }

    /// serde's default text would include the value.
    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("{} instead of {expected}", kind(&found)))
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("{} that is not {expected}", kind(&found)))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!("not one of {expected:?}"))
    }
}

fn kind(found: &de::Unexpected<'_>) -> &'static str {
    use de::Unexpected::*;
    match found {
        Bool(_) => "a boolean",
        Unsigned(_) | Signed(_) => "an integer",
        Float(_) => "a float",
        Char(_) | Str(_) => "a text",
        Bytes(_) => "bytes",
        Unit | Option => "nil",
        Seq => "a list",
        Map => "a map",
        NewtypeStruct | Enum | UnitVariant | NewtypeVariant | TupleVariant | StructVariant | Other(_) => {
            "something"
        }
    }
}

/// Decodes a whole message within [`Limits::BODY`].
///
/// # Errors
/// If the bytes are not exactly one message, the message exceeds a limit, or a value has the wrong type.
pub fn decode<'de, T: Deserialize<'de>>(message: &'de [u8]) -> Result<T, DecodeError> {
    decode_within(message, Limits::BODY)
}

/// Decodes a whole message within `limits`.
///
/// # Errors
/// As [`decode`].
pub fn decode_within<'de, T: Deserialize<'de>>(message: &'de [u8], limits: Limits) -> Result<T, DecodeError> {
    // After this check the message is complete and within the limits for depth and values.
    let length = Extent::new(limits).of(message)?.ok_or(DecodeError::Cut)?;
    let mut decoder = Decoder { input: message };
    let value = T::deserialize(&mut decoder)?;
    if length < message.len() {
        return Err(DecodeError::Trailing(message.len() - length));
    }
    Ok(value)
}

/// The undecoded rest of the message.
struct Decoder<'de> {
    input: &'de [u8],
}

/// A scalar value, or the head of a list or map.
enum Item<'de> {
    Nil,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Raw(&'de [u8]),
    List(usize),
    /// The number of entries.
    Map(usize),
    Extension,
}

impl<'de> Decoder<'de> {
    fn next(&mut self) -> Result<Item<'de>, DecodeError> {
        let head = extent::head(self.input).ok_or(DecodeError::Cut)?.map_err(|()| DecodeError::Cut)?;
        let first = *self.input.first().ok_or(DecodeError::Cut)?;
        let end = head.head.saturating_add(head.payload);
        let (item, rest) = self.input.split_at_checked(end).ok_or(DecodeError::Cut)?;
        let (_, payload) = item.split_at_checked(head.head).ok_or(DecodeError::Cut)?;
        self.input = rest;
        let unsigned = || payload.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        // The highest bit of a shorter number is its sign.
        let signed = || {
            let unused = 64 - 8 * u32::try_from(payload.len()).unwrap_or(8);
            unsigned().wrapping_shl(unused).cast_signed().wrapping_shr(unused)
        };
        Ok(match first {
            0x00..=0x7f => Item::Int(first.into()),
            0xe0..=0xff => Item::Int(first.cast_signed().into()),
            0x80..=0x8f | 0xde | 0xdf => Item::Map(head.values / 2),
            0x90..=0x9f | 0xdc | 0xdd => Item::List(head.values),
            0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6 => Item::Raw(payload),
            0xc0 | 0xc1 => Item::Nil,
            0xc2 | 0xc3 => Item::Bool(first == 0xc3),
            0xca => Item::Float(f32::from_bits(u32::try_from(unsigned()).unwrap_or_default()).into()),
            0xcb => Item::Float(f64::from_bits(unsigned())),
            0xcc..=0xcf => Item::Uint(unsigned()),
            0xd0..=0xd3 => Item::Int(signed()),
            0xc7..=0xc9 | 0xd4..=0xd8 => Item::Extension,
        })
    }

    fn is_nil(&self) -> bool {
        self.input.first() == Some(&0xc0)
    }

    fn skip(&mut self) -> Result<(), DecodeError> {
        let mut left = 1_usize;
        while left > 0 {
            let head = extent::head(self.input).ok_or(DecodeError::Cut)?.map_err(|()| DecodeError::Cut)?;
            let end = head.head.saturating_add(head.payload);
            self.input = self.input.get(end..).ok_or(DecodeError::Cut)?;
            left = left - 1 + head.values;
        }
        Ok(())
    }

    fn visit<V: Visitor<'de>>(&mut self, item: Item<'de>, visitor: V) -> Result<V::Value, DecodeError> {
        match item {
            Item::Nil => visitor.visit_unit(),
            Item::Bool(value) => visitor.visit_bool(value),
            Item::Int(value) => visitor.visit_i64(value),
            Item::Uint(value) => visitor.visit_u64(value),
            Item::Float(value) => visitor.visit_f64(value),
            Item::Raw(raw) => match std::str::from_utf8(raw) {
                Ok(text) => visitor.visit_borrowed_str(text),
                Err(_) => visitor.visit_borrowed_bytes(raw),
            },
            Item::List(left) => visitor.visit_seq(List { decoder: self, at: 0, left }),
            Item::Map(left) => visitor.visit_map(Map { decoder: self, key: b"", left }),
            Item::Extension => Err(de::Error::custom("an extension, which Nomad does not use")),
        }
    }
}

impl<'de> Item<'de> {
    /// Replaces nil by `zero`.
    fn or(self, zero: Self) -> Self {
        if matches!(self, Self::Nil) { zero } else { self }
    }
}

fn text<'de, V: Visitor<'de>>(raw: &'de [u8], visitor: V) -> Result<V::Value, DecodeError> {
    match String::from_utf8_lossy(raw) {
        Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
        Cow::Owned(text) => visitor.visit_string(text),
    }
}

/// All variants except [`Item::Raw`].
macro_rules! other {
    () => {
        Item::Nil
            | Item::Bool(_)
            | Item::Int(_)
            | Item::Uint(_)
            | Item::Float(_)
            | Item::List(_)
            | Item::Map(_)
            | Item::Extension
    };
}

macro_rules! numbers {
    ($($name:ident)*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let item = self.next()?.or(Item::Uint(0));
            self.visit(item, visitor)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = DecodeError;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let item = self.next()?;
        self.visit(item, visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let item = self.next()?.or(Item::Bool(false));
        if let Item::Int(value @ 0..=1) = item {
            return visitor.visit_bool(value == 1);
        }
        self.visit(item, visitor)
    }

    numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_f32 deserialize_f64
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.next()?.or(Item::Raw(b"")) {
            Item::Raw(raw) => text(raw, visitor),
            item @ other!() => self.visit(item, visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.next()?.or(Item::Raw(b"")) {
            Item::Raw(raw) => visitor.visit_borrowed_bytes(raw),
            item @ other!() => self.visit(item, visitor),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.is_nil() {
            self.skip()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let item = self.next()?.or(Item::List(0));
        self.visit(item, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let item = self.next()?.or(Item::Map(0));
        self.visit(item, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.next()?.or(Item::Raw(b"")) {
            Item::Raw(raw) => visitor.visit_enum(String::from_utf8_lossy(raw).into_deserializer()),
            item @ other!() => self.visit(item, visitor),
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_unit(visitor)
    }
}

struct List<'d, 'de> {
    decoder: &'d mut Decoder<'de>,
    at: usize,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for List<'_, 'de> {
    type Error = DecodeError;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.at += 1;
        seed.deserialize(&mut *self.decoder)
            .map(Some)
            .map_err(|error| error.within(|| format!("[{}]", self.at - 1)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

struct Map<'d, 'de> {
    decoder: &'d mut Decoder<'de>,
    /// The key as it was sent, for error paths.
    key: &'de [u8],
    left: usize,
}

impl<'de> de::MapAccess<'de> for Map<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.key = match (Decoder { input: self.decoder.input }).next()? {
            Item::Raw(raw) => raw,
            other!() => b"?",
        };
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let key = self.key;
        seed.deserialize(&mut *self.decoder).map_err(|error| error.within(|| name(key)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A key as part of a path. Keys of maps are data, so cut those that are longer than any Nomad field.
fn name(key: &[u8]) -> String {
    String::from_utf8_lossy(key).chars().take(64).collect()
}
