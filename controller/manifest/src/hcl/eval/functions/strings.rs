//! Functions for strings.

use herdlet_plan::job::feasibility::compare::regexp;

use super::{Answer, Arguments, Function, Refusal};
use crate::hcl::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    Function { name: "basename", arguments: (1, 1), call: |all| text(basename(&all.text(0)?)) },
    Function {
        name: "chomp",
        arguments: (1, 1),
        call: |all| text(all.text(0)?.trim_end_matches(['\n', '\r'])),
    },
    Function { name: "dirname", arguments: (1, 1), call: |all| text(dirname(&all.text(0)?)) },
    Function { name: "format", arguments: (1, usize::MAX), call: format },
    Function { name: "formatlist", arguments: (1, usize::MAX), call: formatlist },
    Function { name: "indent", arguments: (2, 2), call: indent },
    Function { name: "join", arguments: (2, usize::MAX), call: join },
    Function { name: "lower", arguments: (1, 1), call: |all| text(&all.text(0)?.to_lowercase()) },
    Function { name: "regex_replace", arguments: (3, 3), call: regex_replace },
    Function { name: "replace", arguments: (3, 3), call: replace },
    Function { name: "split", arguments: (2, 2), call: split },
    Function {
        name: "strlen",
        arguments: (1, 1),
        call: |all| Ok(Value::Int(all.text(0)?.chars().count() as i128)),
    },
    Function {
        name: "strrev",
        arguments: (1, 1),
        call: |all| text(&all.text(0)?.chars().rev().collect::<String>()),
    },
    Function { name: "substr", arguments: (3, 3), call: substr },
    Function { name: "title", arguments: (1, 1), call: title },
    Function { name: "trim", arguments: (2, 2), call: trim },
    Function { name: "trimprefix", arguments: (2, 2), call: trimprefix },
    Function { name: "trimspace", arguments: (1, 1), call: |all| text(all.text(0)?.trim()) },
    Function { name: "trimsuffix", arguments: (2, 2), call: trimsuffix },
    Function { name: "upper", arguments: (1, 1), call: |all| text(&all.text(0)?.to_uppercase()) },
];

fn text(text: &str) -> Answer {
    Ok(Value::Str(text.to_owned()))
}

fn join(all: &Arguments<'_>) -> Answer {
    let separator = all.text(0)?;
    let mut parts = Vec::new();
    for number in 1..all.len() {
        parts.extend(all.texts(number)?);
    }
    all.spend(parts.len() * (1 + separator.len() / 64))?;
    text(&parts.join(&separator))
}

fn split(all: &Arguments<'_>) -> Answer {
    let (separator, whole) = (all.text(0)?, all.text(1)?);
    let parts: Vec<Value> = match separator.as_str() {
        "" => whole.chars().map(|char| Value::Str(char.to_string())).collect(),
        separator => whole.split(separator).map(|part| Value::Str(part.to_owned())).collect(),
    };
    Ok(Value::List(parts))
}

fn replace(all: &Arguments<'_>) -> Answer {
    let (whole, old, new) = (all.text(0)?, all.text(1)?, all.text(2)?);
    all.spend(whole.matches(old.as_str()).count() * (1 + new.len() / 64))?;
    text(&whole.replace(&old, &new))
}

/// `$1` and `${name}` in the replacement refer to groups of the pattern.
fn regex_replace(all: &Arguments<'_>) -> Answer {
    let (whole, pattern, new) = (all.text(0)?, all.text(1)?, all.text(2)?);
    let pattern = regexp(&pattern)?;
    let matched = pattern.find_iter(&whole).count() * (1 + new.len() / 64);
    // Matches don't overlap, so all matches of one group together are at most as long as the whole text.
    all.spend(matched + new.matches('$').count() * (1 + whole.len() / 64))?;
    text(&pattern.replace_all(&whole, new))
}

/// Handles the path as text; it is not resolved.
fn basename(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit('/').next() {
        None | Some("") if path.is_empty() => ".",
        None | Some("") => "/",
        Some(name) => name,
    }
}

fn dirname(path: &str) -> &str {
    match path.rsplit_once('/') {
        None => ".",
        Some((folder, _)) if folder.trim_end_matches('/').is_empty() => "/",
        Some((folder, _)) => folder.trim_end_matches('/'),
    }
}

/// Formats once for each item of the lists among the arguments, whose lengths must be equal. Other arguments
/// are the same each time.
fn formatlist(all: &Arguments<'_>) -> Answer {
    let mut lengths = all.all().iter().filter_map(items).map(<[Value]>::len);
    let length = lengths.next().unwrap_or(1);
    if lengths.any(|other| other != length) {
        return Err("the lists have different lengths".into());
    }
    let formatted = |at: usize| {
        let one = |value: &Value| match items(value) {
            Some(items) => items.get(at).cloned().unwrap_or(Value::Null),
            None => value.clone(),
        };
        let values: Vec<Value> = all.all().iter().map(one).collect();
        all.spend(values.len())?;
        format(&Arguments { values, spend: all.spend })
    };
    (0..length).map(formatted).collect::<Result<_, _>>().map(Value::List)
}

