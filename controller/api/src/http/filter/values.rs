//! Compares the value of a field with the value in an expression.
//!
//! In: a JSON value and a test. Out: whether the value passes, or why it can't be tested. The type of the value determines how
//! the text in the expression is parsed, as in go-bexpr.

use serde_json::{Number, Value};

use super::Test;

impl Test {
    /// Applies the test. The error text continues a sentence that begins with the field's name.
    pub(super) fn holds(&self, value: &Value) -> Result<bool, String> {
        match (self, value) {
            (Self::Equals(wanted), Value::Array(_) | Value::Object(_)) => {
                Err(format!("is not a single value and can't be compared with {wanted:?}"))
            }
            (Self::Equals(wanted), _) => equals(wanted, value),
            (Self::Contains(wanted), Value::Array(all)) => {
                for one in all {
                    if is_single(one)? && equals(wanted, one)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Self::Contains(wanted), Value::Object(fields)) => Ok(fields.contains_key(wanted)),
            (Self::Contains(wanted), Value::String(text)) => Ok(text.contains(wanted)),
            (Self::Contains(_), Value::Null) => Ok(false),
            (Self::Matches(wanted), Value::String(text)) => Ok(wanted.is_match(text)),
            (Self::Matches(wanted), Value::Null) => Ok(wanted.is_match("")),
            (Self::Empty, Value::Array(all)) => Ok(all.is_empty()),
            (Self::Empty, Value::Object(fields)) => Ok(fields.is_empty()),
            (Self::Empty, Value::String(text)) => Ok(text.is_empty()),
            (Self::Empty, Value::Null) => Ok(true),
            (Self::Contains(_) | Self::Empty, Value::Bool(_)) => {
                Err("is a boolean and contains nothing".to_owned())
            }
            (Self::Contains(_) | Self::Empty, Value::Number(_)) => {
                Err("is a number and contains nothing".to_owned())
            }
            (Self::Matches(_), Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                Err("is not a text and can't match".to_owned())
            }
        }
    }
}

/// Whether an item is a single value that can be compared.
fn is_single(item: &Value) -> Result<bool, String> {
    match item {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(true),
        Value::Null => Ok(false),
        Value::Array(_) | Value::Object(_) => {
            Err("has items that are not single values: use `any FIELD as NAME { … }`".to_owned())
        }
    }
}

fn equals(wanted: &str, value: &Value) -> Result<bool, String> {
    match value {
        Value::String(text) => Ok(text == wanted),
        Value::Null => Ok(wanted.is_empty()),
        Value::Number(number) => {
            is_number(wanted, number).ok_or_else(|| format!("is a number, and {wanted:?} does not fit"))
        }
        Value::Bool(flag) => match flag_of(wanted) {
            Some(wanted) => Ok(wanted == *flag),
            None => Err(format!("is a boolean, and {wanted:?} is neither true nor false")),
        },
        Value::Array(_) | Value::Object(_) => Ok(false),
    }
}

/// Whether `wanted` is this number; none if it is not a number of this kind.
fn is_number(wanted: &str, number: &Number) -> Option<bool> {
    match (number.as_i64(), number.as_u64()) {
        (None, None) => {
            let wanted = wanted.parse::<f64>().ok()?;
            number.as_f64().map(|number| number == wanted)
        }
        (Some(number), _) => whole(wanted).map(|wanted| wanted == i128::from(number)),
        (None, Some(number)) => whole(wanted).map(|wanted| wanted == i128::from(number)),
    }
}

/// An integer as Go's `strconv.ParseInt` parses it with base 0: `-12`, `0x1f`, `0b101`, `0o17` or `017`.
fn whole(text: &str) -> Option<i128> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some(octal) if octal.starts_with('0') => (8, &lower[1..]),
        Some(_) | None => (10, &*lower),
    };
    // `from_str_radix` accepts a second sign, Go does not.
    let value = u64::from_str_radix(digits, base).ok().filter(|_| !digits.starts_with('+'))?;
    Some(sign * i128::from(value))
}

/// Parses a boolean as Go's `strconv.ParseBool`.
fn flag_of(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // `Priority == "x"` matched nothing, as if there were no such job.
    #[test]
    fn a_value_that_the_field_can_never_have_is_refused() {
        let equals = |wanted: &str, value: Value| Test::Equals(wanted.to_owned()).holds(&value);
        for (wanted, value, holds) in [
            ("50", json!(50), true),
            ("+50", json!(50), true),
            ("-50", json!(50), false),
            ("0x32", json!(50), true),
            ("062", json!(50), true),
            ("0b110010", json!(50), true),
            ("0", json!(0), true),
            ("18446744073709551615", json!(u64::MAX), true),
            ("1.5", json!(1.5), true),
            ("15e-1", json!(1.5), true),
            ("T", json!(true), true),
            ("0", json!(true), false),
            ("", json!(null), true),
            ("x", json!(null), false),
        ] {
            assert_eq!(equals(wanted, value.clone()), Ok(holds), "{wanted} {value}");
        }
        for (wanted, value) in [
            ("x", json!(50)),
            ("", json!(50)),
            ("5.0", json!(5)),
            ("09", json!(9)),
            ("+-1", json!(1)),
            ("0x", json!(0)),
            ("ü", json!(0)),
            ("18446744073709551616", json!(1)),
            ("x", json!(1.5)),
            ("yes", json!(true)),
            ("", json!(false)),
            ("a", json!(["a"])),
        ] {
            assert!(equals(wanted, value.clone()).is_err(), "{wanted} {value}");
        }
        let message = equals("x", json!(50)).unwrap_err();
        assert_eq!(message, "is a number, and \"x\" does not fit");
        let contains = |wanted: &str, value: Value| Test::Contains(wanted.to_owned()).holds(&value);
        assert_eq!(contains("2", json!([1, 2])), Ok(true));
        assert_eq!(contains("x", json!([])), Ok(false));
        assert!(contains("x", json!([1, 2])).is_err());
        assert!(contains("x", json!([{ "Name": "x" }])).unwrap_err().contains("any FIELD as NAME"));
    }
}
