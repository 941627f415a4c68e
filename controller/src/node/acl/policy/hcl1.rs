//! HCL in its first version, as far as policies are written in it. Unlike in the second one, several fields may stand on a line, and commas
//! between them.
//!
//! In: a text, trusted in nothing. Out: its items, each with its keys (`namespace "default"`) and its value as JSON; or where it is wrong.
//! Depth is bounded, and what is read is never larger than the text.
//!
//! Facts: `hashicorp/hcl:hcl/parser` (version 1).

use serde_json::{Map, Value};

/// Objects and lists within each other.
const DEPTH_MAX: usize = 32;

/// Keys of one item.
const KEYS_MAX: usize = 4;

/// `key "label" = value`, or `key "label" { … }`.
#[derive(Debug, PartialEq)]
pub(super) struct Item {
    pub(super) keys: Vec<String>,
    pub(super) value: Value,
}

/// Reads a text.
///
/// # Errors
/// Where it is no HCL: the line, and what is expected there.
pub(super) fn read(text: &str) -> Result<Vec<Item>, String> {
    let mut reader = Reader { text, left: text };
    let items = reader.items(0)?;
    if reader.skip()?.is_some() {
        return reader.wrong("the name of a field is expected");
    }
    Ok(items)
}

struct Reader<'t> {
    text: &'t str,
    left: &'t str,
}

impl<'t> Reader<'t> {
    fn wrong<T>(&self, what: &str) -> Result<T, String> {
        let read = self.text.len() - self.left.len();
        let line = self.text.bytes().take(read).filter(|byte| *byte == b'\n').count() + 1;
        Err(format!("line {line}: {what}"))
    }

    /// Passes over space and comments. The next character; none at the end.
    fn skip(&mut self) -> Result<Option<char>, String> {
        loop {
            self.left = self.left.trim_start();
            if self.left.starts_with('#') || self.left.starts_with("//") {
                self.left = self.left.split_once('\n').map_or("", |(_, rest)| rest);
            } else if let Some(comment) = self.left.strip_prefix("/*") {
                let Some((_, rest)) = comment.split_once("*/") else {
                    return self.wrong("a comment has no end");
                };
                self.left = rest;
            } else {
                return Ok(self.left.chars().next());
            }
        }
    }

    /// Takes this character, if it is the next one.
    fn takes(&mut self, wanted: char) -> Result<bool, String> {
        self.skip()?;
        let rest = self.left.strip_prefix(wanted);
        self.left = rest.unwrap_or(self.left);
        Ok(rest.is_some())
    }

