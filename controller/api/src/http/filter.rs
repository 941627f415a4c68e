//! The parameter `filter` of lists: conditions on the fields of an object.
//!
//! In: an expression in the language of Nomad's API (go-bexpr): `==`, `!=`, `in`, `contains`, `matches`, `is empty`, their
//! negations, `and`, `or`, `not`, parentheses, `any` and `all`. A nested field is `Meta.team`, `Meta["a.b"]` or, as a quoted JSON
//! pointer, `"/Meta/a.b"`. Out: whether an object in its JSON form matches. Comparing a field with a value that it can never have
//! is an error.

mod tokens;
mod values;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::Value;

use super::error::{ApiError, ApiResult};
use tokens::{Token, Words};

/// A longer expression is a mistake.
const TEXT_BYTES_MAX: usize = 4_096;
/// Limit on item tests by one filter, over all objects of a list. Nested `any` multiplies the lengths of lists, and blocks a
/// thread meanwhile. This many take some tenths of a second.
const QUESTIONS_MAX: usize = 1_000_000;

/// A parsed filter; an empty expression has no condition.
#[derive(Debug, Default)]
pub(super) struct Filter {
    condition: Option<Condition>,
    /// Item tests so far.
    asked: AtomicUsize,
}

#[derive(Debug)]
enum Condition {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Is(Field, Test),
    Items(Items),
}

/// A condition on the items of a list or the entries of a map.
#[derive(Debug)]
struct Items {
    of: Field,
    how_many: HowMany,
    names: Names,
    condition: Box<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HowMany {
    Any,
    All,
}

/// The names that the condition uses for an item.
#[derive(Debug, PartialEq, Eq)]
enum Names {
    /// The value in a list, or the key of a map.
    One(String),
    /// The index in a list or the key of a map, and the value; none for `_`.
    Two(Option<String>, Option<String>),
}

/// The path of a field.
#[derive(Debug)]
struct Field(Vec<String>);

#[derive(Debug)]
enum Test {
    Equals(String),
    Contains(String),
    Matches(regex::Regex),
    Empty,
}

/// Resolves names: items, innermost first, then the fields of the object.
#[derive(Clone, Copy)]
struct Scope<'v> {
    shown: &'v Value,
    /// Item tests so far.
    asked: &'v AtomicUsize,
    item: Option<&'v Named<'v>>,
}

/// A named item, or its index or key.
struct Named<'v> {
    name: &'v str,
    value: &'v Value,
    outer: Option<&'v Self>,
}

impl Filter {
    /// Parses an expression.
    ///
    /// # Errors
    /// 400 for an invalid expression.
    pub(super) fn parse(text: &str) -> ApiResult<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ApiError::bad(format!(
                "filter: the expression is longer than {TEXT_BYTES_MAX} bytes"
            )));
        }
        let condition = Words::of(text)?.expression()?;
        Ok(Self { condition, asked: AtomicUsize::new(0) })
    }

    /// Whether the object, in its JSON form, matches.
    ///
    /// # Errors
    /// If the object has no such field, or the field can't have such a value.
    pub(super) fn accepts(&self, shown: &Value) -> ApiResult<bool> {
        let scope = Scope { shown, asked: &self.asked, item: None };
        self.condition.as_ref().map_or(Ok(true), |condition| condition.holds(scope))
    }
}

