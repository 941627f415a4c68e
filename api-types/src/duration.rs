//! Durations in the notation of Nomad's job files, which is Go's (`1h30m`, `250ms`).
//!
//! In: a string for Go's `time.ParseDuration`, or an integer of nanoseconds (Nomad's JSON and msgpack). Out:
//! nanoseconds, and the text of Go's `time.Duration.String`. This module knows no clock or calendar: a day has no fixed
//! length in Go's notation, so there is no unit for it.

use core::fmt;
use std_alloc::format;
use std_alloc::string::String;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// A signed duration in nanoseconds.
///
/// Deserializes from a Go duration with a unit (`"1h30m"`; `"0"` needs none) or from an integer of nanoseconds.
/// Serializes as the integer, as Go's `encoding/json` does.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub i64);

impl Duration {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// The maximum, about 292 years.
    pub const MAX: Self = Self(i64::MAX);

    /// `secs` seconds, saturating.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(SECOND))
    }

    /// `millis` milliseconds, saturating.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(MILLISECOND))
    }

    /// The duration in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The duration in whole milliseconds, rounded towards zero.
    pub const fn as_millis(self) -> i64 {
        self.0 / MILLISECOND
    }

    /// The duration in whole seconds, rounded towards zero.
    pub const fn as_secs(self) -> i64 {
        self.0 / SECOND
    }

    /// Rounded for people: to milliseconds below a second, tenths below a minute, seconds above.
    pub const fn rounded(self) -> Self {
        let length = self.0.saturating_abs();
        let unit = if length < SECOND {
            MILLISECOND
        } else if length < 60 * SECOND {
            100 * MILLISECOND
        } else {
            SECOND
        };
        Self(self.0.saturating_add(unit / 2 * self.0.signum()) / unit * unit)
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether it is negative.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Converts to the standard library's type; negative durations become zero.
    pub const fn to_std(self) -> core::time::Duration {
        core::time::Duration::from_nanos(if self.0 < 0 { 0 } else { self.0.unsigned_abs() })
    }

    /// Converts from the standard library's type, saturating at [`Duration::MAX`].
    pub fn from_std(length: core::time::Duration) -> Self {
        Self(i64::try_from(length.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// Why a text is not a duration: a fragment that reads after the field's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseDurationError(String);

impl fmt::Display for ParseDurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for ParseDurationError {}

/// Parses a Go duration into nanoseconds.
///
/// The grammar is that of Go's `time.ParseDuration`: an optional sign, then numbers with an optional fraction, each
/// with one of the units `ns`, `us` (or `µs`, `μs`), `ms`, `s`, `m`, `h`. `0` needs no unit.
///
/// # Errors
/// Describes the problem and, if it is obvious, the correction.
pub fn parse_duration(text: &str) -> Result<i64, ParseDurationError> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if unsigned == "0" {
        return Ok(0);
    }
    if unsigned.is_empty() {
        return Err(not_a_duration(text));
    }
    let mut total: u64 = 0;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let (term, after) = parse_term(text, rest)?;
        // Go accepts one nanosecond more below zero than above, so the sum in u64 may reach 2^63.
        total = total.checked_add(term).filter(|sum| *sum <= NEGATIVE_MAX).ok_or_else(|| too_long(text))?;
        rest = after;
    }
    match (negative, i64::try_from(total)) {
        (true, Ok(nanos)) => Ok(-nanos),
        (true, Err(_)) => Ok(i64::MIN),
        (false, Ok(nanos)) => Ok(nanos),
        (false, Err(_)) => Err(too_long(text)),
    }
}

/// Formats nanoseconds like Go's `time.Duration.String`: `1h30m0s`, `1.5s`, `20ms`, `0s`.
pub fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let (micros, millis, second) = (MICROSECOND as u64, MILLISECOND as u64, SECOND as u64);
    if nanos == 0 {
        return String::from("0s");
    }
    if nanos < second {
        return match nanos {
            0..1_000 => format!("{sign}{nanos}ns"),
            1_000..1_000_000 => format!("{sign}{}µs", decimal(nanos, micros)),
            _ => format!("{sign}{}ms", decimal(nanos, millis)),
        };
    }
    let minutes = nanos / (60 * second);
    let seconds = decimal(nanos % (60 * second), second);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_duration(self.0))
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration(self.0))
    }
}

