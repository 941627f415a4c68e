//! Encodes Rust values with the bytes that a stock peer would write for the same values in Go.
//!
//! Texts and bytes use the raw forms from before 2013 (no `str8`, no `bin`). Signed integers use signed forms and unsigned ones unsigned
//! forms, each as short as possible. Every float has eight bytes. Structs become maps by field name; unit and `None` become `nil`.

use std::fmt::Display;

use serde::{
    Serialize,
    ser::{self, Impossible, SerializeMap as _},
};

/// Why a value cannot be encoded: its serializer failed, or the type has no equivalent in Go. Reads after "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("encode a message: {0}")]
pub struct EncodeError(String);

impl ser::Error for EncodeError {
    fn custom<T: Display>(why: T) -> Self {
        Self(why.to_string())
    }
}

/// Encodes a value.
///
/// # Errors
/// If the value's own serialisation fails, or a part of it has more than 2³² − 1 bytes or elements.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::with_capacity(128);
    encode_onto(&mut out, value)?;
    Ok(out)
}

/// Appends an encoded value to `out`. After an error, `out` may end with a part of it.
///
/// # Errors
/// As [`encode`].
pub fn encode_onto<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), EncodeError> {
    value.serialize(&mut Encoder { out })
}

struct Encoder<'a> {
    out: &'a mut Vec<u8>,
}

/// The first bytes of a value; the number says how many are used.
type Head = ([u8; 5], usize);

/// The first bytes of a text, list or map: the short form below `short.1`, otherwise a length of 16 or 32 bits.
fn head(length: usize, short: (u8, usize), long: u8) -> Result<Head, EncodeError> {
    if let Some(length) = u8::try_from(length).ok().filter(|&length| usize::from(length) < short.1) {
        return Ok(([short.0 | length, 0, 0, 0, 0], 1));
    }
    if let Ok(length) = u16::try_from(length) {
        let [a, b] = length.to_be_bytes();
        return Ok(([long, a, b, 0, 0], 3));
    }
    let length = u32::try_from(length)
        .map_err(|_| EncodeError(format!("a value has {length} bytes or elements, more than 2^32 - 1")))?;
    let [a, b, c, d] = length.to_be_bytes();
    Ok(([long + 1, a, b, c, d], 5))
}

fn list_head(length: usize) -> Result<Head, EncodeError> {
    head(length, (0x90, 16), 0xdc)
}

fn map_head(length: usize) -> Result<Head, EncodeError> {
    head(length, (0x80, 16), 0xde)
}

impl Encoder<'_> {
    fn head(&mut self, (bytes, length): Head) {
        self.out.extend_from_slice(&bytes[..length]);
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.head(head(bytes.len(), (0xa0, 32), 0xda)?);
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn number<const N: usize>(&mut self, form: u8, bytes: [u8; N]) {
        self.out.push(form);
        self.out.extend_from_slice(&bytes);
    }
}

/// A list or map being encoded.
struct Compound<'e, 'a> {
    encoder: &'e mut Encoder<'a>,
    /// Offset of the first element if the length was unknown: the head is inserted there at the end.
    begins: Option<usize>,
    count: usize,
}

impl<'e, 'a> Compound<'e, 'a> {
    fn list(encoder: &'e mut Encoder<'a>, length: Option<usize>) -> Result<Self, EncodeError> {
        if let Some(length) = length {
            encoder.head(list_head(length)?);
        }
        Ok(Self { begins: length.is_none().then_some(encoder.out.len()), count: 0, encoder })
    }

    fn map(encoder: &'e mut Encoder<'a>, length: Option<usize>) -> Result<Self, EncodeError> {
        if let Some(length) = length {
            encoder.head(map_head(length)?);
        }
        Ok(Self { begins: length.is_none().then_some(encoder.out.len()), count: 0, encoder })
    }

    fn write<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut *self.encoder)
    }

    fn close(self, head: fn(usize) -> Result<Head, EncodeError>) -> Result<(), EncodeError> {
        if let Some(begins) = self.begins {
            let (bytes, length) = head(self.count)?;
            self.encoder.out.splice(begins..begins, bytes[..length].iter().copied());
        }
        Ok(())
    }
}

impl<'e, 'a> ser::Serializer for &'e mut Encoder<'a> {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = Compound<'e, 'a>;
    type SerializeTuple = Compound<'e, 'a>;
    type SerializeTupleStruct = Compound<'e, 'a>;
    type SerializeTupleVariant = Impossible<(), EncodeError>;
    type SerializeMap = Compound<'e, 'a>;
    type SerializeStruct = Compound<'e, 'a>;
    type SerializeStructVariant = Impossible<(), EncodeError>;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), EncodeError> {
        self.out.push(0xc2 | u8::from(value));
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), EncodeError> {
        if let Ok(small) = i8::try_from(value) {
            // −32 to 127 are a single byte.
            if small < -32 {
                self.out.push(0xd0);
            }
            self.out.extend_from_slice(&small.to_be_bytes());
        } else if let Ok(value) = i16::try_from(value) {
            self.number(0xd1, value.to_be_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.number(0xd2, value.to_be_bytes());
        } else {
            self.number(0xd3, value.to_be_bytes());
        }
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), EncodeError> {
        if let Ok(small) = u8::try_from(value) {
            if small > 0x7f {
                self.out.push(0xcc);
            }
            self.out.push(small);
        } else if let Ok(value) = u16::try_from(value) {
            self.number(0xcd, value.to_be_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.number(0xce, value.to_be_bytes());
        } else {
            self.number(0xcf, value.to_be_bytes());
        }
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), EncodeError> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), EncodeError> {
        self.number(0xcb, value.to_be_bytes());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), EncodeError> {
        self.raw(value.encode_utf8(&mut [0; 4]).as_bytes())
    }

    fn serialize_str(self, value: &str) -> Result<(), EncodeError> {
        self.raw(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), EncodeError> {
        self.raw(value)
    }

    fn serialize_none(self) -> Result<(), EncodeError> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodeError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), EncodeError> {
        self.out.push(0xc0);
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), EncodeError> {
        self.serialize_map(Some(0))?.end()
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), EncodeError> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _index: u32,
        variant: &'static str,
        _value: &T,
    ) -> Result<(), EncodeError> {
        Err(no_sum(name, variant))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Compound<'e, 'a>, EncodeError> {
        Compound::list(self, length)
    }

    fn serialize_tuple(self, length: usize) -> Result<Compound<'e, 'a>, EncodeError> {
        Compound::list(self, Some(length))
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<Compound<'e, 'a>, EncodeError> {
        Compound::list(self, Some(length))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Impossible<(), EncodeError>, EncodeError> {
        Err(no_sum(name, variant))
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Compound<'e, 'a>, EncodeError> {
        Compound::map(self, length)
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Compound<'e, 'a>, EncodeError> {
        Compound::map(self, Some(length))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Impossible<(), EncodeError>, EncodeError> {
        Err(no_sum(name, variant))
    }
}

fn no_sum(name: &str, variant: &str) -> EncodeError {
    EncodeError(format!("{name}::{variant} has fields, and Go has no enums with fields"))
}

impl ser::SerializeSeq for Compound<'_, '_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.count += 1;
        self.write(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.close(list_head)
    }
}

impl ser::SerializeTuple for Compound<'_, '_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.write(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::SerializeTupleStruct for Compound<'_, '_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.write(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::SerializeMap for Compound<'_, '_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        self.count += 1;
        self.write(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.write(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.close(map_head)
    }
}

impl ser::SerializeStruct for Compound<'_, '_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.write(key)?;
        self.write(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}
