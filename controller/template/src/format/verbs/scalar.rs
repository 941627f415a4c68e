//! Verbs for numbers and strings.

use super::{
    super::{
        Digits, float,
        quote::{Alphabet, quote_character, quote_in},
    },
    Flags, Printer,
};
use crate::error::Outcome;

impl Printer<'_, '_> {
    pub(super) fn integer(&mut self, verb: char, flags: &Flags, value: i128) -> Outcome<bool> {
        // All integers have 64 bits.
        let magnitude = u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX);
        let (decimal, other);
        let (prefix, digits): (&str, &[u8]) = match verb {
            'd' | 'v' => {
                decimal = Digits::new(magnitude);
                ("", &decimal)
            }
            'b' | 'o' | 'O' | 'x' | 'X' => {
                let prefix;
                (prefix, other) = in_radix(verb, magnitude);
                (if flags.sharp || verb == 'O' { prefix } else { "" }, other.as_bytes())
            }
            'c' => {
                let char = u32::try_from(value).ok().and_then(char::from_u32);
                let text = char.unwrap_or(char::REPLACEMENT_CHARACTER).to_string();
                self.padded(text.as_bytes(), flags)?;
                return Ok(true);
            }
            'q' => {
                self.padded(quote_character(value, alphabet(flags)).as_bytes(), flags)?;
                return Ok(true);
            }
            'U' => {
                self.padded(format!("U+{magnitude:04X}").as_bytes(), &Flags { zero: false, ..*flags })?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let sign = sign_of(value < 0, flags);
        let least = match (flags.precision, flags.width) {
            (Some(precision), _) => precision,
            (None, Some(width)) if flags.zero => width.saturating_sub(sign.len()),
            (None, _) => 0,
        };
        let digits = if flags.precision == Some(0) && value == 0 { b"" } else { digits };
        let zeros = least.saturating_sub(digits.len());
        let length = sign.len() + prefix.len() + zeros + digits.len();
        let missing = flags.width.unwrap_or(0).saturating_sub(length);
        self.out.fill(b' ', if flags.minus { 0 } else { missing })?;
        self.out.push(sign.as_bytes())?;
        self.out.push(prefix.as_bytes())?;
        self.out.fill(b'0', zeros)?;
        self.out.push(digits)?;
        self.out.fill(b' ', if flags.minus { missing } else { 0 })?;
        Ok(true)
    }

    pub(super) fn float(&mut self, verb: char, flags: &Flags, value: f64) -> Outcome<bool> {
        let magnitude = value.abs();
        let text = match verb {
            'e' | 'E' => float::scientific(magnitude, Some(flags.precision.unwrap_or(6)), verb),
            'f' | 'F' => float::fixed(magnitude, Some(flags.precision.unwrap_or(6))),
            'g' | 'v' => float::compact(magnitude, flags.precision, 'e'),
            'G' => float::compact(magnitude, flags.precision, 'E'),
            _ => return Ok(false),
        };
        let text = text.trim_start_matches('+');
        let is_finite = value.is_finite();
        let sign = match sign_of(value.is_sign_negative() && !value.is_nan(), flags) {
            "" if value.is_infinite() && value > 0.0 => "+",
            sign => sign,
        };
        let width = flags.width.unwrap_or(0);
        if flags.zero && is_finite && width > sign.len() + text.len() {
            let zeros = "0".repeat(width - sign.len() - text.len());
            self.out.push(format!("{sign}{zeros}{text}").as_bytes())?;
        } else {
            self.padded(format!("{sign}{text}").as_bytes(), &Flags { zero: false, ..*flags })?;
        }
        Ok(true)
    }

    pub(super) fn string(&mut self, verb: char, flags: &Flags, bytes: &[u8]) -> Outcome<bool> {
        let cut = flags.precision.map_or(bytes, |precision| first_chars(bytes, precision));
        // Escapes make it longer, never shorter.
        self.out.reserve(if matches!(verb, 'x' | 'X') { 0 } else { cut.len() })?;
        match verb {
            's' | 'v' => self.padded(cut, flags)?,
            'q' => {
                let is_raw =
                    flags.sharp && !cut.iter().any(|byte| *byte == b'`' || *byte < b' ' && *byte != b'\t');
                let text = match std::str::from_utf8(cut) {
                    Ok(text) if is_raw => format!("`{text}`"),
                    _ => quote_in(cut, alphabet(flags)),
                };
                self.padded(text.as_bytes(), flags)?;
            }
            'x' | 'X' => {
                let bytes = flags.precision.map_or(bytes, |precision| &bytes[..precision.min(bytes.len())]);
                self.out.reserve(bytes.len() * 2)?;
                let mut text = String::with_capacity(bytes.len() * 2);
                for (index, byte) in bytes.iter().enumerate() {
                    if flags.space && index > 0 {
                        text.push(' ');
                    }
                    if flags.sharp && (index == 0 || flags.space) {
                        text.push_str(if verb == 'x' { "0x" } else { "0X" });
                    }
                    text.push_str(&if verb == 'x' { format!("{byte:02x}") } else { format!("{byte:02X}") });
                }
                self.padded(text.as_bytes(), flags)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The digits of an integer for a verb other than `%d`, and what is before them.
fn in_radix(verb: char, magnitude: u64) -> (&'static str, String) {
    match verb {
        'b' => ("0b", format!("{magnitude:b}")),
        'o' => ("0", format!("{magnitude:o}")),
        'O' => ("0o", format!("{magnitude:o}")),
        'x' => ("0x", format!("{magnitude:x}")),
        _ => ("0X", format!("{magnitude:X}")),
    }
}

fn sign_of(is_negative: bool, flags: &Flags) -> &'static str {
    match (is_negative, flags.plus, flags.space) {
        (true, _, _) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        (false, false, false) => "",
    }
}

fn first_chars(bytes: &[u8], count: usize) -> &[u8] {
    let mut left = count;
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if left == 0 {
                return &bytes[..at];
            }
            left -= 1;
            at += char.len_utf8();
        }
        for _ in chunk.invalid() {
            if left == 0 {
                return &bytes[..at];
            }
            left -= 1;
            at += 1;
        }
    }
    bytes
}

fn alphabet(flags: &Flags) -> Alphabet {
    if flags.plus { Alphabet::Ascii } else { Alphabet::Unicode }
}
