//! The agent's config: flags over environment over files over defaults.
//!
//! In: flags, the environment, files of ours (YAML) or of Nomad's agent (HCL, JSON). Out: [`Config`], with
//! all defaults filled in and every path absolute. This crate reads no files but the config and tokens, and
//! must not know what a part does with its settings.

pub mod artifact;
mod check;
mod cluster;
mod drivers;
mod file;
mod flags;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod fuzz;
pub mod gc;
pub mod http;
pub mod log_filter;
mod merge;
mod nomad;
mod places;
mod sources;
pub mod template;
mod tls;
mod view;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::IpAddr,
    ops::RangeInclusive,
    path::PathBuf,
    str::FromStr,
};

use herdlet_api_types::{
    Duration, InstanceId,
    manifest::defaults::NODE_POOL,
    volume::{Volume, VolumeKind},
};
use herdlet_base::{
    ownership::{self, OwnershipError},
    paths::Paths,
};
use herdlet_manifest::yaml::{Problem, Problems};
use herdlet_plan::{context::Settings, env::NodeFacts, job::capacity::Room, limits::DYNAMIC_PORTS};
use schemars::JsonSchema;
use serde::Deserialize;
use thiserror::Error;

pub use cluster::{AclRules, Allowed, Cluster, DrainOnShutdown, RpcTls};
pub use drivers::{DriverSetting, DriverSettings};
pub use file::{Consul, File, HostVolume, PortRange, RawExec, Reserved};
pub use flags::Flags;
pub use http::Http;
pub use places::{Surroundings, default_socket, default_state_dir, host_name};
pub use tls::TlsFiles;
pub use view::{Setting, Source, settings, settings_again};

use self::{artifact::Limits, gc::Rules, template::Template};
use crate::sources::{Loaded, Opening, Sources};

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
    /// Settings of the templates of tasks.
    pub template: Template,
    /// Rules for garbage collection.
    pub gc: Rules,
    /// Which task drivers are offered, and their options.
    pub drivers: DriverSettings,
    /// The Consul agent of this machine.
    pub consul: Consul,
    /// File with the keys that encrypt variables; `None` for a credential or a generated file.
    pub variables_key_file: Option<PathBuf>,
    /// Range of dynamic ports.
    pub dynamic_ports: RangeInclusive<u16>,
    /// Resources of this machine that allocations can't use.
    pub reserved: Room,
    /// Ports that allocations can't use.
    pub reserved_ports: BTreeSet<u16>,
    /// Resources of the machine, if the detected values are wrong.
    pub total: Total,
    /// Whether to publish metrics of single tasks.
    pub publish_allocation_metrics: bool,
    /// Log filter, as `tracing` directives.
    pub log_level: String,
    pub log_format: LogFormat,
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

