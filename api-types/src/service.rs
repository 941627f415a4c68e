//! Services as they stand in a catalogue, and the results of their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, Duration, JobKey, UnixNanos,
    job::{CheckKind, Provider},
};

/// One service instance, resolved: names interpolated, address and port known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Catalogue id. Begins with `_herdlet-` in standalone mode, so that a Nomad client on the same Consul agent, which
    /// removes unknown `_nomad-task-` entries, leaves it alone.
    pub id: String,
    /// Catalogue.
    pub provider: Provider,
    /// Service name.
    pub name: String,
    /// Address; empty means the catalogue agent's own.
    pub address: String,
    /// Port, 0 for none.
    pub port: u16,
    /// Tags, sorted; those for canaries where it is one.
    pub tags: Vec<String>,
    /// Others may change the tags.
    #[serde(default)]
    pub enable_tag_override: bool,
    /// Meta; carries our owner mark.
    pub meta: BTreeMap<String, String>,
    /// Further addresses by name.
    #[serde(default)]
    pub tagged_addresses: BTreeMap<String, String>,
    /// Checks.
    pub checks: Vec<RegisteredCheck>,
    /// The allocation it belongs to.
    pub alloc: AllocId,
    /// Its task; none for a group service.
    pub task: Option<String>,
    /// Its job.
    pub job: JobKey,
}

/// A check of a [`Registration`], resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredCheck {
    /// Catalogue id, a hash over all that defines the check, its service included.
    pub id: String,
    /// Name.
    pub name: String,
    /// How it is made.
    pub kind: CheckKind,
    /// Address to check.
    pub address: String,
    /// Port to check.
    pub port: u16,
    /// Time between two checks.
    pub interval: Duration,
    /// Time one check may take.
    pub timeout: Duration,
}

/// The last result of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// No result yet.
    #[default]
    Pending,
    /// It passed.
    Success,
    /// It failed.
    Failure,
}

impl CheckStatus {
    /// Nomad's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

/// A check's result as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Check id.
    pub id: String,
    /// Service name.
    pub service: String,
    /// Check name.
    pub check: String,
    /// Task of the service; none for a group service.
    pub task: Option<String>,
    /// Result.
    pub status: CheckStatus,
    /// What the check said, at most 3 KiB.
    pub output: String,
    /// What the server of an HTTP check answered with.
    #[serde(default)]
    pub http_status: Option<u16>,
    /// When the status last changed.
    pub at: UnixNanos,
}

/// A service instance as shown: what is registered, and how it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// What is registered.
    #[serde(flatten)]
    pub registration: Registration,
    /// Whether requests may be sent to it.
    #[serde(default)]
    pub health: ServiceHealth,
    /// The last results of its checks.
    #[serde(default)]
    pub results: Vec<CheckResult>,
}

/// Whether requests may be sent to a service instance, in Consul's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceHealth {
    /// All of its checks pass, or it has none: it is listed.
    Passing,
    /// A check fails.
    Critical,
    /// A check has no result yet, or its task is being stopped.
    #[default]
    Pending,
}

impl ServiceHealth {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Critical => "critical",
            Self::Pending => "pending",
        }
    }
}
