//! Compares an attribute of the node with the value of a constraint.
//!
//! In: two texts, either of which may be missing. Out: whether the operator holds. Source of the rules: Nomad's
//! `scheduler/feasible.go`.

use core::cmp::Ordering;
use std_alloc::string::{String, ToString};

use herdlet_api_types::constraint::Operator;
use regex::{Regex, RegexBuilder};

use super::version::{Conditions, Rules};

/// Longest value of a constraint in bytes; a regular expression of that length compiles quickly.
pub const VALUE_BYTES_MAX: usize = 1_024;
/// Memory limit of a compiled regular expression, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 16;
/// Nesting limit of a regular expression.
const REGEX_DEPTH_MAX: u32 = 50;

/// Compiles a regular expression within bounds.
///
/// # Errors
/// The reason as text.
pub fn regexp(text: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).nest_limit(REGEX_DEPTH_MAX).build();
    // The last line holds the reason, below a drawing of the position.
    built.map_err(|error| {
        let message = error.to_string();
        let last = message.lines().next_back().unwrap_or_default();
        String::from(last.trim_start_matches("error: "))
    })
}

/// Whether the operator holds between the node's value and the required one.
pub fn holds(operator: Operator, has: Option<&str>, wants: Option<&str>) -> bool {
    let both = |compare: &dyn Fn(&str, &str) -> bool| match (has, wants) {
        (Some(has), Some(wants)) => compare(has, wants),
        (Some(_) | None, _) => false,
    };
    let ordered = |fits: fn(Ordering) -> bool| both(&|has, wants| fits(order(has, wants)));
    match operator {
        Operator::Equal => both(&|has, wants| has == wants),
        Operator::NotEqual => has != wants,
        Operator::Less => ordered(Ordering::is_lt),
        Operator::LessOrEqual => ordered(Ordering::is_le),
        Operator::Greater => ordered(Ordering::is_gt),
        Operator::GreaterOrEqual => ordered(Ordering::is_ge),
        Operator::Regexp => both(&|has, wants| regexp(wants).is_ok_and(|wants| wants.is_match(has))),
        Operator::Version => both(&|has, wants| fits(has, wants, Rules::Version)),
        Operator::Semver => both(&|has, wants| fits(has, wants, Rules::Semver)),
        Operator::SetContains => {
            both(&|has, wants| items(wants).all(|item| items(has).any(|own| own == item)))
        }
        Operator::SetContainsAny => {
            both(&|has, wants| items(wants).any(|item| items(has).any(|own| own == item)))
        }
        Operator::IsSet => has.is_some(),
        Operator::IsNotSet => has.is_none(),
        // These are about other allocations.
        Operator::DistinctHosts | Operator::DistinctProperty => true,
    }
}

fn fits(version: &str, conditions: &str, rules: Rules) -> bool {
    Conditions::parse(conditions, rules).is_some_and(|conditions| conditions.hold(version))
}

/// Compares as integers if both are, else as numbers, else as texts.
fn order(one: &str, other: &str) -> Ordering {
    if let (Ok(one), Ok(other)) = (one.parse::<i64>(), other.parse::<i64>()) {
        return one.cmp(&other);
    }
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => one.total_cmp(&other),
        (Ok(_) | Err(_), _) => one.cmp(other),
    }
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// Whether a text matches a pattern in which `*` matches anything, as in `datacenters`.
pub fn fits_pattern(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let parts: std_alloc::vec::Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_hold_as_in_nomad() {
        use Operator::*;
        for (operator, has, wants, expected) in [
            (Equal, Some("linux"), "linux", true),
            (Equal, None, "linux", false),
            (NotEqual, Some("linux"), "windows", true),
            (NotEqual, None, "windows", true),
            (Less, Some("9"), "10", true),
            (LessOrEqual, Some("1.5"), "1.50", true),
            (Greater, Some("b"), "a", true),
            (GreaterOrEqual, Some("9"), "10", false),
            (GreaterOrEqual, None, "10", false),
            (Regexp, Some("6.1.0-13-amd64"), r"^6\.\d+", true),
            (Regexp, Some("x"), "(", false),
            (Version, Some("6.1.0"), ">= 5", true),
            (Semver, Some("1.6.0"), ">= 1.6.1", false),
            (SetContains, Some("a, b,c"), "c,a", true),
            (SetContains, Some("a,b"), "a,d", false),
            (SetContainsAny, Some("a,b"), "d,b", true),
            (SetContainsAny, Some("a"), "a", true),
            (SetContainsAny, Some("a"), "b", false),
            (IsSet, Some(""), "", true),
            (IsSet, None, "", false),
            (IsNotSet, None, "", true),
        ] {
            assert_eq!(holds(operator, has, Some(wants)), expected, "{has:?} {operator:?} {wants}");
        }
    }

    #[test]
    fn an_expression_that_would_grow_too_large_is_refused() {
        assert!(regexp("(a{1000}){1000}").is_err());
        assert!(regexp(&"(".repeat(100)).is_err());
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (text, pattern, expected) in [
            ("dc1", "*", true),
            ("dc1", "dc1", true),
            ("dc1", "dc", false),
            ("dc1", "dc*", true),
            ("eu-west-1", "eu-*-1", true),
            ("eu-west-2", "eu-*-1", false),
            ("eu-1", "eu-*-1", false),
            ("", "*", true),
        ] {
            assert_eq!(fits_pattern(text, pattern), expected, "{text} {pattern}");
        }
    }
}
