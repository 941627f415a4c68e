//! Settings that only a node of a Nomad cluster needs: its servers, and its properties as a node.
//!
//! In: the section `cluster` of a config file, checked; flags. Out: [`Cluster`], with all defaults filled in.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use herdlet_api_types::{
    Duration,
    manifest::{Span, Text},
};
use herdlet_fingerprint::{Family, HostNetwork, Network, NetworkRules};
use herdlet_nomad::wire::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ConfigError, HostPort};
use crate::TlsFiles;

/// Default port of the HTTP API, as in Nomad.
const HTTP_PORT: u16 = 4646;

/// Default interval between attempts to find servers, as in Nomad.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Default lifetime of cached ACL tokens, policies and roles, as in Nomad.
const ACL_TTL: Duration = Duration::from_secs(30);

/// Default deadline for draining the node, as in Nomad.
const DRAIN_DEADLINE: Duration = Duration::from_secs(3_600);

/// The cluster that this node belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Its servers as configured: addresses, names, names of SRV records.
    pub servers: Vec<String>,
    /// Interval between attempts to find servers.
    pub retry_interval: Duration,
    /// Maximum number of these attempts; zero means unlimited.
    pub retry_max: u32,
    /// Whether to search Consul for servers if none are configured.
    pub client_auto_join: bool,
    /// Certificates for RPC; `None` disables TLS.
    pub tls: Option<RpcTls>,
    /// Address of the HTTP API, which is open to everyone whom the servers' ACLs admit.
    pub http: HostPort,
    /// Certificates of the HTTP API; `None` disables TLS.
    pub http_tls: Option<TlsFiles>,
    /// The host, with or without a port, to advertise to servers instead of that address.
    pub advertise_http: Option<String>,
    /// Which addresses allocations get ports on.
    pub network: NetworkRules,
    /// Maximum number of allocations on this node; zero means unlimited.
    pub node_max_allocs: u32,
    /// Directory of the Nomad client (with `client-id`) whose identity this node takes over.
    pub moved_from: Option<PathBuf>,
    /// Whether and how to drain the node when the agent leaves.
    pub drain_on_shutdown: Option<DrainOnShutdown>,
    /// Whether SIGINT makes the node leave.
    pub leave_on_interrupt: bool,
    pub leave_on_terminate: bool,
    /// Whether profiling is enabled.
    pub enable_debug: bool,
    /// Whether `alloc exec` is refused.
    pub disable_remote_exec: bool,
    /// Whether and how to check ACL tokens.
    pub acl: AclRules,
    /// Which drivers may be offered.
    pub drivers: Allowed,
    /// Which fingerprinters may run, by Nomad's names.
    pub fingerprints: Allowed,
    /// File with the introduction token for joining (Nomad 1.11 and later).
    pub intro_token_file: Option<PathBuf>,
    /// Whether, after a reboot, the node starts its last known allocations before a server is reachable.
    /// Until then, the cluster may run a second copy elsewhere.
    pub start_offline: bool,
}

/// Certificates for RPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcTls {
    /// CA certificates for the servers' certificates (PEM).
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Whether a server's certificate must be valid for `server.<region>.nomad`.
    pub verify_server_hostname: bool,
}

/// How ACL tokens are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclRules {
    pub enabled: bool,
    /// Lifetime of a cached token.
    pub token_ttl: Duration,
    /// Lifetime of a cached policy.
    pub policy_ttl: Duration,
    /// Lifetime of a cached role.
    pub role_ttl: Duration,
}

/// A filter for names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Allowed {
    /// Only these names; empty allows all.
    pub allow: Vec<String>,
    /// Not these names.
    pub deny: Vec<String>,
}

impl Allowed {
    /// Returns whether the filter allows a name.
    pub fn allows(&self, name: &str) -> bool {
        let is_in = |names: &[String]| names.iter().any(|listed| listed == name);
        (self.allow.is_empty() || is_in(&self.allow)) && !is_in(&self.deny)
    }
}

/// How to drain the node when its agent leaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainOnShutdown {
    /// Maximum duration; `None` means unlimited.
    pub deadline: Option<Duration>,
    /// Whether to stop everything at once.
    pub force: bool,
    pub ignore_system_jobs: bool,
}

