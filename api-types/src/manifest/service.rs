//! `services[]` of groups and tasks, and their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{Span, Text};
use crate::job::{AddressMode, Provider};

block! {
    /// A service, registered in a catalogue while its group or task runs.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "check_restart", "cluster", "connect", "identity", "kind", "on_update", "task", "weights",
    ])))]
    pub struct Service {
        /// A DNS label once `${…}` is filled in; default `<job>-<group>-<task>`, with `group` as the task of a group service.
        pub name: String,
        /// The catalogue: `nomad` (built in, the default) or `consul`. One group uses one.
        pub provider: Provider,
        /// Label of a port of the group, or a number.
        pub port: Text,
        /// An address to register instead of the machine's; only with `address_mode: auto`.
        pub address: String,
        /// Whose address is registered; default `auto`.
        #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["alloc_ipv6"])))]
        pub address_mode: AddressMode,
        /// Tags.
        pub tags: Vec<Text>,
        /// Tags in the place of `tags` while the allocation is a canary, unless there are none.
        pub canary_tags: Vec<Text>,
        /// Meta.
        pub meta: BTreeMap<String, Text>,
        /// Meta in the place of `meta` while the allocation is a canary, unless there is none.
        pub canary_meta: BTreeMap<String, Text>,
        /// `consul`: further addresses by name, each with the service's port.
        pub tagged_addresses: BTreeMap<String, Text>,
        /// `consul`: tags that somebody else changes stay until anything of this service changes, or it is registered anew.
        pub enable_tag_override: bool,
        /// Health checks.
        pub checks: Vec<Check>,
    }
}

block! {
    /// A health check.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "address_mode", "args", "check_restart", "command", "expose", "failures_before_critical",
        "failures_before_warning", "grpc_service", "grpc_use_tls", "initial_status", "notes", "on_update",
        "success_before_passing", "task", "tls_server_name",
    ])))]
    pub struct Check {
        /// Unique in its service; default `service: "<service>" check`.
        pub name: String,
        /// How the check is made.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required, extend("x-not-built" = ["grpc", "script"])))]
        pub kind: CheckType,
        /// Label of a port of the group, or a number; the service's port unless written.
        pub port: Text,
        /// `http`: path with optional query, beginning with `/`.
        pub path: String,
        /// `http`: the method; default `GET`.
        pub method: String,
        /// `http`: `http` (the default) or `https`.
        pub protocol: Protocol,
        /// `http`: header fields, each a list of values.
        pub header: BTreeMap<String, Vec<Text>>,
        /// `http`: the body of the request.
        pub body: Text,
        /// `http` over TLS: accept any certificate.
        pub tls_skip_verify: bool,
        /// Time between two checks, at least 1s.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub interval: Span,
        /// Time one check may take, at least 1s.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub timeout: Span,
    }
}

/// `type` of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CheckType {
    /// An HTTP request; an answer below 400 passes.
    #[default]
    Http,
    /// A TCP connection.
    Tcp,
}

/// `protocol` of an HTTP check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Plain HTTP.
    #[default]
    Http,
    /// HTTP over TLS.
    Https,
}
