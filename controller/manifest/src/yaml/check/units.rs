//! Scalars with a unit or a format: text as written, durations, MiB, MHz, names.
//!
//! In: a scalar whose schema has one of our keywords. Out: whether it fits, and if not, what to write. Most
//! of this code parses the notations of other systems to suggest ours.

use herdlet_api_types::{format_duration, names::NameKind, parse_duration};

use super::facets::Facets;
use super::{describe_node, shorten};
use crate::yaml::nearest;
use crate::yaml::node::{Node, Style, Value};

/// Checks a node against the unit keywords. `None` if there are none, or if the general rules apply.
pub(super) fn judge(facets: &Facets<'_>, node: &Node) -> Option<Result<(), String>> {
    let is_collection = facets.types().iter().any(|name| matches!(*name, "object" | "array"));
    if facets.is("x-text") && !is_collection {
        let named =
            || facets.text("x-name").and_then(|kind| judge_name(kind, &node.text)).map_or(Ok(()), Err);
        return Some(judge_text(node).and_then(|()| named()));
    }
    if facets.is("x-duration") {
        return Some(judge_duration(node));
    }
    let is_integer = matches!(node.value, Value::Int(_));
    if facets.is("x-mib") && !is_integer {
        return Some(Err(explain_mib(node)));
    }
    if facets.is("x-mhz") && !is_integer {
        return Some(Err(explain_mhz(node)));
    }
    None
}