/// The section `cluster`, which also takes those settings of Nomad's `client` that belong to no other
/// section.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Whether this is a node of a cluster. The default is true if there are servers.
    pub enabled: Option<bool>,
    /// Interval between attempts to find servers.
    pub retry_interval: Option<Span>,
    /// Maximum number of these attempts; 0 means unlimited.
    pub retry_max: Option<u32>,
    /// TLS, as in Nomad's `tls`.
    pub tls: TlsSection,
    /// Address of the HTTP API.
    pub bind_addr: Option<String>,
    /// The same; takes precedence over `bind_addr`.
    pub http_addr: Option<String>,
    /// Port of the HTTP API.
    #[schemars(range(min = 1))]
    pub http_port: Option<u16>,
    /// The address to advertise to servers instead, HOST or HOST:PORT.
    pub advertise_http: Option<String>,
    /// The interface on whose addresses allocations get ports.
    pub network_interface: Option<String>,
    /// Its speed in Mbit/s.
    pub network_speed: Option<u32>,
    /// The address family to prefer.
    pub preferred_address_family: Option<Family>,
    /// Whether to ignore link-local addresses.
    pub disallow_link_local: bool,
    /// Named networks of this host.
    pub host_networks: Vec<HostNetworkSection>,
    /// Maximum number of allocations on this node; 0 means unlimited.
    pub node_max_allocs: Option<u32>,
    /// Directory of the Nomad client (with `client-id`) whose identity this node takes over.
    #[schemars(with = "Option<String>")]
    pub moved_from: Option<PathBuf>,
    /// Whether and how to drain the node when the agent leaves.
    pub drain_on_shutdown: Option<DrainSection>,
    /// Whether SIGINT makes the node leave.
    pub leave_on_interrupt: bool,
    /// Whether SIGTERM makes the node leave.
    pub leave_on_terminate: bool,
    /// Whether profiling is enabled.
    pub enable_debug: bool,
    /// Whether `alloc exec` is refused.
    pub disable_remote_exec: bool,
    /// Whether and how to check ACL tokens.
    pub acl: AclSection,
    /// Which drivers may be offered.
    pub drivers: Allowed,
    /// Which fingerprinters may run, by Nomad's names.
    pub fingerprints: Allowed,
    /// File with the introduction token for joining.
    #[schemars(with = "Option<String>")]
    pub intro_token_file: Option<PathBuf>,
    /// Whether, after a reboot, the node starts its last known allocations before a server is reachable;
    /// until then, the cluster may run a second copy elsewhere.
    pub start_offline: bool,
}

/// TLS, as in Nomad's `tls`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSection {
    /// Whether to use TLS for RPC with servers.
    pub rpc: bool,
    /// Whether to use TLS for the HTTP API.
    pub http: bool,
    /// CA certificates (PEM).
    #[schemars(with = "Option<String>")]
    pub ca_file: Option<PathBuf>,
    /// The agent's certificate (PEM).
    #[schemars(with = "Option<String>")]
    pub cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    #[schemars(with = "Option<String>")]
    pub key_file: Option<PathBuf>,
    /// Whether a server's certificate must be valid for `server.<region>.nomad`.
    pub verify_server_hostname: bool,
    /// Whether clients of the HTTP API must present a certificate.
    pub verify_https_client: bool,
}

/// A named network of this host.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostNetworkSection {
    pub name: Text,
    /// CIDR blocks of its addresses, separated by commas.
    #[serde(default)]
    pub cidr: String,
    /// Interface of its addresses.
    #[serde(default)]
    pub interface: String,
    /// Ports that allocations don't get.
    #[serde(default)]
    pub reserved_ports: String,
}

/// How to drain the node when its agent leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DrainSection {
    /// Maximum duration, by default 1h; 0s means unlimited.
    pub deadline: Option<Span>,
    /// Whether to stop everything at once.
    pub force: bool,
    /// Whether system jobs keep running.
    pub ignore_system_jobs: bool,
}

/// How ACL tokens are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AclSection {
    /// Whether ACLs are enabled.
    pub enabled: bool,
    /// Lifetime of a cached token.
    pub token_ttl: Option<Span>,
    /// Lifetime of a cached policy.
    pub policy_ttl: Option<Span>,
    /// Lifetime of a cached role.
    pub role_ttl: Option<Span>,
}

/// Checks what the types can't express. Returns problems by field.
pub(super) fn host_network_problems(networks: &[HostNetworkSection]) -> Vec<(String, String)> {
    let mut problems = Vec::new();
    for (index, network) in networks.iter().enumerate() {
        let at = |field: &str| format!("host_networks[{index}].{field}");
        problems.extend(network.networks().err().map(|message| (at("cidr"), message)));
        let ports = super::check::ports(&network.reserved_ports);
        problems.extend(ports.err().map(|message| (at("reserved_ports"), message)));
        if network.name.0.is_empty() || network.name.0 == "default" {
            problems.push((at("name"), "must be a name other than default".to_owned()));
        }
    }
    problems
}