impl core::str::FromStr for Duration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        parse_duration(text).map(Self)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Duration {
    fn schema_name() -> std_alloc::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        // The bounds apply to numbers and the pattern to strings: 0 is the only number without a unit.
        schemars::json_schema!({
            "description": "A Go duration with a unit (ns, us, ms, s, m, h), such as 30s or 1h30m; 0 needs no unit.",
            "type": ["string", "integer"],
            "pattern": r"^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$",
            "minimum": 0,
            "maximum": 0,
            "x-duration": true,
        })
    }
}

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;
/// The magnitude of `i64::MIN`.
const NEGATIVE_MAX: u64 = 1 << 63;

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as 30s, or an integer of nanoseconds")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map(Duration).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, nanos: i64) -> Result<Duration, E> {
        Ok(Duration(nanos))
    }

    fn visit_u64<E: de::Error>(self, nanos: u64) -> Result<Duration, E> {
        i64::try_from(nanos)
            .map(Duration)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(nanos), &"at most 2^63-1 nanoseconds"))
    }
}

/// Parses one number with its unit from the start of `rest`, which is not empty; returns nanoseconds and the remaining
/// text.
fn parse_term<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), ParseDurationError> {
    let (whole, after) = take_digits(rest);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(after) => take_digits(after),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(not_a_duration(text));
    }
    let unit_length = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
    let (unit, after) = after.split_at(unit_length);
    let Some(unit_nanos) = unit_nanos(unit) else {
        return Err(ParseDurationError(match unit {
            "" => format!("`{text}` has no unit; write for instance {text}s"),
            unit => format!("`{text}` has the unknown unit `{unit}`; the units are ns, us, ms, s, m and h"),
        }));
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| too_long(text))? };
    let nanos = whole.checked_mul(unit_nanos).ok_or_else(|| too_long(text))?;
    let nanos = nanos.checked_add(fraction_nanos(fraction, unit_nanos)).ok_or_else(|| too_long(text))?;
    Ok((nanos, after))
}

fn take_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // Micro sign (U+00B5) and Greek mu (U+03BC), as in Go.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND as u64,
        "ms" => MILLISECOND as u64,
        "s" => SECOND as u64,
        "m" => 60 * SECOND as u64,
        "h" => 3_600 * SECOND as u64,
        _ => return None,
    })
}

