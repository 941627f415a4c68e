//! Phrases for messages: descriptions of values, lists of names, similar names.
//!
//! In: nodes and names. Out: phrases for messages, safe to print on a terminal whatever they quote.

use super::node::{Node, Value};

/// Maximum length of a quotation in a message.
const QUOTED_CHARS_MAX: usize = 40;

/// Truncates a text for a message and escapes control characters.
pub(crate) fn shorten(text: &str) -> String {
    let escaped = |text: &str| text.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'");
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", escaped(&text[..end])),
        None => escaped(text),
    }
}

/// Describes a node as a phrase with its article: `the string "8080"`, `a list`.
pub fn describe_node(node: &Node) -> String {
    match node.value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Int(_) => format!("the integer {}", shorten(&node.text)),
        Value::Float(_) => format!("the number {}", shorten(&node.text)),
        Value::Str => format!("the string \"{}\"", shorten(&node.text)),
        Value::Seq(_) => "a list".to_owned(),
        Value::Map(_) => "a map".to_owned(),
        Value::Refused => "something unreadable".to_owned(),
    }
}

/// Maximum number of phrases in a list.
const PHRASES_MAX: usize = 12;

/// Joins phrases: `a`, `a or b`, `a, b or c`; of more than the maximum only the first ones.
pub(crate) fn one_of(phrases: &[String]) -> String {
    match phrases {
        [] => String::new(),
        [only] => only.clone(),
        many if many.len() > PHRASES_MAX => {
            format!("one of {} values such as {}", many.len(), many[..3].join(", "))
        }
        [init @ .., last] => format!("{} or {last}", init.join(", ")),
    }
}

/// Returns the likely intended name for an unknown one: one that differs only in case, `-` and `_`; otherwise
/// the one with the smallest edit distance, if it is small for the length; otherwise the only one that ends
/// with the name.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let folded = fold(name);
    if let Some(same) = names.clone().find(|other| fold(other) == folded) {
        return Some(same);
    }
    let slips_max = match name.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        6..=7 => 2,
        8..=NAME_CHARS_MAX => 3,
        _ => return None,
    };
    let near = names
        .clone()
        .map(|other| (slips(name, other), other))
        .filter(|(slips, _)| *slips <= slips_max)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, other)| other);
    let mut longer = names.filter(|other| folded.len() > 2 && fold(other).ends_with(&folded));
    near.or_else(|| longer.next().filter(|_| longer.next().is_none()))
}

/// Maximum length of a name that is compared by edit distance.
const NAME_CHARS_MAX: usize = 64;

/// Removes case and separators: `maxParallel`, `max-parallel` and `max_parallel` are equal.
fn fold(name: &str) -> String {
    name.chars().filter(|char| !matches!(char, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}

/// The optimal string alignment distance.
fn slips(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, from) in left.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, to) in right.iter().enumerate() {
            let change = last[column] + usize::from(from != to);
            let mut cost = change.min(last[column + 1] + 1).min(next[column] + 1);
            if row > 0 && column > 0 && *from == right[column - 1] && left[row - 1] == *to {
                cost = cost.min(before[column - 1] + 1);
            }
            next.push(cost);
        }
        before = std::mem::replace(&mut last, next);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bogus` was taken for `logs`.
    #[test]
    fn a_short_name_may_have_one_slip() {
        let nearest = |name| nearest(name, ["logs", "name", "count", "user"].into_iter());
        assert_eq!(nearest("bogus"), None);
        assert_eq!(nearest("log"), Some("logs"));
        assert_eq!(nearest("nmae"), Some("name"));
        assert_eq!(nearest("coutn"), Some("count"));
    }
}
