//! Conversions: types, JSON, Base64, URLs, hashes.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Number, Value as Json};
use sha2::{Digest as _, Sha256, Sha512};

use super::{Answer, Arguments, Function};
use crate::hcl::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    Function { name: "base64decode", arguments: (1, 1), call: base64decode },
    Function {
        name: "base64encode",
        arguments: (1, 1),
        call: |all| Ok(Value::Str(STANDARD.encode(all.text(0)?))),
    },
    Function { name: "jsondecode", arguments: (1, 1), call: jsondecode },
    Function {
        name: "jsonencode",
        arguments: (1, 1),
        call: |all| Ok(Value::Str(to_json(all.value(0)).to_string())),
    },
    Function { name: "sha256", arguments: (1, 1), call: |all| Ok(hex(&Sha256::digest(all.text(0)?))) },
    Function { name: "sha512", arguments: (1, 1), call: |all| Ok(hex(&Sha512::digest(all.text(0)?))) },
    Function { name: "tobool", arguments: (1, 1), call: tobool },
    Function { name: "tonumber", arguments: (1, 1), call: tonumber },
    Function { name: "tostring", arguments: (1, 1), call: |all| Ok(Value::Str(all.text(0)?)) },
    Function { name: "urlencode", arguments: (1, 1), call: urlencode },
];

fn base64decode(all: &Arguments<'_>) -> Answer {
    let bytes = STANDARD.decode(all.text(0)?).map_err(|error| format!("is not Base64: {error}"))?;
    String::from_utf8(bytes).map(Value::Str).map_err(|_| "the decoded bytes are not UTF-8".into())
}

fn jsondecode(all: &Arguments<'_>) -> Answer {
    let json: Json = serde_json::from_str(&all.text(0)?).map_err(|error| format!("is not JSON: {error}"))?;
    let value = from_json(json);
    all.spend(value.weight())?;
    Ok(value)
}

fn from_json(json: Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match number.as_i128() {
            Some(value) => Value::Int(value),
            None => Value::float(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::Str(text),
        Json::Array(items) => Value::List(items.into_iter().map(from_json).collect()),
        Json::Object(entries) => {
            Value::Map(entries.into_iter().map(|(key, value)| (key, from_json(value))).collect())
        }
    }
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => Number::from_i128(*value).map_or(Json::Null, Json::Number),
        Value::Float(value) => Number::from_f64(*value).map_or(Json::Null, Json::Number),
        Value::Str(text) => Json::String(text.clone()),
        Value::List(items) => items.iter().map(to_json).collect(),
        Value::Map(entries) => {
            Json::Object(entries.iter().map(|(key, value)| (key.clone(), to_json(value))).collect())
        }
    }
}

fn hex(bytes: &[u8]) -> Value {
    Value::Str(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn tobool(all: &Arguments<'_>) -> Answer {
    let value = all.value(0);
    value
        .as_bool()
        .map(Value::Bool)
        .ok_or_else(|| format!("can't convert {} to a boolean", value.kind()).into())
}

fn tonumber(all: &Arguments<'_>) -> Answer {
    let value = all.value(0);
    value.number().ok_or_else(|| format!("can't convert {} to a number", value.kind()).into())
}

fn urlencode(all: &Arguments<'_>) -> Answer {
    let mut encoded = String::new();
    for byte in all.text(0)?.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte))
            }
            b' ' => encoded.push('+'),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(Value::Str(encoded))
}
