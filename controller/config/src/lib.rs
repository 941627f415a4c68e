//! The agent's config: flags over environment over files over defaults.
//!
//! In: flags, the environment, files of ours (YAML) or of Nomad's agent (HCL, JSON). Out: [`Config`], with
//! all defaults filled in and every path absolute. This crate reads no files but the config and tokens, and
//! must not know what a part does with its settings.

pub mod artifact;
mod check;
mod cluster;
pub mod consul;
mod drivers;
mod file;
mod flags;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod fuzz;
pub mod gc;
mod host_port;
pub mod http;
mod identities;
mod load;
pub mod log_filter;
mod merge;
pub mod network;
mod nomad;
mod places;
mod sources;
pub mod template;
mod tls;
pub mod vault;
mod view;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    ops::RangeInclusive,
    path::PathBuf,
    str::FromStr,
};

use herdlet_api_types::{
    Duration, InstanceId,
    alloc::CoreSet,
    volume::{Volume, VolumeKind},
};
use herdlet_base::{
    ownership::{self, OwnershipError},
    paths::Paths,
};
use herdlet_manifest::yaml::Problems;
use herdlet_plan::{
    context::Settings,
    env::NodeFacts,
    job::{capacity::Room, cores::OfferedCores},
};
use schemars::JsonSchema;
use serde::Deserialize;
use thiserror::Error;

pub use cluster::{AclRules, Allowed, Cluster, DrainOnShutdown, RpcTls};
pub use drivers::{DriverSetting, DriverSettings};
pub use file::{File, HostVolume, PortRange, RawExec, Reserved};
pub use flags::Flags;
pub use host_port::{HostPort, HostPortError};
pub use http::Http;
pub use places::{Surroundings, default_socket, default_state_dir, host_name};
pub use tls::TlsFiles;
pub use view::{Setting, Source, settings, settings_again};

use self::{artifact::Limits, gc::Rules, network::Network, template::Template};

/// Default parent cgroup of tasks: a sibling of the agent's own cgroup, never a child.
pub const CGROUP_PARENT: &str = "herdlet";

/// Default pressure on the machine, in percent, above which starts are paced: systemd's default for memory
/// pressure.
pub const START_PRESSURE_LIMIT: u8 = 60;

/// Default maximum of `kill_timeout`, as in Nomad.
pub const MAX_KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// The complete config of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub name: String,
    pub datacenter: String,
    pub region: String,
    /// The node's class; empty for none.
    pub node_class: String,
    pub node_pool: String,
    pub meta: BTreeMap<String, String>,
    /// The Nomad cluster that this node belongs to; `None` on a standalone machine.
    pub cluster: Option<Cluster>,
    /// Unused and unknown settings in the files, to be logged.
    pub warnings: Problems,
    /// The config files and directories.
    pub files: Vec<PathBuf>,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Parent of the instances' directories for files that don't outlive the boot; `None` for the state
    /// directory.
    pub runtime_parent: Option<PathBuf>,
    /// Socket of the API.
    pub socket: PathBuf,
    /// Address of the API on TCP, with the file of the token that clients must send. A node of a cluster has
    /// [`Cluster::http`] instead.
    pub listen: Option<(HostPort, PathBuf)>,
    /// Address of /metrics, /healthz and /readyz.
    pub metrics_listen: Option<HostPort>,
    /// Settings of all HTTP APIs on TCP.
    pub http: Http,
    /// Address of the DNS server for services.
    pub dns_listen: Option<HostPort>,
    /// Certificates of the API on TCP; `None` disables TLS.
    pub tls: Option<TlsFiles>,
    /// Folders of manifests to reconcile.
    pub manifests: Vec<PathBuf>,
    /// Parent cgroup of all tasks.
    pub cgroup_parent: String,
    /// Address of host ports.
    pub host_ip: IpAddr,
    pub host_volumes: Vec<HostVolume>,
    /// Maximum `kill_timeout` of a task.
    pub max_kill_timeout: Duration,
    /// Pressure on the machine in percent above which starts of lower priority wait for those of higher
    /// priority.
    pub start_pressure_limit: u8,
    /// Users who may enter the directories of every allocation, as the users of its tasks may.
    pub task_dir_users: Vec<String>,
    /// Limits on downloads for tasks.
    pub artifact: Limits,
    /// Directory of plugins; those that fetch secrets are in its folder `secrets`.
    pub common_plugin_dir: PathBuf,
    /// Settings of the templates of tasks.
    pub template: Template,
    /// The bridge of networks in mode `bridge`.
    pub network: Network,
    /// Rules for garbage collection.
    pub gc: Rules,
    /// Which task drivers are offered, and their options.
    pub drivers: DriverSettings,
    /// The Consul agents.
    pub consul: consul::Consul,
    /// File with the keys that encrypt variables; `None` for a credential or a generated file.
    pub variables_key_file: Option<PathBuf>,
    /// Rules of the identities that this agent signs.
    pub issuer: herdlet_plan::identity_claims::Issuer,
    /// Servers of Vault, by name.
    pub vault: std::collections::BTreeMap<String, vault::VaultServer>,
    /// Range of dynamic ports.
    pub dynamic_ports: RangeInclusive<u16>,
    /// Resources of this machine that allocations can't use.
    pub reserved: Room,
    /// Ports that allocations can't use.
    pub reserved_ports: BTreeSet<u16>,
    /// Cores that no task gets for itself.
    pub reserved_cores: CoreSet,
    /// The cores that tasks can get for themselves; `None` for all.
    pub reservable_cores: Option<CoreSet>,
    /// Resources of the machine, if the detected values are wrong.
    pub total: Total,
    /// Whether to publish metrics of single tasks.
    pub publish_allocation_metrics: bool,
    /// Log filter, as `tracing` directives.
    pub log_level: String,
    pub log_format: LogFormat,
}

