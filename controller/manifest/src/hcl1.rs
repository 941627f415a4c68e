//! HCL1, the language of Nomad's agent files and policies. Unlike HCL2, the language of its job files, names
//! may be quoted, line ends have no meaning, and there are no expressions.
//!
//! In: the name and bytes of an untrusted text. Out: its tree, as if it were written in JSON: a block is a
//! map under its kind, and its labels are maps around it. A repeated name is repeated in the tree. Size,
//! depth and number of values are bounded.

use std::sync::Arc;

use super::yaml::{Entry, Node, Position, Problem, Style, Value};

/// Maximum size of a text.
const BYTES_MAX: usize = 1 << 20;
/// Maximum nesting of maps and lists.
const DEPTH_MAX: usize = 32;
/// Maximum number of names and values.
const VALUES_MAX: usize = 20_000;

/// Parses a text.
///
/// # Errors
/// The first syntax error.
pub fn parse(source: &str, bytes: &[u8]) -> Result<Arc<Node>, Problem> {
    let whole = |message: String| Problem {
        source: source.to_owned(),
        line: 0,
        column: 0,
        path: String::new(),
        message,
    };
    if bytes.len() > BYTES_MAX {
        return Err(whole(format!("has {} bytes; the limit is {BYTES_MAX}", bytes.len())));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| whole(format!("is not UTF-8: byte at offset {}", error.valid_up_to())))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader { rest: text, position: Position { line: 1, column: 1 }, values: 0 };
    reader.root().map_err(|Wrong { position, message }| Problem {
        source: source.to_owned(),
        line: position.line,
        column: position.column,
        path: String::new(),
        message,
    })
}

#[derive(Debug)]
struct Wrong {
    position: Position,
    message: String,
}

struct Reader<'t> {
    rest: &'t str,
    position: Position,
    values: usize,
}

/// The enclosing structure of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Text,
    Braces,
}

