//! Services that groups and tasks register, with their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::Duration;

/// A service to register in a catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Name after default and before interpolation.
    pub name: String,
    /// Catalogue.
    pub provider: Provider,
    /// Port label or number; none where the service has no port.
    pub port: Option<String>,
    /// Literal address; only with [`AddressMode::Auto`].
    pub address: Option<String>,
    /// Whose address is registered.
    pub address_mode: AddressMode,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Tags in their place while the allocation is a canary; where there are none, those hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub canary_tags: Vec<String>,
    /// Meta.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Meta in its place while the allocation is a canary; where there is none, that holds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub canary_meta: BTreeMap<String, String>,
    /// Further addresses by name, with the service's port. Only Consul keeps them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tagged_addresses: BTreeMap<String, String>,
    /// Tags that somebody has changed in Consul stay until the service is registered anew.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub enable_tag_override: bool,
    /// Health checks; names are unique in the service.
    #[serde(default)]
    pub checks: Vec<Check>,
}

impl Service {
    /// Whether its checks are made as those of `other`: what differs is only told about it.
    pub fn is_checked_as(&self, other: &Self) -> bool {
        // Destructured so that a new field can't be forgotten.
        let Self {
            name,
            provider,
            port,
            address,
            address_mode,
            checks,
            tags: _,
            canary_tags: _,
            meta: _,
            canary_meta: _,
            tagged_addresses: _,
            enable_tag_override: _,
        } = self;
        (name, provider, port, address, address_mode, checks)
            == (&other.name, &other.provider, &other.port, &other.address, &other.address_mode, &other.checks)
    }

    /// Whether a canary registers it otherwise.
    pub fn differs_in_canaries(&self) -> bool {
        !self.canary_tags.is_empty() || !self.canary_meta.is_empty()
    }
}

/// A service catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The built-in catalogue, as Nomad's own.
    Nomad,
    /// A Consul agent.
    Consul,
}

/// Whose address a service or check uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AddressMode {
    /// The literal address, else the driver's where it asks for it, else the host's.
    Auto,
    /// The host's.
    Host,
    /// The driver network's.
    Driver,
    /// The allocation network's.
    Alloc,
}

/// A health check of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Unique in its service.
    pub name: String,
    /// How it is made.
    pub kind: CheckKind,
    /// Port label or number; the service's where absent.
    pub port: Option<String>,
    /// Time between two checks, at least 1 s.
    pub interval: Duration,
    /// Time one check may take, at least 1 s.
    pub timeout: Duration,
}

/// How a check is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// An HTTP request; below 400 passes.
    Http {
        /// Path with optional query, beginning with `/`.
        path: String,
        /// Method, `GET` unless written.
        method: String,
        /// `http` or `https`.
        protocol: String,
        /// Request header fields.
        header: BTreeMap<String, Vec<String>>,
        /// Request body.
        body: String,
        /// Accept any certificate.
        tls_skip_verify: bool,
    },
    /// A TCP connection.
    Tcp,
}
