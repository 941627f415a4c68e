//! THE TABLE of functions: Go's, those of consul-template and sprig.
//!
//! Each group is a module with a table that is sorted by name. To add a function, add a row.

mod addresses;
mod arguments;
mod collections;
pub(crate) mod data;
mod encoding;
mod expression;
mod go;
mod local;
mod math;
mod services;
mod sprig;
mod strings;
pub(crate) mod time;
mod toml;
mod yaml;

use std::{collections::BTreeMap, sync::LazyLock};

use crate::function::{Body, Call, Function, Group};

/// All tables.
static TABLES: [&[Function]; 8] = [
    go::TABLE,
    data::TABLE,
    services::TABLE,
    local::TABLE,
    encoding::TABLE,
    strings::TABLE,
    collections::TABLE,
    math::TABLE,
];

/// Returns all functions.
pub fn all() -> impl Iterator<Item = &'static Function> {
    TABLES.iter().flat_map(|table| table.iter()).chain(sprig::tables().iter().flat_map(|table| table.iter()))
}

/// All functions by name.
static BY_NAME: LazyLock<BTreeMap<&'static str, &'static Function>> =
    LazyLock::new(|| all().map(|function| (function.name, function)).collect());

/// Returns the function with a name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    BY_NAME.get(name).copied()
}

/// Returns the function whose name is most like an unknown one.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let with_prefix = format!("{}{name}", sprig::PREFIX);
    let rank = |known: &&Function| {
        let own = known.name.to_lowercase();
        if own == lower {
            0
        } else if known.name == with_prefix {
            1
        } else if lower.len() > 3 {
            1 + distance(&own, &lower)
        } else {
            usize::MAX
        }
    };
    all().min_by_key(rank).filter(|function| rank(function) <= 3).map(|function| function.name)
}

/// Edits between two names, at most 3.
fn distance(one: &str, other: &str) -> usize {
    if one.len().abs_diff(other.len()) > 2 || other.len() > 64 {
        return 3;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, byte) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, other) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(byte != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// Whether a name matches a pattern of the denylist, in which `*` is any text.
pub(crate) fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// A row for a function that takes any number of arguments.
const ANY: usize = usize::MAX;

const fn row(group: Group, name: &'static str, (least, most): (usize, usize), call: Call) -> Function {
    Function { name, group, least, most, body: Body::Call(call) }
}

/// A row for a function that herdlet does not offer.
const fn refused(group: Group, name: &'static str, why: &'static str) -> Function {
    Function { name, group, least: 0, most: ANY, body: Body::Refused(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_names_are_unique() {
        for table in TABLES.iter().copied().chain(sprig::tables().iter().copied()) {
            for pair in table.windows(2) {
                assert!(pair[0].name < pair[1].name, "{} is listed before {}", pair[0].name, pair[1].name);
            }
        }
        for function in all() {
            let found = find(function.name).unwrap();
            assert!(std::ptr::eq(found, function), "{} is listed twice", function.name);
        }
    }

    #[test]
    fn patterns_match_as_globs() {
        for (pattern, name, is_match) in [
            ("plugin", "plugin", true),
            ("plug", "plugin", false),
            ("sprig_*", "sprig_add", true),
            ("*File", "writeToFile", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXcYb", false),
            ("*", "any", true),
        ] {
            assert_eq!(matches_pattern(pattern, name), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn unknown_names_have_a_near_one() {
        assert_eq!(nearest("nomadvar"), Some("nomadVar"));
        assert_eq!(nearest("tojson"), Some("toJSON"));
        assert_eq!(nearest("toYaml"), Some("toYAML"));
        assert_eq!(nearest("b64enc"), Some("sprig_b64enc"));
        assert_eq!(nearest("xyzzyxyzzy"), None);
    }
}
