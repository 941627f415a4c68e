//! Files of variables by the rules of Compose: `KEY=VALUE` lines, comments, quotes, references to earlier variables.
//!
//! In: the bytes of a file, and the variables of files before it. Out: variables in order, or a problem with its line. Unlike
//! Compose, the environment of the program that reads the file is not consulted: the same file gives the same job everywhere.

use std::{borrow::Cow, collections::BTreeMap};

/// The most bytes of a file of variables, and of its values after the replacement of references.
pub const BYTES_MAX: usize = 1 << 20;
/// The most references within each other.
const DEPTH_MAX: usize = 16;

/// A problem of a file of variables. A message has names, but no part of a value: it is printed in logs and in the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DotenvError {
    /// From 1.
    pub line: usize,
    pub message: String,
}

/// Parses a file into `known`, which has the variables of earlier files. Returns the bytes of its values.
///
/// # Errors
/// The first problem; `known` may then have some of the variables.
pub fn read(bytes: &[u8], known: &mut BTreeMap<String, String>) -> Result<usize, DotenvError> {
    if bytes.len() > BYTES_MAX {
        return Err(DotenvError { line: 1, message: "the file has more than 1 MiB".to_owned() });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| DotenvError {
        line: 1 + bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count(),
        message: "the file is not UTF-8".to_owned(),
    })?;
    if let Some((before, _)) = text.split_once('\0') {
        let line = 1 + before.matches('\n').count();
        return Err(DotenvError { line, message: "the line has a NUL character".to_owned() });
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader { rest: text, line: 1, key: "", known, room: BYTES_MAX };
    while reader.skip_blank() {
        reader.variable()?;
    }
    Ok(BYTES_MAX - reader.room)
}

struct Reader<'r> {
    rest: &'r str,
    line: usize,
    /// The variable of the line.
    key: &'r str,
    known: &'r mut BTreeMap<String, String>,
    /// The bytes that the values to come may have together.
    room: usize,
}

impl<'r> Reader<'r> {
    /// Skips empty lines and comments. Returns whether something follows.
    fn skip_blank(&mut self) -> bool {
        loop {
            let trimmed = self.rest.trim_start_matches([' ', '\t', '\r']);
            match trimmed.chars().next() {
                None => return false,
                Some('\n') => {
                    self.line += 1;
                    self.rest = trimmed.get(1..).unwrap_or_default();
                }
                Some('#') => {
                    self.rest = trimmed.find('\n').and_then(|end| trimmed.get(end..)).unwrap_or_default()
                }
                Some(_) => {
                    self.rest = trimmed;
                    return true;
                }
            }
        }
    }

