//! Jobs that run nothing by themselves: what they say of the children that are made of them, and what a child remembers of its
//! making.
//!
//! A child is a job of its own, with an id below its parent's: `import/dispatch-1700000000-1f2e3d4c`. Its text never changes.

use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// `parameterized`: each dispatch makes a child.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameterized {
    /// Whether a dispatch brings a payload.
    pub payload: PayloadRule,
    /// Meta that each dispatch must bring.
    #[serde(default)]
    pub meta_required: Vec<String>,
    /// Meta that a dispatch may bring; empty where it doesn't.
    #[serde(default)]
    pub meta_optional: Vec<String>,
}

/// Whether a dispatch brings a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PayloadRule {
    /// It may.
    #[default]
    Optional,
    /// It must.
    Required,
    /// It must not.
    Forbidden,
}

impl PayloadRule {
    /// Nomad's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Optional => "optional",
            Self::Required => "required",
            Self::Forbidden => "forbidden",
        }
    }
}

/// `periodic`: a child is made at each moment that an expression names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Periodic {
    /// Cron expressions; at least one.
    pub crons: Vec<String>,
    /// Name in the IANA database by whose clocks they are read; `UTC` unless written.
    pub time_zone: String,
    /// No child is made while one runs.
    pub prohibit_overlap: bool,
    /// Without it nothing is launched, nor by request.
    pub enabled: bool,
}

/// What a child remembers of its making.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// Id of the job that it was made of, in the same namespace.
    pub parent: String,
    /// How it was made.
    pub origin: Origin,
}

/// How a child was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Somebody asked for it.
    Dispatch {
        /// Base64 (RFC 4648) of the payload; empty where it has none.
        payload: String,
        /// Whoever asks again with the same token gets the same child; empty where none was given.
        idempotency_token: String,
    },
    /// It was due, or somebody asked for it.
    Launch,
}