/// A host (name or address) and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address; IPv6 without brackets.
    pub host: String,
    pub port: u16,
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
    /// Loads the config from flags, environment and files.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing was changed.
    pub fn load(flags: Flags, surroundings: &Surroundings<'_>) -> Result<Self, ConfigError> {
        let flags = flags.or_variables(surroundings.variable).with_absolute_paths()?;
        let loaded = Sources::read(&flags.config, Opening::MayWait)?.file().map_err(ConfigError::Problems)?;
        Self::merge(flags, loaded, surroundings)
    }

    /// Like [`Config::load`], for an agent, which must be able to trust its config.
    ///
    /// # Errors
    /// [`ConfigError`]; [`ConfigError::Exposed`] if another user could change one of the files.
    pub fn load_trusted(flags: Flags, surroundings: &Surroundings<'_>) -> Result<Self, ConfigError> {
        let flags = flags.or_variables(surroundings.variable).with_absolute_paths()?;
        check_trust(&flags)?;
        Self::load(flags, surroundings)
    }

    fn merge(flags: Flags, loaded: Loaded, surroundings: &Surroundings<'_>) -> Result<Self, ConfigError> {
        let Loaded { mut file, mut warnings, has_nomads, .. } = loaded;
        overridden_lists(&flags, &file).into_iter().for_each(|problem| warnings.push(problem));
        if has_nomads && file.cluster.enabled.is_none() && flags.servers.is_empty() {
            return Err(ConfigError::NotEnabled);
        }
        let gc = gc_rules(&file);
        let mut meta: BTreeMap<String, String> =
            std::mem::take(&mut file.meta).into_iter().map(|(key, text)| (key, text.0)).collect();
        meta.extend(flags.meta()?);
        let given = flags.raw_exec()?;
        let servers =
            if flags.servers.is_empty() { std::mem::take(&mut file.servers) } else { flags.servers };
        if !servers.is_empty() && has_nomads && file.cluster.enabled.is_none() {
            file.cluster.enabled = Some(true);
        }
        let state_dir = match flags.state_dir.or(file.state_dir) {
            Some(path) => path,
            None => default_state_dir(surroundings).ok_or(ConfigError::NoHome)?,
        };
        let socket = flags.socket.or(file.socket).unwrap_or_else(|| default_socket(surroundings, &state_dir));
        let token_file = flags.token_file.or(file.token_file);
        let listen = host_port("listen", flags.listen.or(file.listen))?;
        let tls = file.tls.and_then(|tls| tls.files());
        let auto_join = file.consul.client_auto_join;
        let cluster = file.cluster.cluster(servers, auto_join, listen.clone(), tls.clone())?;
        let listen = match listen.filter(|_| cluster.is_none()) {
            None => None,
            Some(address) => match token_file {
                Some(token_file) => Some((address, token_file)),
                None => return Err(ConfigError::NoToken(address)),
            },
        };
        let given = drivers::Given { raw_exec: given, cluster: cluster.as_ref() };
        let drivers = DriverSettings::of(&file.drivers, &given);
        let mut consul = file.consul;
        if consul.ssl {
            consul.address = consul.address.map(|address| match address.contains("://") {
                true => address,
                false => format!("https://{address}"),
            });
        }
        let host_ip = match flags.host_ip.or(file.host_ip) {
            None => IpAddr::from([127, 0, 0, 1]),
            Some(text) => {
                let why = format!("expected an IP address, found \"{text}\"");
                text.parse().map_err(|_| ConfigError::Flag { flag: "host-ip", why })?
            }
        };
        let cgroup_parent =
            flags.cgroup_parent.or(file.cgroup_parent).unwrap_or_else(|| CGROUP_PARENT.to_owned());
        if let Some(why) = cgroup_parent_problem(&cgroup_parent) {
            return Err(ConfigError::Flag { flag: "cgroup-parent", why });
        }
        let log_level = flags.log_level.or(file.log_level).unwrap_or_else(|| "info".to_owned());
        if let Some(why) = filter_problem(&log_level) {
            return Err(ConfigError::Flag { flag: "log-level", why });
        }
        let log_format = match flags.log_format {
            Some(text) => text.parse().map_err(|why| ConfigError::Flag { flag: "log-format", why })?,
            None => file.log_format.unwrap_or_default(),
        };
        let or = |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
        Ok(Self {
            name: or(flags.name.or(file.name.map(|text| text.0)), surroundings.host_name),
            datacenter: or(flags.datacenter.or(file.datacenter.map(|text| text.0)), "dc1"),
            region: or(flags.region.or(file.region.map(|text| text.0)), "global"),
            node_class: or(flags.node_class.or(file.node_class.map(|text| text.0)), ""),
            node_pool: or(flags.node_pool.or(file.node_pool.map(|text| text.0)), NODE_POOL),
            meta,
            cluster,
            warnings,
            files: flags.config,
            runtime_parent: flags
                .runtime_dir
                .or(file.runtime_dir)
                .or_else(|| places::default_runtime_parent(surroundings)),
            state_dir,
            socket,
            listen,
            tls,
            http: file.http.settled(),
            publish_allocation_metrics: file.telemetry.publish_allocation_metrics,
            metrics_listen: host_port("metrics-listen", flags.metrics_listen.or(file.metrics_listen))?,
            dns_listen: host_port("dns-listen", flags.dns_listen.or(file.dns_listen))?,
            manifests: if flags.manifests.is_empty() { file.manifests } else { flags.manifests },
            cgroup_parent,
            host_ip,
            host_volumes: file.host_volumes,
            max_kill_timeout: file.max_kill_timeout.map_or(MAX_KILL_TIMEOUT, |span| span.0),
            start_pressure_limit: file.start_pressure_limit.unwrap_or(START_PRESSURE_LIMIT),
            task_dir_users: file.task_dir_users.into_iter().map(|name| name.0).collect(),
            artifact: file.artifact.limits(),
            template: file.template.settled(),
            gc,
            drivers,
            consul,
            variables_key_file: file.variables.key_file,
            dynamic_ports: file.dynamic_ports.map_or(DYNAMIC_PORTS, |ports| ports.min..=ports.max),
            reserved: Room {
                cpu_mhz: file.reserved.cpu,
                memory_mib: file.reserved.memory,
                disk_mib: file.reserved.disk,
            },
            // Invalid ports are already reported as problems of the file.
            reserved_ports: file.reserved.ports().unwrap_or_default(),
            total: Total {
                cpu_mhz: file.cpu_total_compute,
                memory_mib: file.memory_total_mb,
                disk_mib: file.disk_total_mb,
            },
            log_level,
            log_format,
        })
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
            node: NodeFacts::default(),
            room: total.minus(self.reserved),
            reserved_ports: self.reserved_ports.clone(),
            start_offline: self.cluster.as_ref().is_some_and(|cluster| cluster.start_offline),
        }
    }

    /// Returns the machine's resources: as configured, otherwise as detected.
    pub fn total(&self) -> Room {
        let found = herdlet_fingerprint::room(&self.state_dir);
        let Total { cpu_mhz, memory_mib, disk_mib } = self.total;
        Room {
            cpu_mhz: cpu_mhz.unwrap_or(found.cpu_mhz),
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

/// Returns the rules for garbage collection, with defaults.
fn gc_rules(file: &File) -> Rules {
    let default = Rules::default();
    Rules {
        job_gc_threshold: file.job_gc_threshold.map_or(default.job_gc_threshold, |span| span.0),
        gc_max_allocs: file.gc_max_allocs.unwrap_or(default.gc_max_allocs),
        gc_disk_usage_threshold: file.gc_disk_usage_threshold.unwrap_or(default.gc_disk_usage_threshold),
        gc_inode_usage_threshold: file.gc_inode_usage_threshold.unwrap_or(default.gc_inode_usage_threshold),
        gc_interval: file.gc_interval.map_or(default.gc_interval, |span| span.0),
    }
}

/// Checks that only trusted users can change the config files.
fn check_trust(flags: &Flags) -> Result<(), ConfigError> {
    for path in &flags.config {
        ownership::check_if_there(path)?;
        if path.is_dir() {
            ownership::check_entries(path)?;
        }
    }
    Ok(())
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

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let error = || HostPortError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').filter(|inner| inner.contains(':')).ok_or_else(error)?,
            None if host.contains(':') => return Err(error()),
            None => host,
        };
        let plain = |char: char| char.is_ascii_alphanumeric() || ".-_:%".contains(char);
        if host.is_empty() || !host.chars().all(plain) {
            return Err(error());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| error())? })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The text is not HOST:PORT.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected HOST:PORT such as 127.0.0.1:4680 or [::1]:4680, found \"{0}\"")]