/// Files and directories of every agent that no isolated task may see.
pub fn default_private_paths() -> Vec<PathBuf> {
    vec![PathBuf::from("/etc/herdlet")]
}

impl Config {
    /// Files and directories of the agent that no isolated task may see: config, keys, tokens, state, sockets, job files.
    pub fn private_paths(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter().flat_map(|tls| [&tls.certificate, &tls.key]);
        let cluster = self.cluster.iter();
        let rpc = cluster.clone().filter_map(|cluster| cluster.tls.as_ref()).map(|tls| &tls.key);
        let taken_over = cluster.flat_map(|cluster| [&cluster.moved_from, &cluster.intro_token_file]);
        let keys_of_vault =
            self.vault.values().filter_map(|server| server.certificate.as_ref().map(|(_, key)| key));
        let single = [&self.state_dir, &self.socket];
        let own = self
            .files
            .iter()
            .chain(&self.manifests)
            .chain(single)
            .chain(self.runtime_parent.as_ref())
            .chain(self.listen.as_ref().map(|(_, token)| token))
            .chain(self.variables_key_file.as_ref())
            .chain(taken_over.flatten())
            .chain(tls.chain(rpc).chain(keys_of_vault));
        default_private_paths().into_iter().chain(own.cloned()).chain(self.consul.private_paths()).collect()
    }
}

/// Configured resources of a machine; `None` for those that are detected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Of all processors together.
    pub cpu_mhz: Option<u64>,
    pub memory_mib: Option<u64>,
    pub disk_mib: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Why there is no config. The messages follow "failed to".
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("read the config {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("read the config:\n{0}")]
    Problems(Problems),
    /// Another user could change the config, or a file with a token.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    /// A flag or its variable is invalid.
    #[error("read --{flag}: {why}")]
    Flag { flag: &'static str, why: String },
    /// A path can't be made absolute.
    #[error("find {}", path.display())]
    Path { path: PathBuf, source: io::Error },
    /// There are files of Nomad's, but none enables the client.
    #[error(
        "join the cluster: no Nomad config file sets client {{ enabled = true }}; set it, or name servers with --servers"
    )]
    NotEnabled,
    /// TCP without a token.
    #[error(
        "serve {0}: TCP needs a token, even on loopback; write one to a file and name it with --token-file (or `token_file`)"
    )]
    NoToken(HostPort),
    /// There is no default for the state directory.
    #[error("find a state directory: HOME and XDG_STATE_HOME are not set; name one with --state-dir")]
    NoHome,
    #[error("read the token in {}", path.display())]
    Token { path: PathBuf, source: io::Error },
}

impl Config {
    /// The directory of plugins that fetch secrets.
    pub fn secrets_plugins(&self) -> PathBuf {
        self.common_plugin_dir.join("secrets")
    }

    /// Returns the directories of an instance.
    pub fn paths(&self, instance: &InstanceId) -> Paths {
        let runtime = match &self.runtime_parent {
            Some(parent) => parent.join(&instance.0),
            None => self.state_dir.join("run"),
        };
        Paths { state: self.state_dir.clone(), runtime }
    }

