//! Quoted strings of Go.

use std::fmt::Write as _;

/// Characters that are not escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    Unicode,
    Ascii,
}

/// Quotes bytes as `%q` does.
pub(crate) fn quote(bytes: &[u8]) -> String {
    quote_in(bytes, Alphabet::Unicode)
}

pub(super) fn quote_in(bytes: &[u8], alphabet: Alphabet) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            escape(&mut out, char, ('"', alphabet));
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

/// Quotes a character as `%q` does for an integer.
pub(super) fn quote_character(code: i128, alphabet: Alphabet) -> String {
    let char = u32::try_from(code).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
    let mut out = String::from("'");
    escape(&mut out, char, ('\'', alphabet));
    out.push('\'');
    out
}

fn escape(out: &mut String, char: char, (quote, alphabet): (char, Alphabet)) {
    let _ = match char {
        '\x07' => write!(out, "\\a"),
        '\x08' => write!(out, "\\b"),
        '\x0c' => write!(out, "\\f"),
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        '\x0b' => write!(out, "\\v"),
        '\\' => write!(out, "\\\\"),
        _ if char == quote => write!(out, "\\{quote}"),
        _ if is_printable(char) && (char.is_ascii() || alphabet == Alphabet::Unicode) => {
            write!(out, "{char}")
        }
        _ if (char as u32) < 0x80 => write!(out, "\\x{:02x}", char as u32),
        _ if (char as u32) < 0x1_0000 => write!(out, "\\u{:04x}", char as u32),
        _ => write!(out, "\\U{:08x}", char as u32),
    };
}

/// Rust's rule for `Debug` is nearly Go's: letters, marks, numbers, punctuation, symbols and the plain space.
fn is_printable(char: char) -> bool {
    char == ' ' || char == '\'' || char == '"' || char.escape_debug().count() == 1 && !char.is_whitespace()
}
