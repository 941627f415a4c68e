//! The parameter `filter` of lists: comparisons of fields with `==` and `!=`, joined by `and`.
//!
//! In: the text of an expression in the language of Nomad's API (go-bexpr). Out: whether an object as it is shown fits. What
//! else that language has (`or`, `not`, `in`, `contains`, `matches`, `is empty`, parentheses) is refused by name.

use serde_json::Value;

use super::error::{ApiError, ApiResult};

/// A longer expression is a slip.
const TEXT_BYTES_MAX: usize = 4_096;

/// What must be so of an object; nothing for an empty expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filter(Vec<Comparison>);

#[derive(Debug, PartialEq, Eq)]
struct Comparison {
    /// Field, and fields within it.
    path: Vec<String>,
    equal: Equal,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Equal {
    Yes,
    No,
}

impl Filter {
    /// Reads an expression.
    ///
    /// # Errors
    /// 400 where it is none, 501 where it asks for what is not built.
    pub(super) fn parse(text: &str) -> ApiResult<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ApiError::bad(format!("filter: it is longer than {TEXT_BYTES_MAX} bytes")));
        }
        let mut words = words(text)?.into_iter();
        let mut comparisons = Vec::new();
        let Some(mut first) = words.next() else { return Ok(Self::default()) };
        loop {
            let Word::Bare(selector) = &first else {
                return Err(ApiError::bad(format!("filter: a field is expected, not {first}")));
            };
            if matches!(selector.as_str(), "not" | "(") {
                return Err(not_built(selector));
            }
            let equal = match words.next() {
                Some(Word::Bare(word)) if word == "==" => Equal::Yes,
                Some(Word::Bare(word)) if word == "!=" => Equal::No,
                Some(Word::Bare(word)) => return Err(not_built(&word)),
                Some(Word::Quoted(_)) | None => {
                    return Err(ApiError::bad(format!("filter: == or != is expected after {selector}")));
                }
            };
            let Some(Word::Bare(value) | Word::Quoted(value)) = words.next() else {
                return Err(ApiError::bad(format!("filter: a value is expected to compare {selector} with")));
            };
            let path = selector.split('.').map(str::to_owned).collect();
            comparisons.push(Comparison { path, equal, value });
            match words.next() {
                None => return Ok(Self(comparisons)),
                Some(Word::Bare(word)) if word == "and" => {}
                Some(Word::Bare(word)) => return Err(not_built(&word)),
                Some(word @ Word::Quoted(_)) => {
                    return Err(ApiError::bad(format!("filter: \"and\" is expected, not {word}")));
                }
            }
            first = words.next().ok_or_else(|| ApiError::bad("filter: nothing comes after \"and\""))?;
        }
    }

    /// Whether the object, as it is shown, fits.
    ///
    /// # Errors
    /// Where it has no such field.
    pub(super) fn accepts(&self, shown: &Value) -> ApiResult<bool> {
        for comparison in &self.0 {
            if !comparison.holds(shown)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Comparison {
    fn holds(&self, shown: &Value) -> ApiResult<bool> {
        let mut at = shown;
        for (depth, step) in self.path.iter().enumerate() {
            at = match at.get(step) {
                Some(inner) => inner,
                // What lies below a field may be missing, the field itself may not.
                None if depth > 0 => &Value::Null,
                None => return Err(ApiError::bad(format!("filter: there is no field {step:?} here"))),
            };
        }
        let same = match at {
            Value::String(text) => *text == self.value,
            Value::Number(number) => number.to_string() == self.value,
            Value::Bool(flag) => flag.to_string() == self.value,
            Value::Null => self.value.is_empty(),
            Value::Array(_) | Value::Object(_) => {
                let path = self.path.join(".");
                return Err(ApiError::bad(format!(
                    "filter: {path} is no single value, it can't be compared"
                )));
            }
        };
        Ok(same == (self.equal == Equal::Yes))
    }
}

fn not_built(word: &str) -> ApiError {
    ApiError::NotBuilt(format!(
        "filter: {word:?} is not built; comparisons with == and != joined by \"and\" are, for instance \
         ClientStatus == \"running\" and TaskGroup != \"db\""
    ))
}

/// A word of an expression.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Bare(String),
    Quoted(String),
}

impl std::fmt::Display for Word {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bare(word) | Self::Quoted(word) => write!(out, "{word:?}"),
        }
    }
}

/// Words of an expression: in quotes (`"` or a backtick), operators, and what lies between spaces.
fn words(text: &str) -> ApiResult<Vec<Word>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            '"' | '`' => {
                let (inner, after) = rest[1..]
                    .split_once(first)
                    .ok_or_else(|| ApiError::bad("filter: a quote is not closed"))?;
                (Word::Quoted(inner.to_owned()), after)
            }
            '=' | '!' => {
                let length = if rest[1..].starts_with('=') { 2 } else { 1 };
                (Word::Bare(rest[..length].to_owned()), &rest[length..])
            }
            '(' | ')' => (Word::Bare(first.to_string()), &rest[1..]),
            _ => {
                let end = rest.find(|one: char| one.is_whitespace() || "=!()\"`".contains(one));
                let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
                (Word::Bare(word.to_owned()), after)
            }
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_compared_with_values() {
        let shown = json!({ "Status": "running", "Version": 3, "Stop": false, "Meta": { "team": "a b" }, "None": null });
        for (text, expected) in [
            ("", true),
            ("Status == running", true),
            ("Status==\"running\"", true),
            ("Status != `running`", false),
            ("Version == 3 and Stop == false", true),
            ("Version == 3 and Stop != false", false),
            ("Meta.team == \"a b\"", true),
            ("Meta.other == \"\"", true),
            ("Meta.other != x", true),
            ("None == \"\"", true),
        ] {
            let filter = Filter::parse(text).unwrap();
            assert_eq!(filter.accepts(&shown).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_built_and_what_is_no_expression_is_refused_by_name() {
        for (text, status, says) in [
            ("Status == a or Status == b", 501, "\"or\""),
            ("not Status == a", 501, "\"not\""),
            ("(Status == a)", 501, "\"(\""),
            ("Name contains x", 501, "\"contains\""),
            ("Name matches `^a`", 501, "\"matches\""),
            ("Name is empty", 501, "\"is\""),
            ("Status", 400, "is expected after Status"),
            ("Status ==", 400, "a value is expected"),
            ("\"a\" == b", 400, "a field is expected"),
            ("Status == \"a", 400, "not closed"),
            ("Status == a and", 400, "after \"and\""),
            ("Status == a \"and\"", 400, "\"and\" is expected"),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{text}: {error}");
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
        assert!(Filter::parse(&"a".repeat(TEXT_BYTES_MAX + 1)).is_err());
        let shown = json!({ "Tags": [] });
        for text in ["Missing == a", "Tags == a"] {
            assert!(Filter::parse(text).unwrap().accepts(&shown).is_err(), "{text}");
        }
    }
}