    fn variable(&mut self) -> Result<(), DotenvError> {
        let rest = self.rest.strip_prefix("export ").map_or(self.rest, str::trim_start);
        let line_end = rest.find('\n').unwrap_or(rest.len());
        let line = rest.get(..line_end).unwrap_or_default();
        let Some(separator) = line.find(['=', ':']) else {
            return Err(self.error(
                "the line has no `=`: write NAME=VALUE, or NAME= for an empty value (values are not taken from the environment)"
                    .to_owned(),
            ));
        };
        let (key, value) = rest.split_at(separator);
        let key = key.trim_end();
        let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | '-');
        if key.is_empty() || !key.chars().all(is_plain) || key.starts_with(|char: char| char.is_ascii_digit())
        {
            return Err(self.error(
                "the text before `=` is no name of a variable: it must be letters, digits, `_`, `.` and `-`, and not begin with a digit"
                    .to_owned(),
            ));
        }
        self.key = key;
        let value = value.get(1..).unwrap_or_default().trim_start_matches([' ', '\t']);
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => self.quoted(value.get(1..).unwrap_or_default(), quote)?,
            Some(_) | None => self.unquoted(value)?,
        };
        self.room = self.room.saturating_sub(value.len());
        self.known.insert(key.to_owned(), value);
        Ok(())
    }

    /// A value up to the end of the line, or to a comment after a space.
    fn unquoted(&mut self, text: &'r str) -> Result<String, DotenvError> {
        let end = text.find('\n').unwrap_or(text.len());
        let line = text.get(..end).unwrap_or_default();
        self.rest = text.get(end..).unwrap_or_default();
        let is_comment =
            |at: &usize| *at == 0 || line.get(..*at).is_some_and(|before| before.ends_with([' ', '\t']));
        let comment = line.match_indices('#').map(|(at, _)| at).find(is_comment);
        let value = line.get(..comment.unwrap_or(line.len())).unwrap_or_default().trim_end();
        self.expanded(value, 0)
    }

    /// A value up to its closing quote; it may have several lines. In single quotes everything is literal.
    fn quoted(&mut self, text: &'r str, quote: char) -> Result<String, DotenvError> {
        let (mut value, mut chars) = (String::new(), text.char_indices());
        while let Some((at, char)) = chars.next() {
            match char {
                '\\' if quote == '"' => match chars.next().map(|(_, escaped)| escaped) {
                    Some('n') => value.push('\n'),
                    Some('r') => value.push('\r'),
                    Some('t') => value.push('\t'),
                    // Kept for the expansion, which makes it a plain dollar sign.
                    Some('$') => value.push_str("$$"),
                    Some(escaped @ ('"' | '\\' | '\'')) => value.push(escaped),
                    Some(other) => value.extend(['\\', other]),
                    None => break,
                },
                '\\' if text.get(at + 1..).is_some_and(|rest| rest.starts_with('\'')) => {
                    chars.next();
                    value.push('\'');
                }
                char if char == quote => {
                    let after = text.get(at + 1..).unwrap_or_default();
                    let end = after.find('\n').unwrap_or(after.len());
                    let more = after.get(..end).unwrap_or_default().trim();
                    if !more.is_empty() && !more.starts_with('#') {
                        return Err(self.error(format!("text follows the closing quote of {}", self.key)));
                    }
                    let value = if quote == '"' { self.expanded(&value, 0)? } else { value };
                    self.line += text.get(..at).unwrap_or_default().matches('\n').count();
                    self.rest = after.get(end..).unwrap_or_default();
                    return Ok(value);
                }
                plain => value.push(plain),
            }
        }
        Err(self.error(format!("the value of {} has no closing {quote}", self.key)))
    }

    /// Replaces `$KEY`, `${KEY}`, `${KEY:-default}`, `${KEY-default}`, `${KEY:?message}`, `${KEY?message}`, `${KEY:+other}`,
    /// `${KEY+other}`, and `$$` by a dollar sign.
    fn expanded(&self, value: &str, depth: usize) -> Result<String, DotenvError> {
        let (mut text, mut rest) = (String::new(), value);
        while let Some(at) = rest.find('$') {
            let (before, reference) = rest.split_at(at);
            self.append(&mut text, before)?;
            let reference = reference.get(1..).unwrap_or_default();
            if let Some(after) = reference.strip_prefix('$') {
                text.push('$');
                rest = after;
            } else if let Some(braced) = reference.strip_prefix('{') {
                if depth >= DEPTH_MAX {
                    return Err(self.error(format!("references are nested more than {DEPTH_MAX} deep")));
                }
                let end = closing(braced).ok_or_else(|| {
                    self.error(format!("${{ in the value of {} has no closing brace", self.key))
                })?;
                let value = self.reference(braced.get(..end).unwrap_or_default(), depth + 1)?;
                self.append(&mut text, &value)?;
                rest = braced.get(end + 1..).unwrap_or_default();
            } else {
                let end = name_len(reference);
                match reference.get(..end) {
                    Some("") | None => text.push('$'),
                    Some(name) => {
                        let value = self.known.get(name).ok_or_else(|| self.undefined(None))?;
                        self.append(&mut text, value)?;
                    }
                }
                rest = reference.get(end..).unwrap_or_default();
            }
        }
        self.append(&mut text, rest)?;
        Ok(text)
    }

    /// A few references to references would otherwise give a value of any size.
    fn append(&self, text: &mut String, more: &str) -> Result<(), DotenvError> {
        if text.len() + more.len() > self.room {
            return Err(self.error("the values of the file have more than 1 MiB".to_owned()));
        }
        text.push_str(more);
        Ok(())
    }

    fn reference(&self, inner: &str, depth: usize) -> Result<Cow<'_, str>, DotenvError> {
        let (name, operator) = inner.split_at(name_len(inner));
        if name.is_empty() {
            return Err(self.error(format!(
                "${{ in the value of {} names no variable; write a literal $ as $$, or use single quotes",
                self.key
            )));
        }
        let set = self.known.get(name);
        let (is_strict, operator) = operator.strip_prefix(':').map_or((false, operator), |rest| (true, rest));
        let usable = set.filter(|value| !is_strict || !value.is_empty());
        let mut chars = operator.chars();
        match (chars.next(), usable) {
            (None, None) if !is_strict => Err(self.undefined(Some(name))),
            (None, Some(value)) if !is_strict => Ok(Cow::Borrowed(value)),
            (Some('-' | '?'), Some(value)) => Ok(Cow::Borrowed(value)),
            (Some('-'), None) | (Some('+'), Some(_)) => self.expanded(chars.as_str(), depth).map(Cow::Owned),
            (Some('+'), None) => Ok(Cow::Borrowed("")),
            (Some('?'), None) => Err(self.error(format!("{name} is not set: {}", chars.as_str()))),
            (Some(_) | None, _) => Err(self
                .error(format!("${{{name}…}} in the value of {} is no reference to a variable", self.key))),
        }
    }

    /// `$` in a password is often meant literally: what follows it is named only if it has braces.
    fn undefined(&self, braced: Option<&str>) -> DotenvError {
        let what = braced.map_or_else(|| "a variable after $".to_owned(), |name| format!("${{{name}}}"));
        self.error(format!(
            "{what} in the value of {} is not defined before this line, and the environment is not read; give a default as in ${{{}:-}}, or write a literal $ as $$",
            self.key,
            braced.unwrap_or("NAME")
        ))
    }

    fn error(&self, message: String) -> DotenvError {
        DotenvError { line: self.line, message }
    }
}

