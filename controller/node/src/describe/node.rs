//! Builds the node's description in Nomad's form. No IO except in [`Fixed::of`].

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    path::PathBuf,
};

use herdlet_agent::networks::Permission;
use herdlet_api_types::{
    alloc::CoreSet,
    driver,
    job::{NetworkMode, Secret},
};
use herdlet_cni::{config::Directories, present::Present};
use herdlet_config::{Cluster, Config};
use herdlet_fingerprint::{self, Attributes, Interface, Networks};
use herdlet_nomad::wire::{
    Node,
    node::{DriverInfo, HostNetwork, HostVolume},
    resources::{
        LegacyResources, NetworkResource, NodeCpu, NodeDisk, NodeMemory, NodeProcessors, NodeResources,
        ReservedCpu, ReservedNetworks, ReservedResources, Topology,
    },
};
use herdlet_plan::job::capacity::Room;
use herdlet_process::cgroup;
use herdlet_services::catalog::ConsulFingerprint;

use crate::meta::NodeMeta;

/// Default metadata for service meshes, the same as in Nomad's client.
pub(super) const META: [(&str, &str); 6] = [
    ("connect.gateway_image", "docker.io/envoyproxy/envoy:v${NOMAD_envoy_version}"),
    ("connect.log_level", "info"),
    ("connect.proxy_concurrency", "1"),
    ("connect.sidecar_image", "docker.io/envoyproxy/envoy:v${NOMAD_envoy_version}"),
    ("connect.transparent_proxy.default_outbound_port", "15001"),
    ("connect.transparent_proxy.default_uid", "101"),
];

/// Properties that do not change while the agent runs.
#[derive(Debug, Clone)]
pub struct Fixed {
    pub name: String,
    pub datacenter: String,
    pub class: String,
    pub pool: String,
    /// Attributes found at start.
    pub attributes: Attributes,
    pub total: Room,
    pub cores: u16,
    /// The processor topology; clients before 1.7 do not send one.
    pub topology: Option<Topology>,
    /// Resources that the config reserves.
    pub reserved: Room,
    /// Ports that the config reserves.
    pub reserved_ports: BTreeSet<u16>,
    /// Cores that servers may assign to single tasks.
    pub reservable_cores: CoreSet,
    /// Ports that servers may assign.
    pub dynamic_ports: RangeInclusive<u16>,
    /// Host volumes by name.
    pub volumes: BTreeMap<String, HostVolume>,
    pub cgroup_parent: String,
    /// The directory of plugins that fetch secrets.
    pub secrets_plugins: PathBuf,
    /// The directories of CNI networks and plugins.
    pub cni: Directories,
    /// Whether allocations can have networks of their own.
    pub bridges: Permission,
    pub cluster: Cluster,
}

/// Properties that may change.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    pub networks: Networks,
    pub consuls: BTreeMap<String, ConsulFingerprint>,
    pub drivers: BTreeMap<String, DriverInfo>,
    pub meta: NodeMeta,
    /// Versions of plugins that fetch secrets, by name.
    pub secrets_plugins: BTreeMap<String, String>,
    /// CNI plugins, and networks that they can set up.
    pub cni: Present,
    /// Resources that local manifests take.
    pub reserved: Room,
    /// Ports that local manifests take.
    pub reserved_ports: BTreeSet<u16>,
}

/// The providers of secrets that are built in, with the versions of Nomad's.
const BUILT_IN_SECRETS: [(&str, &str); 2] = [(Secret::VARIABLES, "1.0.0"), (Secret::VAULT, "1.0.0")];

impl Fixed {
    /// Reads the config and the machine.
    pub fn of(config: &Config, cluster: &Cluster) -> Self {
        let total = config.total();
        let mut attributes = herdlet_fingerprint::attributes(total);
        attributes.extend(herdlet_fingerprint::storage(&config.state_dir));
        if let Some(usable) = attributes.get_mut("cpu.usablecompute") {
            *usable = total.minus(config.reserved).cpu_mhz.to_string();
        }
        let cores = herdlet_fingerprint::cores().and_then(|cores| u16::try_from(cores).ok()).unwrap_or(1);
        let mhz = if total.cpu_mhz == u64::MAX { 0 } else { total.cpu_mhz / u64::from(cores.max(1)) };
        let volumes = config.host_volumes.iter().map(|volume| {
            let name = volume.name.0.clone();
            let path = volume.path.to_string_lossy().into_owned();
            (name.clone(), HostVolume { name, path, read_only: volume.read_only, id: String::new() })
        });
        Self {
            name: config.name.clone(),
            datacenter: config.datacenter.clone(),
            class: config.node_class.clone(),
            pool: config.node_pool.clone(),
            attributes,
            total,
            cores,
            topology: Some(herdlet_fingerprint::topology(mhz)),
            reserved: config.reserved,
            reserved_ports: config.reserved_ports.clone(),
            reservable_cores: CoreSet::default(),
            dynamic_ports: config.dynamic_ports.clone(),
            volumes: volumes.collect(),
            cgroup_parent: config.cgroup_parent.clone(),
            secrets_plugins: config.secrets_plugins(),
            cni: config.network.cni.clone(),
            bridges: Permission::probe(),
            cluster: cluster.clone(),
        }
    }

