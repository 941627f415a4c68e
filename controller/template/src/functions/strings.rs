//! Functions of consul-template on strings.

use super::{arguments, expression::translate, row};
use crate::{
    context::{Context, Expression, VALUE_BYTES},
    error::{Fault, Outcome},
    function::{Function, Group::Text},
    value::{Element, Key, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Text, "indent", (2, 2), indent),
    row(Text, "join", (2, 2), join),
    row(Text, "regexMatch", (2, 2), |context, values| regex_match(context, &values[0], &values[1])),
    row(Text, "regexReplaceAll", (3, 3), |context, values| {
        let replacement = arguments::string(&values[1])?.into_owned();
        regex_replace(context, &values[0], &values[2], &replacement)
    }),
    row(Text, "replaceAll", (3, 3), |context, values| {
        replace_all(context, &values[0], &values[1], &values[2])
    }),
    row(Text, "split", (2, 2), |context, values| split(context, &values[0], &values[1])),
    row(Text, "splitToMap", (3, 3), split_to_map),
    row(Text, "toLower", (1, 1), |context, values| to_lower(context, &values[0])),
    row(Text, "toTitle", (1, 1), |context, values| mapped(context, &values[0], title)),
    row(Text, "toUpper", (1, 1), |context, values| to_upper(context, &values[0])),
    row(Text, "trim", (2, 2), |context, values| trim(context, &values[0], &values[1])),
    row(Text, "trimPrefix", (2, 2), |context, values| trim_prefix(context, &values[0], &values[1])),
    row(Text, "trimSpace", (1, 1), |context, values| trim_space(context, &values[0])),
    row(Text, "trimSuffix", (2, 2), |context, values| trim_suffix(context, &values[0], &values[1])),
];

/// Applies a function to the characters of a string.
pub(super) fn mapped(
    context: &mut Context<'_>,
    value: &Value,
    map: impl Fn(&str) -> String,
) -> Outcome<Value> {
    let text = arguments::string(value)?;
    context.charge(text.len() * 3)?;
    context.text(map(&text))
}

pub(super) fn trim(context: &mut Context<'_>, cutset: &Value, value: &Value) -> Outcome<Value> {
    let cutset = arguments::string(cutset)?.into_owned();
    context.charge(cutset.len() * arguments::text(value)?.len())?;
    mapped(context, value, |text| text.trim_matches(|char| cutset.contains(char)).to_owned())
}

pub(super) fn trim_prefix(context: &mut Context<'_>, prefix: &Value, value: &Value) -> Outcome<Value> {
    let (prefix, text) = (arguments::text(prefix)?, arguments::text(value)?);
    context.text(text.strip_prefix(&**prefix).unwrap_or(text))
}

pub(super) fn trim_suffix(context: &mut Context<'_>, suffix: &Value, value: &Value) -> Outcome<Value> {
    let (suffix, text) = (arguments::text(suffix)?, arguments::text(value)?);
    context.text(text.strip_suffix(&**suffix).unwrap_or(text))
}

pub(super) fn trim_space(context: &mut Context<'_>, value: &Value) -> Outcome<Value> {
    mapped(context, value, |text| text.trim().to_owned())
}

/// Letters whose other case is more than one letter stay, as in Go.
pub(super) fn to_upper(context: &mut Context<'_>, value: &Value) -> Outcome<Value> {
    in_case(context, value, (<[u8]>::make_ascii_uppercase, |char| single(char.to_uppercase(), char)))
}

pub(super) fn to_lower(context: &mut Context<'_>, value: &Value) -> Outcome<Value> {
    let lower = |char: char| char.to_lowercase().next().unwrap_or(char);
    in_case(context, value, (<[u8]>::make_ascii_lowercase, lower))
}

/// How a text of ASCII changes, and how a character of any other text does.
type Case = (fn(&mut [u8]), fn(char) -> char);

fn in_case(context: &mut Context<'_>, value: &Value, (ascii, other): Case) -> Outcome<Value> {
    let text = arguments::text(value)?;
    if !text.is_ascii() {
        return mapped(context, value, |text| text.chars().map(other).collect());
    }
    context.charge(text.len() * 3)?;
    context.written(|out| {
        out.push(text)?;
        ascii(&mut out.bytes);
        Ok(())
    })
}

fn single(mut mapped: impl Iterator<Item = char>, original: char) -> char {
    match (mapped.next(), mapped.next()) {
        (Some(char), None) => char,
        (_, _) => original,
    }
}

/// Makes the first letter of each word upper case, and leaves the others.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_inside = false;
    for char in text.chars() {
        let is_part =
            char.is_alphabetic() || (is_inside && (char.is_numeric() || matches!(char, '\'' | '_' | '’')));
        if is_part && !is_inside {
            out.extend(char.to_uppercase());
        } else {
            out.push(char);
        }
        is_inside = is_part;
    }
    out
}

fn indent(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let spaces = arguments::int(&values[0])?;
    let spaces =
        usize::try_from(spaces).map_err(|_| Fault::new("indent value must be a positive integer"))?;
    let text = arguments::text(&values[1])?;
    let lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| **line != *b"\n");
    context.charge(text.len().saturating_add(lines.count().saturating_mul(spaces)))?;
    let mut out = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if line != b"\n" {
            out.extend(std::iter::repeat_n(b' ', spaces));
        }
        out.extend_from_slice(line);
    }
    context.text(out)
}

fn join(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let separator = arguments::text(&values[0])?;
    let mut out = Vec::new();
    for (index, item) in arguments::items(&values[1])?.iter().enumerate() {
        let item = arguments::text(item)?;
        context.charge(separator.len() + item.len())?;
        if index > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(item);
    }
    context.text(out)
}