/// The position of the brace that closes an open one.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, char) in text.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn name_len(text: &str) -> usize {
    text.find(|char: char| !(char == '_' || char.is_ascii_alphanumeric())).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<(String, String)>, DotenvError> {
        let mut known = BTreeMap::new();
        read(text.as_bytes(), &mut known).map(|_| known.into_iter().collect())
    }

    #[test]
    fn values_are_read_as_compose_reads_them() {
        for (line, value) in [
            ("A=hello from dotenv", "hello from dotenv"),
            ("A= padded \t", "padded"),
            ("export A=1", "1"),
            ("A: yaml", "yaml"),
            ("A = spaced", "spaced"),
            ("A=", ""),
            ("A=x # comment", "x"),
            ("A=x#y", "x#y"),
            ("A=#", ""),
            ("A=\"x # y\" # comment", "x # y"),
            ("A='x $B ${C}'", "x $B ${C}"),
            ("A='it\\'s'", "it's"),
            ("A=\"two\\nlines\\t\\\"q\\\"\"", "two\nlines\t\"q\""),
            ("A=\"real\nline\"", "real\nline"),
            ("A=\"cost \\$5\"", "cost $5"),
            ("A=cost $$5", "cost $5"),
            ("A=$", "$"),
            ("A=a=b", "a=b"),
            ("A=http://x:80/y", "http://x:80/y"),
            ("A=${B:-none}", "none"),
            ("A=${B:+set}", ""),
            ("A=x\r", "x"),
            ("A='a' ", "a"),
        ] {
            assert_eq!(parsed(line), Ok(vec![("A".to_owned(), value.to_owned())]), "{line:?}");
        }
    }

    #[test]
    fn variables_refer_to_earlier_ones() {
        let text = "# names\n\nHOST=db\nEMPTY=\nURL=\"postgres://${HOST}:$PORT_/x\"\n"
            .replace("$PORT_", "${PORT:-5432}");
        let mut known = BTreeMap::from([("OLD".to_owned(), "o".to_owned())]);
        read(text.as_bytes(), &mut known).unwrap();
        assert_eq!(known["URL"], "postgres://db:5432/x");
        for (line, value) in [
            ("A=$OLD-$HOST", "o-db"),
            ("A=${EMPTY:-e}${EMPTY-x}", "e"),
            ("A=${HOST:+h}${HOST+i}", "hi"),
            ("A=${NONE:-${HOST}}", "db"),
            ("A=${HOST:?must}", "db"),
        ] {
            read(line.as_bytes(), &mut known).unwrap();
            assert_eq!(known["A"], value, "{line}");
        }
    }

    /// They overflowed the stack, which ended the agent.
    #[test]
    fn nested_references_have_a_bounded_depth() {
        let nested = |depth: usize| format!("A={}x{}", "${B:-".repeat(depth), "}".repeat(depth));
        assert_eq!(parsed(&nested(DEPTH_MAX)), Ok(vec![("A".to_owned(), "x".to_owned())]));
        for depth in [DEPTH_MAX + 1, BYTES_MAX / 8] {
            let error = parsed(&nested(depth)).unwrap_err();
            assert!(error.message.contains("nested more than 16 deep"), "{error:?}");
        }
    }

    /// 1.5 kB made the agent allocate until the machine had no memory left.
    #[test]
    fn references_do_not_multiply_values_beyond_a_limit() {
        let doubled = |times: usize| {
            let lines = (0..times).map(|at| format!("A{}=$A{at}${{A{at}}}\n", at + 1));
            std::iter::once(format!("A0={}\n", "x".repeat(1000))).chain(lines).collect::<String>()
        };
        assert_eq!(parsed(&doubled(8)).unwrap()[8].1.len(), 256_000);
        let error = parsed(&doubled(40)).unwrap_err();
        assert!(error.line == 11 && error.message.contains("more than 1 MiB"), "{error:?}");
    }

    /// Lines of private keys and ends of passwords were in the log and in the status.
    #[test]
    fn messages_have_no_part_of_a_value() {
        for text in [
            "KEY=-----BEGIN PRIVATE KEY-----\nSECRET",
            "SECRET+/x=",
            "P=\"abc\"SECRET",
            "P='abc' SECRET",
            "P=abc$SECRET",
            "P=${:SECRET}",
            "P=${A!SECRET}",
            "P=${A:SECRET}",
            "P=\"SECRET",
            "P=${A:-SECRET",
        ] {
            let error = parsed(text).unwrap_err();
            assert!(!error.message.contains("SECRET"), "{text}: {error:?}");
            assert!(
                error.message.contains(" P ") || error.message.ends_with(" P") || !text.starts_with('P'),
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_problem_has_its_line() {
        for (text, line, part) in [
            ("A=1\nB", 2, "has no `=`"),
            ("A=\"x\ny\"\nB=${C}", 3, "${C} in the value of B is not defined"),
            ("A=1\nB=x\0y", 2, "NUL character"),
            ("1A=x", 1, "no name"),
            ("A B=x", 1, "no name"),
            ("A=\"x", 1, "no closing \""),
            ("A='x' y", 1, "follows the closing quote"),
            ("A=${B:?set it}", 1, "B is not set: set it"),
            ("A=${B", 1, "no closing brace"),
            ("A=${}", 1, "names no variable"),
            ("A=${A!}", 1, "is no reference"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.line == line && error.message.contains(part), "{text:?}: {error:?}");
        }
        assert!(read(b"A=\xff", &mut BTreeMap::new()).is_err());
        assert!(read(&vec![b'#'; BYTES_MAX + 1], &mut BTreeMap::new()).is_err());
    }
}
