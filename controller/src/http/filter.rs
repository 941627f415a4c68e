//! The parameter `filter` of lists: conditions on the fields of an object.
//!
//! In: the text of an expression in the language of Nomad's API (go-bexpr): `==`, `!=`, `in`, `contains`, `matches`, `is empty`, their
//! opposites, `and`, `or`, `not`, parentheses. A field within a field is `Meta.team`, `Meta["a.b"]` or, as a JSON pointer in quotes,
//! `"/Meta/a.b"`. Out: whether an object as it is shown fits. Its `any` and `all` are refused by name.

use std::{iter::Peekable, vec};

use herdlet_plan::job::feasibility::compare::regexp;
use serde_json::Value;

use super::error::{ApiError, ApiResult};

/// A longer expression is a slip.
const TEXT_BYTES_MAX: usize = 4_096;
/// So deep parentheses and negations may be: reading one costs stack.
const DEPTH_MAX: usize = 32;

/// What must be so of an object; nothing for an empty expression.
#[derive(Debug, Default)]
pub(super) struct Filter(Option<Condition>);

#[derive(Debug)]
enum Condition {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Is(Field, Test),
}

/// A field, and fields within it.
#[derive(Debug)]
struct Field(Vec<String>);

#[derive(Debug)]
enum Test {
    Equals(String),
    Contains(String),
    Matches(regex::Regex),
    Empty,
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
        let mut words = Words(words(text)?.into_iter().peekable());
        if words.0.peek().is_none() {
            return Ok(Self::default());
        }
        let condition = words.any(0)?;
        match words.0.next() {
            None => Ok(Self(Some(condition))),
            Some(word) => Err(ApiError::bad(format!("filter: \"and\" or \"or\" is expected, not {word}"))),
        }
    }

    /// Whether the object, as it is shown, fits.
    ///
    /// # Errors
    /// Where it has no such field.
    pub(super) fn accepts(&self, shown: &Value) -> ApiResult<bool> {
        self.0.as_ref().map_or(Ok(true), |condition| condition.holds(shown))
    }
}

