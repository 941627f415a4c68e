//! `printf`: Go's verbs, flags, widths and precisions.

mod scalar;

use super::{Output, print, quote};
use crate::{
    error::Outcome,
    text::split_char,
    value::{Key, Value},
};

/// Widths and precisions beyond this are errors in Go too.
const WIDTH_MAX: usize = 1_000_000;

/// Formats values. Wrong verbs and numbers of values show in the result, as in Go.
pub(crate) fn sprintf(out: &mut Output<'_>, format: &[u8], values: &[Value]) -> Outcome<()> {
    let mut printer = Printer { out, values, next: 0, reordered: false };
    let mut rest = format;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        printer.out.push(&rest[..at])?;
        rest = printer.verb(&rest[at + 1..])?;
    }
    printer.out.push(rest)?;
    printer.extra()
}

struct Printer<'v, 'l> {
    out: &'v mut Output<'l>,
    values: &'v [Value],
    next: usize,
    /// Whether an index was used: then values may be left.
    reordered: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    minus: bool,
    plus: bool,
    /// A plus sign before `%v`: names of fields.
    names: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

impl Printer<'_, '_> {
    /// Formats one verb; returns what follows it.
    fn verb<'f>(&mut self, mut rest: &'f [u8]) -> Outcome<&'f [u8]> {
        let mut flags = Flags::default();
        while let Some((flag, after)) = rest.split_first() {
            match flag {
                b'-' => flags.minus = true,
                b'+' => flags.plus = true,
                b'#' => flags.sharp = true,
                b' ' => flags.space = true,
                b'0' => flags.zero = true,
                _ => break,
            }
            rest = after;
        }
        let mut bad_index = false;
        rest = self.index(rest, &mut bad_index);
        if let Some(after) = rest.strip_prefix(b"*") {
            rest = after;
            match self.int_argument() {
                Some(width) => {
                    flags.minus |= width < 0;
                    flags.width = Some(usize::try_from(width.unsigned_abs()).unwrap_or(WIDTH_MAX));
                }
                None => self.out.push(b"%!(BADWIDTH)")?,
            }
        } else {
            (flags.width, rest) = number(rest);
        }
        if let Some(after) = rest.strip_prefix(b".") {
            rest = self.index(after, &mut bad_index);
            if let Some(after) = rest.strip_prefix(b"*") {
                rest = after;
                match self.int_argument() {
                    Some(precision) => flags.precision = usize::try_from(precision).ok(),
                    None => self.out.push(b"%!(BADPREC)")?,
                }
            } else {
                let (precision, after) = number(rest);
                flags.precision = Some(precision.unwrap_or(0));
                rest = after;
            }
        }
        rest = self.index(rest, &mut bad_index);
        flags.width = flags.width.map(|width| width.min(WIDTH_MAX));
        flags.precision = flags.precision.map(|precision| precision.min(WIDTH_MAX));
        // A minus sign pads on the right, with spaces.
        flags.zero &= !flags.minus;
        let Some((verb, after)) = split_char(rest) else {
            self.out.push(b"%!(NOVERB)")?;
            return Ok(rest);
        };
        if verb == 'v' {
            flags.names = std::mem::take(&mut flags.plus);
        }
        if verb == '%' {
            self.out.push(b"%")?;
        } else if bad_index {
            self.out.push(format!("%!{verb}(BADINDEX)").as_bytes())?;
        } else if let Some(value) = self.values.get(self.next) {
            self.next += 1;
            self.value(verb, &flags, value, 0)?;
        } else {
            self.out.push(format!("%!{verb}(MISSING)").as_bytes())?;
        }
        Ok(after)
    }

    /// Reads `[n]`.
    fn index<'f>(&mut self, rest: &'f [u8], bad: &mut bool) -> &'f [u8] {
        let Some(after) = rest.strip_prefix(b"[") else { return rest };
        self.reordered = true;
        let Some(end) = after.iter().position(|byte| *byte == b']') else {
            *bad = true;
            return after;
        };
        match number(&after[..end]) {
            (Some(index), []) if (1..=self.values.len()).contains(&index) => self.next = index - 1,
            _ => *bad = true,
        }
        &after[end + 1..]
    }

    fn int_argument(&mut self) -> Option<i64> {
        let value = self.values.get(self.next)?;
        self.next += 1;
        let value = value.as_int().and_then(|value| i64::try_from(value).ok());
        value.filter(|value| value.unsigned_abs() <= WIDTH_MAX as u64)
    }

    fn value(&mut self, verb: char, flags: &Flags, value: &Value, depth: usize) -> Outcome<()> {
        match (verb, value) {
            ('T', _) => return self.padded(value.type_name().as_bytes(), flags),
            ('v', Value::Nil) if depth == 0 => return self.padded(b"<nil>", flags),
            ('v', _) if flags.sharp => return self.go_syntax(value, depth),
            (_, Value::Nil) => {
                let text =
                    if depth == 0 || verb != 'v' { format!("%!{verb}(<nil>)") } else { "<nil>".to_owned() };
                return self.out.push(text.as_bytes());
            }
            _ => {}
        }
        let done = match value {
            Value::Bool(value) if matches!(verb, 't' | 'v') => {
                self.padded(value.to_string().as_bytes(), &Flags { zero: false, ..*flags })?;
                true
            }
            Value::Int(_) | Value::Int64(_) | Value::Uint(_) => {
                self.integer(verb, flags, value.as_int().unwrap_or_default())?
            }
            Value::Float(number) => self.float(verb, flags, *number)?,
            Value::Str(text) => self.string(verb, flags, text)?,
            Value::Struct(object)
                if matches!(verb, 'v' | 's' | 'q' | 'x' | 'X') && object.shown.is_some() =>
            {
                match &object.shown {
                    Some(text) => self.string(verb, flags, text)?,
                    None => false,
                }
            }
            Value::List(list) => {
                let depth = self.out.descend(depth)?;
                self.out.push(b"[")?;
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        self.out.push(b" ")?;
                    }
                    self.value(verb, flags, item, depth)?;
                }
                self.out.push(b"]")?;
                true
            }
            Value::Map(map) => {
                let depth = self.out.descend(depth)?;
                self.out.push(b"map[")?;
                for (index, (key, value)) in map.entries().iter().enumerate() {
                    if index > 0 {
                        self.out.push(b" ")?;
                    }
                    self.value(verb, flags, &key.value(), depth)?;
                    self.out.push(b":")?;
                    self.value(verb, flags, value, depth)?;
                }
                self.out.push(b"]")?;
                true
            }
            Value::Struct(object) => {
                let depth = self.out.descend(depth)?;
                self.out.push(b"{")?;
                for (index, (name, value)) in object.fields.iter().enumerate() {
                    if index > 0 {
                        self.out.push(b" ")?;
                    }
                    if flags.names {
                        self.out.push(name.as_bytes())?;
                        self.out.push(b":")?;
                    }
                    self.value(verb, flags, value, depth)?;
                }
                self.out.push(b"}")?;
                true
            }
            Value::Nil | Value::Bool(_) => false,
            Value::Sequence(..) | Value::Scratch => {
                print(self.out, value)?;
                true
            }
        };
        if !done {
            self.out.push(format!("%!{verb}({}=", value.type_name()).as_bytes())?;
            print(self.out, value)?;
            self.out.push(b")")?;
        }
        Ok(())
    }

    /// `%#v`
    fn go_syntax(&mut self, value: &Value, depth: usize) -> Outcome<()> {
        match value {
            Value::Nil => self.out.push(if depth == 0 { b"<nil>" } else { b"interface {}(nil)" }),
            Value::Str(text) => self.quoted(text),
            Value::Uint(value) => self.out.push(format!("{value:#x}").as_bytes()),
            Value::List(list) => {
                let depth = self.out.descend(depth)?;
                self.out.push(format!("{}{{", value.type_name()).as_bytes())?;
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        self.out.push(b", ")?;
                    }
                    self.go_syntax(item, depth)?;
                }
                self.out.push(b"}")
            }
            Value::Map(map) => {
                let depth = self.out.descend(depth)?;
                self.out.push(format!("{}{{", value.type_name()).as_bytes())?;
                for (index, (key, item)) in map.entries().iter().enumerate() {
                    if index > 0 {
                        self.out.push(b", ")?;
                    }
                    match key {
                        Key::Str(text) => self.quoted(text)?,
                        Key::Bool(_) | Key::Int(_) => print(self.out, &key.value())?,
                    }
                    self.out.push(b":")?;
                    self.go_syntax(item, depth)?;
                }
                self.out.push(b"}")
            }
            Value::Struct(object) => {
                let depth = self.out.descend(depth)?;
                self.out.push(format!("{}{{", object.type_name).as_bytes())?;
                for (index, (name, item)) in object.fields.iter().enumerate() {
                    if index > 0 {
                        self.out.push(b", ")?;
                    }
                    self.out.push(format!("{name}:").as_bytes())?;
                    self.go_syntax(item, depth)?;
                }
                self.out.push(b"}")
            }
            Value::Bool(_)
            | Value::Int(_)
            | Value::Int64(_)
            | Value::Float(_)
            | Value::Sequence(..)
            | Value::Scratch => print(self.out, value),
        }
    }

    fn quoted(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.out.reserve(bytes.len())?;
        self.out.push(quote(bytes).as_bytes())
    }

    fn padded(&mut self, bytes: &[u8], flags: &Flags) -> Outcome<()> {
        let missing = flags.width.map_or(0, |width| width.saturating_sub(length(bytes)));
        if flags.minus {
            self.out.push(bytes)?;
            return self.out.fill(b' ', missing);
        }
        self.out.fill(if flags.zero { b'0' } else { b' ' }, missing)?;
        self.out.push(bytes)
    }

    /// Reports values without a verb.
    fn extra(&mut self) -> Outcome<()> {
        let values = self.values;
        if self.reordered || self.next >= values.len() {
            return Ok(());
        }
        self.out.push(b"%!(EXTRA ")?;
        for (index, value) in values[self.next..].iter().enumerate() {
            if index > 0 {
                self.out.push(b", ")?;
            }
            if !matches!(value, Value::Nil) {
                self.out.push(value.type_name().as_bytes())?;
                self.out.push(b"=")?;
            }
            print(self.out, value)?;
        }
        self.out.push(b")")
    }
}

fn number(bytes: &[u8]) -> (Option<usize>, &[u8]) {
    let length = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = bytes.split_at(length);
    let add = |value: usize, digit: &u8| value.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
    ((length > 0).then(|| digits.iter().fold(0, add)), rest)
}

/// Characters, of which an invalid byte is one.
fn length(bytes: &[u8]) -> usize {
    bytes.utf8_chunks().map(|chunk| chunk.valid().chars().count() + chunk.invalid().len()).sum()
}
