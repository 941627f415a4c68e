//! Variables from the output of a template with `env = true`, by the rules of Nomad's parser: one `NAME=value` per
//! line; `export` before the name, comments, and quotes with escapes.
//!
//! In: the output. Out: variables, or the line at fault. A message never has a part of a value: values are secrets.

use std::collections::BTreeMap;

/// A line that is not a variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct EnvFileError {
    /// From 1.
    pub line: usize,
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it is not UTF-8")]
    NotText,
    #[error("expected NAME=value")]
    NoSeparator,
    #[error("the name before `=` is not a letter or `_`, followed by letters, digits, `_`, `.` and `/`")]
    Name,
    #[error("the value has a control character; write \"\\n\" or \"\\t\" inside double quotes")]
    Control,
    #[error("a quote is not closed")]
    OpenQuote,
    #[error(
        "after a backslash in double quotes only those of JSON are allowed: \\, \", /, b, f, n, r, t, uXXXX"
    )]
    Escape,
    #[error("the value has a NUL, which no variable can hold")]
    Nul,
}

/// Reads the variables of an output. A later line with the same name wins.
///
/// # Errors
/// The first line at fault.
pub fn parse(output: &[u8]) -> Result<BTreeMap<String, String>, EnvFileError> {
    let mut variables = BTreeMap::new();
    for (line, bytes) in (1..).zip(output.split(|byte| *byte == b'\n')) {
        let at = |problem| EnvFileError { line, problem };
        let text = std::str::from_utf8(bytes).map_err(|_| at(Problem::NotText))?.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (name, written) = text.split_once('=').ok_or_else(|| at(Problem::NoSeparator))?;
        let name = name.trim().trim_start_matches("export ").trim_start();
        if !is_name(name) {
            return Err(at(Problem::Name));
        }
        variables.insert(name.to_owned(), value(written.trim()).map_err(at)?);
    }
    Ok(variables)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|each| each.is_ascii_alphanumeric() || matches!(each, '_' | '.' | '/'))
}

/// Removes quotes, resolves escapes, and ends at a comment.
fn value(written: &str) -> Result<String, Problem> {
    let mut value = String::with_capacity(written.len());
    // Where to cut if a comment follows: blanks before it do not count.
    let mut end = 0;
    let mut rest = written.chars();
    while let Some(next) = rest.next() {
        if next.is_control() {
            return Err(Problem::Control);
        }
        match next {
            '#' => {
                value.truncate(end);
                return Ok(value);
            }
            '"' => double_quoted(&mut rest, &mut value)?,
            '\'' => single_quoted(&mut rest, &mut value)?,
            ' ' => {
                value.push(next);
                continue;
            }
            _ => value.push(next),
        }
        end = value.len();
    }
    Ok(value)
}

fn double_quoted(rest: &mut std::str::Chars<'_>, value: &mut String) -> Result<(), Problem> {
    while let Some(next) = rest.next() {
        match next {
            '"' => return Ok(()),
            '\\' => value.push(escaped(rest)?),
            _ if next.is_control() => return Err(Problem::Control),
            _ => value.push(next),
        }
    }
    Err(Problem::OpenQuote)
}

/// The character after a backslash: `toJSON` writes strings with all of JSON's escapes.
fn escaped(rest: &mut std::str::Chars<'_>) -> Result<char, Problem> {
    Ok(match rest.next().ok_or(Problem::OpenQuote)? {
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        same @ ('"' | '\\' | '/') => same,
        'u' => {
            let first = code_unit(rest)?;
            let is_pair = (0xd800..0xdc00).contains(&first);
            if is_pair && !rest.as_str().starts_with("\\u") {
                return Err(Problem::Escape);
            }
            let units = if is_pair {
                rest.nth(1);
                vec![first, code_unit(rest)?]
            } else {
                vec![first]
            };
            let decoded = char::decode_utf16(units).next().and_then(Result::ok).ok_or(Problem::Escape)?;
            if decoded == '\0' {
                return Err(Problem::Nul);
            }
            decoded
        }
        _ => return Err(Problem::Escape),
    })
}

/// Four hexadecimal digits.
fn code_unit(rest: &mut std::str::Chars<'_>) -> Result<u16, Problem> {
    let digits = rest.as_str().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()).ok_or(Problem::Escape)?;
    rest.nth(3);
    Ok(unit)
}

fn single_quoted(rest: &mut std::str::Chars<'_>, value: &mut String) -> Result<(), Problem> {
    for next in rest {
        match next {
            '\'' => return Ok(()),
            _ if next.is_control() => return Err(Problem::Control),
            _ => value.push(next),
        }
    }
    Err(Problem::OpenQuote)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<String, Problem> {
        let variables = parse(line.as_bytes()).map_err(|error| error.problem)?;
        Ok(variables.into_values().next().unwrap_or_default())
    }

    #[test]
    fn values_are_read_as_nomad_reads_them() {
        for (line, expected) in [
            ("A=b", "b"),
            ("A=", ""),
            ("A = This is ok! # a comment", "This is ok!"),
            ("export A=b", "b"),
            ("A=b=c", "b=c"),
            (r#"A="x # y""#, "x # y"),
            (r#"A="a\nb\t\"c\"\\""#, "a\nb\t\"c\"\\"),
            (r#"A="\u003ca\u003e \u0026 \/\b\f\r \u00e9\ud83d\ude00""#, "<a> & /\u{8}\u{c}\r é😀"),
            ("A_1./b=1", "1"),
            (r"A='a\nb'", r"a\nb"),
            (r#"A=a"b"'c'd"#, "abcd"),
            (r#"A=" kept " # cut"#, " kept "),
            ("A=größe", "größe"),
            ("A=b\r", "b"),
        ] {
            assert_eq!(one(line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn a_wrong_line_is_named_without_its_value() {
        for (text, line, problem) in [
            ("A=1\nsecret", 2, Problem::NoSeparator),
            ("=secret", 1, Problem::Name),
            ("1A=secret", 1, Problem::Name),
            ("A=\"secret", 1, Problem::OpenQuote),
            ("A='secret", 1, Problem::OpenQuote),
            (r#"A="\x""#, 1, Problem::Escape),
            (r#"A="\u12""#, 1, Problem::Escape),
            (r#"A="\u12é4""#, 1, Problem::Escape),
            (r#"A="\ud83d secret""#, 1, Problem::Escape),
            (r#"A="\ud83d\u0041""#, 1, Problem::Escape),
            (r#"A="\udc00""#, 1, Problem::Escape),
            (r#"A="\u0000""#, 1, Problem::Nul),
            ("A-B=secret", 1, Problem::Name),
            ("A B=secret", 1, Problem::Name),
            ("A\0B=secret", 1, Problem::Name),
            ("A=\"secret\\", 1, Problem::OpenQuote),
            ("A=a\u{1}b", 1, Problem::Control),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert_eq!(error, EnvFileError { line, problem }, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
        assert_eq!(parse(b"A=\xff").unwrap_err().problem, Problem::NotText);
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        let variables = parse(b"# comment\n\n  # A=1\nA=2\nA=3\nB=4\n").unwrap();
        let expected = [("A", "3"), ("B", "4")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, expected.into());
    }
}
