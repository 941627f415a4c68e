//! What a scalar means, by the core schema of YAML 1.2 (<https://yaml.org/spec/1.2.2/#103-core-schema>).
//!
//! In: its text, whether it is plain, its tag. Out: a value without the text. So `no`, `on` and `1_000` are strings,
//! and `0x10` and `0o17` integers.

use super::node::Value;

/// The value of a plain scalar.
pub(crate) fn resolve_plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        text => integer(text).or_else(|| float(text)).unwrap_or(Value::Str),
    }
}

/// The value of a scalar that bears a tag of the core schema (`str`, `int`, …).
///
/// # Errors
/// Nothing is given back when the text is no such thing.
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

/// The integer a text means, or the nearest float when it has more than 128 bits.
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
    // Rust reads all of YAML's floats, and `inf`, `infinity` and `nan` besides.
    let has_digit = unsigned.bytes().any(|byte| byte.is_ascii_digit());
    let all_float =
        unsigned.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    if has_digit && all_float { text.parse().ok().map(Value::Float) } else { None }
}