    /// Items up to what is none.
    fn items(&mut self, depth: usize) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        loop {
            let mut keys = Vec::new();
            while let Some(key) = self.key()? {
                keys.push(key);
                if keys.len() > KEYS_MAX {
                    return self.wrong("= or { is expected");
                }
            }
            if keys.is_empty() {
                return Ok(items);
            }
            let is_assigned = self.takes('=')?;
            if !is_assigned && self.skip()? != Some('{') {
                return self.wrong("= or { is expected");
            }
            let value = self.value(depth)?;
            items.push(Item { keys, value });
            self.takes(',')?;
        }
    }

    fn key(&mut self) -> Result<Option<String>, String> {
        match self.skip()? {
            Some('"') => self.string().map(Some),
            Some(first) if first.is_alphabetic() || first == '_' => Ok(Some(self.word().to_owned())),
            _ => Ok(None),
        }
    }

    fn word(&mut self) -> &'t str {
        let is_in_word = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.' | '+');
        let end = self.left.find(|char| !is_in_word(char)).unwrap_or(self.left.len());
        let (word, rest) = self.left.split_at(end);
        self.left = rest;
        word
    }

    fn string(&mut self) -> Result<String, String> {
        let mut text = String::new();
        let mut chars = self.left.char_indices().skip(1);
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    self.left = self.left.get(at + 1..).unwrap_or_default();
                    return Ok(text);
                }
                '\n' => break,
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, char @ ('"' | '\\'))) => text.push(char),
                    _ => return self.wrong("\\ is followed by what can't be escaped"),
                },
                char => text.push(char),
            }
        }
        self.wrong("a text has no end")
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth >= DEPTH_MAX {
            return self.wrong("there is too much within each other");
        }
        match self.skip()? {
            Some('"') => self.string().map(Value::from),
            Some('[') => self.list(depth + 1).map(Value::from),
            Some('{') => self.object(depth + 1),
            Some(first) if first.is_alphanumeric() || first == '-' => {
                let word = self.word();
                // What is neither a number nor true nor false is no value.
                serde_json::from_str(word).or_else(|_| self.wrong("a value is expected"))
            }
            _ => self.wrong("a value is expected"),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Value>, String> {
        self.takes('[')?;
        let mut list = Vec::new();
        while !self.takes(']')? {
            list.push(self.value(depth)?);
            if !self.takes(',')? && self.skip()? != Some(']') {
                return self.wrong("a comma or ] is expected");
            }
        }
        Ok(list)
    }

    /// Of fields with labels, such as blocks, the labels are objects within each other. What is said twice is kept as a list.
    fn object(&mut self, depth: usize) -> Result<Value, String> {
        self.takes('{')?;
        let items = self.items(depth)?;
        if !self.takes('}')? {
            return self.wrong("} is expected");
        }
        let mut object = Map::new();
        for Item { mut keys, mut value } in items {
            while keys.len() > 1
                && let Some(label) = keys.pop()
            {
                value = Value::from_iter([(label, value)]);
            }
            let Some(key) = keys.pop() else { continue };
            match object.remove(&key) {
                None => object.insert(key, value),
                Some(Value::Array(mut list)) if value.is_object() => {
                    list.push(value);
                    object.insert(key, list.into())
                }
                Some(before) => object.insert(key, vec![before, value].into()),
            };
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_may_stand_on_one_line_or_on_many() {
        let items = read(
            "# said first\nnamespace \"a\" { policy = \"read\" capabilities = [\"x\", \"y\",] } // and\n\
             agent { policy = \"write\", }\n/* x\n */ node = { policy = \"\\\"\\n\", n = 3, t = true }\n",
        );
        let expected = [
            (vec!["namespace", "a"], json!({ "policy": "read", "capabilities": ["x", "y"] })),
            (vec!["agent"], json!({ "policy": "write" })),
            (vec!["node"], json!({ "policy": "\"\n", "n": 3, "t": true })),
        ];
        let expected =
            expected.map(|(keys, value)| Item { keys: keys.into_iter().map(str::to_owned).collect(), value });
        assert_eq!(items.unwrap(), expected);
        let within = read("a { path \"x\" { v = 1 } path \"y\" { v = 2 } }").unwrap();
        assert_eq!(within[0].value, json!({ "path": [{ "x": { "v": 1 } }, { "y": { "v": 2 } }] }));
        assert_eq!(read(" \n").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, says) in [
            ("a", "line 1: = or {"),
            ("\na {", "line 2: }"),
            ("a = ", "line 1: a value"),
            ("a = \"x\n\"", "line 1: a text"),
            ("a = \"\\x\"", "line 1: \\"),
            ("a = [1 2]", "line 1: a comma"),
            ("a = yes", "line 1: a value"),
            ("/* ", "line 1: a comment"),
            ("}", "line 1: the name"),
            ("a = <<X\nX\n", "line 1: a value"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(says), "{text:?}: {error}");
        }
        let deep = format!("a = {}", "[".repeat(10_000));
        assert!(read(&deep).unwrap_err().contains("too much"));
        assert!(read(&"a ".repeat(10_000)).is_err());
        let deep = "a { ".repeat(10_000);
        assert!(read(&deep).unwrap_err().contains("too much"));
    }
}
