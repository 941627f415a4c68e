//! Services as they stand in a catalogue, and the results of their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, Duration, JobKey, UnixNanos,
    job::{CheckKind, CheckRestart, InitialStatus, OnUpdate, Provider, Thresholds, Weights},
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
    /// Its share of what is sent to the service.
    #[serde(default)]
    pub weights: Weights,
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
    /// Address to check; none of a command.
    pub address: String,
    /// Port to check; 0 of a command.
    pub port: u16,
    /// Time between two checks.
    pub interval: Duration,
    /// Time one check may take.
    pub timeout: Duration,
    /// Its status until it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_status: Option<InitialStatus>,
    /// How many results in a row change its status.
    #[serde(default)]
    pub thresholds: Thresholds,
    /// What it says of the health of its allocation.
    #[serde(default)]
    pub on_update: OnUpdate,
    /// When it restarts what it checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_restart: Option<CheckRestart>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
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
    /// It passed with a warning.
    Warning,
    /// It failed.
    Failure,
}

impl CheckStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Success, Self::Warning, Self::Failure];

    /// Nomad's word for it; `warning` is Consul's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Warning => "warning",
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
    /// Nobody has made the check since: an agent before this one heard it, it is what holds until the first time, or the Consul that
    /// makes it does not answer.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub stale: bool,
    /// What it says of the health of its allocation.
    #[serde(default, skip_serializing_if = "OnUpdate::is_default")]
    pub on_update: OnUpdate,
    /// When it restarts what it checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartsWhen>,
}

/// When a check that goes on failing restarts its task, or for a service of the group all running tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartsWhen {
    /// So long after its first failure that counts.
    pub failing_for: Duration,
    /// Time after a start in which failures don't count.
    pub grace: Duration,
    /// Warnings are no failures.
    pub ignore_warnings: bool,
}

impl CheckResult {
    /// The result of a check that has none yet.
    pub fn pending(registration: &Registration, check: &RegisteredCheck) -> Self {
        Self {
            id: check.id.clone(),
            service: registration.name.clone(),
            check: check.name.clone(),
            task: registration.task.clone(),
            status: CheckStatus::Pending,
            output: String::new(),
            http_status: None,
            at: UnixNanos::default(),
            stale: false,
            on_update: check.on_update,
            restarts: check.check_restart.map(|restart| RestartsWhen {
                failing_for: Duration(check.interval.as_nanos().saturating_mul(i64::from(restart.limit) - 1)),
                grace: restart.grace,
                ignore_warnings: restart.ignore_warnings,
            }),
        }
    }

    /// Whether the allocation's health asks for it.
    pub fn counts(&self) -> bool {
        self.on_update != OnUpdate::Ignore
    }

    /// Whether it is as the allocation's health asks for.
    pub fn is_as_required(&self) -> bool {
        match self.status {
            CheckStatus::Success => true,
            CheckStatus::Warning => self.on_update != OnUpdate::RequireHealthy,
            CheckStatus::Pending | CheckStatus::Failure => !self.counts(),
        }
    }

    /// Whether it is on the way to a restart, and when.
    pub fn restarts_now(&self) -> Option<RestartsWhen> {
        self.restarts.filter(|when| match self.status {
            CheckStatus::Pending | CheckStatus::Success => false,
            CheckStatus::Warning => !when.ignore_warnings,
            CheckStatus::Failure => true,
        } && !self.stale)
    }
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
    /// A check warns and none fails: it is listed.
    Warning,
    /// A check fails.
    Critical,
    /// A check has no result yet, or its task is being stopped.
    #[default]
    Pending,
}

impl ServiceHealth {
    /// Whether requests may be sent to it.
    pub fn is_listed(self) -> bool {
        matches!(self, Self::Passing | Self::Warning)
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Pending => "pending",
        }
    }
}
