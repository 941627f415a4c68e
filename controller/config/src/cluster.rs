//! What only a node of a Nomad cluster needs: which servers, and what it is to them.
//!
//! In: the section `cluster` of a config file, checked; flags. Out: [`Cluster`], in which nothing is left open.

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

/// The port of the HTTP API, Nomad's.
const HTTP_PORT: u16 = 4646;

/// Between two tries to find servers, as Nomad.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// How long what servers say of tokens is believed, as Nomad.
const ACL_TTL: Duration = Duration::from_secs(30);

/// How long a node is drained, as by Nomad.
const DRAIN_DEADLINE: Duration = Duration::from_secs(3_600);

/// The cluster whose node this is.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Its servers, as they were written: addresses, names, names of SRV records.
    pub servers: Vec<String>,
    /// Between two tries to find servers.
    pub retry_interval: Duration,
    /// How often that is tried; zero: for ever.
    pub retry_max: u32,
    /// Whether servers are looked for in Consul where none are named.
    pub client_auto_join: bool,
    /// Certificates for servers; none: no TLS.
    pub tls: Option<RpcTls>,
    /// Where the HTTP API is served, for everybody whom the servers' ACLs let in.
    pub http: HostPort,
    /// Certificates of that API; none: no TLS.
    pub http_tls: Option<TlsFiles>,
    /// What is told to servers in place of that address: a host, with or without a port.
    pub advertise_http: Option<String>,
    /// Which addresses ports are given out of.
    pub network: NetworkRules,
    /// How many allocations the node takes; zero: any.
    pub node_max_allocs: u32,
    /// The directory of Nomad's client whose node this is from now on: the one that holds `client-id`.
    pub moved_from: Option<PathBuf>,
    /// Whether and how the node is drained when the agent is told to leave.
    pub drain_on_shutdown: Option<DrainOnShutdown>,
    /// Whether SIGINT means to leave.
    pub leave_on_interrupt: bool,
    pub leave_on_terminate: bool,
    /// Whether profiles may be taken.
    pub enable_debug: bool,
    /// Whether `alloc exec` is refused.
    pub disable_remote_exec: bool,
    /// Whether callers need a token that the servers know.
    pub acl: AclRules,
    /// Which drivers may be offered.
    pub drivers: Allowed,
    /// Which fingerprinters may run, by Nomad's names.
    pub fingerprints: Allowed,
    /// File with the token that lets the node join (1.11 and later).
    pub intro_token_file: Option<PathBuf>,
    /// After a reboot what servers wanted last is started before one of them is in reach. Until then a second copy may run elsewhere.
    pub start_offline: bool,
}

/// Certificates for RPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcTls {
    /// Authorities that sign the servers' certificates (PEM).
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Whether a server's certificate must be for `server.<region>.nomad`.
    pub verify_server_hostname: bool,
}

/// How callers are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclRules {
    pub enabled: bool,
    /// How long a token is believed.
    pub token_ttl: Duration,
    /// How long a policy is.
    pub policy_ttl: Duration,
    /// How long a role is.
    pub role_ttl: Duration,
}

/// Names that may be, all but some, or some only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Allowed {
    /// These only; empty: all.
    pub allow: Vec<String>,
    /// None of these.
    pub deny: Vec<String>,
}

impl Allowed {
    /// Whether a name may be.
    pub fn allows(&self, name: &str) -> bool {
        let is_in = |names: &[String]| names.iter().any(|listed| listed == name);
        (self.allow.is_empty() || is_in(&self.allow)) && !is_in(&self.deny)
    }
}

/// How a node is drained when its agent is told to leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainOnShutdown {
    /// How long that may take; none: as long as it does.
    pub deadline: Option<Duration>,
    /// Everything ends at once.
    pub force: bool,
    pub ignore_system_jobs: bool,
}

/// The section `cluster`, and Nomad's `client` as far as nothing else is meant by it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Whether this is a node of a cluster; by default where servers are named.
    pub enabled: Option<bool>,
    /// Between two tries to find servers.
    pub retry_interval: Option<Span>,
    /// How often that is tried; 0: for ever.
    pub retry_max: Option<u32>,
    /// TLS, as in Nomad's `tls`.
    pub tls: TlsSection,
    /// Address of the HTTP API.
    pub bind_addr: Option<String>,
    /// The same, before `bind_addr`.
    pub http_addr: Option<String>,
    /// Its port.
    #[schemars(range(min = 1))]
    pub http_port: Option<u16>,
    /// What is told to servers in its place, HOST or HOST:PORT.
    pub advertise_http: Option<String>,
    /// The interface of the addresses that ports are given out of.
    pub network_interface: Option<String>,
    /// Its Mbit/s.
    pub network_speed: Option<u32>,
    /// Which of its addresses come first.
    pub preferred_address_family: Option<Family>,
    /// Whether addresses of use on one link only never count.
    pub disallow_link_local: bool,
    /// Addresses under names.
    pub host_networks: Vec<HostNetworkSection>,
    /// How many allocations the node takes; 0: any.
    pub node_max_allocs: Option<u32>,
    /// Directory of Nomad's client (with `client-id`) whose node this is from now on.
    #[schemars(with = "Option<String>")]
    pub moved_from: Option<PathBuf>,
    /// Whether the node is drained when the agent is told to leave.
    pub drain_on_shutdown: Option<DrainSection>,
    /// Whether SIGINT means to leave.
    pub leave_on_interrupt: bool,
    /// Whether SIGTERM does.
    pub leave_on_terminate: bool,
    /// Whether profiles may be taken.
    pub enable_debug: bool,
    /// Whether `alloc exec` is refused.
    pub disable_remote_exec: bool,
    /// How callers are known.
    pub acl: AclSection,
    /// Which drivers may be offered.
    pub drivers: Allowed,
    /// Which fingerprinters may run, by Nomad's names.
    pub fingerprints: Allowed,
    /// File with the token that lets the node join.
    #[schemars(with = "Option<String>")]
    pub intro_token_file: Option<PathBuf>,
    /// Whether what servers wanted last starts after a reboot before one of them is in reach; until then a second copy may run elsewhere.
    pub start_offline: bool,
}

