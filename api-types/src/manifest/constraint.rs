//! `constraints[]` and `affinities[]` of jobs, groups and tasks, `spreads[]` of jobs and groups.

use std_alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use super::Text;
use crate::constraint::{self, Operator};

/// The default `weight` of affinities and spreads.
pub const WEIGHT: i8 = 50;

block! {
    /// A requirement on the node: `attribute`, `operator` and `value`, or one of the short forms.
    pub struct Constraint {
        /// The attribute: `${attr.kernel.name}`, `${node.datacenter}`, `${meta.rack}`; `herdlet get node` lists them.
        pub attribute: Text,
        /// How the attribute is compared with `value`; default `=`.
        pub operator: OperatorName,
        /// The value to compare with.
        pub value: Text,
        /// Short for `operator: version`: a list such as `>= 1.2, < 2.0`.
        pub version: Text,
        /// Short for `operator: semver`.
        pub semver: Text,
        /// Short for `operator: regexp`.
        pub regexp: Text,
        /// Short for `operator: set_contains`: all of these, separated by commas.
        pub set_contains: Text,
        /// Short for `operator: set_contains_any`: any of these, separated by commas.
        pub set_contains_any: Text,
        /// Short for `operator: distinct_hosts`: no two allocations on one machine.
        pub distinct_hosts: bool,
        /// Short for `operator: distinct_property`: an attribute; at most `value` allocations (default 1) may have the same value of it.
        pub distinct_property: Text,
    }
}

block! {
    /// A weighted preference for nodes. On a single machine it only affects the displayed scores.
    pub struct Affinity {
        /// The attribute, as in a constraint.
        pub attribute: Text,
        /// How the attribute is compared with `value`; default `=`.
        pub operator: OperatorName,
        /// The value to compare with.
        pub value: Text,
        /// Short for `operator: version`.
        pub version: Text,
        /// Short for `operator: semver`.
        pub semver: Text,
        /// Short for `operator: regexp`.
        pub regexp: Text,
        /// Short for `operator: set_contains`.
        pub set_contains: Text,
        /// Short for `operator: set_contains_any`.
        pub set_contains_any: Text,
        /// The weight from -100 to 100, except 0; default 50. Negative weights avoid the node.
        #[cfg_attr(feature = "schema", schemars(range(min = -100, max = 100)))]
        pub weight: i8,
    }
}

block! {
    /// Distribution of allocations over machines. Has no effect on a single one, but is kept for a later move to a cluster.
    pub struct Spread {
        /// The attribute to distribute by: `${node.datacenter}`, `${meta.rack}`.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub attribute: Text,
        /// The weight among other preferences, 1 to 100; default 50.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
        pub weight: i8,
        /// The shares of values; without them all are equal.
        pub targets: Vec<SpreadTarget>,
    }
}

block! {
    /// The share of the machines with one value of the attribute.
    pub struct SpreadTarget {
        /// The value.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub value: Text,
        /// Percentage of the allocations; default 0.
        #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
        pub percent: u8,
    }
}

/// `operator`, in all of Nomad's spellings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented with `Operator`")]
pub enum OperatorName {
    #[serde(rename = "=")]
    Equal,
    #[serde(rename = "==")]
    DoubleEqual,
    #[serde(rename = "is")]
    Is,
    #[serde(rename = "!=")]
    NotEqual,
    #[serde(rename = "not")]
    Not,
    #[serde(rename = "<")]
    Less,
    #[serde(rename = "<=")]
    LessOrEqual,
    #[serde(rename = ">")]
    Greater,
    #[serde(rename = ">=")]
    GreaterOrEqual,
    #[serde(rename = "regexp")]
    Regexp,
    #[serde(rename = "version")]
    Version,
    #[serde(rename = "semver")]
    Semver,
    #[serde(rename = "set_contains")]
    SetContains,
    #[serde(rename = "set_contains_all")]
    SetContainsAll,
    #[serde(rename = "set_contains_any")]
    SetContainsAny,
    #[serde(rename = "is_set")]
    IsSet,
    #[serde(rename = "is_not_set")]
    IsNotSet,
    #[serde(rename = "distinct_hosts")]
    DistinctHosts,
    #[serde(rename = "distinct_property")]
    DistinctProperty,
}

impl OperatorName {
    fn operator(self) -> Operator {
        match self {
            Self::Equal | Self::DoubleEqual | Self::Is => Operator::Equal,
            Self::NotEqual | Self::Not => Operator::NotEqual,
            Self::Less => Operator::Less,
            Self::LessOrEqual => Operator::LessOrEqual,
            Self::Greater => Operator::Greater,
            Self::GreaterOrEqual => Operator::GreaterOrEqual,
            Self::Regexp => Operator::Regexp,
            Self::Version => Operator::Version,
            Self::Semver => Operator::Semver,
            Self::SetContains | Self::SetContainsAll => Operator::SetContains,
            Self::SetContainsAny => Operator::SetContainsAny,
            Self::IsSet => Operator::IsSet,
            Self::IsNotSet => Operator::IsNotSet,
            Self::DistinctHosts => Operator::DistinctHosts,
            Self::DistinctProperty => Operator::DistinctProperty,
        }
    }

