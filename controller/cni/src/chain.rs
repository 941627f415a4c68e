//! The calls of all plugins of a network.
//!
//! In: a network, an allocation with its namespace, ports and arguments. Out: the result of the last plugin. Each plugin gets its own
//! settings, the result of the one before, and what the agent knows for the capabilities that it has declared.

use std::{
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    config::{Checks, NetworkConfig, PluginConfig, SpecVersion, has_capability, type_of},
    plugin::{Attachment, Call, CallError, Command, call},
};

/// The capability of plugins that map ports.
const PORTS: &str = "portMappings";

/// The longest time of one plugin. Those that wait for a DHCP server take seconds.
pub const PLUGIN_TIME_MAX: Duration = Duration::from_secs(30);

/// The longest time of all plugins of a network together. A network is set up within 120 s and removed within 60 s, and before one is
/// set up, another may have to be removed, and it itself afterwards.
const ADD_TIME_MAX: Duration = Duration::from_secs(45);
const DEL_TIME_MAX: Duration = Duration::from_secs(30);
/// An inspection is to end within 10 s.
const CHECK_TIME_MAX: Duration = Duration::from_secs(6);
const STATUS_TIME_MAX: Duration = Duration::from_secs(5);

/// A port of the machine that leads to an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// The machine's address; `None` for all of them.
    pub host_ip: Option<IpAddr>,
    /// The machine's port.
    pub host: u16,
    /// The allocation's port.
    pub inside: u16,
}

/// A network with what it is attached to.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'c> {
    /// The directories of plugins.
    pub dirs: &'c [PathBuf],
    pub network: &'c NetworkConfig,
    pub attachment: Attachment<'c>,
    pub ports: &'c [PortMapping],
    /// The longest time of one plugin.
    pub time: Duration,
}

impl Chain<'_> {
    /// Asks the plugins whether they are ready, since version 1.1.0.
    ///
    /// # Errors
    /// That of the first one that is not.
    pub fn status(&self) -> Result<(), CallError> {
        if self.network.version < SpecVersion::V110 {
            return Ok(());
        }
        self.in_order(Command::Status, None, STATUS_TIME_MAX).map(drop)
    }

    /// Attaches the network. Returns the result of the last plugin; null if there is none.
    ///
    /// # Errors
    /// That of the first plugin that failed. The caller then detaches it.
    pub fn add(&self) -> Result<Value, CallError> {
        self.in_order(Command::Add, None, ADD_TIME_MAX)
    }

    /// Asks the plugins whether the network is as they have made it, since version 0.4.0.
    ///
    /// # Errors
    /// That of the first plugin that failed.
    pub fn check(&self, result: &Value) -> Result<(), CallError> {
        if self.network.version < SpecVersion::V040 || self.network.check == Checks::Disabled {
            return Ok(());
        }
        self.in_order(Command::Check, Some(result), CHECK_TIME_MAX).map(drop)
    }

    /// Detaches the network, whatever of it is there. Each plugin is called even if another one fails.
    ///
    /// # Errors
    /// That of the first plugin that failed.
    pub fn del(&self, result: Option<&Value>) -> Result<(), CallError> {
        let until = Instant::now() + DEL_TIME_MAX;
        let result = result.filter(|_| self.network.version >= SpecVersion::V040);
        let mut failed = Ok(());
        for plugin in self.network.plugins.iter().rev() {
            let deleted = self.call(plugin, Command::Del, (result, until)).map(drop);
            failed = failed.and(deleted);
        }
        failed
    }

    fn in_order(&self, command: Command, result: Option<&Value>, time: Duration) -> Result<Value, CallError> {
        let until = Instant::now() + time;
        let mut previous = result.cloned();
        for plugin in &self.network.plugins {
            let output = self.call(plugin, command, (previous.as_ref(), until))?;
            if command == Command::Add && !output.is_null() {
                previous = Some(output);
            }
        }
        Ok(previous.unwrap_or_default())
    }

    fn call(
        &self,
        plugin: &PluginConfig,
        command: Command,
        (previous, until): (Option<&Value>, Instant),
    ) -> Result<Value, CallError> {
        let left = until.saturating_duration_since(Instant::now());
        let (dirs, attachment) = (self.dirs, self.attachment);
        let time = left.min(self.time);
        let settings = self.settings(plugin, previous);
        call(&Call { dirs, name: type_of(plugin), command, attachment, time }, &settings)
    }

    /// What a plugin reads (`SPEC.md`, "Deriving execution configuration").
    fn settings(&self, plugin: &PluginConfig, previous: Option<&Value>) -> Value {
        let mut settings: Map<String, Value> = plugin.clone();
        settings.remove("capabilities");
        settings.insert("name".to_owned(), self.network.name.clone().into());
        settings.insert("cniVersion".to_owned(), self.network.version.as_str().into());
        if has_capability(plugin, PORTS) && !self.ports.is_empty() {
            settings.insert("runtimeConfig".to_owned(), json!({ PORTS: self.port_mappings() }));
        }
        if let Some(previous) = previous {
            settings.insert("prevResult".to_owned(), previous.clone());
        }
        Value::Object(settings)
    }

    /// Each port by TCP and by UDP.
    fn port_mappings(&self) -> Vec<Value> {
        let of_port = |port: &PortMapping| {
            let host_ip = port.host_ip.filter(|ip| !ip.is_unspecified());
            ["tcp", "udp"].map(|protocol| {
                let mut mapping =
                    json!({ "hostPort": port.host, "containerPort": port.inside, "protocol": protocol });
                if let (Some(ip), Some(fields)) = (host_ip, mapping.as_object_mut()) {
                    fields.insert("hostIP".to_owned(), ip.to_string().into());
                }
                mapping
            })
        };
        self.ports.iter().flat_map(of_port).collect()
    }
}

/// Whether a plugin of this network maps ports.
pub fn maps_ports(network: &NetworkConfig) -> bool {
    network.plugins.iter().any(|plugin| has_capability(plugin, PORTS))
}
