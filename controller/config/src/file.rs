//! The config file: one YAML document in which every key is optional. All problems are reported at once.
//!
//! In: a name and bytes. Out: [`File`], whose values are valid one by one, or [`herdlet_manifest::yaml::Problems`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
};

use herdlet_api_types::{
    alloc::CoreSet,
    manifest::{Span, Text},
};
use herdlet_plan::limits::DYNAMIC_PORTS;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    HostPort, LogFormat,
    artifact::Artifact,
    check::{cgroup_parent_problem, filter_problem, not_absolute, ports},
    cluster, identities, network, template,
};
use crate::TlsFiles;

/// The contents of a config file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Name of this node.
    pub name: Option<Text>,
    /// Datacenter of this node.
    pub datacenter: Option<Text>,
    /// Region of this node.
    pub region: Option<Text>,
    /// Class of this node.
    pub node_class: Option<Text>,
    /// Node pool of this node.
    pub node_pool: Option<Text>,
    /// Metadata of this node.
    pub meta: BTreeMap<String, Text>,
    /// Servers of the Nomad cluster that this node belongs to.
    pub servers: Vec<String>,
    /// Settings of a node of a cluster.
    pub cluster: cluster::Section,
    /// State directory.
    #[schemars(with = "Option<String>")]
    pub state_dir: Option<PathBuf>,
    /// Parent of the directories for files that don't outlive the boot.
    #[schemars(with = "Option<String>")]
    pub runtime_dir: Option<PathBuf>,
    /// Socket of the API.
    #[schemars(with = "Option<String>")]
    pub socket: Option<PathBuf>,
    /// TCP address of the API.
    pub listen: Option<String>,
    /// File with the token that TCP clients must send.
    #[schemars(with = "Option<String>")]
    pub token_file: Option<PathBuf>,
    /// TLS of the API on TCP.
    pub tls: Option<Tls>,
    /// TCP address of the metrics.
    pub metrics_listen: Option<String>,
    /// Settings of all HTTP APIs on TCP.
    pub http: super::http::Section,
    /// Address of the DNS server for services, on UDP and TCP.
    pub dns_listen: Option<String>,
    /// Users who may enter the directories of every allocation.
    pub task_dir_users: Vec<Text>,
    /// Folders of manifests.
    #[schemars(with = "Vec<String>")]
    pub manifests: Vec<PathBuf>,
    /// Parent cgroup of all tasks.
    pub cgroup_parent: Option<String>,
    /// Address of host ports.
    pub host_ip: Option<String>,
    /// Host volumes.
    pub host_volumes: Vec<HostVolume>,
    /// Maximum `kill_timeout` of a task.
    pub max_kill_timeout: Option<Span>,
    /// Options of task drivers by name; each has the option `enabled`.
    pub drivers: super::drivers::Section,
    /// Alias of `drivers.raw_exec`, to which its options are moved when the file is read.
    pub raw_exec: RawExec,
    /// The Consul agent of this machine, and others.
    pub consul: super::consul::Consul,
    /// Variables: small secrets and settings of jobs.
    pub variables: Variables,
    /// Identities: the tokens that this agent signs for tasks.
    pub identities: identities::Section,
    /// Servers of Vault or OpenBao, by name; `default` is the one of jobs that name none.
    pub vault: super::vault::Section,
    /// Range of dynamic ports.
    pub dynamic_ports: Option<PortRange>,
    /// Resources of this machine that allocations can't use.
    pub reserved: Reserved,
    /// Cores that tasks with `cores` may get, such as `0-3,8`; default all that the agent may use.
    pub reservable_cores: Option<String>,
    /// Total MHz of all processors, if the detected value is wrong.
    pub cpu_total_compute: Option<u64>,
    /// Memory in MiB, if the detected value is wrong.
    pub memory_total_mb: Option<u64>,
    /// Disk space in MiB for allocations, if the detected value is wrong.
    pub disk_total_mb: Option<u64>,
    /// Pressure on the machine in percent above which starts of lower priority wait.
    #[schemars(range(max = 100))]
    pub start_pressure_limit: Option<u8>,
    /// Limits on downloads for tasks.
    pub artifact: Artifact,
    /// Directory of plugins; those that fetch secrets are in its folder `secrets`.
    #[schemars(with = "Option<String>")]
    pub common_plugin_dir: Option<PathBuf>,
    /// Templates of tasks.
    pub template: template::Section,
    /// The bridge of networks in mode `bridge`.
    pub network: network::Section,
    /// How long an ended job is kept.
    pub job_gc_threshold: Option<Span>,
    /// How many ended allocations keep their directories.
    pub gc_max_allocs: Option<u32>,
    /// Disk usage in percent above which directories of ended allocations are removed.
    #[schemars(range(max = 100))]
    pub gc_disk_usage_threshold: Option<u8>,
    /// Inode usage in percent above which they are removed.
    #[schemars(range(max = 100))]
    pub gc_inode_usage_threshold: Option<u8>,
    /// Interval between checks of the disk while there is something to collect.
    pub gc_interval: Option<Span>,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Log filter.
    pub log_level: Option<String>,
    /// Log format.
    pub log_format: Option<LogFormat>,
}

