//! What a job, group or task asks of the node it runs on: constraints must hold, affinities and spreads are preferences.
//!
//! Names and meaning are Nomad's (`nomad/structs/structs.go`). An attribute is `${attr.kernel.name}` or a literal.

use core::fmt;
use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// Something that must hold on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// What is looked at; empty for [`Operator::DistinctHosts`].
    pub attribute: String,
    /// How it is compared.
    pub operator: Operator,
    /// What it is compared with; empty where the operator takes nothing.
    pub value: String,
}

/// Something that is preferred of a node, or avoided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// What is preferred, in the words of a constraint.
    pub wanted: Constraint,
    /// How much, from -100 to 100 without 0; below 0 it is avoided.
    pub weight: i8,
}

/// How allocations are preferably shared out among nodes. One machine has nothing to choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// What nodes differ in.
    pub attribute: String,
    /// How much it counts beside other preferences, 1 to 100.
    pub weight: i8,
    /// Which values are to have how much; all the same where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<SpreadTarget>,
}

/// What nodes with one value are to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadTarget {
    /// Value of the attribute.
    pub value: String,
    /// Percent of the allocations, 0 to 100.
    pub percent: u8,
}

/// How an attribute is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Both are equal.
    #[serde(rename = "=")]
    Equal,
    /// They differ.
    #[serde(rename = "!=")]
    NotEqual,
    /// As integers, else as numbers, else as texts.
    #[serde(rename = "<")]
    Less,
    /// The same, or equal.
    #[serde(rename = "<=")]
    LessOrEqual,
    /// As [`Operator::Less`], the other way round.
    #[serde(rename = ">")]
    Greater,
    /// The same, or equal.
    #[serde(rename = ">=")]
    GreaterOrEqual,
    /// The value is a regular expression.
    #[serde(rename = "regexp")]
    Regexp,
    /// The value is a list such as `>= 1.2, < 2.0`.
    #[serde(rename = "version")]
    Version,
    /// The same by the rules of Semantic Versioning.
    #[serde(rename = "semver")]
    Semver,
    /// Both are lists with commas; all of the value's items are in the attribute.
    #[serde(rename = "set_contains")]
    SetContains,
    /// The same with any of them.
    #[serde(rename = "set_contains_any")]
    SetContainsAny,
    /// The node has this attribute.
    #[serde(rename = "is_set")]
    IsSet,
    /// It has not.
    #[serde(rename = "is_not_set")]
    IsNotSet,
    /// No two allocations on one node.
    #[serde(rename = "distinct_hosts")]
    DistinctHosts,
    /// No more than so many allocations (1 unless written) on nodes that have the same value of the attribute.
    #[serde(rename = "distinct_property")]
    DistinctProperty,
}

impl Operator {
    /// Nomad's word for it.
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

    /// Says something of other allocations, not of a node's attributes alone.
    pub const fn is_distinct(self) -> bool {
        matches!(self, Self::DistinctHosts | Self::DistinctProperty)
    }
}

impl fmt::Display for Constraint {
    /// As Nomad writes it in metrics of allocations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.attribute.as_str(), self.operator.as_str(), self.value.as_str()];
        let mut written = words.into_iter().filter(|word| !word.is_empty());
        write!(f, "{}", written.next().unwrap_or_default())?;
        written.try_for_each(|word| write!(f, " {word}"))
    }
}