/// Returns the items of a list; `None` for other values.
fn items(value: &Value) -> Option<&[Value]> {
    if let Value::List(items) = value { Some(items) } else { None }
}

fn substr(all: &Arguments<'_>) -> Answer {
    let (whole, offset, length) = (all.text(0)?, all.int(1)?, all.int(2)?);
    let chars: Vec<char> = whole.chars().collect();
    let count = chars.len() as i128;
    let begin = if offset < 0 { (count + offset).max(0) } else { offset.min(count) };
    let end = if length < 0 { count } else { begin.saturating_add(length).min(count) };
    let within = |at: i128| usize::try_from(at).unwrap_or_default();
    Ok(Value::Str(chars[within(begin)..within(end.max(begin))].iter().collect()))
}

fn indent(all: &Arguments<'_>) -> Answer {
    let (spaces, whole) = (all.int(0)?, all.text(1)?);
    let Some(spaces) = usize::try_from(spaces).ok().filter(|spaces| *spaces <= 1_000) else {
        return Err("takes 0 to 1000 spaces".into());
    };
    all.spend(whole.matches('\n').count() * (1 + spaces / 64))?;
    text(&whole.replace('\n', &format!("\n{}", " ".repeat(spaces))))
}

fn title(all: &Arguments<'_>) -> Answer {
    let mut begins = true;
    let mut titled = String::new();
    for char in all.text(0)?.chars() {
        match begins {
            true => titled.extend(char.to_uppercase()),
            false => titled.push(char),
        }
        begins = !char.is_alphanumeric();
    }
    Ok(Value::Str(titled))
}

fn trim(all: &Arguments<'_>) -> Answer {
    let cut: Vec<char> = all.text(1)?.chars().collect();
    text(all.text(0)?.trim_matches(&cut[..]))
}

fn trimprefix(all: &Arguments<'_>) -> Answer {
    let (whole, prefix) = (all.text(0)?, all.text(1)?);
    text(whole.strip_prefix(&prefix).unwrap_or(&whole))
}

fn trimsuffix(all: &Arguments<'_>) -> Answer {
    let (whole, suffix) = (all.text(0)?, all.text(1)?);
    text(whole.strip_suffix(&suffix).unwrap_or(&whole))
}

/// Supports `%s`, `%d`, `%f`, `%q`, `%t`, `%v` and `%x` with width, `0`, `-` and precision, and `%%`.
fn format(all: &Arguments<'_>) -> Answer {
    let pattern = all.text(0)?;
    let (mut done, mut next) = (String::new(), 1);
    let mut rest = pattern.as_str();
    while let Some(at) = rest.find('%') {
        done.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest
            .find(|char: char| char.is_alphabetic() || char == '%')
            .ok_or("the text ends within a verb")?;
        let (flags, verb) = (&rest[..end], rest[end..].chars().next().unwrap_or('%'));
        rest = &rest[end + verb.len_utf8()..];
        if verb == '%' {
            done.push('%');
            continue;
        }
        if next >= all.len() {
            return Err(format!("%{flags}{verb} has no argument").into());
        }
        done.push_str(&formatted(all, next, flags, verb)?);
        next += 1;
    }
    if next < all.len() {
        return Err(format!("takes {} values, found {}", next - 1, all.len() - 1).into());
    }
    done.push_str(rest);
    Ok(Value::Str(done))
}

fn formatted(all: &Arguments<'_>, number: usize, flags: &str, verb: char) -> Result<String, Refusal> {
    let left = flags.starts_with('-');
    let flags = flags.trim_start_matches('-');
    let zero = flags.starts_with('0');
    let (width, precision) = flags.split_once('.').unwrap_or((flags, ""));
    let count = |text: &str| match text.parse::<usize>() {
        _ if text.is_empty() => Ok(None),
        Ok(count) if count <= 1_000 => Ok(Some(count)),
        Ok(_) | Err(_) => Err(format!("`%{flags}{verb}` is not understood")),
    };
    let (width, precision) = (count(width)?.unwrap_or(0), count(precision)?);
    all.spend(1 + width / 64)?;
    let body = match verb {
        's' | 'v' => all.text(number)?,
        'q' => format!("{:?}", all.text(number)?),
        'd' => all.int(number)?.to_string(),
        'x' => {
            let value = all.int(number)?;
            format!("{}{:x}", if value < 0 { "-" } else { "" }, value.unsigned_abs())
        }
        't' => all.value(number).as_bool().ok_or("%t takes a boolean")?.to_string(),
        'f' => format!("{:.*}", precision.unwrap_or(6), all.float(number)?),
        _ => return Err(format!("`%{verb}` is not understood").into()),
    };
    let missing = width.saturating_sub(body.chars().count());
    Ok(match (left, zero) {
        (true, _) => body + &" ".repeat(missing),
        (false, true) => match body.strip_prefix('-') {
            Some(digits) => format!("-{}{digits}", "0".repeat(missing)),
            None => "0".repeat(missing) + &body,
        },
        (false, false) => " ".repeat(missing) + &body,
    })
}
