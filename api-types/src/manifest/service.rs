//! `services[]` of groups and tasks, and their checks.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::unused::OLD;
use super::{Identity, Span, Text};
use crate::job::{AddressMode, InitialStatus, OnUpdate, Provider};

block! {
    /// A service, registered in a catalogue while its group or task runs.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["connect", "kind", "namespace"],
        "x-default" = { "namespace": ["default"] },
    )))]
    pub struct Service {
        /// A DNS label after `${…}` is replaced; by default `<job>-<group>` for a group's service, and `<job>-<group>-<task>` for a task's.
        pub name: String,
        /// The catalogue: `nomad` (built in, the default) or `consul`. All services of a group must use the same.
        pub provider: Provider,
        /// Label of one of the group's ports, or a number.
        pub port: Text,
        /// An address to register instead of the machine's; only with `address_mode: auto`.
        pub address: String,
        /// Which address is registered; default `auto`.
        #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["alloc_ipv6"])))]
        pub address_mode: AddressMode,
        /// Tags.
        pub tags: Vec<Text>,
        /// Tags that replace `tags` while the allocation is a canary, unless empty.
        pub canary_tags: Vec<Text>,
        /// Meta.
        pub meta: BTreeMap<String, Text>,
        /// Meta that replaces `meta` while the allocation is a canary, unless empty.
        pub canary_meta: BTreeMap<String, Text>,
        /// `consul`: additional addresses by name, each with the service's port.
        pub tagged_addresses: BTreeMap<String, Text>,
        /// `consul`: keep tags changed by others until this service changes or is registered again.
        pub enable_tag_override: bool,
        /// `consul`: load-balancing weights.
        pub weights: Weights,
        /// For a service of the group: the task that its checks are about. Scripts run in it, and `check_restart` counts failures while it
        /// runs; default: while all main tasks of the group run.
        pub task: String,
        /// `consul`: the Consul that has it, by its name in the agent's config; default that of the block `consul` of its task or group.
        pub cluster: String,
        /// `consul`: the identity that the service logs in with; default `service_identity` of the agent's config.
        pub identity: Identity,
        /// A port of the machine that leads to the healthy instances; only for the built-in catalogue.
        pub publish: Publish,
        /// Default of the checks' `on_update`.
        pub on_update: OnUpdate,
        /// Default of the checks' `check_restart`; a check may override individual fields.
        pub check_restart: CheckRestart,
        /// Health checks.
        pub checks: Vec<Check>,
    }
}

block! {
    /// A port of the machine that leads to the healthy instances of a service. The kernel distributes connections among them.
    pub struct Publish {
        /// The port; no allocation gets it.
        #[cfg_attr(feature = "schema", schemars(required, range(min = 1, max = 65535)))]
        pub port: u16,
        /// The machine's network that it is on, by its name in the agent's config; default the address `host_ip` of the config and 127.0.0.1.
        pub host_network: String,
    }
}

block! {
    /// Load-balancing weights of an instance.
    pub struct Weights {
        /// The weight while its checks pass; default 1.
        #[cfg_attr(feature = "schema", schemars(range(max = 65535)))]
        pub passing: u32,
        /// The weight while a check warns; default 1.
        #[cfg_attr(feature = "schema", schemars(range(max = 65535)))]
        pub warning: u32,
    }
}

block! {
    /// Restarts the task of a failing check or, for a service of the group, all running tasks. The restart counts in the task's `restart`.
    /// Failures count only while the checked tasks run.
    pub struct CheckRestart {
        /// Consecutive failures before the restart; 0, the default: never restart.
        pub limit: u32,
        /// Time after the start of the checked tasks during which failures don't count; default 1s.
        pub grace: Span,
        /// Don't count warnings as failures.
        pub ignore_warnings: bool,
    }
}

block! {
    /// A health check.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["expose"], "x-no-effect" = { "advertise": OLD })))]
    pub struct Check {
        /// Unique in its service; default `service: "<service>" check`.
        pub name: String,
        /// The kind of check.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required))]
        pub kind: CheckType,
        /// Label of one of the group's ports, or a number; default the service's port.
        pub port: Text,
        /// Which address is checked; default `host`, or the service's `address` if it has one.
        #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = ["alloc_ipv6"])))]
        pub address_mode: AddressMode,
        /// `http`: path with an optional query; a leading `/` is optional.
        pub path: String,
        /// `http`: the method; default `GET`.
        pub method: String,
        /// `http`: `http` (the default) or `https`.
        pub protocol: Protocol,
        /// `http`: header fields, each with a list of values.
        pub header: BTreeMap<String, Vec<Text>>,
        /// `http`: the request body.
        pub body: Text,
        /// `grpc`: the service to check; default the whole server.
        pub grpc_service: String,
        /// `grpc`: use TLS.
        pub grpc_use_tls: bool,
        /// `http` and `grpc` with TLS: accept any certificate.
        pub tls_skip_verify: bool,
        /// `http` and `grpc` with TLS: the name on the certificate; default the address.
        pub tls_server_name: String,
        /// `script`: the program. Exit code 0 passes, 1 warns, all others fail.
        pub command: String,
        /// `script`: its arguments.
        pub args: Vec<Text>,
        /// `script` of a group service: the task in which it runs; default the service's `task`.
        pub task: String,
        /// Time between two runs, at least 1s.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub interval: Span,
        /// Time limit of a run, at least 1s.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub timeout: Span,
        /// The status before the first run; without it the instance is not listed until then.
        pub initial_status: InitialStatus,
        /// Consecutive good results before the check passes; default 1.
        pub success_before_passing: u32,
        /// Consecutive bad results before the check fails; default 1.
        pub failures_before_critical: u32,
        /// Consecutive bad results before the check warns; without it there is no warning.
        pub failures_before_warning: u32,
        /// The effect on the allocation's health: `require_healthy` (the check must pass, the default), `ignore_warnings` or `ignore` (no effect).
        pub on_update: OnUpdate,
        /// When failures restart tasks.
        pub check_restart: CheckRestart,
        /// `consul`: a note for people.
        pub notes: String,
    }
}

/// `type` of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CheckType {
    /// An HTTP request; a status below 400 passes.
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