    /// Returns the paths that are in the user's runtime directory by default.
    pub fn runtime_paths(&self) -> impl Iterator<Item = &std::path::Path> {
        std::iter::once(&self.socket).chain(&self.runtime_parent).map(PathBuf::as_path)
    }

    /// Returns the planner's settings on a machine with these resources.
    pub fn planner_settings(&self, instance: InstanceId, total: Room) -> Settings {
        Settings {
            instance,
            max_kill_timeout: self.max_kill_timeout,
            dynamic_ports: self.dynamic_ports.clone(),
            host_ip: self.host_ip.to_string(),
            host_networks: self.network.host_networks_on_machine().unwrap_or_default(),
            node: NodeFacts::default(),
            room: total.minus(self.reserved),
            cores: OfferedCores::Unsupported { why: "this agent offers none".to_owned() },
            reserved_ports: self.reserved_ports.clone(),
            start_offline: self.cluster.as_ref().is_some_and(|cluster| cluster.start_offline),
        }
    }

    /// The cores that tasks may use alone, of those that the machine offers.
    pub fn offered_cores(&self, offered: OfferedCores) -> OfferedCores {
        let is_free = |core: &u16| {
            let is_reservable = self.reservable_cores.as_ref().is_none_or(|cores| cores.0.contains(core));
            is_reservable && !self.reserved_cores.0.contains(core)
        };
        match offered {
            OfferedCores::Cores(cores) => {
                OfferedCores::Cores(CoreSet(cores.0.into_iter().filter(is_free).collect()))
            }
            OfferedCores::Unsupported { .. } | OfferedCores::OfServers => offered,
        }
    }

    /// Returns the machine's resources: as configured, otherwise as detected.
    pub fn total(&self) -> Room {
        let found = herdlet_fingerprint::room(&self.state_dir);
        let Total { cpu_mhz, memory_mib, disk_mib } = self.total;
        Room {
            cpu_mhz: cpu_mhz.unwrap_or(found.cpu_mhz),
            cores: 0,
            memory_mib: memory_mib.unwrap_or(found.memory_mib),
            disk_mib: disk_mib.unwrap_or(found.disk_mib),
        }
    }

    /// Converts the host volumes.
    pub fn volumes(&self) -> Vec<Volume> {
        let volume = |volume: &HostVolume| Volume {
            name: volume.name.0.clone(),
            kind: VolumeKind::HostPath { path: volume.path.to_string_lossy().into_owned() },
            read_only: volume.read_only,
        };
        self.host_volumes.iter().map(volume).collect()
    }

    /// Returns the facts of this node: as configured, and as detected.
    pub fn node_facts(&self, instance: &InstanceId, total: Room) -> NodeFacts {
        let mut attributes = herdlet_fingerprint::attributes(total);
        attributes.extend(herdlet_fingerprint::storage(&self.state_dir));
        let rules = self.cluster.as_ref().map(|cluster| cluster.network.clone()).unwrap_or_default();
        let interfaces = herdlet_fingerprint::interfaces().unwrap_or_default();
        if let Some(ip) = herdlet_fingerprint::networks(&interfaces, &rules, |_| None).ip {
            attributes.insert("unique.network.ip-address".to_owned(), ip.to_string());
        }
        NodeFacts {
            id: instance.0.clone(),
            name: self.name.clone(),
            datacenter: self.datacenter.clone(),
            region: self.region.clone(),
            class: self.node_class.clone(),
            pool: self.node_pool.clone(),
            attributes,
            meta: self.meta.clone(),
        }
    }
}

/// Reads a token, the file's first line. Callers must not log it.
///
/// # Errors
/// The file can't be read, has no token, or another user could change it.
pub fn read_token(path: &std::path::Path) -> Result<zeroize::Zeroizing<String>, ConfigError> {
    let failed = |source| ConfigError::Token { path: path.to_owned(), source };
    ownership::check_if_there(path)?;
    let text = zeroize::Zeroizing::new(std::fs::read_to_string(path).map_err(failed)?);
    let token = text.lines().next().unwrap_or_default().trim();
    if token.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "the first line is empty")));
    }
    Ok(zeroize::Zeroizing::new(token.to_owned()))
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("expected text or json, found \"{other}\"")),
        }
    }
}
