//! Versions and lists of conditions on them, as in Nomad's `version` and `semver` operators.
//!
//! `version` follows hashicorp/go-version: any number of parts, `v` before them, `~>`, and a pre-release only matches a
//! condition that names a pre-release of the same version. `semver` takes three parts and orders pre-releases as
//! Semantic Versioning does.

use core::cmp::Ordering;
use std_alloc::{string::String, vec::Vec};

/// How versions are written and ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// The operator `version`.
    Version,
    /// The operator `semver`.
    Semver,
}

/// A list of conditions such as `>= 1.2, < 2.0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    rules: Rules,
    all: Vec<(Relation, Version)>,
}

/// Maximum length of a list.
const CONDITIONS_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
    /// `~>`: the last part that is written may grow.
    Pessimistic,
}

const RELATIONS: [(&str, Relation); 7] = [
    ("~>", Relation::Pessimistic),
    (">=", Relation::GreaterOrEqual),
    ("<=", Relation::LessOrEqual),
    ("!=", Relation::NotEqual),
    ("=", Relation::Equal),
    (">", Relation::Greater),
    ("<", Relation::Less),
];

impl Conditions {
    /// Parses a list; `None` if it is not valid.
    pub fn parse(text: &str, rules: Rules) -> Option<Self> {
        let all = text.split(',').map(|part| condition(part.trim(), rules)).collect::<Option<Vec<_>>>()?;
        (all.len() <= CONDITIONS_MAX).then_some(Self { rules, all })
    }

    /// Whether a version meets all of them. An invalid version meets none.
    pub fn hold(&self, version: &str) -> bool {
        let Some(version) = Version::parse(version.trim(), self.rules) else { return false };
        self.all.iter().all(|(relation, bound)| match self.rules {
            Rules::Version => fits_version(*relation, &version, bound),
            Rules::Semver => fits(*relation, version.compare(bound)),
        })
    }
}

fn condition(text: &str, rules: Rules) -> Option<(Relation, Version)> {
    let found = RELATIONS.iter().find_map(|(sign, relation)| Some((*relation, text.strip_prefix(sign)?)));
    let (relation, rest) = found.unwrap_or((Relation::Equal, text));
    if rules == Rules::Semver && relation == Relation::Pessimistic {
        return None;
    }
    Some((relation, Version::parse(rest.trim(), rules)?))
}

fn fits(relation: Relation, order: Ordering) -> bool {
    match relation {
        Relation::Equal => order.is_eq(),
        Relation::NotEqual => order.is_ne(),
        Relation::Greater => order.is_gt(),
        Relation::Less => order.is_lt(),
        Relation::GreaterOrEqual | Relation::Pessimistic => order.is_ge(),
        Relation::LessOrEqual => order.is_le(),
    }
}

fn fits_version(relation: Relation, version: &Version, bound: &Version) -> bool {
    let order = version.compare(bound);
    match relation {
        Relation::Equal | Relation::NotEqual => fits(relation, order),
        Relation::Greater | Relation::Less | Relation::GreaterOrEqual | Relation::LessOrEqual => {
            is_comparable(version, bound) && fits(relation, order)
        }
        Relation::Pessimistic => {
            let is_final_for_pre = !bound.pre.is_empty() && version.pre.is_empty();
            let fixed = bound.written.saturating_sub(1);
            let same = (0..fixed).all(|at| version.part(at) == bound.part(at));
            is_comparable(version, bound) && !is_final_for_pre && order.is_ge() && same
        }
    }
}