    /// Lets servers assign these cores to single tasks. Servers of 1.7 to 1.10.0 look cores up by number, and crash if one has another
    /// place in the topology: such a core is left out.
    #[must_use]
    pub fn with_cores(mut self, cores: CoreSet) -> Self {
        let known = self.topology.iter_mut().flat_map(|topology| topology.cores.iter_mut().enumerate());
        for (_, core) in known.filter(|(place, core)| *place == usize::from(core.id)) {
            core.disable = !cores.0.contains(&core.id);
            if !core.disable {
                self.reservable_cores.0.insert(core.id);
            }
        }
        let count = self.reservable_cores.0.len().to_string();
        self.attributes.insert("cpu.reservablecores".to_owned(), count);
        self
    }

    /// Whether a fingerprinter may run.
    pub(super) fn runs(&self, fingerprinter: &str) -> bool {
        self.cluster.fingerprints.allows(fingerprinter)
    }

    pub(super) fn networks(&self, interfaces: &[Interface]) -> Networks {
        herdlet_fingerprint::networks(interfaces, &self.cluster.network, herdlet_fingerprint::speed_of)
    }

    /// Builds the description.
    pub fn node(&self, parts: &Parts) -> Node {
        let cluster = &self.cluster;
        let http_addr = cluster.http_addr(parts.networks.ip);
        let reserved = self.reserved.plus(parts.reserved);
        let ports = self.reserved_ports.union(&parts.reserved_ports).copied().collect();
        let links = parts.consuls.values().filter_map(|known| known.link.as_ref());
        let links = links.map(|name| ("consul".to_owned(), name.clone()));
        let host_networks = cluster.network.host_networks.iter().map(|network| {
            let cidr: Vec<String> = network.cidr.iter().map(ToString::to_string).collect();
            let described = HostNetwork {
                name: network.name.clone(),
                cidr: cidr.join(","),
                interface: network.interface.clone().unwrap_or_default(),
                reserved_ports: network.reserved_ports.clone(),
            };
            (network.name.clone(), described)
        });
        Node {
            datacenter: self.datacenter.clone(),
            name: self.name.clone(),
            cgroup_parent: cgroup::reported_parent(&self.cgroup_parent),
            attributes: self.attributes(parts, &http_addr),
            http_addr,
            tls_enabled: cluster.http_tls.is_some(),
            node_resources: Some(self.resources(parts)),
            reserved_resources: Some(reserved_resources(reserved, &ports)),
            resources: Some(LegacyResources { networks: self.offered_networks(parts), ..legacy(self.total) }),
            reserved: Some(legacy(reserved)),
            links: links.collect(),
            meta: parts.meta.merged(),
            node_class: self.class.clone(),
            node_pool: self.pool.clone(),
            drivers: parts.drivers.clone(),
            host_volumes: self.volumes.clone(),
            host_networks: host_networks.collect(),
            node_max_allocs: i64::from(cluster.node_max_allocs),
            ..Node::default()
        }
    }

    fn offers_bridges(&self) -> bool {
        self.bridges == Permission::Granted && self.runs("bridge")
    }

    fn offers_cni(&self) -> bool {
        self.bridges == Permission::Granted && self.runs("cni")
    }

    /// The machine's networks, and the modes of networks that allocations can have: servers place a group only where its mode is.
    fn offered_networks(&self, parts: &Parts) -> Vec<NetworkResource> {
        let of_cni = parts.cni.networks.iter().filter(|_| self.offers_cni());
        let of_cni = of_cni.map(|name| NetworkMode::Cni(name.clone()));
        let modes = self.offers_bridges().then_some(NetworkMode::Bridge).into_iter().chain(of_cni);
        let network =
            |mode: NetworkMode| NetworkResource { mode: mode.to_string(), ..NetworkResource::default() };
        parts.networks.resources.iter().cloned().chain(modes.map(network)).collect()
    }