/// A directory of this machine that jobs may mount.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostVolume {
    /// Name of the volume.
    pub name: Text,
    /// An existing directory, absolute.
    #[schemars(with = "String")]
    pub path: PathBuf,
    /// Whether all mounts are read-only.
    #[serde(default)]
    pub read_only: bool,
}

/// The driver `raw_exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawExec {
    /// Whether it is offered; by default, but not by a node of a cluster.
    pub enabled: Option<bool>,
}

/// Variables: small secrets and settings of jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Variables {
    /// File with the keys that encrypt variables.
    #[schemars(with = "Option<String>")]
    pub key_file: Option<PathBuf>,
}

/// TLS of the API on TCP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The agent's certificate, followed by its intermediate certificates (PEM).
    #[schemars(with = "Option<String>")]
    pub cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    #[schemars(with = "Option<String>")]
    pub key_file: Option<PathBuf>,
    /// CA certificates for clients (PEM).
    #[schemars(with = "Option<String>")]
    pub ca_file: Option<PathBuf>,
    /// Whether clients must present a certificate.
    pub verify_https_client: bool,
}

impl Tls {
    /// Returns a missing or unused setting, by field.
    fn problem(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self { cert_file: Some(_), key_file: None, .. } => Some(("cert_file", "requires key_file")),
            Self { cert_file: None, key_file: Some(_), .. } => Some(("key_file", "requires cert_file")),
            Self { cert_file: None, .. } => Some(("cert_file", "is missing, and so is key_file")),
            Self { ca_file: None, verify_https_client: true, .. } => {
                Some(("verify_https_client", "requires ca_file, the CA certificates for clients"))
            }
            Self { ca_file: Some(_), verify_https_client: false, .. } => Some((
                "ca_file",
                "is only used to verify certificates of clients: set verify_https_client too",
            )),
            Self { .. } => None,
        }
    }

    /// Returns the paths, if TLS is configured.
    pub(super) fn files(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.cert_file.clone()?, self.key_file.clone()?);
        Some(TlsFiles { certificate, key, clients: self.ca_file.clone() })
    }
}

/// Metrics, with Nomad's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// Whether to publish metrics of single tasks, under Nomad's names.
    pub publish_allocation_metrics: bool,
}

/// Resources of this machine that allocations can't use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Reserved {
    /// In MHz.
    pub cpu: u64,
    /// In MiB.
    pub memory: u64,
    /// In MiB.
    pub disk: u64,
    /// Cores that no task with `cores` gets, such as `0,4-5`.
    pub cores: String,
    /// Ports and ranges of ports such as `22,80,8500-8600`.
    pub reserved_ports: String,
}

impl Reserved {
    /// Parses the ports.
    ///
    /// # Errors
    /// The first part that is not a port or range.
    pub fn ports(&self) -> Result<BTreeSet<u16>, String> {
        ports(&self.reserved_ports)
    }
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    #[schemars(range(min = 1))]
    #[serde(default = "first_port")]
    pub min: u16,
    #[schemars(range(min = 1))]
    #[serde(default = "last_port")]
    pub max: u16,
}

fn first_port() -> u16 {
    *DYNAMIC_PORTS.start()
}

fn last_port() -> u16 {
    *DYNAMIC_PORTS.end()
}

impl File {
    /// Returns settings that are valid, but probably mistakes, by path.
    pub(super) fn warnings(&self) -> Vec<(&'static str, &'static str)> {
        let mut warnings = Vec::new();
        let tls = &self.cluster.tls;
        let has_files = [&tls.ca_file, &tls.cert_file, &tls.key_file].into_iter().any(Option::is_some);
        if has_files && !tls.rpc {
            warnings.push(("cluster.tls", "connections to servers do not use TLS, because rpc is not true"));
        }
        if self.cluster.enabled == Some(false) {
            warnings.push(("cluster.enabled", "is false, so this machine is not a node of a cluster"));
        }
        warnings
    }