impl Reader<'_> {
    fn root(&mut self) -> Result<Arc<Node>, Wrong> {
        let position = self.position;
        let entries = self.entries(Within::Text, 0)?;
        Ok(map(entries, position))
    }

    fn entries(&mut self, within: Within, depth: usize) -> Result<Vec<Entry>, Wrong> {
        if depth > DEPTH_MAX {
            return Err(self.error("is nested too deeply"));
        }
        let mut entries = Vec::new();
        loop {
            self.blank()?;
            match (self.peek(), within) {
                (None, Within::Text) => return Ok(entries),
                (None, Within::Braces) => return Err(self.error("ends within a `{` that is not closed")),
                (Some('}'), Within::Braces) => {
                    self.next();
                    return Ok(entries);
                }
                (Some(_), Within::Text | Within::Braces) => {}
            }
            entries.push(self.entry(depth)?);
            self.blank()?;
            if self.peek() == Some(',') {
                self.next();
            }
        }
    }

    /// Parses `name = value` or `kind "label" { … }`.
    fn entry(&mut self, depth: usize) -> Result<Entry, Wrong> {
        let mut names = vec![self.name()?];
        loop {
            self.blank()?;
            match self.peek() {
                Some('=') if names.len() == 1 => {
                    self.next();
                    self.blank()?;
                    let value = self.value(depth)?;
                    return self.under(names, value);
                }
                Some('{') => {
                    let position = self.position;
                    self.next();
                    let entries = self.entries(Within::Braces, depth + names.len())?;
                    return self.under(names, map(entries, position));
                }
                Some(char) if names.len() <= 4 && (char == '"' || begins_a_name(char)) => {
                    names.push(self.name()?);
                }
                Some(_) | None => return Err(self.error("expected `=` or `{` after a name")),
            }
        }
    }

    /// Wraps the value in maps, one for each label, and returns the entry of the first name.
    fn under(&mut self, names: Vec<(String, Position)>, value: Arc<Node>) -> Result<Entry, Wrong> {
        let mut value = value;
        let mut names = names.into_iter();
        let Some((first, first_position)) = names.next() else {
            return Err(self.error("expected a name"));
        };
        for (label, key_position) in names.rev() {
            let entry = Entry { key: label.into(), key_position, value };
            value = map(vec![entry], key_position);
        }
        Ok(Entry { key: first.into(), key_position: first_position, value })
    }

    fn name(&mut self) -> Result<(String, Position), Wrong> {
        self.spend()?;
        let position = self.position;
        match self.peek() {
            Some('"') => Ok((self.string()?, position)),
            Some(char) if begins_a_name(char) => {
                let continues =
                    |char: char| char.is_alphanumeric() || char == '_' || char == '-' || char == '.';
                Ok((self.take_while(continues), position))
            }
            Some(char) => Err(self.error(format!("expected a name, found `{}`", char.escape_debug()))),
            None => Err(self.error("expected a name")),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Arc<Node>, Wrong> {
        self.spend()?;
        if depth > DEPTH_MAX {
            return Err(self.error("is nested too deeply"));
        }
        let position = self.position;
        match self.peek() {
            Some('"') => Ok(text(self.string()?, Style::Quoted, position)),
            Some('{') => {
                self.next();
                Ok(map(self.entries(Within::Braces, depth + 1)?, position))
            }
            Some('[') => {
                self.next();
                self.list(depth, position)
            }
            Some('<') => Ok(text(self.heredoc()?, Style::Block, position)),
            Some(char) if char.is_ascii_digit() || char == '-' || char == '+' => self.number(position),
            Some(char) if begins_a_name(char) => {
                let word = self.take_while(|char| char.is_alphanumeric() || "_-.".contains(char));
                let value = match &word[..] {
                    "true" => Value::Bool(true),
                    "false" => Value::Bool(false),
                    other => {
                        let message = format!("expected a value, found `{other}`; strings need quotes");
                        return Err(Wrong { position, message });
                    }
                };
                Ok(Arc::new(Node { value, text: word.into(), style: Style::Plain, position }))
            }
            Some(char) => Err(self.error(format!("expected a value, found `{}`", char.escape_debug()))),
            None => Err(self.error("expected a value")),
        }
    }

    fn list(&mut self, depth: usize, position: Position) -> Result<Arc<Node>, Wrong> {
        let mut items = Vec::new();
        loop {
            self.blank()?;
            if self.peek() == Some(']') {
                self.next();
                break;
            }
            items.push(self.value(depth + 1)?);
            self.blank()?;
            match self.peek() {
                Some(',') => self.next(),
                Some(']') => {}
                Some(_) => return Err(self.error("expected `,` or `]` in a list")),
                None => return Err(self.error("ends within a `[` that is not closed")),
            }
        }
        let style = Style::Collection;
        Ok(Arc::new(Node { value: Value::Seq(items), text: "".into(), style, position }))
    }

    fn number(&mut self, position: Position) -> Result<Arc<Node>, Wrong> {
        let word = self.take_while(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
        let hexadecimal = word.strip_prefix("0x").and_then(|digits| i128::from_str_radix(digits, 16).ok());
        let value = match hexadecimal.or_else(|| word.parse().ok()) {
            Some(whole) => Value::Int(whole),
            None => match word.parse::<f64>() {
                Ok(number) if number.is_finite() => Value::Float(number),
                Ok(_) | Err(_) => {
                    let message = format!("`{word}` is not a number; strings need quotes");
                    return Err(Wrong { position, message });
                }
            },
        };
        Ok(Arc::new(Node { value, text: word.into(), style: Style::Plain, position }))
    }

    /// Parses a quoted string. `${…}` is kept as written, with its quotes.
    fn string(&mut self) -> Result<String, Wrong> {
        let began = self.position;
        let open = |message: &str| Wrong { position: began, message: message.to_owned() };
        self.next();
        let mut text = String::new();
        let mut braces = 0_usize;
        loop {
            let Some(char) = self.peek() else { return Err(open("begins a string that is not closed")) };
            if braces == 0 && char == '\n' {
                return Err(open("begins a string that is not closed on its line"));
            }
            if braces == 0 && char == '\\' {
                text.push(self.escape()?);
                continue;
            }
            if braces == 0 && char == '"' {
                self.next();
                return Ok(text);
            }
            if self.rest.starts_with("${") {
                braces += 1;
                text.push_str("${");
                self.next();
                self.next();
                continue;
            }
            match char {
                '{' if braces > 0 => braces += 1,
                '}' if braces > 0 => braces -= 1,
                _ => {}
            }
            text.push(char);
            self.next();
        }
    }

    fn escape(&mut self) -> Result<char, Wrong> {
        let position = self.position;
        self.next();
        let escaped = self.peek();
        self.next();
        let digits = match escaped {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('a') => return Ok('\u{7}'),
            Some('b') => return Ok('\u{8}'),
            Some('f') => return Ok('\u{c}'),
            Some('v') => return Ok('\u{b}'),
            Some(char @ ('"' | '\\')) => return Ok(char),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(_) | None => 0,
        };
        let code = self.rest.get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let char = code.filter(|_| digits > 0).and_then(char::from_u32);
        for _ in 0..digits {
            self.next();
        }
        char.ok_or_else(|| Wrong { position, message: "is not a valid escape sequence".to_owned() })
    }

    /// Parses `<<EOF`, lines, `EOF`. `<<-` strips the smallest indentation of all lines.
    fn heredoc(&mut self) -> Result<String, Wrong> {
        let began = self.position;
        let error = |message: &str| Wrong { position: began, message: message.to_owned() };
        let Some(rest) = self.rest.strip_prefix("<<") else { return Err(error("expected a value")) };
        let is_indented = rest.starts_with('-');
        for _ in 0..2 + usize::from(is_indented) {
            self.next();
        }
        let end = self.take_while(|char| char.is_alphanumeric() || char == '_');
        if end.is_empty() || !matches!(self.peek(), Some('\n' | '\r')) {
            return Err(error("expected `<<NAME` and a new line"));
        }
        self.take_while(|char| char != '\n');
        self.next();
        let mut lines = Vec::new();
        loop {
            if self.rest.is_empty() {
                return Err(error("begins a heredoc that is not closed"));
            }
            let line = self.take_while(|char| char != '\n');
            if line.trim() == end {
                break;
            }
            self.next();
            lines.push(line);
        }
        let indentation = |line: &String| line.len() - line.trim_start_matches([' ', '\t']).len();
        let least = match is_indented {
            true => lines.iter().filter(|line| !line.trim().is_empty()).map(indentation).min().unwrap_or(0),
            false => 0,
        };
        let stripped = lines.iter().map(|line| line.get(least..).unwrap_or_default());
        Ok(stripped.flat_map(|line| [line, "\n"]).collect())
    }

    /// Skips whitespace and comments.
    fn blank(&mut self) -> Result<(), Wrong> {
        loop {
            self.take_while(char::is_whitespace);
            if self.rest.starts_with('#') || self.rest.starts_with("//") {
                self.take_while(|char| char != '\n');
            } else if self.rest.starts_with("/*") {
                let Some(end) = self.rest.find("*/") else {
                    return Err(self.error("begins a comment that is not closed"));
                };
                let length = self.rest.get(..end + 2).unwrap_or_default().chars().count();
                (0..length).for_each(|_| self.next());
            } else {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) {
        let mut chars = self.rest.chars();
        let ends_line = match chars.next() {
            Some('\n') => true,
            // A lone `\r` ends a line, as in editors.
            Some('\r') => !chars.as_str().starts_with('\n'),
            Some(_) => false,
            None => return,
        };
        self.position = match self.position {
            Position { line, .. } if ends_line => Position { line: line + 1, column: 1 },
            Position { line, column } => Position { line, column: column + 1 },
        };
        self.rest = chars.as_str();
    }

    fn take_while(&mut self, holds: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while let Some(char) = self.peek().filter(|char| holds(*char)) {
            taken.push(char);
            self.next();
        }
        taken
    }

    fn spend(&mut self) -> Result<(), Wrong> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(self.error(format!("has more than {VALUES_MAX} names and values")));
        }
        Ok(())
    }

    fn error(&self, message: impl Into<String>) -> Wrong {
        Wrong { position: self.position, message: message.into() }
    }
}

fn begins_a_name(char: char) -> bool {
    char.is_alphabetic() || char == '_'
}

fn map(entries: Vec<Entry>, position: Position) -> Arc<Node> {
    Arc::new(Node { value: Value::Map(entries), text: "".into(), style: Style::Collection, position })
}

fn text(text: String, style: Style, position: Position) -> Arc<Node> {
    Arc::new(Node { value: Value::Str, text: text.into(), style, position })
}

#[cfg(test)]
mod tests;