impl HostNetworkSection {
    /// Invalid networks are already reported as problems of the file.
    pub(super) fn settled(self) -> HostNetwork {
        HostNetwork {
            cidr: self.networks().unwrap_or_default(),
            name: self.name.0,
            interface: Some(self.interface).filter(|name| !name.is_empty()),
            reserved_ports: self.reserved_ports,
        }
    }

    /// Parses the networks.
    ///
    /// # Errors
    /// The first part that is not a network.
    pub(super) fn networks(&self) -> Result<Vec<Network>, String> {
        let parts = self.cidr.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts
            .map(|part| part.parse().map_err(|error: herdlet_fingerprint::NetworkError| error.to_string()))
            .collect()
    }
}

impl TlsSection {
    /// Returns a missing file that TLS requires, by field.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !self.rpc && !self.http {
            return None;
        }
        match self {
            Self { cert_file: None, .. } => Some(("cert_file", "is missing: TLS needs it")),
            Self { key_file: None, .. } => Some(("key_file", "is missing: TLS needs it")),
            Self { ca_file: None, rpc: true, .. } => {
                Some(("ca_file", "is missing: TLS with servers needs it"))
            }
            Self { ca_file: None, verify_https_client: true, .. } => {
                Some(("ca_file", "is missing: verify_https_client needs it"))
            }
            Self { .. } => None,
        }
    }

    fn of_rpc(&self) -> Option<RpcTls> {
        let (authority, certificate) = (self.ca_file.clone()?, self.cert_file.clone()?);
        let key = self.key_file.clone()?;
        let verify_server_hostname = self.verify_server_hostname;
        self.rpc.then_some(RpcTls { authority, certificate, key, verify_server_hostname })
    }

    fn of_http(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.cert_file.clone()?, self.key_file.clone()?);
        let clients = self.ca_file.clone().filter(|_| self.verify_https_client);
        self.http.then_some(TlsFiles { certificate, key, clients })
    }
}

impl Section {
    /// Checks what the types can't express. Returns problems by path within the section.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let paths = [
            ("moved_from", &self.moved_from),
            ("intro_token_file", &self.intro_token_file),
            ("tls.ca_file", &self.tls.ca_file),
            ("tls.cert_file", &self.tls.cert_file),
            ("tls.key_file", &self.tls.key_file),
        ];
        for (at, path) in paths {
            let message = path.as_deref().and_then(super::check::not_absolute);
            problems.extend(message.map(|message| (at.to_owned(), message)));
        }
        for (at, address) in [("bind_addr", &self.bind_addr), ("http_addr", &self.http_addr)] {
            if let Some(address) = address.as_ref().filter(|address| address.parse::<IpAddr>().is_err()) {
                let message = format!("expected an IP address such as 0.0.0.0, found \"{address}\"");
                problems.push((at.to_owned(), message));
            }
        }
        if let Some(text) = &self.advertise_http
            && advertised(text, HTTP_PORT).is_none()
        {
            let message = format!("expected HOST or HOST:PORT, found \"{text}\"");
            problems.push(("advertise_http".to_owned(), message));
        }
        problems.extend(host_network_problems(&self.host_networks));
        problems
    }

    /// Returns the cluster, or `None` if this is not a node of one. `servers` comes from flags and files;
    /// `listen` overrides the address of the API.
    ///
    /// # Errors
    /// Invalid addresses.
    pub(super) fn cluster(
        self,
        servers: Vec<String>,
        client_auto_join: Option<bool>,
        listen: Option<HostPort>,
        http_tls: Option<TlsFiles>,
    ) -> Result<Option<Cluster>, ConfigError> {
        if !self.enabled.unwrap_or(!servers.is_empty()) {
            return Ok(None);
        }
        if let Some(server) = servers.iter().find(|text| !is_server(text)) {
            let why = format!("expected HOST, HOST:PORT or the name of an SRV record, found \"{server}\"");
            return Err(ConfigError::Flag { flag: "servers", why });
        }
        let host = self.http_addr.or(self.bind_addr).unwrap_or_else(|| "0.0.0.0".to_owned());
        let http = HostPort { host, port: self.http_port.unwrap_or(HTTP_PORT) };
        let networks = self.host_networks.into_iter().map(HostNetworkSection::settled);
        let ttl = |span: Option<Span>| span.map_or(ACL_TTL, |span| span.0);
        Ok(Some(Cluster {
            servers,
            retry_interval: self.retry_interval.map_or(RETRY_INTERVAL, |span| span.0),
            retry_max: self.retry_max.unwrap_or(0),
            client_auto_join: client_auto_join.unwrap_or(true),
            tls: self.tls.of_rpc(),
            http: listen.unwrap_or(http),
            http_tls: http_tls.or_else(|| self.tls.of_http()),
            advertise_http: self.advertise_http,
            network: NetworkRules {
                interface: self.network_interface.filter(|name| !name.is_empty()),
                speed: self.network_speed.filter(|speed| *speed > 0),
                host_networks: networks.collect(),
                family: self.preferred_address_family,
                disallow_link_local: self.disallow_link_local,
            },
            node_max_allocs: self.node_max_allocs.unwrap_or(0),
            moved_from: self.moved_from,
            drain_on_shutdown: self.drain_on_shutdown.map(|drain| DrainOnShutdown {
                deadline: Some(drain.deadline.map_or(DRAIN_DEADLINE, |span| span.0))
                    .filter(|span| span.0 > 0),
                force: drain.force,
                ignore_system_jobs: drain.ignore_system_jobs,
            }),
            leave_on_interrupt: self.leave_on_interrupt,
            leave_on_terminate: self.leave_on_terminate,
            enable_debug: self.enable_debug,
            disable_remote_exec: self.disable_remote_exec,
            acl: AclRules {
                enabled: self.acl.enabled,
                token_ttl: ttl(self.acl.token_ttl),
                policy_ttl: ttl(self.acl.policy_ttl),
                role_ttl: ttl(self.acl.role_ttl),
            },
            drivers: self.drivers,
            fingerprints: self.fingerprints,
            intro_token_file: self.intro_token_file,
            start_offline: self.start_offline,
        }))
    }
}

