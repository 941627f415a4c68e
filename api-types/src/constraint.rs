//! Requirements of a job, group or task on its node: constraints must hold, affinities and spreads are preferences.
//!
//! Names and meaning are Nomad's (`nomad/structs/structs.go`). An attribute is `${attr.kernel.name}` or a literal.

use core::fmt;
use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// A requirement on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// The attribute to compare; empty for [`Operator::DistinctHosts`].
    pub attribute: String,
    /// The comparison.
    pub operator: Operator,
    /// The value to compare with; empty if the operator takes none.
    pub value: String,
}

/// A preference for or against a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// The condition, like a constraint.
    pub wanted: Constraint,
    /// The weight from -100 to 100, except 0; negative to avoid the node.
    pub weight: i8,
}

/// The preferred distribution of allocations over nodes. With a single machine there is no choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// The attribute to distribute by.
    pub attribute: String,
    /// The weight among other preferences, 1 to 100.
    pub weight: i8,
    /// The shares of values; equal if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<SpreadTarget>,
}

/// The share of the nodes with one value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadTarget {
    /// The attribute's value.
    pub value: String,
    /// Percentage of the allocations, 0 to 100.
    pub percent: u8,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Both are equal.
    #[serde(rename = "=")]
    Equal,
    /// Both differ.
    #[serde(rename = "!=")]
    NotEqual,
    /// Compares as integers, else as numbers, else as text.
    #[serde(rename = "<")]
    Less,
    /// [`Operator::Less`] or equal.
    #[serde(rename = "<=")]
    LessOrEqual,
    /// The opposite of [`Operator::LessOrEqual`].
    #[serde(rename = ">")]
    Greater,
    /// [`Operator::Greater`] or equal.
    #[serde(rename = ">=")]
    GreaterOrEqual,
    /// The value is a regular expression.
    #[serde(rename = "regexp")]
    Regexp,
    /// The value is a list of version constraints such as `>= 1.2, < 2.0`.
    #[serde(rename = "version")]
    Version,
    /// As [`Operator::Version`], by the rules of Semantic Versioning.
    #[serde(rename = "semver")]
    Semver,
    /// Both are comma-separated lists; the attribute contains all of the value's items.
    #[serde(rename = "set_contains")]
    SetContains,
    /// The attribute contains any of the value's items.
    #[serde(rename = "set_contains_any")]
    SetContainsAny,
    /// The node has this attribute.
    #[serde(rename = "is_set")]
    IsSet,
    /// The node does not have this attribute.
    #[serde(rename = "is_not_set")]
    IsNotSet,
    /// No two allocations on one node.
    #[serde(rename = "distinct_hosts")]
    DistinctHosts,
    /// At most this many allocations (default 1) on nodes with the same value of the attribute.
    #[serde(rename = "distinct_property")]
    DistinctProperty,
}

impl Operator {
    /// Nomad's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Regexp => "regexp",
            Self::Version => "version",
            Self::Semver => "semver",
            Self::SetContains => "set_contains",
            Self::SetContainsAny => "set_contains_any",
            Self::IsSet => "is_set",
            Self::IsNotSet => "is_not_set",
            Self::DistinctHosts => "distinct_hosts",
            Self::DistinctProperty => "distinct_property",
        }
    }

    /// Whether it compares allocations instead of only a node's attributes.
    pub const fn is_distinct(self) -> bool {
        matches!(self, Self::DistinctHosts | Self::DistinctProperty)
    }
}

impl fmt::Display for Constraint {
    /// As in Nomad's allocation metrics.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.attribute.as_str(), self.operator.as_str(), self.value.as_str()];
        let mut written = words.into_iter().filter(|word| !word.is_empty());
        write!(f, "{}", written.next().unwrap_or_default())?;
        written.try_for_each(|word| write!(f, " {word}"))
    }
}
