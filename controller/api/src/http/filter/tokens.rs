//! The parser of filter expressions.
//!
//! In: the text. Out: its tokens, and the condition. It must not know the filtered objects.

use std::{iter::Peekable, vec};

use herdlet_plan::job::feasibility::compare::regexp;

use super::{Condition, Field, HowMany, Items, Names, Test};
use crate::http::error::{ApiError, ApiResult};

/// Limit on nested parentheses and negations, because the parser is recursive.
pub(super) const DEPTH_MAX: usize = 32;

/// The remaining tokens of an expression. `or` binds weaker than `and`, and `and` weaker than `not`.
pub(super) struct Words(Peekable<vec::IntoIter<Token>>);

impl Words {
    pub(super) fn of(text: &str) -> ApiResult<Self> {
        Ok(Self(tokenize(text)?.into_iter().peekable()))
    }

    /// Parses the whole expression; none if it is empty.
    pub(super) fn expression(&mut self) -> ApiResult<Option<Condition>> {
        if self.0.peek().is_none() {
            return Ok(None);
        }
        let condition = self.any(0)?;
        match self.0.next() {
            None => Ok(Some(condition)),
            Some(word) => Err(ApiError::bad(format!("filter: \"and\" or \"or\" is expected, not {word}"))),
        }
    }

    fn any(&mut self, depth: usize) -> ApiResult<Condition> {
        self.joined("or", |words| words.all(depth), Condition::Any)
    }

    fn all(&mut self, depth: usize) -> ApiResult<Condition> {
        self.joined("and", |words| words.one(depth), Condition::All)
    }

    /// One condition, or several joined by the word `by`.
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
            return Err(ApiError::bad(format!(
                "filter: the expression is more than {DEPTH_MAX} levels deep"
            )));
        }
        if self.takes("not") {
            return Ok(Condition::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.takes_mark('(') {
            let inner = self.any(depth + 1)?;
            return if self.takes_mark(')') {
                Ok(inner)
            } else {
                Err(ApiError::bad("filter: a parenthesis is not closed"))
            };
        }
        self.test(depth)
    }

    /// `FIELD TEST VALUE`, `FIELD is empty`, `VALUE in FIELD`, or `any` and `all`.
    fn test(&mut self, depth: usize) -> ApiResult<Condition> {
        let first = self.0.next().ok_or_else(|| ApiError::bad("filter: a field is expected"))?;
        if let Some(how_many) = self.how_many(&first) {
            return self.items(how_many, depth).map(Condition::Items);
        }
        let mut negated = self.takes("not");
        let Some(Token::Bare(operator)) = self.0.next() else {
            return Err(expected_after(&first));
        };
        let (field, test) = match operator.as_str() {
            "in" => {
                let (Token::Bare(value) | Token::Quoted(value)) = first else {
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

    /// Recognizes `any` and `all`, unless the word is the name of a field.
    fn how_many(&mut self, word: &Token) -> Option<HowMany> {
        let how_many = match word {
            Token::Bare(word) if word == "any" => HowMany::Any,
            Token::Bare(word) if word == "all" => HowMany::All,
            Token::Bare(_) | Token::Quoted(_) | Token::Path(_) | Token::Mark(_) => return None,
        };
        let is_field = match self.0.peek() {
            Some(Token::Bare(next)) => is_operator(next),
            Some(Token::Mark(_)) | None => true,
            Some(Token::Quoted(_) | Token::Path(_)) => false,
        };
        (!is_field).then_some(how_many)
    }

    /// `FIELD as NAME { … }` or `FIELD as KEY, VALUE { … }`; either name may be `_`.
    fn items(&mut self, how_many: HowMany, depth: usize) -> ApiResult<Items> {
        let word = self.0.next().ok_or_else(|| ApiError::bad("filter: a field is expected"))?;
        let as_what = format!("filter: \"as\" and a name are expected after {word}");
        let field = Field::read(word)?;
        if !self.takes("as") {
            return Err(ApiError::bad(as_what));
        }
        let names = self.names()?;
        if !self.takes_mark('{') {
            return Err(ApiError::bad("filter: \"{\" is expected, and a condition in braces"));
        }
        let condition = Box::new(self.any(depth + 1)?);
        if !self.takes_mark('}') {
            return Err(ApiError::bad("filter: a brace is not closed"));
        }
        Ok(Items { of: field, how_many, names, condition })
    }

    fn names(&mut self) -> ApiResult<Names> {
        let first = self.name()?;
        let names = if self.takes_mark(',') {
            Names::Two(first, self.name()?)
        } else {
            Names::One(first.ok_or_else(|| ApiError::bad("filter: \"_\" alone names nothing"))?)
        };
        match &names {
            Names::Two(None, None) => Err(ApiError::bad("filter: \"_, _\" names nothing")),
            Names::Two(Some(one), Some(other)) if one == other => {
                Err(ApiError::bad(format!("filter: {one:?} can't name both")))
            }
            Names::Two(..) | Names::One(_) => Ok(names),
        }
    }

    /// The name of an item; none for `_`.
    fn name(&mut self) -> ApiResult<Option<String>> {
        match self.0.next() {
            Some(Token::Bare(name)) if name == "_" => Ok(None),
            Some(Token::Bare(name)) if is_name(&name) => Ok(Some(name)),
            Some(other) => {
                Err(ApiError::bad(format!("filter: a name is expected after \"as\", not {other}")))
            }
            None => Err(ApiError::bad("filter: a name is expected after \"as\"")),
        }
    }

    fn value(&mut self, of: &Token) -> ApiResult<String> {
        let Some(Token::Bare(value) | Token::Quoted(value)) = self.0.next() else {
            return Err(ApiError::bad(format!("filter: a value is expected to compare {of} with")));
        };
        Ok(value)
    }

    /// Consumes the next token if it is this mark.
    fn takes_mark(&mut self, mark: char) -> bool {
        self.0.next_if(|next| *next == Token::Mark(mark)).is_some()
    }

    /// Consumes the next token if it is this bare word.
    fn takes(&mut self, word: &str) -> bool {
        self.0.next_if(|next| matches!(next, Token::Bare(bare) if bare == word)).is_some()
    }
}

/// Whether the word is an identifier of go-bexpr.
fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '_' | '/'))
}

fn is_operator(word: &str) -> bool {
    matches!(word, "==" | "!=" | "in" | "not" | "contains" | "matches" | "is")
}

fn expected_after(word: &Token) -> ApiError {
    ApiError::bad(format!("filter: ==, !=, in, contains, matches or is empty is expected after {word}"))
}

/// A token of an expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token {
    Bare(String),
    Quoted(String),
    /// A nested field with at least one name in brackets: `Meta["a.b"]`.
    Path(Vec<String>),
    /// A parenthesis, a brace or a comma.
    Mark(char),
}

