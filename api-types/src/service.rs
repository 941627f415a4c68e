//! Services in a catalogue, and the results of their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, Duration, JobKey, UnixNanos,
    job::{CheckKind, CheckRestart, ConsulAccess, InitialStatus, OnUpdate, Provider, Thresholds, Weights},
};

/// A resolved service instance: names interpolated, address and port known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Catalogue id. Begins with `_herdlet-` in standalone mode, so that a Nomad client on the same Consul agent, which
    /// removes unknown `_nomad-task-` entries, does not remove it.
    pub id: String,
    /// Catalogue.
    pub provider: Provider,
    /// Service name.
    pub name: String,
    /// Address; empty for the catalogue agent's own.
    pub address: String,
    /// Port, 0 for none.
    pub port: u16,
    /// Tags, sorted; the canary's if it is one.
    pub tags: Vec<String>,
    /// Whether others may change the tags.
    #[serde(default)]
    pub enable_tag_override: bool,
    /// Meta, including our owner mark.
    pub meta: BTreeMap<String, String>,
    /// Additional addresses by name.
    #[serde(default)]
    pub tagged_addresses: BTreeMap<String, String>,
    /// Load-balancing weights.
    #[serde(default)]
    pub weights: Weights,
    /// Checks.
    pub checks: Vec<RegisteredCheck>,
    /// The Consul that has it, and the namespace there; absent for the Consul `default` and the namespace of the agent's config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulAccess>,
    /// How the machine's port that leads to healthy instances reaches this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<Publication>,
    /// Its allocation.
    pub alloc: AllocId,
    /// Its task; `None` for a group service.
    pub task: Option<String>,
    /// Its job.
    pub job: JobKey,
}

/// A published port, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// The machine's port.
    pub port: u16,
    /// The machine's network that it is on; `None` for the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network: Option<String>,
    /// The address at which the machine reaches this instance; empty if it has none.
    pub target_address: String,
    /// Its IPv6 address there, if it also has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_address6: Option<String>,
    /// The port of this instance there.
    pub target_port: u16,
}

/// A published port as shown, for one instance of its service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedView {
    /// The addresses and ports at which clients connect.
    pub addresses: Vec<String>,
    /// Whether new connections may lead to this instance.
    pub receives: bool,
    /// Why the port is not open, or does not lead to this instance although it is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A check of a [`Registration`], resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredCheck {
    /// Catalogue id: a hash of everything that defines the check, including its service.
    pub id: String,
    /// Name.
    pub name: String,
    /// The kind of check.
    pub kind: CheckKind,
    /// Address to check; empty for a command.
    pub address: String,
    /// Port to check; 0 for a command.
    pub port: u16,
    /// Time between two checks.
    pub interval: Duration,
    /// Time one check may take.
    pub timeout: Duration,
    /// The status before the first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_status: Option<InitialStatus>,
    /// The number of consecutive results that change the status.
    #[serde(default)]
    pub thresholds: Thresholds,
    /// How results affect the health of its allocation.
    #[serde(default)]
    pub on_update: OnUpdate,
    /// When failures restart tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_restart: Option<CheckRestart>,
    /// A note for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// The task that it is about, where one is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// The status of a check.
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
    /// All values.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Success, Self::Warning, Self::Failure];

    /// Nomad's name; `warning` is Consul's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

/// A check's result as in the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Check id.
    pub id: String,
    /// Service name.
    pub service: String,
    /// Check name.
    pub check: String,
    /// Task of the service; `None` for a group service.
    pub task: Option<String>,
    /// Result.
    pub status: CheckStatus,
    /// The check's output, at most 3 KiB.
    pub output: String,
    /// The response status of an HTTP check.
    #[serde(default)]
    pub http_status: Option<u16>,
    /// When the status last changed.
    pub at: UnixNanos,
    /// Whether the result is not current: it is from an earlier agent, the initial status, or from a Consul that does
    /// not answer.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub stale: bool,
    /// How the result affects the health of its allocation.
    #[serde(default, skip_serializing_if = "OnUpdate::is_default")]
    pub on_update: OnUpdate,
    /// When failures restart tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartsWhen>,
}

/// When a failing check restarts its task or, for a service of the group, all running tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartsWhen {
    /// Time from its first counted failure to the restart.
    pub failing_for: Duration,
    /// Time after a start during which failures don't count.
    pub grace: Duration,
    /// Whether warnings don't count as failures.
    pub ignore_warnings: bool,
    /// The task that has to run for failures to count. Unless one is named: for a service of the group all of its main tasks, else the
    /// task of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

impl CheckResult {
    /// The result of a check before its first run.
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
                task: check.task.clone().filter(|_| registration.task.is_none()),
            }),
        }
    }

    /// Whether it affects the allocation's health.
    pub fn counts(&self) -> bool {
        self.on_update != OnUpdate::Ignore
    }

    /// Whether it meets the requirements for the allocation's health.
    pub fn is_as_required(&self) -> bool {
        match self.status {
            CheckStatus::Success => true,
            CheckStatus::Warning => self.on_update != OnUpdate::RequireHealthy,
            CheckStatus::Pending | CheckStatus::Failure => !self.counts(),
        }
    }

    /// When it will cause a restart, if the current result counts towards one.
    pub fn restarts_now(&self) -> Option<&RestartsWhen> {
        self.restarts.as_ref().filter(|when| match self.status {
            CheckStatus::Pending | CheckStatus::Success => false,
            CheckStatus::Warning => !when.ignore_warnings,
            CheckStatus::Failure => true,
        } && !self.stale)
    }
}

/// A service instance as shown: the registration and its health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// The registration.
    #[serde(flatten)]
    pub registration: Registration,
    /// Whether requests may be sent to it.
    #[serde(default)]
    pub health: ServiceHealth,
    /// The last results of its checks.
    #[serde(default)]
    pub results: Vec<CheckResult>,
    /// The machine's port that leads to healthy instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedView>,
}

/// Whether requests may be sent to a service instance, in Consul's terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceHealth {
    /// All checks pass, or there are none: it is listed.
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

    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Pending => "pending",
        }
    }
}