impl Condition {
    fn holds(&self, scope: Scope<'_>) -> ApiResult<bool> {
        match self {
            Self::All(all) => {
                for one in all {
                    if !one.holds(scope)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(any) => {
                for one in any {
                    if one.holds(scope)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Not(inner) => Ok(!inner.holds(scope)?),
            Self::Is(field, test) => {
                scope.count()?;
                let value = field.of(scope)?;
                let bad_request = |why| ApiError::bad(format!("filter: {} {why}", field.0.join(".")));
                test.holds(value).map_err(bad_request)
            }
            Self::Items(items) => items.hold(scope),
        }
    }
}

impl Items {
    fn hold(&self, scope: Scope<'_>) -> ApiResult<bool> {
        scope.count()?;
        match self.of.of(scope)? {
            Value::Array(all) => {
                self.of_these(scope, all.iter().enumerate().map(|(at, one)| (at.into(), one)))
            }
            Value::Object(all) => {
                self.of_these(scope, all.iter().map(|(key, one)| (key.as_str().into(), one)))
            }
            Value::Null => Ok(self.how_many == HowMany::All),
            Value::String(_) | Value::Number(_) | Value::Bool(_) => {
                Err(ApiError::bad(format!("filter: {} is neither a list nor a map", self.of.0.join("."))))
            }
        }
    }

    /// `items`: each with its key or index.
    fn of_these<'v>(
        &self,
        scope: Scope<'_>,
        items: impl Iterator<Item = (Value, &'v Value)>,
    ) -> ApiResult<bool> {
        for (key, value) in items {
            let (of_key, of_value) = match &self.names {
                Names::One(name) if key.is_string() => (Some(name), None),
                Names::One(name) => (None, Some(name)),
                Names::Two(of_key, of_value) => (of_key.as_ref(), of_value.as_ref()),
            };
            let key = of_key.map(|name| Named { name, value: &key, outer: scope.item });
            let outer = key.as_ref().or(scope.item);
            let value = of_value.map(|name| Named { name, value, outer });
            let holds = self.condition.holds(Scope { item: value.as_ref().or(outer), ..scope })?;
            match (self.how_many, holds) {
                (HowMany::Any, true) => return Ok(true),
                (HowMany::All, false) => return Ok(false),
                (HowMany::Any, false) | (HowMany::All, true) => {}
            }
        }
        Ok(self.how_many == HowMany::All)
    }
}

impl Scope<'_> {
    /// Counts an item test. Tests of the object itself are bounded by the length of the expression.
    fn count(&self) -> ApiResult<()> {
        if self.item.is_some() && self.asked.fetch_add(1, Relaxed) >= QUESTIONS_MAX {
            let message = format!("filter: more than {QUESTIONS_MAX} tests of items would be needed");
            return Err(ApiError::bad(message));
        }
        Ok(())
    }
}

impl Field {
    fn read(word: Token) -> ApiResult<Self> {
        Ok(Self(match word {
            Token::Bare(selector) if selector.contains(['[', ']']) => {
                return Err(ApiError::bad(format!(
                    "filter: {selector:?}: a name in brackets must be quoted"
                )));
            }
            Token::Bare(selector) => selector.split('.').map(str::to_owned).collect(),
            Token::Path(steps) => steps,
            // A JSON pointer (RFC 6901).
            Token::Quoted(pointer) if pointer.starts_with('/') => {
                pointer[1..].split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect()
            }
            Token::Quoted(_) | Token::Mark(_) => {
                return Err(ApiError::bad(format!("filter: a field is expected, not {word}")));
            }
        }))
    }

    fn of<'v>(&self, scope: Scope<'v>) -> ApiResult<&'v Value> {
        let mut at = scope.shown;
        let mut steps = self.0.iter().enumerate();
        let first = self.0.first();
        let mut items = std::iter::successors(scope.item, |named| named.outer);
        if let Some(item) = items.find(|named| first.is_some_and(|first| first == named.name)) {
            at = item.value;
            steps.next();
        }
        for (depth, step) in steps {
            let above = || self.0[..depth].join(".");
            at = match at {
                Value::Object(fields) => match fields.get(step) {
                    Some(inner) => inner,
                    // A nested field may be missing, a field of the object may not.
                    None if depth > 0 => &Value::Null,
                    None => return Err(ApiError::bad(format!("filter: there is no field {step:?} here"))),
                },
                // An item of a list may be missing too.
                Value::Array(all) => match step.parse::<usize>() {
                    Ok(place) => all.get(place).unwrap_or(&Value::Null),
                    Err(_) => {
                        let message = format!("filter: {} is a list, and has no {step:?}", above());
                        return Err(ApiError::bad(message));
                    }
                },
                Value::Null => at,
                Value::String(_) | Value::Number(_) | Value::Bool(_) => {
                    let message = format!("filter: {} is a single value and has no field {step:?}", above());
                    return Err(ApiError::bad(message));
                }
            };
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