/// Tokens of one character, outside of quotes.
const MARKS: &str = "(){},";
/// Whether a character ends a bare word.
fn ends_token(one: char) -> bool {
    one.is_whitespace() || "=!\"`".contains(one) || MARKS.contains(one)
}

impl std::fmt::Display for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bare(word) | Self::Quoted(word) => write!(out, "{word:?}"),
            Self::Path(steps) => write!(out, "{:?}", steps.join(".")),
            Self::Mark(mark) => write!(out, "\"{mark}\""),
        }
    }
}

/// Splits an expression into tokens: quoted text (`"` or a backtick), operators, marks, and bare
/// words.
fn tokenize(text: &str) -> ApiResult<Vec<Token>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            '"' | '`' => {
                let (inner, after) = rest[1..]
                    .split_once(first)
                    .ok_or_else(|| ApiError::bad("filter: a quote is not closed"))?;
                (Token::Quoted(inner.to_owned()), after)
            }
            '=' | '!' => {
                let length = if rest[1..].starts_with('=') { 2 } else { 1 };
                (Token::Bare(rest[..length].to_owned()), &rest[length..])
            }
            _ if MARKS.contains(first) => (Token::Mark(first), &rest[1..]),
            _ => {
                let end = rest.find(ends_token);
                let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
                if word.ends_with('[') && after.starts_with(['"', '`']) {
                    path(rest)?
                } else {
                    (Token::Bare(word.to_owned()), after)
                }
            }
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

/// Parses a nested field at the beginning of `text`. Returns the rest.
fn path(text: &str) -> ApiResult<(Token, &str)> {
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
            let is_end = |one: char| ends_token(one) || matches!(one, '[' | '.');
            let end = name.find(is_end).unwrap_or(name.len());
            if end == 0 {
                return Ok((Token::Path(steps), rest));
            }
            steps.push(name[..end].to_owned());
            rest = &name[end..];
        }
    }
}
