//! Literals of Go: numbers, quoted strings, character constants.

use std::borrow::Cow;

/// A numeric literal. Its use decides which of the forms applies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Number {
    pub(crate) int: Option<i64>,
    pub(crate) float: f64,
    /// Whether the literal is written as a floating-point number.
    pub(crate) is_float: bool,
}

/// Parses a number: decimal, hexadecimal, octal, binary, floating-point, with underscores.
pub(crate) fn number(text: &str) -> Result<Number, String> {
    if text.ends_with('i') && !text.contains(['x', 'X']) {
        return Err(format!("complex numbers are not supported: {text:?}"));
    }
    if let Some(int) = integer(text) {
        return match i64::try_from(int) {
            Ok(value) => Ok(Number { int: Some(value), float: value as f64, is_float: false }),
            Err(_) if u64::try_from(int).is_ok() => {
                Ok(Number { int: None, float: int as f64, is_float: false })
            }
            Err(_) => Err(format!("integer overflow: {text:?}")),
        };
    }
    let float = float(text).ok_or_else(|| format!("illegal number syntax: {text:?}"))?;
    if !float.is_finite() || !text.contains(['.', 'e', 'E', 'p', 'P']) {
        return Err(format!("illegal number syntax: {text:?}"));
    }
    let int = (float.fract() == 0.0 && float.abs() < 9.2e18).then_some(float as i64);
    Ok(Number { int, float, is_float: true })
}

/// Parses an integer as Go's `strconv.ParseInt` does with base 0.
pub(crate) fn integer(text: &str) -> Option<i128> {
    if let Some(value) = plain(text.as_bytes()) {
        return Some(i128::from(value));
    }
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, rest) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    let has_prefix = rest.len() < lower.len();
    let cleaned = without_underscores(rest, has_prefix)?;
    if cleaned.starts_with(['+', '-']) {
        return None;
    }
    // At most 127 bits, so that the sign fits.
    let value = i128::from_str_radix(&cleaned, radix).ok()?;
    Some(if negative { -value } else { value })
}

