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
    /// Meta.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Health checks; names are unique in the service.
    #[serde(default)]
    pub checks: Vec<Check>,
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
