//! The network of a container: its mode, published ports, addresses and names.
//!
//! In: the task's config, the ports assigned to the allocation. Out: parts of the request; and, from what the engine reports of a
//! started container, its network for services.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{EndpointIpamConfig, EndpointSettings, NetworkingConfig, PortBinding};
use herdlet_api_types::{alloc::AssignedPort, manifest::driver::DockerConfig};

use super::{Material, some};
use crate::config::FieldError;

/// The network part of a request.
pub(super) struct Network {
    pub(super) mode: String,
    pub(super) bindings: HashMap<String, Option<Vec<PortBinding>>>,
    pub(super) exposed: Vec<String>,
    pub(super) endpoints: Option<NetworkingConfig>,
    pub(super) port_map: BTreeMap<String, u16>,
}

pub(super) fn of(material: &Material<'_>) -> Result<Network, FieldError> {
    let docker = &material.config.docker;
    let mode = docker.network_mode.as_deref().filter(|mode| !mode.is_empty()).unwrap_or("default");
    if mode.starts_with("ns:") {
        return Err(FieldError::new(
            "network_mode",
            "joining a namespace by its path is not supported; use container:NAME",
        ));
    }
    let mode = match mode.strip_prefix("task:") {
        None => mode.to_owned(),
        Some(_) => {
            return Err(FieldError::new(
                "network_mode",
                "task:NAME needs a network that the tasks of a group share, which this release lacks; use container:NAME",
            ));
        }
    };
    let shares = mode == "host" || mode == "none" || mode.starts_with("container:");
    let ports = published(material)?;
    let mut network = Network {
        endpoints: endpoints(docker, &mode)?,
        mode,
        bindings: HashMap::new(),
        exposed: Vec::new(),
        port_map: BTreeMap::new(),
    };
    for (label, (port, inside)) in ports {
        network.port_map.insert(label, inside);
        if shares {
            continue;
        }
        for protocol in ["tcp", "udp"] {
            let name = format!("{inside}/{protocol}");
            let binding =
                PortBinding { host_ip: some(port.host_ip.clone()), host_port: Some(port.value.to_string()) };
            network.bindings.entry(name.clone()).or_default().get_or_insert_default().push(binding);
            network.exposed.push(name);
        }
    }
    network.exposed.sort();
    network.exposed.dedup();
    Ok(network)
}

/// The container whose network a mode joins.
pub(crate) fn joined(mode: Option<&str>) -> Option<&str> {
    mode?.strip_prefix("container:")
}

/// The ports to publish, with their ports inside the container: those that `ports` and `port_map` name, and all of the task's own.
fn published<'m>(
    material: &'m Material<'_>,
) -> Result<BTreeMap<String, (&'m AssignedPort, u16)>, FieldError> {
    let docker = &material.config.docker;
    let task = material.task;
    let mut ports = BTreeMap::new();
    // As in Nomad, `to` of a port of the task alone has no effect.
    for (label, port) in &task.own_ports {
        ports.insert(label.clone(), (port, port.value));
    }
    let find = |label: &str, field: String| {
        let of_group = task.ports.get(label);
        let of_group = of_group.map(|port| (port, if port.to > 0 { port.to } else { port.value }));
        of_group
            .or_else(|| task.own_ports.get(label).map(|port| (port, port.value)))
            .ok_or_else(|| FieldError::new(field, format!("Port {label:?} not found, check network block")))
    };
    for (index, label) in docker.ports.iter().enumerate() {
        ports.insert(label.0.clone(), find(&label.0, format!("ports[{index}]"))?);
    }
    for (label, number) in &docker.port_map.0 {
        let field = || format!("port_map.{label}");
        let number = number.parse::<u16>().ok().filter(|number| *number > 0).ok_or_else(|| {
            FieldError::new(field(), format!("expected a port from 1 to 65535, found {number:?}"))
        })?;
        ports.insert(label.clone(), (find(label, field())?.0, number));
    }
    Ok(ports)
}

/// Addresses and names in a network of the engine.
fn endpoints(docker: &DockerConfig, mode: &str) -> Result<Option<NetworkingConfig>, FieldError> {
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (ipv4, ipv6) = (text(&docker.ipv4_address), text(&docker.ipv6_address));
    let mac = text(&docker.mac_address);
    let aliases: Vec<String> = docker.network_aliases.iter().map(|alias| alias.0.clone()).collect();
    let is_own = !matches!(mode, "default" | "bridge" | "host" | "none") && !mode.starts_with("container:");
    let named = [
        ("network_aliases", !aliases.is_empty()),
        ("ipv4_address", ipv4.is_some()),
        ("ipv6_address", ipv6.is_some()),
    ];
    if let Some((field, _)) = named.iter().find(|(_, is_set)| *is_set && !is_own) {
        return Err(FieldError::new(
            *field,
            format!("needs `network_mode` with the name of a network of the engine, found {mode:?}"),
        ));
    }
    if !is_own && mac.is_none() {
        return Ok(None);
    }
    if mac.is_some() && (mode == "host" || mode == "none" || mode.starts_with("container:")) {
        return Err(FieldError::new(
            "mac_address",
            format!("a container with network_mode {mode:?} has no own interface"),
        ));
    }
    let endpoint = EndpointSettings {
        aliases: some(aliases),
        mac_address: mac,
        ipam_config: (ipv4.is_some() || ipv6.is_some()).then(|| EndpointIpamConfig {
            ipv4_address: ipv4,
            ipv6_address: ipv6,
            ..EndpointIpamConfig::default()
        }),
        ..EndpointSettings::default()
    };
    let name = if mode == "default" { "bridge" } else { mode };
    Ok(Some(NetworkingConfig { endpoints_config: Some(HashMap::from([(name.to_owned(), endpoint)])) }))
}