/// Checks whether a node can be text as written.
pub(super) fn judge_text(node: &Node) -> Result<(), String> {
    match node.value {
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str if node.text.contains('\0') => {
            Err("contains a NUL character, which is not allowed in environments and arguments".to_owned())
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str | Value::Refused => Ok(()),
        Value::Null => Err("is empty; write \"\" for an empty string, or remove it".to_owned()),
        Value::Seq(_) | Value::Map(_) => Err(format!("expected a string, found {}", describe_node(node))),
    }
}

/// Returns the problem with a name of a kind, if any.
pub(super) fn judge_name(kind: &str, text: &str) -> Option<String> {
    match kind {
        "job-id" => judge_ours(NameKind::Job, text),
        "namespace" => judge_ours(NameKind::Namespace, text),
        "part" => judge_ours(NameKind::Part, text),
        "variable" => {
            let bad = text.is_empty() || text.contains(['=', '\0']);
            bad.then(|| "must not be empty or contain `=`".to_owned())
        }
        "restart" => {
            let count = text.strip_prefix("on-failure:").map(str::parse::<u32>);
            let fits = matches!(text, "no" | "always" | "unless-stopped" | "on-failure")
                || count.is_some_and(|count| count.is_ok_and(|count| count > 0));
            let rule = "must be `always`, `unless-stopped`, `on-failure`, `on-failure:COUNT` or `no`, or fields such as {attempts: 3}";
            (!fits).then(|| rule.to_owned())
        }
        "network-mode" => {
            let is_byte_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            let fits = text.strip_prefix("cni/").is_some_and(|name| {
                name.len() <= CNI_NAME_LEN_MAX
                    && name.starts_with(|first: char| first.is_ascii_alphanumeric())
                    && name.bytes().all(is_byte_of_name)
            });
            let near = nearest(text, ["host", "bridge", "none"].into_iter());
            let near = near.map(|mode| format!("; did you mean `{mode}`?")).unwrap_or_default();
            (!fits).then(|| {
                format!("expected `host`, `bridge`, `none` or `cni/NAME`, found \"{}\"{near}", shorten(text))
            })
        }
        _ => None,
    }
}

/// Maximum length of the name of a CNI network.
const CNI_NAME_LEN_MAX: usize = 200;

/// Suggests a valid name with `-` in place of what the rule forbids.
fn judge_ours(kind: NameKind, text: &str) -> Option<String> {
    let problem = kind.problem(text)?;
    let mut name = String::new();
    for char in text.trim_matches(['/', ' ']).chars().take(NAME_CHARS_MAX) {
        let mut bytes = [0; 4];
        if kind.accepts(char.encode_utf8(&mut bytes)) || matches!((kind, char), (NameKind::Job, '.' | '/')) {
            name.push(char);
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_matches('-');
    Some(match kind.accepts(name) {
        true => format!("{problem}; `{name}` would be valid"),
        false => problem.to_owned(),
    })
}

/// A suggestion for a longer name would hide the message.
const NAME_CHARS_MAX: usize = 63;

fn judge_duration(node: &Node) -> Result<(), String> {
    let expected = |remedy: Option<String>| {
        let sentence = format!("expected a duration such as 30s, 5m or 1h30m, found {}", describe_node(node));
        match remedy {
            Some(remedy) => format!("{sentence}; {remedy}"),
            None => sentence,
        }
    };
    let Some(text) = node.scalar_text() else { return Err(expected(None)) };
    match parse_duration(text) {
        Ok(0..) => Ok(()),
        Ok(_) => Err(format!("must not be negative, found {}", shorten(text))),
        Err(_) if take_number(text).is_some_and(|(_, rest)| rest.is_empty()) => {
            Err(expected(Some(format!("write {text}s"))))
        }
        Err(error) => match foreign_duration(text) {
            Some(nanos) => Err(expected(Some(format!("write {}", brief(nanos))))),
            None if text.len() <= 30 && matches!(node.value, Value::Str) => Err(format!("{error}")),
            None => Err(expected(None)),
        },
    }
}

/// Parses the notations of other systems: days and weeks, words, spaces.
fn foreign_duration(text: &str) -> Option<i64> {
    const SECOND: f64 = 1e9;
    let mut total = 0.0;
    let mut rest = text.trim();
    if rest.is_empty() || rest.len() > 30 {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = take_number(rest)?;
        let after = after.trim_start();
        let unit_end = after.find(|char: char| !char.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let factor = match unit.to_lowercase().as_str() {
            "ms" | "millis" | "msec" | "millisecond" | "milliseconds" => SECOND / 1e3,
            "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0 * SECOND,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3_600.0 * SECOND,
            "d" | "day" | "days" => 24.0 * 3_600.0 * SECOND,
            "w" | "week" | "weeks" => 7.0 * 24.0 * 3_600.0 * SECOND,
            _ => return None,
        };
        total += number * factor;
        rest = after.trim_start();
    }
    (total < i64::MAX as f64).then_some(total as i64)
}

/// Formats a duration without the zero minutes and seconds at the end of Go's format.
fn brief(nanos: i64) -> String {
    let text = format_duration(nanos);
    let text = text.strip_suffix("m0s").map_or(text.clone(), |minutes| format!("{minutes}m"));
    text.strip_suffix("h0m").map_or(text.clone(), |hours| format!("{hours}h"))
}

fn explain_mib(node: &Node) -> String {
    let sentence = format!("expected MiB as an integer, found {}", describe_node(node));
    match node.scalar_text().and_then(foreign_mib) {
        Some(mib) if node.style == Style::Quoted && *node.text == *mib.to_string() => {
            format!("{sentence}; remove the quotes")
        }
        Some(mib) => format!("{sentence}; write {mib}"),
        None => sentence,
    }
}

/// Parses sizes in the notations of other systems. MB and MiB are the same here: the author of `512M` means
/// 512 of the limit's unit.
fn foreign_mib(text: &str) -> Option<u64> {
    let (number, unit) = take_number(text.trim())?;
    let unit = unit.trim().to_lowercase();
    let mib = match unit.trim_end_matches("bytes").trim_end_matches('b').trim_end_matches('i') {
        "" if unit.is_empty() => number,
        "" => number / f64::from(1 << 20),
        "k" => number / 1024.0,
        "m" | "mega" => number,
        "g" | "giga" => number * 1024.0,
        "t" | "tera" => number * f64::from(1 << 20),
        _ => return None,
    };
    (mib >= 1.0 && mib.fract() == 0.0 && mib < 1e12).then_some(mib as u64)
}

/// An example core; the reader's own is unknown.
const EXAMPLE_MHZ: f64 = 2_400.0;

fn explain_mhz(node: &Node) -> String {
    let sentence = format!("expected MHz as an integer, found {}", describe_node(node));
    let Some(text) = node.scalar_text() else { return sentence };
    let Some((number, unit)) = take_number(text.trim()) else { return sentence };
    let whole = |mhz: f64| format!("{sentence}; write {}", mhz.round());
    let cores = match unit.trim().to_lowercase().as_str() {
        "" if node.style == Style::Quoted && number.fract() == 0.0 => {
            return format!("{sentence}; remove the quotes");
        }
        "mhz" => return whole(number),
        "ghz" => return whole(number * 1_000.0),
        "m" => number / 1_000.0,
        "" | "c" | "core" | "cores" | "cpu" | "cpus" => number,
        _ => return sentence,
    };
    let share = (cores * EXAMPLE_MHZ).round();
    format!("{sentence}; cpu is in MHz, not in cores: {cores} of a core of {EXAMPLE_MHZ} MHz is {share}",)
}

/// Splits an unsigned decimal number from the start of a text.
fn take_number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}