/// The value of decimal digits that fit any integer: most numbers are such, and reading them takes no memory.
fn plain(digits: &[u8]) -> Option<u64> {
    let is_plain = digits.len() <= PLAIN_DIGITS
        && digits.iter().all(u8::is_ascii_digit)
        && matches!(digits, [b'0'] | [b'1'..=b'9', ..]);
    is_plain.then(|| digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

/// Fewer than the digits of the largest `i64`.
const PLAIN_DIGITS: usize = 18;

/// Removes underscores between digits. A prefix counts as a digit.
fn without_underscores(digits: &str, has_prefix: bool) -> Option<String> {
    let misplaced =
        digits.contains("__") || digits.ends_with('_') || (digits.starts_with('_') && !has_prefix);
    (!misplaced && !digits.is_empty()).then(|| digits.replace('_', ""))
}

/// Parses a floating-point number as Go's `strconv.ParseFloat` does.
pub(crate) fn float(text: &str) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    let unsigned = lower.trim_start_matches(['+', '-']);
    if lower.len() - unsigned.len() > 1 {
        return None;
    }
    match unsigned {
        "inf" | "infinity" => {
            return Some(if lower.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
        }
        "nan" => return Some(f64::NAN),
        _ => {}
    }
    if let Some(hex) = unsigned.strip_prefix("0x") {
        let value = hex_float(hex)?;
        return Some(if lower.starts_with('-') { -value } else { value });
    }
    if unsigned.contains('_') {
        return float(&without_underscores(&lower, false)?);
    }
    if !unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    lower.parse().ok()
}

/// Parses `1.8p3`. More than 13 digits lose precision, which no job file needs.
fn hex_float(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > 13 {
        return None;
    }
    let value = u64::from_str_radix(&digits, 16).ok()? as f64;
    let shift = exponent.checked_sub(4 * i32::try_from(fraction.len()).ok()?)?;
    Some(value * 2f64.powi(shift))
}

/// Returns the content of a literal in double quotes or back quotes.
pub(crate) fn unquote(literal: &str) -> Result<Cow<'_, [u8]>, String> {
    let inner = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
    if literal.starts_with('`') {
        return Ok(Cow::Owned(inner.replace('\r', "").into_bytes()));
    }
    if !inner.contains(['\\', '"']) {
        return Ok(Cow::Borrowed(inner.as_bytes()));
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while !rest.is_empty() {
        let (value, after) = unquote_char(rest, '"').ok_or_else(|| format!("invalid string: {literal}"))?;
        match value {
            Unquoted::Char(char) => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            Unquoted::Byte(byte) => out.push(byte),
        }
        rest = after;
    }
    Ok(Cow::Owned(out))
}

/// Returns the code point of a character constant.
pub(crate) fn character(literal: &str) -> Result<i64, String> {
    let malformed = || format!("malformed character constant: {literal}");
    let inner = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
    match unquote_char(inner, '\'').ok_or_else(malformed)? {
        (Unquoted::Char(char), "") => Ok(i64::from(u32::from(char))),
        (Unquoted::Byte(byte), "") => Ok(i64::from(byte)),
        _ => Err(malformed()),
    }
}

enum Unquoted {
    Char(char),
    Byte(u8),
}

/// Reads one character or escape.
fn unquote_char(text: &str, quote: char) -> Option<(Unquoted, &str)> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first == quote {
        return None;
    }
    if first != '\\' {
        return Some((Unquoted::Char(first), chars.as_str()));
    }
    let escape = chars.next()?;
    let rest = chars.as_str();
    let plain = |char| Some((Unquoted::Char(char), rest));
    match escape {
        'a' => plain('\x07'),
        'b' => plain('\x08'),
        'f' => plain('\x0c'),
        'n' => plain('\n'),
        'r' => plain('\r'),
        't' => plain('\t'),
        'v' => plain('\x0b'),
        '\\' => plain('\\'),
        _ if escape == quote => plain(quote),
        'x' => {
            let byte = u8::from_str_radix(hex(rest, 2)?, 16).ok()?;
            Some((Unquoted::Byte(byte), &rest[2..]))
        }
        'u' | 'U' => {
            let length = if escape == 'u' { 4 } else { 8 };
            let char = char::from_u32(u32::from_str_radix(hex(rest, length)?, 16).ok()?)?;
            Some((Unquoted::Char(char), &rest[length..]))
        }
        '0'..='7' => {
            let digits =
                text.get(1..4).filter(|digits| digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit)))?;
            let byte = u8::from_str_radix(digits, 8).ok()?;
            Some((Unquoted::Byte(byte), &text[4..]))
        }
        _ => None,
    }
}

fn hex(text: &str, length: usize) -> Option<&str> {
    text.get(..length).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_go() {
        let int = |text| number(text).map(|number| number.int);
        assert_eq!(int("0x_1F"), Ok(Some(31)));
        assert_eq!(int("017"), Ok(Some(15)));
        assert_eq!(int("1_000"), Ok(Some(1000)));
        assert_eq!(int("-0b11"), Ok(Some(-3)));
        assert_eq!(int("1e3"), Ok(Some(1000)));
        assert_eq!(int("18446744073709551615"), Ok(None));
        assert!(int("99999999999999999999").is_err());
        assert!(int("08").is_err());
        assert!(int("1__0").is_err());
        assert!(int("3i").is_err());
        assert_eq!(float("0x1.8p3"), Some(12.0));
    }

    #[test]
    fn strings_and_characters_are_unquoted() {
        assert_eq!(unquote(r#""a\t\x41\101\u00e9\"""#).unwrap(), "\u{61}\tAAé\"".as_bytes());
        assert_eq!(&*unquote("`a\\n\r\n`").unwrap(), b"a\\n\n");
        assert!(unquote(r#""\q""#).is_err());
        assert!(unquote(r#""\'""#).is_err());
        assert_eq!(character(r"'\''"), Ok(39));
        assert_eq!(character("'é'"), Ok(233));
        assert!(character("'ab'").is_err());
    }
}
