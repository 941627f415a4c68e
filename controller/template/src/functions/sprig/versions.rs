//! Semantic versions and their constraints, as sprig reads them.

use std::cmp::Ordering;

use crate::{
    context::Context,
    error::{Fault, Outcome},
    value::{Struct, Value},
};

/// A version; missing parts are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    original: String,
    numbers: [u64; 3],
    prerelease: String,
    metadata: String,
}

impl Version {
    /// Reads `v1.2.3-rc.1+build`.
    pub(super) fn parse(text: &str) -> Outcome<Self> {
        let (version, parts) = partial(text).ok_or_else(invalid)?;
        if parts == 0 { Err(invalid()) } else { Ok(version) }
    }

    pub(super) fn value(&self, context: &mut Context<'_>) -> Outcome<Value> {
        // Its parts are copies.
        context.charge(4 * self.original.len())?;
        let shown = self.to_string();
        let [major, minor, patch] = self.numbers;
        let fields = vec![
            ("Major", Value::Uint(major)),
            ("Minor", Value::Uint(minor)),
            ("Patch", Value::Uint(patch)),
            ("Prerelease", Value::from(self.prerelease.as_str())),
            ("Metadata", Value::from(self.metadata.as_str())),
            ("Original", Value::from(self.original.as_str())),
        ];
        context.structure(Struct {
            type_name: "*semver.Version",
            fields,
            shown: Some(shown.into()),
            time: None,
        })
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.prerelease.is_empty(), other.prerelease.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => prereleases(&self.prerelease, &other.prerelease),
            }
        })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        if !self.prerelease.is_empty() {
            write!(f, "-{}", self.prerelease)?;
        }
        if !self.metadata.is_empty() {
            write!(f, "+{}", self.metadata)?;
        }
        Ok(())
    }
}

/// Without the text, which may be a secret; the position of the error shows what was written.
fn invalid() -> Fault {
    Fault::new(String::from("invalid semantic version"))
}

fn prereleases(one: &str, other: &str) -> Ordering {
    let (mut ones, mut others) = (one.split('.'), other.split('.'));
    loop {
        let ordering = match (ones.next(), others.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(one), Some(other)) => match (one.parse::<u64>(), other.parse::<u64>()) {
                (Ok(one), Ok(other)) => one.cmp(&other),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => one.cmp(other),
            },
        };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
}

/// Reads a version of which the last parts may be missing or `x`; returns the number of parts.
fn partial(text: &str) -> Option<(Version, usize)> {
    let body = text.strip_prefix(['v', 'V']).unwrap_or(text);
    let (body, metadata) = body.split_once('+').unwrap_or((body, ""));
    let (body, prerelease) = body.split_once('-').unwrap_or((body, ""));
    let is_identifiers =
        |text: &str| text.chars().all(|char| char.is_ascii_alphanumeric() || char == '-' || char == '.');
    let mut numbers = [0; 3];
    let mut parts = 0;
    let mut has_wildcard = false;
    for (index, part) in body.split('.').enumerate() {
        let slot = numbers.get_mut(index)?;
        if matches!(part, "x" | "X" | "*") {
            has_wildcard = true;
        } else if has_wildcard || part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        } else {
            *slot = part.parse().ok()?;
            parts = index + 1;
        }
    }
    (is_identifiers(prerelease) && is_identifiers(metadata)).then(|| {
        let version = Version {
            original: text.to_owned(),
            numbers,
            prerelease: prerelease.to_owned(),
            metadata: metadata.to_owned(),
        };
        (version, parts)
    })
}

/// Whether a version satisfies `>=1.2, <2 || ^3`.
pub(super) fn satisfies(constraint: &str, version: &Version) -> Outcome<bool> {
    let wrong = || Fault::new(String::from("improper constraint of versions"));
    let mut is_satisfied = false;
    for alternative in constraint.split("||") {
        let mut all = true;
        for one in conditions(alternative).ok_or_else(wrong)? {
            all &= one.holds(version);
        }
        is_satisfied |= all;
    }
    Ok(is_satisfied)
}

struct Condition {
    operator: String,
    version: Version,
    parts: usize,
}

/// Splits conditions at commas and spaces. `1 - 2` is a range.
fn conditions(text: &str) -> Option<Vec<Condition>> {
    let text = text.trim();
    if let Some((low, high)) = text.split_once(" - ") {
        return Some(vec![
            condition(&format!(">={}", low.trim()))?,
            condition(&format!("<={}", high.trim()))?,
        ]);
    }
    let spaced: String = text.replace(',', " ");
    let mut conditions = Vec::new();
    let mut operator = String::new();
    for word in spaced.split_whitespace() {
        operator.push_str(word);
        if operator.ends_with(['=', '<', '>', '!', '~', '^']) {
            continue;
        }
        conditions.push(condition(&std::mem::take(&mut operator))?);
    }
    (operator.is_empty() && !conditions.is_empty()).then_some(conditions)
}

fn condition(text: &str) -> Option<Condition> {
    let version = text.trim_start_matches(['=', '<', '>', '!', '~', '^']);
    let operator = text[..text.len() - version.len()].to_owned();
    let (version, parts) = partial(version)?;
    let is_known = matches!(
        operator.as_str(),
        "" | "=" | "==" | "!=" | "<" | ">" | "<=" | "=<" | ">=" | "=>" | "~" | "~>" | "^"
    );
    is_known.then_some(Condition { operator, version, parts })
}

impl Condition {
    fn holds(&self, version: &Version) -> bool {
        // A prerelease satisfies only conditions that name one.
        if !version.prerelease.is_empty() && self.version.prerelease.is_empty() {
            return false;
        }
        let ordering = version.compare(&self.version);
        let in_parts = |parts: usize| version.numbers[..parts] == self.version.numbers[..parts];
        let is_partial = self.parts < 3;
        match self.operator.as_str() {
            "" | "=" | "==" if is_partial => in_parts(self.parts),
            "" | "=" | "==" => ordering == Ordering::Equal,
            "!=" if is_partial => !in_parts(self.parts),
            "!=" => ordering != Ordering::Equal,
            ">" if is_partial => ordering == Ordering::Greater && !in_parts(self.parts),
            ">" => ordering == Ordering::Greater,
            "<" => ordering == Ordering::Less,
            ">=" | "=>" => ordering != Ordering::Less,
            "<=" | "=<" if is_partial => ordering != Ordering::Greater || in_parts(self.parts),
            "<=" | "=<" => ordering != Ordering::Greater,
            "~" | "~>" => ordering != Ordering::Less && in_parts(self.parts.min(2)),
            // `^`: the first part that is not 0 stays.
            _ => {
                let significant = self.version.numbers.iter().take(self.parts).position(|number| *number > 0);
                let fixed = significant.map_or(self.parts, |index| index + 1);
                ordering != Ordering::Less && in_parts(fixed)
            }
        }
    }
}