/// A pre-release is compared only with a pre-release of the same version.
fn is_comparable(version: &Version, bound: &Version) -> bool {
    match (version.pre.is_empty(), bound.pre.is_empty()) {
        (true, _) => true,
        (false, true) => false,
        (false, false) => version.compare_parts(bound).is_eq(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    parts: Vec<u64>,
    /// Number of parts that were written.
    written: usize,
    pre: String,
}

impl Version {
    fn parse(text: &str, rules: Rules) -> Option<Self> {
        let text = match rules {
            Rules::Version => text.strip_prefix('v').unwrap_or(text),
            Rules::Semver => text,
        };
        let is_word = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-~.".contains(&byte))
        };
        let text = match text.split_once('+') {
            Some((text, build)) if is_word(build) => text,
            Some(_) => return None,
            None => text,
        };
        let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let parts = numbers.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let pre = match (rest.strip_prefix('-'), rules) {
            (Some(pre), _) => pre,
            (None, Rules::Version) => rest,
            (None, Rules::Semver) if rest.is_empty() => rest,
            (None, Rules::Semver) => return None,
        };
        let is_bad_pre = !rest.is_empty() && !is_word(pre);
        if is_bad_pre || rules == Rules::Semver && parts.len() != 3 {
            return None;
        }
        Some(Self { written: parts.len(), parts, pre: String::from(pre) })
    }

    fn part(&self, at: usize) -> u64 {
        self.parts.get(at).copied().unwrap_or(0)
    }

    fn compare_parts(&self, other: &Self) -> Ordering {
        let length = self.parts.len().max(other.parts.len());
        (0..length).map(|at| self.part(at)).cmp((0..length).map(|at| other.part(at)))
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.compare_parts(other).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => compare_pre(&self.pre, &other.pre),
        })
    }
}

/// Compares part by part: numbers before words, numbers by value; with equal parts the longer one is later.
fn compare_pre(one: &str, other: &str) -> Ordering {
    let rank = |part: &str| match part.parse::<u64>() {
        Ok(number) => (0, number, String::new()),
        Err(_) => (1, 0, String::from(part)),
    };
    one.split('.').map(rank).cmp(other.split('.').map(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rules: Rules, conditions: &str, version: &str, expected: bool) {
        let known = Conditions::parse(conditions, rules).expect("a list of conditions");
        assert_eq!(known.hold(version), expected, "{version} {conditions}");
    }

    #[test]
    fn versions_fit_as_go_version_has_it() {
        for (conditions, version, expected) in [
            (">= 1.2", "1.2.0", true),
            (">= 1.2, < 2", "2.0.0", false),
            (">= 1.2, < 2", "v1.10", true),
            ("1.2", "1.2.0", true),
            ("!= 1.2", "1.3", true),
            ("~> 1.2", "1.9.9", true),
            ("~> 1.2", "2.0", false),
            ("~> 1.2.3", "1.2.9", true),
            ("~> 1.2.3", "1.3.0", false),
            ("~> 1.2.3", "1.2.2", false),
            ("> 1.0", "1.1.0-beta1", false),
            ("~> 1.0", "1.1.0-beta1", false),
            (">= 1.1.0-alpha", "1.1.0-beta", true),
            (">= 1.1.0-alpha", "1.2.0-beta", false),
            ("< 6.2", "6.1.0-13-amd64", false),
            (">= 1", "no version", false),
            (">= 1.0", "1.0.0+build.7", true),
        ] {
            check(Rules::Version, conditions, version, expected);
        }
    }

    #[test]
    fn semver_orders_pre_releases() {
        for (conditions, version, expected) in [
            (">= 1.6.0-beta.1", "1.6.0", true),
            ("> 1.6.0-beta.2", "1.6.0-beta.11", true),
            ("< 1.7.0", "1.7.0-rc.1", true),
            (">= 1.6.0", "1.6", false),
        ] {
            check(Rules::Semver, conditions, version, expected);
        }
    }

    #[test]
    fn invalid_version_conditions_are_refused() {
        for text in ["", ">=", ">= x", "1.2,", "1..2", ">> 1", "1.2-é", "1.2+", "1.2+é"] {
            assert_eq!(Conditions::parse(text, Rules::Version), None, "{text}");
        }
        assert_eq!(Conditions::parse("~> 1.2.3", Rules::Semver), None);
        assert_eq!(Conditions::parse(">= 1.2", Rules::Semver), None);
        assert_eq!(Conditions::parse(">= 1.2.3beta", Rules::Semver), None);
    }
}