    fn attributes(&self, parts: &Parts, http_addr: &str) -> Attributes {
        let mut attributes = self.attributes.clone();
        for name in ["nomad.advertise.address", "unique.advertise.address"] {
            attributes.insert(name.to_owned(), http_addr.to_owned());
        }
        if let Some(ip) = parts.networks.ip {
            attributes.insert("unique.network.ip-address".to_owned(), ip.to_string());
        }
        attributes.extend(parts.consuls.values().flat_map(|known| known.attributes.clone()));
        let plugins = parts.secrets_plugins.iter().map(|(name, version)| (name.as_str(), version.as_str()));
        for (name, version) in plugins.chain(BUILT_IN_SECRETS) {
            attributes.insert(format!("plugins.secrets.{name}.version"), version.to_owned());
        }
        if self.offers_bridges() {
            attributes.extend(self.bridges.attributes());
        }
        if self.offers_cni() {
            let version = |(plugin, version): (&String, &String)| {
                (format!("plugins.cni.version.{plugin}"), version.clone())
            };
            attributes.extend(parts.cni.plugins.iter().map(version));
        }
        attributes.retain(|name, _| self.runs(fingerprinter_of(name)));
        // Even if its fingerprinter is disabled: without the version, servers do not call a node back.
        attributes.insert("nomad.version".to_owned(), herdlet_fingerprint::NOMAD_VERSION.to_owned());
        for (name, driver) in parts.drivers.iter().filter(|(_, driver)| driver.detected) {
            attributes.extend(driver.attributes.clone());
            attributes.insert(format!("driver.{name}"), "1".to_owned());
        }
        attributes
    }

    /// All resources. If the processors are unknown, one of 1 MHz is reported, since servers from 1.7 on may crash on a node without any.
    fn resources(&self, parts: &Parts) -> NodeResources {
        let cpu = NodeCpu {
            cpu_shares: amount(self.total.cpu_mhz).max(1),
            total_cpu_cores: self.cores.max(1),
            reservable_cpu_cores: self.reservable_cores.0.iter().copied().collect(),
        };
        // Servers count no compute of cores that are not reservable, so give the total.
        let override_total_compute = cpu.cpu_shares.unsigned_abs();
        let topology = self.topology.clone().map(|topology| Topology { override_total_compute, ..topology });
        NodeResources {
            cpu,
            processors: NodeProcessors { topology },
            memory: NodeMemory { memory_mb: amount(self.total.memory_mib) },
            disk: NodeDisk { disk_mb: amount(self.total.disk_mib) },
            devices: Vec::new(),
            node_networks: parts.networks.nodes.clone(),
            networks: self.offered_networks(parts),
            min_dynamic_port: i64::from(*self.dynamic_ports.start()),
            max_dynamic_port: i64::from(*self.dynamic_ports.end()),
        }
    }
}

fn reserved_resources(room: Room, ports: &BTreeSet<u16>) -> ReservedResources {
    ReservedResources {
        cpu: ReservedCpu { cpu_shares: amount(room.cpu_mhz), reserved_cpu_cores: Vec::new() },
        memory: NodeMemory { memory_mb: amount(room.memory_mib) },
        disk: NodeDisk { disk_mb: amount(room.disk_mib) },
        networks: ReservedNetworks { reserved_host_ports: ranges(ports) },
    }
}

fn legacy(room: Room) -> LegacyResources {
    LegacyResources {
        cpu: amount(room.cpu_mhz),
        memory_mb: amount(room.memory_mib),
        disk_mb: amount(room.disk_mib),
        ..LegacyResources::default()
    }
}

/// Unknown amounts become 0.
fn amount(amount: u64) -> i64 {
    if amount == u64::MAX { 0 } else { i64::try_from(amount).unwrap_or(i64::MAX) }
}

/// Formats ports like Nomad: `22,80,8500-8600`.
fn ranges(ports: &BTreeSet<u16>) -> String {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(*port) => *last = *last.start()..=*port,
            Some(_) | None => ranges.push(*port..=*port),
        }
    }
    let written = ranges.iter().map(|range| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    written.collect::<Vec<_>>().join(",")
}

/// Whether a driver may be offered.
pub(super) fn offers(cluster: &Cluster, driver: &driver::DriverInfo) -> bool {
    driver.capabilities.servers != driver::ServerJobs::Never && cluster.drivers.allows(&driver.name)
}

/// The Nomad fingerprinter that finds an attribute.
fn fingerprinter_of(attribute: &str) -> &str {
    let name = attribute.strip_prefix("unique.").unwrap_or(attribute);
    match name {
        "cpu.arch" => "arch",
        "hostname" => "host",
        "os.signals" => "signal",
        "os.cgroups.version" => "cgroup",
        "advertise.address" => "nomad",
        _ => match name.split_once('.').map_or(name, |(first, _)| first) {
            "kernel" | "os" => "host",
            "numa" => "cpu",
            other => other,
        },
    }
}