/// Splits at each separator. An empty separator splits into characters.
pub(super) fn pieces(text: &str, separator: &str) -> Vec<String> {
    if separator.is_empty() {
        return text.chars().map(String::from).collect();
    }
    text.split(separator).map(str::to_owned).collect()
}

fn split(context: &mut Context<'_>, separator: &Value, value: &Value) -> Outcome<Value> {
    let (separator, text) = (arguments::string(separator)?, arguments::string(value)?);
    let text = text.trim();
    if text.is_empty() {
        return context.list(Vec::new(), Element::Str);
    }
    context.charge(text.len() * 24)?;
    match separator.as_bytes() {
        [] => context.strings(pieces(text, &separator)),
        // A search for one byte needs no preparation.
        [single] => context.strings(text.as_bytes().split(|byte| byte == single)),
        _ => context.strings(text.split(&*separator)),
    }
}

fn split_to_map(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let (outer, inner) = (arguments::string(&values[0])?, arguments::string(&values[1])?);
    let text = arguments::string(&values[2])?;
    context.charge(text.len() * 24)?;
    let mut entries = std::collections::BTreeMap::new();
    let text = text.trim();
    let parts = if text.is_empty() { Vec::new() } else { pieces(text, &outer) };
    for part in parts {
        if let Some((key, value)) = part.split_once(&*inner) {
            entries.insert(Key::Str(key.into()), Value::from(value));
        }
    }
    context.map(entries, Element::Str)
}

/// Replaces each occurrence. An empty pattern is between all characters.
pub(super) fn replace_all(
    context: &mut Context<'_>,
    from: &Value,
    to: &Value,
    value: &Value,
) -> Outcome<Value> {
    let (from, to, text) = (arguments::string(from)?, arguments::string(to)?, arguments::string(value)?);
    let times = if from.is_empty() { text.chars().count() + 1 } else { text.matches(&*from).count() };
    context.charge(text.len().saturating_add(times.saturating_mul(to.len())))?;
    context.text(text.replace(&*from, &to))
}

/// Sizes of compiled expressions that are tried, as divisors of [`crate::Limits::regex_bytes`].
const SIZES: [usize; 3] = [256, 16, 1];

/// Each byte of a text costs this part of the size. In the worst case, a search looks at all states for each byte.
const COST_DIVISOR: usize = 256;

/// The longest expression, as a divisor of [`crate::Limits::regex_bytes`]: parsing takes a few hundred bytes for each
/// character.
const LENGTH_DIVISOR: usize = 64;

/// Compiles a regular expression. Searching takes time proportional to text and compiled size.
pub(super) fn compile(context: &mut Context<'_>, expression: &Value) -> Outcome<Expression> {
    let limit = context.limits().regex_bytes;
    let length = limit / LENGTH_DIVISOR;
    if arguments::text(expression)?.len() > length {
        return Err(Fault::limit(format!("the regular expression has more than {length} bytes")));
    }
    let text = arguments::string(expression)?;
    if let Some(known) = context.regex(&text) {
        return Ok(known);
    }
    // As much as it can take, so that many expressions end at the bound too.
    context.charge(limit)?;
    let translated = translate(&text);
    for divisor in SIZES {
        let size = limit / divisor;
        let built = regex::RegexBuilder::new(&translated).size_limit(size).dfa_size_limit(limit).build();
        match built {
            Ok(regex) => {
                let expression = Expression { regex, cost: (size / COST_DIVISOR).max(1) };
                context.keep_regex(&text, &expression);
                return Ok(expression);
            }
            Err(regex::Error::CompiledTooBig(_)) => {}
            // Without the text, which may be a secret.
            Err(_) => return Err(Fault::new(String::from("invalid regular expression"))),
        }
    }
    Err(Fault::limit(format!("the regular expression needs more than {limit} bytes")))
}

/// Counts a search.
pub(super) fn charge_search(context: &mut Context<'_>, expression: &Expression, text: &str) -> Outcome<()> {
    context.charge(text.len().saturating_mul(expression.cost))
}

/// Counts a match after which `rest` bytes are left. Finding the next one may read all of them without using them.
pub(super) fn charge_match(context: &mut Context<'_>, expression: &Expression, rest: usize) -> Outcome<()> {
    context.charge(VALUE_BYTES + rest.saturating_mul(expression.cost) / 16)
}

pub(super) fn regex_match(context: &mut Context<'_>, expression: &Value, value: &Value) -> Outcome<Value> {
    let expression = compile(context, expression)?;
    let text = arguments::string(value)?;
    charge_search(context, &expression, &text)?;
    Ok(Value::Bool(expression.regex.is_match(&text)))
}

pub(super) fn regex_replace(
    context: &mut Context<'_>,
    expression: &Value,
    value: &Value,
    replacement: &str,
) -> Outcome<Value> {
    let expression = compile(context, expression)?;
    let text = arguments::string(value)?;
    charge_search(context, &expression, &text)?;
    let groups = replacement.matches('$').count();
    let mut out = String::new();
    let mut at = 0;
    for captures in expression.regex.captures_iter(&text) {
        let Some(found) = captures.get(0) else { continue };
        charge_match(context, &expression, text.len() - found.start())?;
        // A group has at most the length of the match.
        context.charge(replacement.len().saturating_add(groups.saturating_mul(found.len())))?;
        out.push_str(&text[at..found.start()]);
        captures.expand(replacement, &mut out);
        at = found.end();
    }
    out.push_str(&text[at..]);
    context.text(out)
}
