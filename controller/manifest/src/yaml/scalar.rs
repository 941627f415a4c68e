//! Resolves scalars by the core schema of YAML 1.2 (<https://yaml.org/spec/1.2.2/#103-core-schema>).
//!
//! In: the text of a scalar, whether it is plain, its tag. Out: a value without the text. `no`, `on` and
//! `1_000` are strings; `0x10` and `0o17` are integers.

use super::node::Value;

/// Resolves a plain scalar.
pub(crate) fn resolve_plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        text => integer(text).or_else(|| float(text)).unwrap_or(Value::Str),
    }
}

/// Resolves a scalar with a tag of the core schema (`str`, `int`, …). Returns `None` if the text doesn't
/// match the tag.
pub(crate) fn resolve_tagged(text: &str, tag: &str) -> Option<Value> {
    let value = resolve_plain(text);
    match (tag, value) {
        ("str", _) => Some(Value::Str),
        ("null", Value::Null) => Some(Value::Null),
        ("bool", value @ Value::Bool(_)) => Some(value),
        ("int", value @ Value::Int(_)) => Some(value),
        ("float", value @ Value::Float(_)) => Some(value),
        ("float", Value::Int(value)) => Some(Value::Float(value as f64)),
        _ => None,
    }
}

/// Parses an integer; returns the nearest float if it exceeds 128 bits.
fn integer(text: &str) -> Option<Value> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x', ..] => (&text[2..], 16),
        [b'0', b'o', ..] => (&text[2..], 8),
        [b'+' | b'-', ..] => (&text[1..], 10),
        _ => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let digits = if radix == 10 { text } else { digits };
    Some(match i128::from_str_radix(digits, radix) {
        Ok(value) => Value::Int(value),
        Err(_) => Value::Float(digits.parse().unwrap_or(f64::INFINITY)),
    })
}

fn float(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    match unsigned {
        ".inf" | ".Inf" | ".INF" => return Some(Value::Float(sign * f64::INFINITY)),
        ".nan" | ".NaN" | ".NAN" if unsigned == text => return Some(Value::Float(f64::NAN)),
        _ => {}
    }
    // Rust parses all of YAML's floats, but also `inf`, `infinity` and `nan`.
    let has_digit = unsigned.bytes().any(|byte| byte.is_ascii_digit());
    let all_float =
        unsigned.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    if has_digit && all_float { text.parse().ok().map(Value::Float) } else { None }
}