    /// Checks what the types can't express. Returns problems by path.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut report = |path: &str, message: String| problems.push((path.to_owned(), message));
        let paths = [
            ("state_dir", &self.state_dir),
            ("runtime_dir", &self.runtime_dir),
            ("socket", &self.socket),
            ("token_file", &self.token_file),
            ("variables.key_file", &self.variables.key_file),
            ("common_plugin_dir", &self.common_plugin_dir),
        ];
        for (at, path) in paths {
            path.iter().filter_map(|path| not_absolute(path)).for_each(|message| report(at, message));
        }
        for (at, message) in self.consul.problems() {
            report(&format!("consul.{at}"), message);
        }
        for (index, path) in self.manifests.iter().enumerate() {
            not_absolute(path)
                .into_iter()
                .for_each(|message| report(&format!("manifests[{index}]"), message));
        }
        for (at, address) in [
            ("listen", &self.listen),
            ("metrics_listen", &self.metrics_listen),
            ("dns_listen", &self.dns_listen),
        ] {
            let invalid = address.as_ref().and_then(|address| address.parse::<HostPort>().err());
            invalid.into_iter().for_each(|error| report(at, error.to_string()));
        }
        if let Some(parent) = &self.cgroup_parent
            && let Some(message) = cgroup_parent_problem(parent)
        {
            report("cgroup_parent", message);
        }
        if let Some(ip) = &self.host_ip
            && ip.parse::<IpAddr>().is_err()
        {
            report("host_ip", format!("expected an IP address such as 192.0.2.7, found \"{ip}\""));
        }
        if let Some(level) = &self.log_level
            && let Some(message) = filter_problem(level)
        {
            report("log_level", message);
        }
        if let Some(PortRange { min, max }) = self.dynamic_ports
            && min > max
        {
            report("dynamic_ports", format!("is empty: min {min} is above max {max}"));
        }
        if let Some(tls) = &self.tls {
            for (at, path) in [
                ("tls.cert_file", &tls.cert_file),
                ("tls.key_file", &tls.key_file),
                ("tls.ca_file", &tls.ca_file),
            ] {
                path.iter().filter_map(|path| not_absolute(path)).for_each(|message| report(at, message));
            }
            if let Some((field, message)) = tls.problem() {
                report(&format!("tls.{field}"), message.to_owned());
            }
        }
        for (at, message) in self.http.problems() {
            report(&format!("http.{at}"), message);
        }
        for (at, message) in self.cluster.problems() {
            report(&format!("cluster.{at}"), message);
        }
        if let Some((field, message)) = self.cluster.tls.problem() {
            report(&format!("cluster.tls.{field}"), message.to_owned());
        }
        for (index, server) in self.servers.iter().enumerate().filter(|(_, text)| !cluster::is_server(text)) {
            let message =
                format!("expected HOST, HOST:PORT or the name of an SRV record, found \"{server}\"");
            report(&format!("servers[{index}]"), message);
        }
        for (at, message) in self.artifact.problems() {
            report(&format!("artifact.{at}"), message);
        }
        for (at, message) in self.template.problems() {
            report(&format!("template.{at}"), message);
        }
        for (at, message) in self.network.problems() {
            report(&format!("network.{at}"), message);
        }
        for (at, message) in self.identities.problems() {
            report(&format!("identities.{at}"), message);
        }
        for (at, message) in super::vault::problems(&self.vault) {
            report(&format!("vault.{at}"), message);
        }
        if let Err(message) = self.reserved.ports() {
            report("reserved.reserved_ports", message);
        }
        let reservable = self.reservable_cores.as_deref().unwrap_or_default();
        for (at, text) in [("reserved.cores", &*self.reserved.cores), ("reservable_cores", reservable)] {
            if CoreSet::parse(text).is_none() {
                report(at, format!("must be numbers of cores and ranges such as 0,4-5, found {text:?}"));
            }
        }
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, volume) in self.host_volumes.iter().enumerate() {
            let at = |field: &str| format!("host_volumes[{index}].{field}");
            not_absolute(&volume.path).into_iter().for_each(|message| report(&at("path"), message));
            let name = volume.name.0.as_str();
            if name.is_empty()
                || name.len() > 128
                || name.chars().any(|char| char.is_control() || char == '/')
            {
                report(
                    &at("name"),
                    "must be 1 to 128 characters without / and control characters".to_owned(),
                );
            }
            if let Some(first) = first.insert(name, index) {
                report(&at("name"), format!("\"{name}\" is already the name of host_volumes[{first}]"));
            }
        }
        problems
    }
}
