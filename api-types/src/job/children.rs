//! Parameterized and periodic jobs, which run nothing themselves: their rules for children, and a child's record of its
//! origin.
//!
//! A child is a separate job with an id below its parent's: `import/dispatch-1700000000-1f2e3d4c`. Its text never
//! changes.

use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// `parameterized`: each dispatch creates a child.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameterized {
    /// Whether a dispatch has a payload.
    pub payload: PayloadRule,
    /// Meta keys that each dispatch must set.
    #[serde(default)]
    pub meta_required: Vec<String>,
    /// Meta keys that a dispatch may set; empty values otherwise.
    #[serde(default)]
    pub meta_optional: Vec<String>,
}

/// Whether a dispatch has a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PayloadRule {
    /// It may have one.
    #[default]
    Optional,
    /// It must have one.
    Required,
    /// It must not have one.
    Forbidden,
}

impl PayloadRule {
    /// Nomad's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Optional => "optional",
            Self::Required => "required",
            Self::Forbidden => "forbidden",
        }
    }
}

/// `periodic`: each scheduled time creates a child.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Periodic {
    /// Cron expressions; at least one.
    pub crons: Vec<String>,
    /// Time zone of the schedule, a name in the IANA database; default `UTC`.
    pub time_zone: String,
    /// Create no child while one is running.
    pub prohibit_overlap: bool,
    /// If false, nothing is launched, not even on request.
    pub enabled: bool,
}

/// A child's record of its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// Id of the job that created it, in the same namespace.
    pub parent: String,
    /// How it was created.
    pub origin: Origin,
}

/// How a child was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// By a dispatch.
    Dispatch {
        /// The payload in Base64 (RFC 4648); empty if there is none.
        payload: String,
        /// A repeated request with the same token returns the same child; empty if none was given.
        idempotency_token: String,
    },
    /// By schedule, or on request.
    Launch,
}
