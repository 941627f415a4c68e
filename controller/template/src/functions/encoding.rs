//! Functions of consul-template that encode and decode.

use std::collections::BTreeMap;

use aws_lc_rs::{digest, hmac};
use base64::{Engine as _, engine::GeneralPurpose, prelude::*};
use md5::Digest as _;

use super::{arguments, row, toml, yaml};
use crate::{
    context::Context,
    error::{Fault, Outcome},
    function::{Function, Group::Encoding},
    json::{self, Style},
    number,
    value::{Element, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Encoding, "base64Decode", (1, 1), |context, values| decode(context, &values[0], &BASE64_STANDARD)),
    row(Encoding, "base64Encode", (1, 1), |context, values| encode(context, &values[0], &BASE64_STANDARD)),
    row(Encoding, "base64URLDecode", (1, 1), |context, values| decode(context, &values[0], &BASE64_URL_SAFE)),
    row(Encoding, "base64URLEncode", (1, 1), |context, values| encode(context, &values[0], &BASE64_URL_SAFE)),
    row(Encoding, "hmacSHA256Hex", (2, 2), hmac_sha256),
    row(Encoding, "md5sum", (1, 1), |context, values| {
        let text = arguments::text(&values[0])?;
        context.charge(text.len())?;
        context.text(hexadecimal(&md5::Md5::digest(&**text)))
    }),
    row(Encoding, "parseBool", (1, 1), parse_bool),
    row(Encoding, "parseFloat", (1, 1), parse_float),
    row(Encoding, "parseInt", (1, 1), parse_int),
    row(Encoding, "parseJSON", (1, 1), |context, values| {
        let text = arguments::text(&values[0])?;
        if text.is_empty() { context.map(BTreeMap::new(), Element::Any) } else { json::parse(context, text) }
    }),
    row(Encoding, "parseUint", (1, 1), parse_uint),
    row(Encoding, "parseYAML", (1, 1), |context, values| {
        let text = arguments::string(&values[0])?;
        if text.is_empty() { context.map(BTreeMap::new(), Element::Any) } else { yaml::parse(context, &text) }
    }),
    row(Encoding, "sha256Hex", (1, 1), |context, values| hash(context, &values[0], &digest::SHA256)),
    row(Encoding, "toJSON", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: false, html: true })
    }),
    row(Encoding, "toJSONPretty", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: true, html: true })
    }),
    row(Encoding, "toTOML", (1, 1), |context, values| toml::write(context, &values[0])),
    row(Encoding, "toUnescapedJSON", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: false, html: false })
    }),
    row(Encoding, "toUnescapedJSONPretty", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: true, html: false })
    }),
    row(Encoding, "toYAML", (1, 1), |context, values| yaml::write(context, &values[0])),
];

pub(super) fn encode(context: &mut Context<'_>, value: &Value, engine: &GeneralPurpose) -> Outcome<Value> {
    let text = engine.encode(&**arguments::text(value)?);
    context.text(text)
}

pub(super) fn decode(context: &mut Context<'_>, value: &Value, engine: &GeneralPurpose) -> Outcome<Value> {
    // Go skips line ends.
    let mut text = arguments::text(value)?.to_vec();
    text.retain(|byte| !matches!(byte, b'\r' | b'\n'));
    context.charge(text.len())?;
    let bytes = engine.decode(&text).map_err(|error| match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => {
            Fault::new(format!("illegal base64 data at input byte {at}"))
        }
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
            Fault::new("illegal base64 data: wrong length or padding")
        }
    })?;
    context.text(bytes)
}

/// The digest of a string in hexadecimal.
pub(super) fn hash(
    context: &mut Context<'_>,
    value: &Value,
    algorithm: &'static digest::Algorithm,
) -> Outcome<Value> {
    let text = arguments::text(value)?;
    context.charge(text.len())?;
    context.text(hexadecimal(digest::digest(algorithm, text).as_ref()))
}

fn hmac_sha256(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let (message, key) = (arguments::text(&values[0])?, arguments::text(&values[1])?);
    context.charge(message.len() + key.len())?;
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    context.text(hexadecimal(tag.as_ref()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_bool(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    match &*arguments::string(&values[0])? {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
        _ => Err(Fault::new("invalid syntax of a boolean")),
    }
}

fn parse_float(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::string(&values[0])?;
    if text.is_empty() {
        return Ok(Value::Float(0.0));
    }
    number::float(&text).map(Value::Float).ok_or_else(|| Fault::new("invalid syntax of a number"))
}

fn parse_int(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::string(&values[0])?;
    if text.is_empty() {
        return Ok(Value::Int64(0));
    }
    text.parse().map(Value::Int64).map_err(|error: std::num::ParseIntError| Fault::new(error.to_string()))
}

fn parse_uint(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::string(&values[0])?;
    if text.is_empty() {
        return Ok(Value::Uint(0));
    }
    if text.starts_with('+') {
        return Err(Fault::new("invalid digit found in string"));
    }
    text.parse().map(Value::Uint).map_err(|error: std::num::ParseIntError| Fault::new(error.to_string()))
}
