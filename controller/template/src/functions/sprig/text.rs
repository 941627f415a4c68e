//! Strings of sprig.

use super::{
    super::{ANY, arguments, row, strings},
    text_of, words,
};
use crate::{
    context::Context,
    error::{Fault, Outcome},
    format::quote,
    function::{Function, Group::Sprig},
    value::Value,
};

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_abbrev", (2, 2), abbrev),
    row(Sprig, "sprig_abbrevboth", (3, 3), abbrev_both),
    row(Sprig, "sprig_camelcase", (1, 1), |context, values| {
        strings::mapped(context, &values[0], words::camel)
    }),
    row(Sprig, "sprig_cat", (0, ANY), cat),
    row(Sprig, "sprig_contains", (2, 2), |context, values| {
        context.charge(arguments::text(&values[1])?.len())?;
        Ok(Value::Bool(arguments::string(&values[1])?.contains(&*arguments::string(&values[0])?)))
    }),
    row(Sprig, "sprig_hasPrefix", (2, 2), |context, values| compare(context, values, <[u8]>::starts_with)),
    row(Sprig, "sprig_hasSuffix", (2, 2), |context, values| compare(context, values, <[u8]>::ends_with)),
    row(Sprig, "sprig_hello", (0, 0), |_, _| Ok(Value::from("Hello!"))),
    row(Sprig, "sprig_indent", (2, 2), |context, values| indent(context, values, "")),
    row(Sprig, "sprig_initials", (1, 1), |context, values| {
        strings::mapped(context, &values[0], words::initials)
    }),
    row(Sprig, "sprig_kebabcase", (1, 1), |context, values| {
        strings::mapped(context, &values[0], |text| words::joined(text, '-'))
    }),
    row(Sprig, "sprig_lower", (1, 1), |context, values| strings::to_lower(context, &values[0])),
    row(Sprig, "sprig_nindent", (2, 2), |context, values| indent(context, values, "\n")),
    row(Sprig, "sprig_nospace", (1, 1), |context, values| {
        strings::mapped(context, &values[0], |text| {
            text.chars().filter(|char| !char.is_whitespace()).collect()
        })
    }),
    row(Sprig, "sprig_plural", (3, 3), |_, values| {
        Ok(values[usize::from(arguments::int(&values[2])? != 1)].clone())
    }),
    row(Sprig, "sprig_quote", (0, ANY), |context, values| {
        quoted(context, values, |text| quote(text).into_bytes())
    }),
    row(Sprig, "sprig_repeat", (2, 2), repeat),
    row(Sprig, "sprig_replace", (3, 3), |context, values| {
        strings::replace_all(context, &values[0], &values[1], &values[2])
    }),
    row(Sprig, "sprig_snakecase", (1, 1), |context, values| {
        strings::mapped(context, &values[0], |text| words::joined(text, '_'))
    }),
    row(Sprig, "sprig_squote", (0, ANY), |context, values| {
        quoted(context, values, |text| [b"'", text, b"'"].concat())
    }),
    row(Sprig, "sprig_substr", (3, 3), substr),
    row(Sprig, "sprig_swapcase", (1, 1), |context, values| {
        strings::mapped(context, &values[0], words::swap_case)
    }),
    row(Sprig, "sprig_title", (1, 1), |context, values| strings::mapped(context, &values[0], words::title)),
    row(Sprig, "sprig_toString", (1, 1), |context, values| text_of(context, &values[0]).map(Value::Str)),
    row(Sprig, "sprig_trim", (1, 1), |context, values| strings::trim_space(context, &values[0])),
    row(Sprig, "sprig_trimAll", (2, 2), |context, values| strings::trim(context, &values[0], &values[1])),
    row(Sprig, "sprig_trimPrefix", (2, 2), |context, values| {
        strings::trim_prefix(context, &values[0], &values[1])
    }),
    row(Sprig, "sprig_trimSuffix", (2, 2), |context, values| {
        strings::trim_suffix(context, &values[0], &values[1])
    }),
    row(Sprig, "sprig_trimall", (2, 2), |context, values| strings::trim(context, &values[0], &values[1])),
    row(Sprig, "sprig_trunc", (2, 2), trunc),
    row(Sprig, "sprig_untitle", (1, 1), |context, values| {
        strings::mapped(context, &values[0], words::untitle)
    }),
    row(Sprig, "sprig_upper", (1, 1), |context, values| strings::to_upper(context, &values[0])),
    row(Sprig, "sprig_wrap", (2, 2), |context, values| wrap(context, values, ("\n", LongWords::Stay))),
    row(Sprig, "sprig_wrapWith", (3, 3), |context, values| {
        let separator = arguments::string(&values[1])?.into_owned();
        wrap(context, &[values[0].clone(), values[2].clone()], (&separator, LongWords::Break))
    }),
];

fn compare(context: &mut Context<'_>, values: &[Value], is: fn(&[u8], &[u8]) -> bool) -> Outcome<Value> {
    let (part, text) = (arguments::text(&values[0])?, arguments::text(&values[1])?);
    context.charge(part.len() + text.len())?;
    Ok(Value::Bool(is(text, part)))
}