impl Condition {
    fn holds(&self, shown: &Value) -> ApiResult<bool> {
        match self {
            Self::All(all) => {
                for one in all {
                    if !one.holds(shown)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(any) => {
                for one in any {
                    if one.holds(shown)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Not(inner) => Ok(!inner.holds(shown)?),
            Self::Is(field, test) => {
                let value = field.of(shown)?;
                test.holds(value).ok_or_else(|| {
                    let field = field.0.join(".");
                    ApiError::bad(format!("filter: {field} is {}", test.unfit(value)))
                })
            }
        }
    }
}

impl Field {
    fn read(word: Word) -> ApiResult<Self> {
        Ok(Self(match word {
            Word::Bare(selector) if selector.contains(['[', ']']) => {
                return Err(ApiError::bad(format!(
                    "filter: {selector:?}: a name in brackets stands in quotes"
                )));
            }
            Word::Bare(selector) => selector.split('.').map(str::to_owned).collect(),
            Word::Path(steps) => steps,
            // RFC 6901.
            Word::Quoted(pointer) if pointer.starts_with('/') => {
                pointer[1..].split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect()
            }
            Word::Quoted(_) => return Err(ApiError::bad(format!("filter: a field is expected, not {word}"))),
        }))
    }

    fn of<'v>(&self, shown: &'v Value) -> ApiResult<&'v Value> {
        let mut at = shown;
        for (depth, step) in self.0.iter().enumerate() {
            let above = || self.0[..depth].join(".");
            at = match at {
                Value::Object(fields) => match fields.get(step) {
                    Some(inner) => inner,
                    // What lies below a field may be missing, the field itself may not.
                    None if depth > 0 => &Value::Null,
                    None => return Err(ApiError::bad(format!("filter: there is no field {step:?} here"))),
                },
                // So may an item of a list.
                Value::Array(all) => match step.parse::<usize>() {
                    Ok(place) => all.get(place).unwrap_or(&Value::Null),
                    Err(_) => {
                        let message = format!("filter: {} is a list, and has no {step:?}", above());
                        return Err(ApiError::bad(message));
                    }
                },
                Value::Null => at,
                Value::String(_) | Value::Number(_) | Value::Bool(_) => {
                    let message =
                        format!("filter: {} is a single value, and has no {step:?} below it", above());
                    return Err(ApiError::bad(message));
                }
            };
        }
        Ok(at)
    }
}

impl Test {
    /// Whether it holds of a value; nothing where it can't be asked of such a one.
    fn holds(&self, value: &Value) -> Option<bool> {
        match (self, value) {
            (Self::Equals(wanted), _) => single(value).map(|text| text == *wanted),
            (Self::Contains(wanted), Value::Array(all)) => {
                Some(all.iter().filter_map(single).any(|text| text == *wanted))
            }
            (Self::Contains(wanted), Value::Object(fields)) => Some(fields.contains_key(wanted)),
            (Self::Contains(wanted), Value::String(text)) => Some(text.contains(wanted)),
            (Self::Contains(_), Value::Null) => Some(false),
            (Self::Matches(wanted), Value::String(text)) => Some(wanted.is_match(text)),
            (Self::Matches(wanted), Value::Null) => Some(wanted.is_match("")),
            (Self::Empty, Value::Array(all)) => Some(all.is_empty()),
            (Self::Empty, Value::Object(fields)) => Some(fields.is_empty()),
            (Self::Empty, Value::String(text)) => Some(text.is_empty()),
            (Self::Empty, Value::Null) => Some(true),
            (Self::Contains(_) | Self::Empty, Value::Bool(_) | Value::Number(_))
            | (Self::Matches(_), Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                None
            }
        }
    }

    /// What a value is of which this can't be asked.
    fn unfit(&self, value: &Value) -> &'static str {
        match self {
            Self::Equals(_) => "no single value, it can't be compared",
            Self::Matches(_) => "no text, it can't match",
            Self::Contains(_) | Self::Empty if value.is_boolean() => "true or false and holds nothing",
            Self::Contains(_) | Self::Empty => "a number and holds nothing",
        }
    }
}

/// A single value as text.
fn single(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// What is left of an expression. `or` binds less than `and`, and that less than `not`.
struct Words(Peekable<vec::IntoIter<Word>>);

impl Words {
    fn any(&mut self, depth: usize) -> ApiResult<Condition> {
        self.joined("or", |words| words.all(depth), Condition::Any)
    }

    fn all(&mut self, depth: usize) -> ApiResult<Condition> {
        self.joined("and", |words| words.one(depth), Condition::All)
    }

    /// One condition, or several joined by this word.
    fn joined(
        &mut self,
        by: &str,
        mut read: impl FnMut(&mut Self) -> ApiResult<Condition>,
        join: fn(Vec<Condition>) -> Condition,
    ) -> ApiResult<Condition> {
        let first = read(self)?;
        let mut found = vec![first];
        while self.takes(by) {
            if self.0.peek().is_none() {
                return Err(ApiError::bad(format!("filter: nothing comes after {by:?}")));
            }
            found.push(read(self)?);
        }
        Ok(match (found.pop(), found.is_empty()) {
            (Some(only), true) => only,
            (last, _) => join(found.into_iter().chain(last).collect()),
        })
    }

    fn one(&mut self, depth: usize) -> ApiResult<Condition> {
        if depth == DEPTH_MAX {
            return Err(ApiError::bad(format!("filter: it is more than {DEPTH_MAX} levels deep")));
        }
        if self.takes("not") {
            return Ok(Condition::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.takes("(") {
            let inner = self.any(depth + 1)?;
            return if self.takes(")") {
                Ok(inner)
            } else {
                Err(ApiError::bad("filter: a parenthesis is not closed"))
            };
        }
        self.test()
    }

    /// `FIELD TEST VALUE`, `FIELD is empty` or `VALUE in FIELD`.
    fn test(&mut self) -> ApiResult<Condition> {
        let first = self.0.next().ok_or_else(|| ApiError::bad("filter: a field is expected"))?;
        if let Word::Bare(word) = &first
            && matches!(word.as_str(), "any" | "all")
            && matches!(self.0.peek(), Some(Word::Bare(next)) if !is_operator(next))
        {
            return Err(ApiError::NotBuilt(format!(
                "filter: {word:?} is not built; ==, !=, in, contains, matches, is empty, and, or, not and parentheses are"
            )));
        }
        let mut negated = self.takes("not");
        let Some(Word::Bare(operator)) = self.0.next() else {
            return Err(expected_after(&first));
        };
        let (field, test) = match operator.as_str() {
            "in" => {
                let (Word::Bare(value) | Word::Quoted(value)) = first else {
                    return Err(ApiError::bad(format!("filter: a value is expected, not {first}")));
                };
                let field =
                    self.0.next().ok_or_else(|| ApiError::bad("filter: a field is expected after \"in\""))?;
                (field, Test::Contains(value))
            }
            "contains" => {
                let value = self.value(&first)?;
                (first, Test::Contains(value))
            }
            "matches" => {
                let value = self.value(&first)?;
                let wanted = regexp(&value).map_err(|error| ApiError::bad(format!("filter: {error}")))?;
                (first, Test::Matches(wanted))
            }
            "==" | "!=" if !negated => {
                negated = operator == "!=";
                let value = self.value(&first)?;
                (first, Test::Equals(value))
            }
            "is" if !negated => {
                negated = self.takes("not");
                if !self.takes("empty") {
                    return Err(ApiError::bad("filter: \"empty\" is expected after \"is\""));
                }
                (first, Test::Empty)
            }
            _ => return Err(expected_after(&first)),
        };
        let condition = Condition::Is(Field::read(field)?, test);
        Ok(if negated { Condition::Not(Box::new(condition)) } else { condition })
    }

    fn value(&mut self, of: &Word) -> ApiResult<String> {
        let Some(Word::Bare(value) | Word::Quoted(value)) = self.0.next() else {
            return Err(ApiError::bad(format!("filter: a value is expected to compare {of} with")));
        };
        Ok(value)
    }

    /// Whether this bare word comes next; it is taken then.
    fn takes(&mut self, word: &str) -> bool {
        self.0.next_if(|next| matches!(next, Word::Bare(bare) if bare == word)).is_some()
    }
}

fn is_operator(word: &str) -> bool {
    matches!(word, "==" | "!=" | "in" | "not" | "contains" | "matches" | "is")
}

fn expected_after(word: &Word) -> ApiError {
    ApiError::bad(format!("filter: ==, !=, in, contains, matches or is empty is expected after {word}"))
}

/// A word of an expression.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Bare(String),
    Quoted(String),
    /// A field within a field, of which at least one name stands in brackets: `Meta["a.b"]`.
    Path(Vec<String>),
}

impl std::fmt::Display for Word {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bare(word) | Self::Quoted(word) => write!(out, "{word:?}"),
            Self::Path(steps) => write!(out, "{:?}", steps.join(".")),
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
                if word.ends_with('[') && after.starts_with(['"', '`']) {
                    path(rest)?
                } else {
                    (Word::Bare(word.to_owned()), after)
                }
            }
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

/// A field within a field at the beginning of `text`, and what comes after it.
fn path(text: &str) -> ApiResult<(Word, &str)> {
    let mut steps = Vec::new();
    let mut rest = text;
    loop {
        if let Some(inner) = rest.strip_prefix('[') {
            let quote = inner.chars().next().filter(|first| matches!(first, '"' | '`'));
            let named = quote.and_then(|quote| inner[1..].split_once(quote));
            let named = named.and_then(|(name, after)| Some((name, after.strip_prefix(']')?)));
            let (name, after) = named.ok_or_else(|| {
                ApiError::bad("filter: after \"[\" a name in quotes is expected, and then \"]\"")
            })?;
            steps.push(name.to_owned());
            rest = after;
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let is_end = |one: char| one.is_whitespace() || "=!()[.\"`".contains(one);
            let end = name.find(is_end).unwrap_or(name.len());
            if end == 0 {
                return Ok((Word::Path(steps), rest));
            }
            steps.push(name[..end].to_owned());
            rest = &name[end..];
        }
    }
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
            ("None.below == \"\"", true),
            ("Meta[\"team\"] == \"a b\"", true),
            ("Meta[`no.such`] == \"\" and Meta[\"team\"] != x", true),
            ("\"/Meta/team\" == \"a b\"", true),
        ] {
            let filter = Filter::parse(text).unwrap();
            assert_eq!(filter.accepts(&shown).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn names_with_dots_are_found_in_brackets_and_by_pointers() {
        let shown = json!({ "Meta": { "a.b": "x", "c/d": { "e": 1 } }, "Tags": ["one", "two"] });
        for (text, expected) in [
            ("Meta[\"a.b\"]==x", true),
            ("Meta[`a.b`] != x", false),
            ("\"/Meta/a.b\" == x", true),
            ("\"/Meta/c~1d/e\" == 1", true),
            ("Meta[\"c/d\"].e == 1 and (Meta[\"a.b\"] is not empty)", true),
            ("Meta.a.b == x", false),
            ("x in Meta[\"a.b\"]", true),
            ("Tags.1 == two", true),
        ] {
            let filter = Filter::parse(text).unwrap();
            assert_eq!(filter.accepts(&shown).unwrap_or_default(), expected, "{text}");
        }
        for text in ["Meta[a.b] == x", "Meta[\"a\" == x", "Meta[\"a\" ] == x", "Meta[\"a.b\"] in Tags"] {
            assert!(Filter::parse(text).is_err_and(|error| error.status().as_u16() == 400), "{text}");
        }
    }

    #[test]
    fn lists_texts_and_maps_are_searched() {
        let shown = json!({ "Name": "web", "Tags": ["a", "traefik.enable=true"], "Meta": { "team": "x" }, "No": null });
        for (text, expected) in [
            ("Tags contains \"traefik.enable=true\"", true),
            ("Tags contains traefik", false),
            ("Tags not contains b", true),
            ("a in Tags", true),
            ("\"b\" not in Tags", true),
            ("Name contains e", true),
            ("team in Meta", true),
            ("x in No", false),
            ("Name matches `^w.b$`", true),
            ("Name not matches `^x`", true),
            ("No matches `^$`", true),
            ("Tags is empty", false),
            ("Tags is not empty and No is empty", true),
        ] {
            assert_eq!(Filter::parse(text).unwrap().accepts(&shown).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn and_binds_more_than_or_and_not_more_than_both() {
        let shown = json!({ "A": 1 });
        for (text, expected) in [
            ("A == 2 or A == 1", true),
            ("A == 1 or A == 2 and A == 3", true),
            ("(A == 1 or A == 2) and A == 3", false),
            ("not A == 2 and A == 1", true),
            ("not (A == 1 or A == 2)", false),
            ("not not A == 1", true),
        ] {
            assert_eq!(Filter::parse(text).unwrap().accepts(&shown).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_built_and_what_is_no_expression_is_refused_by_name() {
        let deep = format!("{}A == 1", "not ".repeat(DEPTH_MAX + 1));
        for (text, status, says) in [
            ("any Tags as tag { tag == a }", 501, "\"any\""),
            ("Status", 400, "is expected after \"Status\""),
            ("Status ==", 400, "a value is expected"),
            ("Status not == a", 400, "is expected after \"Status\""),
            ("Status is full", 400, "\"empty\" is expected"),
            ("Status matches `(`", 400, "filter: "),
            ("\"a\" == b", 400, "a field is expected"),
            ("a in \"Tags\"", 400, "a field is expected"),
            ("a in", 400, "a field is expected after"),
            ("Status == \"a", 400, "not closed"),
            ("(Status == a", 400, "parenthesis is not closed"),
            ("Status == a)", 400, "is expected, not \")\""),
            ("Status == a and", 400, "after \"and\""),
            ("Status == a \"and\"", 400, "\"and\" or \"or\" is expected"),
            ("not", 400, "a field is expected"),
            (&deep, 400, "levels deep"),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{text}: {error}");
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
        assert!(Filter::parse(&"a".repeat(TEXT_BYTES_MAX + 1)).is_err());
        let shown = json!({ "Tags": [], "On": true, "Count": 3 });
        for text in [
            "Missing == a",
            "Tags == a",
            "Tags matches a",
            "On contains a",
            "Count is empty",
            "Count.below == 1",
            "On.below is empty",
            "Tags.first == a",
        ] {
            assert!(Filter::parse(text).unwrap().accepts(&shown).is_err(), "{text}");
        }
        // An item that this list does not have is no mistake.
        assert!(Filter::parse("Tags.7 == a").unwrap().accepts(&shown).is_ok_and(|accepts| !accepts));
        let told = Filter::parse("Count.below == 1").unwrap().accepts(&shown).unwrap_err().to_string();
        assert_eq!(told, "filter: Count is a single value, and has no \"below\" below it");
    }
}