    fn of(operator: Operator) -> Self {
        match operator {
            Operator::Equal => Self::Equal,
            Operator::NotEqual => Self::NotEqual,
            Operator::Less => Self::Less,
            Operator::LessOrEqual => Self::LessOrEqual,
            Operator::Greater => Self::Greater,
            Operator::GreaterOrEqual => Self::GreaterOrEqual,
            Operator::Regexp => Self::Regexp,
            Operator::Version => Self::Version,
            Operator::Semver => Self::Semver,
            Operator::SetContains => Self::SetContains,
            Operator::SetContainsAny => Self::SetContainsAny,
            Operator::IsSet => Self::IsSet,
            Operator::IsNotSet => Self::IsNotSet,
            Operator::DistinctHosts => Self::DistinctHosts,
            Operator::DistinctProperty => Self::DistinctProperty,
        }
    }
}

impl Constraint {
    /// The short forms in use, each with its value.
    pub fn short_forms(&self) -> Vec<(&'static str, Operator, &str)> {
        let texts = [
            ("version", Operator::Version, &self.version),
            ("semver", Operator::Semver, &self.semver),
            ("regexp", Operator::Regexp, &self.regexp),
            ("set_contains", Operator::SetContains, &self.set_contains),
            ("set_contains_any", Operator::SetContainsAny, &self.set_contains_any),
            ("distinct_property", Operator::DistinctProperty, &self.distinct_property),
        ];
        let written = texts
            .into_iter()
            .filter_map(|(name, operator, text)| Some((name, operator, text.as_ref()?.0.as_str())));
        let hosts =
            (self.distinct_hosts == Some(true)).then_some(("distinct_hosts", Operator::DistinctHosts, ""));
        written.chain(hosts).collect()
    }

    /// Converts to a constraint.
    pub fn to_constraint(&self) -> constraint::Constraint {
        let attribute = plain(self.attribute.as_ref());
        let value = plain(self.value.as_ref());
        match self.short_forms().first() {
            Some((_, operator @ Operator::DistinctProperty, text)) => {
                constraint::Constraint { attribute: (*text).to_owned(), operator: *operator, value }
            }
            Some((_, operator, text)) => {
                constraint::Constraint { attribute, operator: *operator, value: (*text).to_owned() }
            }
            None => {
                let operator = self.operator.map_or(Operator::Equal, OperatorName::operator);
                // Nomad's API writes `true` here.
                let says_yes = operator == Operator::DistinctHosts && value == "true";
                constraint::Constraint {
                    attribute,
                    operator,
                    value: if says_yes { String::new() } else { value },
                }
            }
        }
    }

    /// Converts from a constraint.
    pub fn from_constraint(constraint: &constraint::Constraint) -> Self {
        Self {
            attribute: written(&constraint.attribute),
            operator: (constraint.operator != Operator::Equal).then(|| OperatorName::of(constraint.operator)),
            value: written(&constraint.value),
            ..Self::default()
        }
    }
}

impl Affinity {
    /// The condition as a constraint.
    pub fn to_constraint(&self) -> Constraint {
        let Self {
            attribute,
            operator,
            value,
            version,
            semver,
            regexp,
            set_contains,
            set_contains_any,
            weight: _,
        } = self.clone();
        Constraint {
            attribute,
            operator,
            value,
            version,
            semver,
            regexp,
            set_contains,
            set_contains_any,
            ..Constraint::default()
        }
    }

    /// Converts to an affinity.
    pub fn to_affinity(&self) -> constraint::Affinity {
        let weight = self.weight.unwrap_or(WEIGHT);
        constraint::Affinity { wanted: self.to_constraint().to_constraint(), weight }
    }

    /// Converts from an affinity.
    pub fn from_affinity(affinity: &constraint::Affinity) -> Self {
        let Constraint { attribute, operator, value, .. } = Constraint::from_constraint(&affinity.wanted);
        Self {
            attribute,
            operator,
            value,
            weight: (affinity.weight != WEIGHT).then_some(affinity.weight),
            ..Self::default()
        }
    }
}

impl Spread {
    /// Converts to a spread.
    pub fn to_spread(&self) -> constraint::Spread {
        let target = |target: &SpreadTarget| constraint::SpreadTarget {
            value: plain(target.value.as_ref()),
            percent: target.percent.unwrap_or_default(),
        };
        constraint::Spread {
            attribute: plain(self.attribute.as_ref()),
            weight: self.weight.unwrap_or(WEIGHT),
            targets: self.targets.iter().flatten().map(target).collect(),
        }
    }

    /// Converts from a spread.
    pub fn from_spread(spread: &constraint::Spread) -> Self {
        let target = |target: &constraint::SpreadTarget| SpreadTarget {
            value: Some(Text(target.value.clone())),
            percent: (target.percent > 0).then_some(target.percent),
        };
        Self {
            attribute: written(&spread.attribute),
            weight: (spread.weight != WEIGHT).then_some(spread.weight),
            targets: (!spread.targets.is_empty()).then(|| spread.targets.iter().map(target).collect()),
        }
    }
}

fn plain(text: Option<&Text>) -> String {
    text.map_or_else(String::new, |text| text.0.clone())
}

fn written(text: &str) -> Option<Text> {
    (!text.is_empty()).then(|| Text(text.to_string()))
}
