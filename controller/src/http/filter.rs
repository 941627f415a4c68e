//! The parameter `filter` of lists: conditions on the fields of an object.
//!
//! In: the text of an expression in the language of Nomad's API (go-bexpr): `==`, `!=`, `in`, `contains`, `matches`, `is empty`, their
//! opposites, `and`, `or`, `not`, parentheses. A field within a field is `Meta.team`, `Meta["a.b"]` or, as a JSON pointer in quotes,
//! `"/Meta/a.b"`. Out: whether an object as it is shown fits. Its `any` and `all` are refused by name.

mod words;

use serde_json::Value;

use super::error::{ApiError, ApiResult};
use words::{Word, Words};

/// A longer expression is a slip.
const TEXT_BYTES_MAX: usize = 4_096;

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
        Words::of(text)?.expression().map(Self)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{words::DEPTH_MAX, *};

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
