//! Keys that are written more than once in an object of an HCL text.
//!
//! In: a text whose brackets are within bounds. Out: each entry whose key is written again later in the same
//! object, and the text without these entries, in which everything else keeps its offset. Only keys that are
//! names or plain strings are compared; the evaluation compares computed ones.

use std::collections::BTreeMap;
use std::ops::Range;

use super::scan::{Open, Scan};

/// An entry whose key is written again later.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    pub(super) key: String,
    /// From the first byte of its key to the end of its value and the comma after it.
    pub(super) entry: Range<usize>,
}

/// The warning about such a key.
pub(super) fn repeated(key: &str) -> String {
    format!("the key `{key}` is written more than once; the last value counts")
}

/// Finds the entries whose keys are written again.
pub(super) fn find(text: &str) -> Vec<Repeat> {
    let bytes = text.as_bytes();
    let mut scan = Scan::new(bytes);
    let mut search = Search { text, before: 0, open: Vec::new(), found: Vec::new() };
    loop {
        let (begin, depth) = (scan.at, scan.open.len());
        let is_quoted = scan.open.last() == Some(&Open::Quote);
        // The bounds were checked before.
        if !scan.step().unwrap_or(false) {
            break;
        }
        let Some(byte) = bytes.get(begin).copied() else { break };
        if !is_quoted {
            search.step(byte, begin..scan.at);
        }
        for _ in depth..scan.open.len() {
            search.enter(byte);
        }
        if scan.open.len() < depth {
            search.leave(begin);
        }
        if !is_quoted && is_code(byte, &(begin..scan.at)) {
            search.before = byte;
        }
    }
    search.found
}

/// Returns the text with spaces in place of these entries.
pub(super) fn without(text: &str, repeats: &[Repeat]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for byte in repeats.iter().flat_map(|repeat| repeat.entry.clone()) {
        if let Some(byte) = bytes.get_mut(byte).filter(|byte| !matches!(byte, b'\n' | b'\r')) {
            *byte = b' ';
        }
    }
    // Whole characters are replaced, so this is UTF-8.
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns whether a step was over code: neither a comment nor a space.
fn is_code(byte: u8, step: &Range<usize>) -> bool {
    let is_comment = matches!(byte, b'#' | b'/') && step.len() > 1;
    !is_comment && !byte.is_ascii_whitespace()
}

struct Search<'t> {
    text: &'t str,
    /// The last byte of code.
    before: u8,
    /// For each open bracket or string: its entries, if it is an object.
    open: Vec<Option<Entries>>,
    found: Vec<Repeat>,
}

#[derive(Default)]
struct Entries {
    /// Where the current entry begins.
    begin: Option<usize>,
    known: BTreeMap<String, Range<usize>>,
}

impl Search<'_> {
    fn step(&mut self, byte: u8, step: Range<usize>) {
        let Some(Some(entries)) = self.open.last_mut() else { return };
        match byte {
            b',' => self.end(step.end),
            b'\n' => self.end(step.start),
            b'}' => {}
            _ if is_code(byte, &step) => {
                entries.begin.get_or_insert(step.start);
            }
            _ => {}
        }
    }

    /// A bracket was opened. A brace opens an object where a value may begin, and a block otherwise.
    fn enter(&mut self, byte: u8) {
        let is_object = byte == b'{' && b"=:([,?>".contains(&self.before);
        self.open.push(is_object.then(Entries::default));
    }

    fn leave(&mut self, offset: usize) {
        self.end(offset);
        self.open.pop();
    }

    /// Ends the current entry of the innermost object.
    fn end(&mut self, end: usize) {
        let Some(Some(entries)) = self.open.last_mut() else { return };
        let Some(begin) = entries.begin.take() else { return };
        let Some(key) = self.text.get(begin..end).and_then(key) else { return };
        if let Some(entry) = entries.known.insert(key.to_owned(), begin..end) {
            self.found.push(Repeat { key: key.to_owned(), entry });
        }
    }
}

/// Returns the key of an entry if it is a name or a plain string.
fn key(entry: &str) -> Option<&str> {
    let (key, rest) = match entry.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').filter(|(key, _)| !key.contains(['$', '%', '\\']))?,
        None => {
            let is_name = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-');
            entry.split_at(entry.find(|char| !is_name(char))?)
        }
    };
    let rest = rest.trim_start();
    (!key.is_empty() && rest.starts_with(['=', ':']) && !rest.starts_with("==")).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_within_their_object() {
        for (text, expected) in [
            ("m = { a = 1, b = 2, a = 3 }", "m = {        b = 2, a = 3 }"),
            ("m = {\n  a = 1 # x\n  \"a\" : 2\n}", "m = {\n           \n  \"a\" : 2\n}"),
            ("m = { a = { a = 1 }, b = [{ a = 1 }, { a = 2 }] }", "="),
            ("m = { a = <<E\n  b = 1,\nE\n  a = 2 }", "m = {        \n        \n \n  a = 2 }"),
            ("m = merge({ \u{e9} = \"\u{e9}\", \u{e9} = 1 })", "m = merge({            \u{e9} = 1 })"),
            ("env {\n  a = 1\n  a = 2\n}", "="),
            ("m = { for a in [1] : a => a }", "="),
            ("m = { \"a${b}\" = 1, \"a${b}\" = 2 }", "="),
        ] {
            let expected = if expected == "=" { text } else { expected };
            assert_eq!(without(text, &find(text)), expected);
        }
    }
}
