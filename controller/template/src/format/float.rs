//! Floating-point numbers as Go's `strconv` formats them.

/// The shortest text that is read back as the same number, as `%v` and `%g` print it.
pub(crate) fn general(value: f64) -> String {
    shortest(value, 'e')
}

fn shortest(value: f64, letter: char) -> String {
    if let Some(special) = special(value) {
        return special.to_owned();
    }
    let (negative, digits, exponent) = decompose(&format!("{value:e}"));
    layout(Decimal { negative, digits, exponent }, letter, 6)
}

/// As `encoding/json` writes it.
pub(crate) fn json_number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = scientific(value, None, 'e');
        // Go writes e-9 instead of e-09.
        return text.replacen("e-0", "e-", 1);
    }
    format!("{value}")
}

/// `%e`
pub(super) fn scientific(value: f64, precision: Option<usize>, letter: char) -> String {
    if let Some(special) = special(value) {
        return special.to_owned();
    }
    let (text, zeros) = match precision {
        Some(precision) => {
            let (exact, zeros) = split_precision(precision);
            (format!("{value:.exact$e}"), zeros)
        }
        None => (format!("{value:e}"), 0),
    };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent = written_exponent(exponent.parse().unwrap_or(0), letter);
    format!("{mantissa}{}{exponent}", "0".repeat(zeros))
}

/// `%f`
pub(super) fn fixed(value: f64, precision: Option<usize>) -> String {
    match (special(value), precision) {
        (Some(special), _) => special.to_owned(),
        (None, Some(precision)) => {
            let (exact, zeros) = split_precision(precision);
            format!("{value:.exact$}{}", "0".repeat(zeros))
        }
        (None, None) => format!("{value}"),
    }
}

/// `%g`
pub(super) fn compact(value: f64, precision: Option<usize>, letter: char) -> String {
    let Some(precision) = precision else { return shortest(value, letter) };
    if let Some(special) = special(value) {
        return special.to_owned();
    }
    let significant = precision.max(1);
    // Zeros at the end are removed anyway.
    let (exact, _) = split_precision(significant - 1);
    let (negative, mut digits, exponent) = decompose(&format!("{value:.exact$e}"));
    let kept = digits.trim_end_matches('0').len().max(1);
    digits.truncate(kept);
    let mut threshold = i32::try_from(significant).unwrap_or(i32::MAX);
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    if threshold > count && count > exponent {
        threshold = count;
    }
    layout(Decimal { negative, digits, exponent }, letter, threshold)
}

/// Digits after the point that a number can have; all further ones are zeros. `format!` panics beyond 65535.
const DIGITS_MAX: usize = 1_100;

/// The digits after the point to format, and the zeros that follow.
fn split_precision(precision: usize) -> (usize, usize) {
    let exact = precision.min(DIGITS_MAX);
    (exact, precision - exact)
}

fn special(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value > 0.0 { "+Inf" } else { "-Inf" })
    } else {
        None
    }
}

/// `0.digits × 10^(exponent + 1)`
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i32,
}

/// Reads what Rust formats with an exponent.
fn decompose(text: &str) -> (bool, String, i32) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let digits = mantissa.chars().filter(char::is_ascii_digit).collect();
    (mantissa.starts_with('-'), digits, exponent.parse().unwrap_or(0))
}

fn layout(decimal: Decimal, letter: char, threshold: i32) -> String {
    let Decimal { negative, digits, exponent } = decimal;
    let sign = if negative { "-" } else { "" };
    if exponent < -4 || exponent >= threshold {
        let (first, rest) = digits.split_at(1.min(digits.len()));
        let point = if rest.is_empty() { "" } else { "." };
        return format!("{sign}{first}{point}{rest}{}", written_exponent(exponent, letter));
    }
    match usize::try_from(exponent) {
        Ok(exponent) if digits.len() <= exponent + 1 => {
            format!("{sign}{digits}{}", "0".repeat(exponent + 1 - digits.len()))
        }
        Ok(exponent) => format!("{sign}{}.{}", &digits[..=exponent], &digits[exponent + 1..]),
        Err(_) => format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize)),
    }
}

/// At least two digits.
fn written_exponent(exponent: i32, letter: char) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{letter}{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_go_does() {
        for (value, text) in
            [(1e6, "1e+06"), (123456789.0, "1.23456789e+08"), (100000.0, "100000"), (1e-5, "1e-05")]
        {
            assert_eq!(general(value), text);
        }
        assert_eq!(general(2.5), "2.5");
        assert_eq!(general(-0.000123), "-0.000123");
        assert_eq!(general(0.0), "0");
        assert_eq!(compact(1234.5678, Some(3), 'e'), "1.23e+03");
        assert_eq!(compact(100000.0, Some(10), 'e'), "100000");
        assert_eq!(scientific(1234.5678, Some(6), 'e'), "1.234568e+03");
        let smallest = fixed(f64::from_bits(1), Some(100_000));
        assert_eq!(smallest.trim_end_matches('0').len(), "0.".len() + 1_074);
        assert_eq!(smallest.len(), "0.".len() + 100_000);
        assert_eq!(json_number(1e21), "1e+21");
        assert_eq!(json_number(1e-7), "1e-7");
        assert_eq!(json_number(123456789.0), "123456789");
    }
}