/// TLS, as in Nomad's `tls`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSection {
    /// Whether servers are spoken to in TLS.
    pub rpc: bool,
    /// Whether the HTTP API speaks it.
    pub http: bool,
    /// Authorities (PEM).
    #[schemars(with = "Option<String>")]
    pub ca_file: Option<PathBuf>,
    /// Our certificate (PEM).
    #[schemars(with = "Option<String>")]
    pub cert_file: Option<PathBuf>,
    /// Its key (PEM).
    #[schemars(with = "Option<String>")]
    pub key_file: Option<PathBuf>,
    /// Whether a server's certificate must be for `server.<region>.nomad`.
    pub verify_server_hostname: bool,
    /// Whether clients of the HTTP API must show a certificate.
    pub verify_https_client: bool,
}

/// Addresses under a name.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostNetworkSection {
    /// The name.
    pub name: Text,
    /// Addresses in these networks, separated by commas.
    #[serde(default)]
    pub cidr: String,
    /// Addresses of this interface.
    #[serde(default)]
    pub interface: String,
    /// Ports that are not given out.
    #[serde(default)]
    pub reserved_ports: String,
}

/// How a node is drained when its agent is told to leave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DrainSection {
    /// How long that may take, by default 1h; 0s: as long as it does.
    pub deadline: Option<Span>,
    /// Everything ends at once.
    pub force: bool,
    /// System jobs stay.
    pub ignore_system_jobs: bool,
}

/// How callers are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AclSection {
    /// By tokens.
    pub enabled: bool,
    /// How long a token is believed.
    pub token_ttl: Option<Span>,
    /// How long a policy is.
    pub policy_ttl: Option<Span>,
    /// How long a role is.
    pub role_ttl: Option<Span>,
}

impl HostNetworkSection {
    /// Its networks.
    ///
    /// # Errors
    /// What of the text is none.
    pub(super) fn networks(&self) -> Result<Vec<Network>, String> {
        let parts = self.cidr.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts
            .map(|part| part.parse().map_err(|error: herdlet_fingerprint::NetworkError| error.to_string()))
            .collect()
    }
}

impl TlsSection {
    /// What has to be there together and is not, by its field.
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
    /// What the types can't say: problems by path within the section.
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
        for (index, network) in self.host_networks.iter().enumerate() {
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

    /// The cluster; none where this is no node of any. `servers`: of flags and files. `listen`: where the API is to be served instead.
    ///
    /// # Errors
    /// When an address makes no sense.
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
        if let Some(wrong) = servers.iter().find(|text| !is_server(text)) {
            let why = format!("expected HOST, HOST:PORT or the name of an SRV record, found \"{wrong}\"");
            return Err(ConfigError::Flag { flag: "servers", why });
        }
        let host = self.http_addr.or(self.bind_addr).unwrap_or_else(|| "0.0.0.0".to_owned());
        let http = HostPort { host, port: self.http_port.unwrap_or(HTTP_PORT) };
        let networks = self.host_networks.into_iter().map(|network| HostNetwork {
            // What is no network was told with the rest of the file.
            cidr: network.networks().unwrap_or_default(),
            name: network.name.0,
            interface: Some(network.interface).filter(|name| !name.is_empty()),
            reserved_ports: network.reserved_ports,
        });
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
    /// The token that lets the node join (1.11 and later), as Nomad finds it: the file that the config names, `NOMAD_CLIENT_INTRO_TOKEN`, or
    /// `intro_token.jwt` in the state directory. Empty where there is none.
    ///
    /// # Errors
    /// When there is a file and it holds none.
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

    /// The host of that address, where the config names one.
    pub fn advertised_host(&self) -> Option<String> {
        let text = self.advertise_http.as_ref()?;
        Some(advertised(text, self.http.port)?.host)
    }

    /// What is told to servers of where the HTTP API is. `own`: the node's address, for an API that is served on all of them.
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

/// HOST, HOST:PORT, an address of IPv6 with or without brackets.
fn advertised(text: &str, port: u16) -> Option<HostPort> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() {
        return Some(HostPort { host: bare.to_owned(), port });
    }
    HostPort::from_str(text).or_else(|_| HostPort::from_str(&format!("{text}:{port}"))).ok()
}

/// Whether servers can be looked for there.
pub(super) fn is_server(text: &str) -> bool {
    text.parse::<herdlet_rpc::address::Address>().is_ok()
}

/// What must not be where state is kept.
pub(super) fn state_dir_of(data_dir: &Path) -> PathBuf {
    data_dir.join("herdlet")
}
