//! The network of a container: its mode, published ports, addresses and names.
//!
//! In: the task's config, the ports assigned to the allocation. Out: parts of the request; and, from what the engine reports of a
//! started container, its network for services.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{EndpointIpamConfig, EndpointSettings, NetworkingConfig, PortBinding};
use herdlet_api_types::{
    AllocId,
    alloc::AssignedPort,
    driver::{Planned, Sharing},
    manifest::driver::DockerConfig,
};

use herdlet_driver::DriverError;

use super::{
    Material,
    group::{self, GroupNetwork},
    some,
};
use crate::{
    config::{ContainerConfig, FieldError},
    engine::{About, Kind},
};

/// The network part of a request.
pub(super) struct Network {
    pub(super) mode: String,
    pub(super) bindings: HashMap<String, Option<Vec<PortBinding>>>,
    pub(super) exposed: Vec<String>,
    pub(super) endpoints: Option<NetworkingConfig>,
    pub(super) port_map: BTreeMap<String, u16>,
    /// The network that it shares with its group.
    pub(super) group: Option<GroupNetwork>,
    /// A message about a task that could share one.
    pub(super) note: Option<String>,
}

pub(super) fn of(material: &Material<'_>) -> Result<Network, FieldError> {
    let config = material.config;
    if let Some(network) = group::shared_network(material)? {
        return Ok(Network {
            mode: group::mode(material.about.kind, &network, &material.pause),
            bindings: HashMap::new(),
            exposed: Vec::new(),
            endpoints: None,
            port_map: BTreeMap::new(),
            group: Some(network),
            note: None,
        });
    }
    let mode = mode(&config.docker)?;
    not_shared(config, mode).map_or(Ok(()), Err)?;
    let publishes = publishes(mode);
    let ports = published(material)?;
    let mut network = Network {
        endpoints: endpoints(&config.docker, mode, default_network(material.about))?,
        mode: mode.to_owned(),
        bindings: HashMap::new(),
        exposed: Vec::new(),
        port_map: BTreeMap::new(),
        group: None,
        note: material
            .task
            .network
            .is_some()
            .then(|| format!("it does not use the network of its group: its network_mode is {mode:?}")),
    };
    for (label, (port, inside)) in ports {
        network.port_map.insert(label, inside);
        if !publishes {
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

/// What is wrong whatever the ports and the engine are.
pub(super) fn refusals(config: &ContainerConfig, planned: &Planned<'_>) -> Vec<FieldError> {
    let docker = &config.docker;
    if planned.network == Sharing::Shares && group::is_used(docker) {
        return group::refusals(config);
    }
    let has_port = |label| planned.ports.contains(label);
    let ports = wanted(docker).filter_map(|wanted| match wanted {
        Ok(wanted) => (!has_port(wanted.label)).then(|| wanted.missing()),
        Err(error) => Some(error),
    });
    let mode = mode(docker);
    let of_mode = mode.as_ref().map_or_else(
        |error| vec![error.clone()],
        |mode| {
            let found = [not_shared(config, mode), endpoints(docker, mode, "").err()];
            found.into_iter().flatten().collect()
        },
    );
    ports.chain(of_mode).collect()
}

/// Keys that have no effect, each with a message.
pub(super) fn without_effect(docker: &DockerConfig, group: Sharing) -> Vec<(&'static str, String)> {
    match group {
        Sharing::Shares if group::is_used(docker) => group::without_effect(docker),
        Sharing::Shares | Sharing::Own => unpublished(docker).into_iter().collect(),
    }
}

/// The key of ports that are not published, and why.
fn unpublished(docker: &DockerConfig) -> Option<(&'static str, String)> {
    let mode = mode(docker).ok().filter(|mode| !publishes(mode))?;
    let keys = [("ports", docker.ports.is_empty()), ("port_map", docker.port_map.0.is_empty())];
    let (key, _) = keys.into_iter().find(|(_, is_empty)| !is_empty)?;
    Some((key, format!("{key} publishes nothing with network_mode {mode:?}")))
}

/// The network mode; `default` if none is written.
fn mode(docker: &DockerConfig) -> Result<&str, FieldError> {
    let mode = docker.network_mode.as_deref().filter(|mode| !mode.is_empty()).unwrap_or("default");
    let refused = |why: &str| Err(FieldError::new("network_mode", why));
    if mode.starts_with("ns:") {
        return refused("joining a namespace by its path is not supported; use container:NAME");
    }
    if mode.starts_with("task:") {
        return refused(
            "task:NAME is not supported; the tasks of a group share a network with `mode = \"bridge\"` in its `network`",
        );
    }
    Ok(mode)
}

/// Whether a container in this mode has an address of its own, to which ports can lead.
fn publishes(mode: &str) -> bool {
    mode != "host" && mode != "none" && joined(Some(mode)).is_none()
}

/// A key that an engine refuses for a container in the network of another one, whose names and addresses it has.
fn not_shared(config: &ContainerConfig, mode: &str) -> Option<FieldError> {
    joined(Some(mode))?;
    let docker = &config.docker;
    let keys = [
        ("hostname", docker.hostname.as_ref().is_some_and(|name| !name.0.is_empty())),
        (config.keys.dns(), !docker.dns_servers.is_empty()),
        ("dns_search_domains", !docker.dns_search_domains.is_empty()),
        ("dns_options", !docker.dns_options.is_empty()),
        ("extra_hosts", !docker.extra_hosts.is_empty()),
    ];
    let (key, _) = keys.into_iter().find(|(_, is_set)| *is_set)?;
    let why = format!(
        "a container with network_mode {mode:?} has the network of that container; remove {key}, or set it there"
    );
    Some(FieldError::new(key, why))
}

/// The container whose network a mode joins.
pub(crate) fn joined(mode: Option<&str>) -> Option<&str> {
    mode?.strip_prefix("container:")
}

/// Why a task does not join the network of a container, which is none of its allocation, and is not allowed otherwise.
pub(crate) fn not_joined(name: &str, alloc: AllocId) -> DriverError {
    if name.ends_with(&format!("-{alloc}")) {
        return DriverError::recoverable(format!("join the network of container {name}: it does not run"));
    }
    let why = format!(
        "\"container:{name}\" is not a container of the same allocation, and not allowed on this agent; allow it with \
         `allowed_modes.network: [container]` or `allow_privileged` of the driver's options"
    );
    FieldError::new("network_mode", why).into()
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
    for wanted in wanted(docker) {
        let wanted = wanted?;
        let of_group = task.ports.get(wanted.label);
        let of_group = of_group.map(|port| (port, if port.to > 0 { port.to } else { port.value }));
        let (port, inside) = of_group
            .or_else(|| task.own_ports.get(wanted.label).map(|port| (port, port.value)))
            .ok_or_else(|| wanted.missing())?;
        ports.insert(wanted.label.to_owned(), (port, wanted.inside.unwrap_or(inside)));
    }
    Ok(ports)
}

/// A port that `ports` or `port_map` names.
struct Wanted<'c> {
    label: &'c str,
    field: String,
    /// Its number inside the container, if `port_map` gives one.
    inside: Option<u16>,
}

impl Wanted<'_> {
    fn missing(&self) -> FieldError {
        FieldError::new(&*self.field, format!("Port {:?} not found, check network block", self.label))
    }
}

/// Those of `ports`, then those of `port_map`, which override them.
fn wanted(docker: &DockerConfig) -> impl Iterator<Item = Result<Wanted<'_>, FieldError>> {
    let listed =
        docker.ports.iter().enumerate().map(|(index, label)| {
            Ok(Wanted { label: &label.0, field: format!("ports[{index}]"), inside: None })
        });
    let mapped = docker.port_map.0.iter().map(|(label, number)| {
        let field = format!("port_map.{label}");
        match number.parse::<u16>() {
            Ok(inside @ 1..) => Ok(Wanted { label, field, inside: Some(inside) }),
            Ok(0) | Err(_) => {
                Err(FieldError::new(field, format!("expected a port from 1 to 65535, found {number:?}")))
            }
        }
    });
    listed.chain(mapped)
}

/// The name of the network that containers have without a `network_mode`.
fn default_network(about: &About) -> &'static str {
    match about.kind {
        Kind::Docker => "bridge",
        Kind::Podman => "podman",
    }
}

/// Addresses and names in a network of the engine.
fn endpoints(
    docker: &DockerConfig,
    mode: &str,
    default: &str,
) -> Result<Option<NetworkingConfig>, FieldError> {
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
    if mac.is_some() && !publishes(mode) {
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
    let name = if matches!(mode, "default" | "bridge") { default } else { mode };
    Ok(Some(NetworkingConfig { endpoints_config: Some(HashMap::from([(name.to_owned(), endpoint)])) }))
}