pub struct HostPortError(String);

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

fn host_port(flag: &'static str, text: Option<String>) -> Result<Option<HostPort>, ConfigError> {
    let parsed = text.map(|text| text.parse::<HostPort>()).transpose();
    parsed.map_err(|error| ConfigError::Flag { flag, why: error.to_string() })
}

/// Returns the problem with the name of a cgroup.
fn cgroup_parent_problem(parent: &str) -> Option<String> {
    let part =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(char::is_control);
    let plain = parent.trim_start_matches('/');
    (!plain.split('/').all(part))
        .then(|| format!("expected a cgroup such as herdlet or machine.slice/herdlet, found \"{parent}\""))
}

/// Returns the problem with a log filter.
fn filter_problem(filter: &str) -> Option<String> {
    log_filter::check_directives(filter).err()
}

/// Lists of the files that a flag or its variable replaces: readers expect lists to be joined.
fn overridden_lists(flags: &Flags, file: &File) -> Vec<Problem> {
    let manifests = !file.manifests.is_empty() && !flags.manifests.is_empty();
    let servers = !file.servers.is_empty() && !flags.servers.is_empty();
    let differs = [
        ("manifests", manifests && flags.manifests != file.manifests),
        ("servers", servers && flags.servers != file.servers),
    ];
    let files: Vec<String> = flags.config.iter().map(|path| path.display().to_string()).collect();
    let problem = |key: &str| Problem {
        source: files.join(", "),
        line: 0,
        column: 0,
        path: key.to_owned(),
        message: format!(
            "it has no effect, because --{key} or HERDLET_{} replaces it: set only one of them",
            key.to_uppercase()
        ),
    };
    differs.iter().filter(|(_, differs)| *differs).map(|(key, _)| problem(key)).collect()
}