/// The value of decimal digits after the point, rounded down. An hour has 13 digits of nanoseconds, so digits after the
/// 18th don't matter.
fn fraction_nanos(digits: &str, unit_nanos: u64) -> u64 {
    let mut value: u128 = 0;
    let mut scale: u128 = 1;
    for digit in digits.bytes().take(18) {
        value = value * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    // At most one unit, which fits.
    (value * u128::from(unit_nanos) / scale) as u64
}

fn not_a_duration(text: &str) -> ParseDurationError {
    ParseDurationError(format!("`{text}` is not a duration such as 30s, 5m or 1h30m"))
}

fn too_long(text: &str) -> ParseDurationError {
    ParseDurationError(format!("`{text}` is longer than the 292 years a duration can hold"))
}

/// `value / unit` with as many decimals as necessary.
fn decimal(value: u64, unit: u64) -> String {
    let (whole, mut rest) = (value / unit, value % unit);
    if rest == 0 {
        return format!("{whole}");
    }
    let mut text = format!("{whole}.");
    let mut place = unit / 10;
    while rest > 0 && place > 0 {
        text.push(char::from(b'0' + (rest / place % 10) as u8));
        rest %= place;
        place /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::string::ToString;

    #[test]
    fn durations_are_rounded_for_display() {
        let shown = |nanos: i64| Duration(nanos).rounded().to_string();
        assert_eq!(shown(4_287_364_000), "4.3s");
        assert_eq!(shown(15_000_000_001), "15s");
        assert_eq!(shown(250_499_999), "250ms");
        assert_eq!(shown(90_600_000_000), "1m31s");
        assert_eq!(shown(-4_287_364_000), "-4.3s");
        assert_eq!(Duration::MAX.rounded(), Duration(i64::MAX / SECOND * SECOND));
    }

    #[test]
    fn go_durations_are_parsed() {
        let minute = 60 * SECOND;
        let hour = 60 * minute;
        // The table of Go's own test of ParseDuration.
        for (text, nanos) in [
            ("0", 0),
            ("5s", 5 * SECOND),
            ("30s", 30 * SECOND),
            ("1478s", 1478 * SECOND),
            ("-5s", -5 * SECOND),
            ("+5s", 5 * SECOND),
            ("-0", 0),
            ("+0", 0),
            ("5.0s", 5 * SECOND),
            ("5.6s", 5 * SECOND + 600 * MILLISECOND),
            ("5.s", 5 * SECOND),
            (".5s", 500 * MILLISECOND),
            ("1.0s", SECOND),
            ("1.00s", SECOND),
            ("1.004s", SECOND + 4 * MILLISECOND),
            ("1.0040s", SECOND + 4 * MILLISECOND),
            ("100.00100s", 100 * SECOND + MILLISECOND),
            ("10ns", 10),
            ("11us", 11 * MICROSECOND),
            ("12µs", 12 * MICROSECOND),
            ("12μs", 12 * MICROSECOND),
            ("13ms", 13 * MILLISECOND),
            ("14s", 14 * SECOND),
            ("15m", 15 * minute),
            ("16h", 16 * hour),
            ("3h30m", 3 * hour + 30 * minute),
            ("10.5s4m", 4 * minute + 10 * SECOND + 500 * MILLISECOND),
            ("-2m3.4s", -(2 * minute + 3 * SECOND + 400 * MILLISECOND)),
            ("1h2m3s4ms5us6ns", hour + 2 * minute + 3 * SECOND + 4 * MILLISECOND + 5 * MICROSECOND + 6),
            ("39h9m14.425s", 39 * hour + 9 * minute + 14 * SECOND + 425 * MILLISECOND),
            ("52763797000ns", 52_763_797_000),
            ("0.3333333333333333333h", 20 * minute - 1),
            ("9007199254740993ns", (1 << 53) + 1),
            ("9223372036854775807ns", i64::MAX),
            ("9223372036854775.807us", i64::MAX),
            ("9223372036s854ms775us807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("-9223372036854775.808us", i64::MIN),
            ("-9223372036s854ms775us808ns", i64::MIN),
            ("0.100000000000000000000h", 6 * minute),
            ("0.830103483285477580700h", 49 * minute + 48 * SECOND + 372_539_827),
        ] {
            let read = parse_duration(text).unwrap();
            // One nanosecond of tolerance, because Go computes in floating point.
            assert!((i128::from(read) - i128::from(nanos)).abs() <= 1, "{text}: {read} instead of {nanos}");
        }
        assert_eq!(parse_duration("9223372036854775807ns").unwrap(), i64::MAX);
        assert_eq!(parse_duration("5.6s").unwrap(), 5_600_000_000);
    }

    #[test]
    fn invalid_go_durations_are_refused() {
        for text in [
            "",
            "3",
            "-",
            "s",
            ".",
            "-.",
            ".s",
            "+.s",
            "1d",
            "\u{85}\u{85}",
            "hello \u{fffd} world",
            " 5s",
            "5s ",
            "1 s",
            "1H",
            "1h30",
            "3000000h",
            "9223372036854775808ns",
            "9223372036854775.808us",
            "9223372036854ms775us808ns",
            "9223372036s854ms775us808ns",
            "-9223372036854775809ns",
            "1e3s",
            "--5s",
            "99999999999999999999s",
            "0x10s",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?} is accepted");
        }
    }

    #[test]
    fn duration_errors_name_the_cause() {
        assert_eq!(parse_duration("60").unwrap_err().to_string(), "`60` has no unit; write for instance 60s");
        assert_eq!(
            parse_duration("7d").unwrap_err().to_string(),
            "`7d` has the unknown unit `d`; the units are ns, us, ms, s, m and h"
        );
        assert_eq!(
            parse_duration("3000000h").unwrap_err().to_string(),
            "`3000000h` is longer than the 292 years a duration can hold"
        );
    }

    #[test]
    fn durations_are_written_like_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (5_400_000_000_000, "1h30m0s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
            (-1_500_000, "-1.5ms"),
        ] {
            assert_eq!(format_duration(nanos), text);
            assert_eq!(parse_duration(text).unwrap(), nanos, "{text} read back");
        }
    }

    #[test]
    fn crosses_json_both_ways() {
        let read = |json: &str| serde_json::from_str::<Duration>(json);
        assert_eq!(read("\"1h30m\"").unwrap(), Duration::from_secs(5_400));
        assert_eq!(read("5000000").unwrap(), Duration::from_millis(5));
        assert_eq!(read("-1").unwrap(), Duration(-1));
        assert!(read("1.5").is_err());
        assert!(read("18446744073709551615").is_err());
        assert!(read("null").is_err());
        assert_eq!(serde_json::to_string(&Duration::from_secs(1)).unwrap(), "1000000000");
        assert_eq!(Duration::from_secs(90).to_string(), "1m30s");
        assert_eq!(Duration::from_secs(i64::MAX), Duration::MAX);
        assert_eq!(Duration(-5).to_std(), core::time::Duration::ZERO);
        assert_eq!(Duration::from_std(core::time::Duration::MAX), Duration::MAX);
    }
}