impl Cluster {
    /// Returns the introduction token for joining (Nomad 1.11 and later) from the same places as Nomad: the
    /// configured file, `NOMAD_CLIENT_INTRO_TOKEN`, or `intro_token.jwt` in the state directory. Empty if
    /// there is none.
    ///
    /// # Errors
    /// The file exists but has no token.
    pub fn introduction(
        &self,
        state_dir: &Path,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Secret, ConfigError> {
        let read = |path: &Path| super::read_token(path).map(|token| Secret::from(token.as_str()));
        if let Some(path) = &self.intro_token_file {
            return read(path);
        }
        if let Some(token) = variable("NOMAD_CLIENT_INTRO_TOKEN").filter(|token| !token.is_empty()) {
            return Ok(Secret::from(token));
        }
        let kept = state_dir.join("intro_token.jwt");
        if kept.exists() { read(&kept) } else { Ok(Secret::default()) }
    }

    /// Returns the advertised host, if the config names one.
    pub fn advertised_host(&self) -> Option<String> {
        let text = self.advertise_http.as_ref()?;
        Some(advertised(text, self.http.port)?.host)
    }

    /// Returns the address of the HTTP API to advertise to servers. `own` is the node's address, for an API
    /// on all addresses.
    pub fn http_addr(&self, own: Option<IpAddr>) -> String {
        let advertised = self.advertise_http.as_ref().and_then(|text| advertised(text, self.http.port));
        let is_any = self.http.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let own = || {
            let host = own.filter(|_| is_any).map_or_else(|| self.http.host.clone(), |ip| ip.to_string());
            HostPort { host, port: self.http.port }
        };
        advertised.unwrap_or_else(own).to_string()
    }
}

/// Parses HOST, HOST:PORT, or an IPv6 address with or without brackets.
fn advertised(text: &str, port: u16) -> Option<HostPort> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() {
        return Some(HostPort { host: bare.to_owned(), port });
    }
    HostPort::from_str(text).or_else(|_| HostPort::from_str(&format!("{text}:{port}"))).ok()
}

/// Returns whether the text is a valid address of servers.
pub(super) fn is_server(text: &str) -> bool {
    text.parse::<herdlet_rpc::address::Address>().is_ok()
}

/// Returns the state directory within Nomad's data directory.
pub(super) fn state_dir_of(data_dir: &Path) -> PathBuf {
    data_dir.join("herdlet")
}
