//! A container in the network that its group shares: how it joins it, what engines refuse there, and names of its own in its
//! `/etc/hosts`.
//!
//! In: the task's config, the file of the network's namespace, what is known of the engine. Out: parts of the request. As in Nomad, a
//! task with a `network_mode` of its own does not use the group's network.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use herdlet_api_types::manifest::driver::DockerConfig;

use super::Material;
use crate::{
    config::{ContainerConfig, FieldError, Keys},
    engine::Kind,
};

/// The files about the network that the agent mounts.
const FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

/// The group's network, of a task that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupNetwork {
    /// The file that keeps its namespace.
    pub(crate) namespace: PathBuf,
    /// More lines for the `/etc/hosts` of the container.
    pub(crate) hosts: Vec<String>,
    /// The host name of its tasks, if it is not the machine's.
    pub(crate) hostname: Option<String>,
}

/// Whether a task whose group has a network of its own uses that.
pub(super) fn is_used(docker: &DockerConfig) -> bool {
    docker.network_mode.as_deref().unwrap_or_default().is_empty()
}

/// The group's network; none for a task that does not use one.
///
/// # Errors
/// A field that can't be used in it.
pub(super) fn shared_network(material: &Material<'_>) -> Result<Option<GroupNetwork>, FieldError> {
    let docker = &material.config.docker;
    let Some(network) = material.task.network.as_ref().filter(|_| is_used(docker)) else { return Ok(None) };
    if let Some(refused) = refusals(material.config).into_iter().next() {
        return Err(refused);
    }
    if material.about.remaps_users && docker.userns_mode.as_deref() != Some("host") {
        return Err(FieldError::new(
            "userns_mode",
            "the engine gives containers users of their own (userns-remap), who can't join the network of the group; write \
             `userns_mode = \"host\"`, or `mode = \"host\"` in the group's `network`",
        ));
    }
    let hosts = hosts(docker).collect::<Result<_, _>>()?;
    Ok(Some(GroupNetwork { namespace: network.path.clone(), hosts, hostname: network.hostname.clone() }))
}

/// The mode of a container in the group's network. `pause` is the name of the container that Docker's containers join.
pub(super) fn mode(kind: Kind, network: &GroupNetwork, pause: &str) -> String {
    match kind {
        Kind::Docker => format!("container:{pause}"),
        Kind::Podman => format!("ns:{}", network.namespace.display()),
    }
}

/// Keys that are refused in the group's network, because the tasks share its address and names.
pub(super) fn refusals(config: &ContainerConfig) -> Vec<FieldError> {
    let docker = &config.docker;
    let text = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    // Podman gives each container a name of its own.
    let hostname = docker.hostname.as_ref().filter(|_| config.keys == Keys::Docker);
    let keys = [
        ("hostname", hostname.is_some_and(|name| !name.0.is_empty())),
        (config.keys.dns(), !docker.dns_servers.is_empty()),
        ("port_map", !docker.port_map.0.is_empty()),
        ("network_aliases", !docker.network_aliases.is_empty()),
        ("ipv4_address", text(&docker.ipv4_address)),
        ("ipv6_address", text(&docker.ipv6_address)),
        ("mac_address", text(&docker.mac_address)),
    ];
    let refused = keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| {
        let why = match key {
            "port_map" => {
                "the ports of the group's network lead to its tasks; write `to` in the group's `network`"
            }
            _ => "the tasks of the group share its network, with its address and its names; remove this key",
        };
        FieldError::new(key, why)
    });
    refused.chain(hosts(docker).filter_map(Result::err)).collect()
}

/// Keys that have no effect there, each with a message.
pub(super) fn without_effect(docker: &DockerConfig) -> Vec<(&'static str, String)> {
    let keys = [
        ("dns_search_domains", docker.dns_search_domains.is_empty()),
        ("dns_options", docker.dns_options.is_empty()),
    ];
    let set = keys.into_iter().filter(|(_, is_empty)| !is_empty);
    set.map(|(key, _)| (key, format!("{key} has no effect in a network that the group shares"))).collect()
}

fn hosts(docker: &DockerConfig) -> impl Iterator<Item = Result<String, FieldError>> {
    host_lines(docker.extra_hosts.iter().map(|entry| entry.0.as_str()))
}

/// Lines for the entries of `extra_hosts`, each of the form `NAME:ADDRESS`.
pub(crate) fn host_lines<'h>(
    entries: impl Iterator<Item = &'h str>,
) -> impl Iterator<Item = Result<String, FieldError>> {
    entries.enumerate().map(|(index, entry)| {
        let parsed = entry.split_once(':').and_then(|(name, address)| {
            let is_name = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
            let address = address.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok()?;
            is_name.then(|| format!("{address} {name}"))
        });
        parsed.ok_or_else(|| {
            let why = format!("expected NAME:ADDRESS with an IP address, found {entry:?}");
            FieldError::new(format!("extra_hosts[{index}]"), why)
        })
    })
}

/// Whether a mount of the agent is a file about the group's network.
pub(super) fn is_file(target: &Path) -> bool {
    FILES.iter().any(|file| target == Path::new(file))
}