/// Joins the text of all values but nils with spaces.
fn joined_texts(
    context: &mut Context<'_>,
    values: &[Value],
    map: impl Fn(&[u8]) -> Vec<u8>,
) -> Outcome<Value> {
    let mut out = Vec::new();
    for value in values.iter().filter(|value| !matches!(value, Value::Nil)) {
        if !out.is_empty() {
            out.push(b' ');
        }
        let text = text_of(context, value)?;
        context.charge(text.len())?;
        let text = map(&text);
        context.charge(text.len())?;
        out.extend_from_slice(&text);
    }
    context.text(out)
}

fn cat(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    joined_texts(context, values, <[u8]>::to_vec)
}

fn quoted(context: &mut Context<'_>, values: &[Value], quote: fn(&[u8]) -> Vec<u8>) -> Outcome<Value> {
    joined_texts(context, values, quote)
}

fn abbrev(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let (width, text) = (arguments::int(&values[0])?, arguments::string(&values[1])?);
    match usize::try_from(width) {
        Ok(width) if width >= 4 && text.len() > width => {
            let kept: String = text.chars().take(width - 3).collect();
            context.text(format!("{kept}..."))
        }
        Ok(_) | Err(_) => Ok(values[1].clone()),
    }
}

/// Cuts a text on both sides of a part.
fn abbrev_both(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let (left, right) = (arguments::int(&values[0])?, arguments::int(&values[1])?);
    let text = arguments::string(&values[2])?;
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    if right < 4 || (left > 0 && right < 7) || length <= right {
        return Ok(values[2].clone());
    }
    let mut offset = left.clamp(0, length);
    if length - offset < right - 3 {
        offset = length - (right - 3);
    }
    let slice = |from: i64, to: i64| {
        let bytes = text.as_bytes();
        let at = |at: i64| usize::try_from(at).unwrap_or(0).min(bytes.len());
        String::from_utf8_lossy(&bytes[at(from)..at(to).max(at(from))]).into_owned()
    };
    let cut = if offset <= 4 {
        format!("{}...", slice(0, right - 3))
    } else if offset + right - 3 < length {
        let inner = slice(offset, length);
        let kept: String = inner.chars().take(usize::try_from(right - 6).unwrap_or(0)).collect();
        format!("...{kept}...")
    } else {
        format!("...{}", slice(length - (right - 3), length))
    };
    context.text(cut)
}

fn indent(context: &mut Context<'_>, values: &[Value], before: &str) -> Outcome<Value> {
    let spaces =
        usize::try_from(arguments::int(&values[0])?).map_err(|_| Fault::new("negative number of spaces"))?;
    let text = arguments::text(&values[1])?;
    let lines = text.split(|byte| *byte == b'\n').count();
    context.charge(text.len().saturating_add(lines.saturating_mul(spaces)))?;
    let mut out = before.as_bytes().to_vec();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if index > 0 {
            out.push(b'\n');
        }
        out.extend(std::iter::repeat_n(b' ', spaces));
        out.extend_from_slice(line);
    }
    context.text(out)
}

fn repeat(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let count = usize::try_from(arguments::int(&values[0])?).map_err(|_| Fault::new("negative count"))?;
    let text = arguments::text(&values[1])?;
    context.charge(text.len().saturating_mul(count))?;
    context.text(if text.is_empty() { Vec::new() } else { text.repeat(count) })
}

fn substr(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::text(&values[2])?;
    let index = |value: &Value| arguments::int(value).map(|index| usize::try_from(index).ok());
    let slice = match (index(&values[0])?, index(&values[1])?) {
        (None, Some(end)) => text.get(..end),
        (Some(start), Some(end)) if end <= text.len() => text.get(start..end),
        (Some(start), _) => text.get(start..),
        (None, None) => None,
    };
    context.text(slice.ok_or_else(|| Fault::new("slice bounds out of range"))?)
}

fn trunc(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let (count, text) = (arguments::int(&values[0])?, arguments::text(&values[1])?);
    let length = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if length >= text.len() {
        return Ok(values[1].clone());
    }
    context.text(if count < 0 { &text[text.len() - length..] } else { &text[..length] })
}

/// What happens to a word that is longer than a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LongWords {
    Stay,
    Break,
}

/// Breaks lines at spaces.
fn wrap(
    context: &mut Context<'_>,
    values: &[Value],
    (separator, long_words): (&str, LongWords),
) -> Outcome<Value> {
    let width = usize::try_from(arguments::int(&values[0])?).unwrap_or(1).max(1);
    let text = arguments::text(&values[1])?;
    let separator = if separator.is_empty() { "\n" } else { separator };
    let lines = text.len() / width + text.iter().filter(|byte| **byte == b' ').count();
    context.charge(text.len().saturating_add(lines.saturating_mul(separator.len())))?;
    let mut out = Vec::new();
    let mut rest: &[u8] = text;
    while rest.len() > width {
        if let Some(after) = rest.strip_prefix(b" ") {
            rest = after;
            continue;
        }
        let is_space = |byte: &u8| *byte == b' ';
        let space = rest[..=width].iter().rposition(is_space).or_else(|| match long_words {
            LongWords::Stay => rest.iter().position(is_space),
            LongWords::Break => None,
        });
        let (line, after) = match (space, long_words) {
            (Some(space), _) => (&rest[..space], &rest[space + 1..]),
            (None, LongWords::Break) => rest.split_at(width),
            (None, LongWords::Stay) => break,
        };
        out.extend_from_slice(line);
        out.extend_from_slice(separator.as_bytes());
        rest = after;
    }
    out.extend_from_slice(rest);
    context.text(out)
}
