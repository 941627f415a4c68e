//! Services that groups and tasks register, with their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{ConsulAccess, Identity};
use crate::Duration;

/// A service to register in a catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Name after defaults and before interpolation.
    pub name: String,
    /// Catalogue.
    pub provider: Provider,
    /// Port label or number; `None` if the service has no port.
    pub port: Option<String>,
    /// Literal address; only with [`AddressMode::Auto`].
    pub address: Option<String>,
    /// Which address is registered.
    pub address_mode: AddressMode,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Tags that replace `tags` while the allocation is a canary, unless empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub canary_tags: Vec<String>,
    /// Meta.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Meta that replaces `meta` while the allocation is a canary, unless empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub canary_meta: BTreeMap<String, String>,
    /// Additional addresses by name, with the service's port. Only for Consul.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tagged_addresses: BTreeMap<String, String>,
    /// Keep tags that others have changed in Consul until the service is registered again.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub enable_tag_override: bool,
    /// Load-balancing weights. Only for Consul.
    #[serde(default, skip_serializing_if = "Weights::is_default")]
    pub weights: Weights,
    /// Of a service of the group: the task that its checks are about, where one is named. A command names its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The identity that the service logs in with at Consul.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// The Consul that has it, and the namespace there; absent for the Consul `default` and the namespace of the agent's config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulAccess>,
    /// The port of the machine that leads to its healthy instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<Publish>,
    /// Health checks; names are unique in the service.
    #[serde(default)]
    pub checks: Vec<Check>,
}

impl Service {
    /// Whether its checks run exactly as those of `other`, so that only descriptive fields differ.
    pub fn is_checked_as(&self, other: &Self) -> bool {
        // Destructured so that a new field can't be forgotten.
        let Self {
            name,
            provider,
            port,
            address,
            address_mode,
            task,
            consul,
            checks,
            tags: _,
            canary_tags: _,
            meta: _,
            canary_meta: _,
            tagged_addresses: _,
            enable_tag_override: _,
            weights: _,
            identity: _,
            publish: _,
        } = self;
        let way = (name, provider, port, address, address_mode);
        way == (&other.name, &other.provider, &other.port, &other.address, &other.address_mode)
            && (task, consul, checks) == (&other.task, &other.consul, &other.checks)
    }

    /// The name of the Consul that has it; `None` for the built-in catalogue.
    pub fn consul_cluster(&self) -> Option<&str> {
        match self.provider {
            Provider::Nomad => None,
            Provider::Consul => {
                Some(self.consul.as_ref().map_or(ConsulAccess::DEFAULT_CLUSTER, |access| &access.cluster))
            }
        }
    }

    /// Whether canaries register it differently.
    pub fn differs_in_canaries(&self) -> bool {
        !self.canary_tags.is_empty() || !self.canary_meta.is_empty()
    }
}

/// A port of the machine that leads to the healthy instances of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    /// The port.
    pub port: u16,
    /// The machine's network that it is on; `None` for the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network: Option<String>,
}

/// Load-balancing weights of an instance, by its health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// The weight while its checks pass.
    pub passing: u32,
    /// The weight while a check warns.
    pub warning: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { passing: 1, warning: 1 }
    }
}

impl Weights {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A service catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The built-in catalogue, like Nomad's own.
    Nomad,
    /// A Consul agent.
    Consul,
}

/// Which address a service or check uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AddressMode {
    /// The literal address, else the driver's if it requests that, else the host's.
    Auto,
    /// The host's address.
    Host,
    /// The address in the driver's network.
    Driver,
    /// The address in the allocation's network.
    Alloc,
}

/// A health check of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Unique in its service.
    pub name: String,
    /// The kind of check.
    pub kind: CheckKind,
    /// Port label or number; the service's where absent.
    pub port: Option<String>,
    /// Which address is checked; if absent the service's literal address, else the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_mode: Option<AddressMode>,
    /// Time between two checks, at least 1 s.
    pub interval: Duration,
    /// Time one check may take, at least 1 s.
    pub timeout: Duration,
    /// The status before the first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_status: Option<InitialStatus>,
    /// The number of consecutive results that change the status.
    #[serde(default, skip_serializing_if = "Thresholds::is_default")]
    pub thresholds: Thresholds,
    /// How results affect the health of an allocation.
    #[serde(default, skip_serializing_if = "OnUpdate::is_default")]
    pub on_update: OnUpdate,
    /// When failures restart tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_restart: Option<CheckRestart>,
    /// A note for people. Only for Consul.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

/// The status of a check before its first run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum InitialStatus {
    /// It passes.
    Passing,
    /// It warns.
    Warning,
    /// It fails.
    Critical,
}

/// The number of consecutive results that change the status of a check. 0 means 1, except for warnings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Good results until the check passes.
    pub success_before_passing: u32,
    /// Bad results until the check fails.
    pub failures_before_critical: u32,
    /// Bad results until the check warns; 0: no warning.
    pub failures_before_warning: u32,
}

impl Thresholds {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a check affects the health of an allocation, during a roll-out and afterwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnUpdate {
    /// It must pass.
    #[default]
    RequireHealthy,
    /// It must pass or warn.
    IgnoreWarnings,
    /// No effect on health; it only determines whether requests may be sent.
    Ignore,
}

impl OnUpdate {
    /// Nomad's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequireHealthy => "require_healthy",
            Self::IgnoreWarnings => "ignore_warnings",
            Self::Ignore => "ignore",
        }
    }

    /// Whether it is the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// When a failing check restarts its task or, for a service of the group, all running tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRestart {
    /// Consecutive failures, at least one.
    pub limit: u32,
    /// Time after a start during which failures don't count.
    pub grace: Duration,
    /// Whether warnings don't count as failures.
    pub ignore_warnings: bool,
}

/// The kind of check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// An HTTP request; a status below 400 passes.
    Http {
        /// Path with an optional query, beginning with `/`.
        path: String,
        /// Method; default `GET`.
        method: String,
        /// `http` or `https`.
        protocol: String,
        /// Request header fields.
        header: BTreeMap<String, Vec<String>>,
        /// Request body.
        body: String,
        /// Accept any certificate.
        tls_skip_verify: bool,
        /// The name on the certificate, if it is not the address.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tls_server_name: String,
    },
    /// A TCP connection.
    Tcp,
    /// gRPC's health protocol; `SERVING` passes.
    Grpc {
        /// The service to check; empty for the whole server.
        service: String,
        /// Whether to use TLS.
        tls: bool,
        /// Accept any certificate.
        tls_skip_verify: bool,
        /// The name on the certificate, if it is not the address.
        tls_server_name: String,
    },
    /// A command in a running task: exit code 0 passes, 1 warns, any other fails.
    Script {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// The task to run it in.
        task: String,
    },
}

impl CheckKind {
    /// Whether it connects to an address.
    pub fn has_address(&self) -> bool {
        !matches!(self, Self::Script { .. })
    }
}
