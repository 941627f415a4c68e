//! `services[]` of groups and tasks, and their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{Span, Text};
use crate::job::{AddressMode, InitialStatus, OnUpdate, Provider};

block! {
    /// A service, registered in a catalogue while its group or task runs.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "cluster", "connect", "identity", "kind",
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
        /// `consul`: its share of what is sent to the service.
        pub weights: Weights,
        /// The task in which checks of type `script` run, of a service of the group.
        pub task: String,
        /// `on_update` of the checks that don't say.
        pub on_update: OnUpdate,
        /// `check_restart` of the checks, which may write fields of it anew.
        pub check_restart: CheckRestart,
        /// Health checks.
        pub checks: Vec<Check>,
    }
}

block! {
    /// The share of an instance in what is sent to its service.
    pub struct Weights {
        /// While its checks pass; default 1.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65535)))]
        pub passing: u32,
        /// While one of them warns; default 1.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65535)))]
        pub warning: u32,
    }
}

block! {
    /// Restarts the task whose check goes on failing, and for a service of the group all running tasks. The task's `restart` counts it.
    pub struct CheckRestart {
        /// Failures in a row until then; 0, the default: never.
        pub limit: u32,
        /// Time after a start in which failures don't count; default 1s.
        pub grace: Span,
        /// Warnings are no failures.
        pub ignore_warnings: bool,
    }
}

block! {
    /// A health check.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["expose"])))]
    pub struct Check {
        /// Unique in its service; default `service: "<service>" check`.
        pub name: String,
        /// How the check is made.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required))]
        pub kind: CheckType,
        /// Label of a port of the group, or a number; the service's port unless written.
        pub port: Text,
        /// Whose address is checked; default `host`, where the service has an `address` that one.
        #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["alloc_ipv6"])))]
        pub address_mode: AddressMode,
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
        /// `grpc`: the service that is asked for; the whole server unless written.
        pub grpc_service: String,
        /// `grpc`: over TLS.
        pub grpc_use_tls: bool,
        /// `http` and `grpc` over TLS: accept any certificate.
        pub tls_skip_verify: bool,
        /// `http` and `grpc` over TLS: the name that the certificate is for; the address unless written.
        pub tls_server_name: String,
        /// `script`: the program. Exit code 0 passes, 1 warns, any other fails.
        pub command: String,
        /// `script`: its arguments.
        pub args: Vec<Text>,
        /// `script` of a service of the group: the task in which it runs; the service's `task` unless written.
        pub task: String,
        /// Time between two checks, at least 1s.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub interval: Span,
        /// Time one check may take, at least 1s.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub timeout: Span,
        /// The status until the check was made; unless written the instance is not listed before.
        pub initial_status: InitialStatus,
        /// Good results in a row until the check passes; default 1.
        pub success_before_passing: u32,
        /// Bad results in a row until the check fails; default 1.
        pub failures_before_critical: u32,
        /// Bad results in a row until the check warns, before it fails; unless written it doesn't warn.
        pub failures_before_warning: u32,
        /// What the check says of an allocation's health: `require_healthy` (it has to pass, the default), `ignore_warnings`, or
        /// `ignore` (it only tells whether requests may be sent).
        pub on_update: OnUpdate,
        /// When failures restart what is checked.
        pub check_restart: CheckRestart,
        /// `consul`: a sentence for people.
        pub notes: String,
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
    /// gRPC's health protocol.
    Grpc,
    /// A command in a running task.
    Script,
}

impl CheckType {
    /// The name in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
            Self::Script => "script",
        }
    }
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
