//! Regular expressions in Go's syntax, for a library with nearly the same one.
//!
//! Differences: `\d`, `\w`, `\s` and `\b` are ASCII in Go; a brace that is no repetition, and a bracket in a class, are
//! literal; `\Q…\E` quotes.

/// Translates an expression.
pub(super) fn translate(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len() + 16);
    let mut rest = expression;
    let mut class = Class::Outside;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        match char {
            '\\' => {
                rest = escape(&mut out, after);
                class = class.continued();
                continue;
            }
            '[' if class == Class::Outside => {
                out.push('[');
                class = Class::Start;
                rest = after;
                if let Some(negated) = after.strip_prefix('^') {
                    out.push('^');
                    rest = negated;
                }
                continue;
            }
            '[' => match after.strip_prefix(':').and_then(|name| name.find(":]")) {
                Some(length) => {
                    out.push_str(&rest[..length + 4]);
                    rest = &rest[length + 4..];
                    class = Class::Inside;
                    continue;
                }
                None => out.push_str("\\["),
            },
            ']' if class == Class::Start => out.push_str("\\]"),
            ']' => {
                out.push(']');
                class = Class::Outside;
                rest = after;
                continue;
            }
            '&' | '~' if class != Class::Outside => {
                out.push('\\');
                out.push(char);
            }
            '-' if class != Class::Outside && after.starts_with('-') => out.push_str("\\-"),
            '{' if class == Class::Outside && !is_repetition(after) => out.push_str("\\{"),
            _ => out.push(char),
        }
        class = class.continued();
        rest = after;
    }
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Outside,
    /// At the first character, where a bracket is literal.
    Start,
    Inside,
}

impl Class {
    fn continued(self) -> Self {
        match self {
            Self::Outside => Self::Outside,
            Self::Start | Self::Inside => Self::Inside,
        }
    }
}

/// Translates what follows a backslash; returns the rest.
fn escape<'e>(out: &mut String, after: &'e str) -> &'e str {
    let Some(char) = after.chars().next() else {
        out.push('\\');
        return after;
    };
    let rest = &after[char.len_utf8()..];
    match char {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str("[\\t\\n\\f\\r ]"),
        'S' => out.push_str("[^\\t\\n\\f\\r ]"),
        'b' => out.push_str("(?-u:\\b)"),
        'B' => out.push_str("(?-u:\\B)"),
        'Q' => {
            let (quoted, rest) = rest.split_once("\\E").unwrap_or((rest, ""));
            out.push_str(&regex::escape(quoted));
            return rest;
        }
        _ => {
            out.push('\\');
            out.push(char);
        }
    }
    rest
}

/// Whether `1}`, `1,}` or `1,2}` follows.
fn is_repetition(after: &str) -> bool {
    let Some((inner, _)) = after.split_once('}') else { return false };
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !least.is_empty() && is_number(least) && is_number(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_go_compile() {
        for (expression, text, is_match) in [
            (r"^\d+$", "٣", false),
            (r"^\w+$", "é", false),
            (r"^[\w.]+$", "a.b", true),
            (r"^[^\s]+$", "ab", true),
            ("^{a}$", "{a}", true),
            ("^a{2}$", "aa", true),
            ("^[[]$", "[", true),
            ("^[]a]+$", "]a", true),
            ("^[[:alpha:]]+$", "ab", true),
            ("^[a&&b]+$", "a&b", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"\bé", "é", false),
        ] {
            let regex = regex::Regex::new(&translate(expression)).unwrap();
            assert_eq!(regex.is_match(text), is_match, "{expression} {text}");
        }
    }
}
