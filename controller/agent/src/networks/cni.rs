//! Networks in mode `cni/NAME`: what CNI plugins need to know of an allocation, and what the planner needs to know of the network that
//! they have set up.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr, sync::Arc};

use herdlet_api_types::{AllocId, Duration, alloc::Allocation, job};
use herdlet_base::{error::in_full, network_texts::Connection};
use herdlet_cni::{
    chain::PortMapping,
    config::ConfigError,
    networks::{AttachedNetwork, CniError, Depth, Request, State},
    plugin::CallError,
    result::Dns,
};
use herdlet_network::networks::RequestedPort;
use herdlet_plan::{
    action::Outcome,
    facts::{Facts, Revision},
    network::AllocNetwork,
};
use herdlet_storage::network_files::NetworkFiles;

use super::{
    AllocNetworks, SweepCount,
    description::{self, Description},
    fatal, not_held, retry,
};

/// Delay until the next search for a missing config file or plugin.
const ASK_FOR_CNI: Duration = Duration::from_secs(5);

/// Without a plugin that maps ports.
const PORTS_LEAD_NOWHERE: &str = "no plugin of the CNI network maps ports: the allocation's ports are only numbers; use `address_mode: alloc` \
                                  for services and their checks";

impl AllocNetworks {
    pub(super) fn cni_up(&self, about: &Description<'_>, network: &str) -> Outcome {
        let alloc = about.alloc;
        let owner = alloc.id.to_string();
        let ports: Vec<PortMapping> = self.ports_of(alloc).iter().map(mapping).collect();
        let args = arguments(alloc, &self.machine.node.get().region);
        let request = Request { owner: &owner, network, args: &args, ports: &ports };
        let made = match self.cni.up(&request) {
            Ok(made) => made,
            Err(error) => return failed(&error),
        };
        match files(&made, about).up(&about.dir) {
            Ok(()) => Outcome::Done(Some(facts_of(&made, alloc))),
            Err(error) => retry(in_full(&error)),
        }
    }

    pub(super) fn cni_inspect(&self, about: &Description<'_>, depth: Depth) -> Outcome {
        let made = match self.cni.inspect(&about.alloc.id.to_string(), depth) {
            Ok(State::Complete(made)) => made,
            Ok(State::Incomplete { what }) => return Outcome::Foreign { why: format!("its {what}") },
            Ok(State::Absent) => return Outcome::Absent,
            Err(error) => return failed(&error),
        };
        match files(&made, about).difference(&about.dir) {
            Some(name) => Outcome::Foreign { why: format!("its file {name} differs") },
            None => Outcome::Present(Some(facts_of(&made, about.alloc))),
        }
    }

    pub(super) fn cni_down(&self, alloc: &Allocation) -> Outcome {
        match self.cni.down(&alloc.id.to_string()) {
            Ok(()) => description::removed(&self.paths.alloc(&alloc.id)),
            Err(error) => failed(&error),
        }
    }

    pub(super) fn cni_sweep(&self, is_leak: impl Fn(AllocId) -> bool) -> SweepCount {
        let is_of_leak = |owner: &str| owner.parse().is_ok_and(|id| is_leak(AllocId(id)));
        let (removed, left) = self.cni.sweep(is_of_leak);
        SweepCount { removed, left }
    }
}

fn mapping(port: &RequestedPort) -> PortMapping {
    PortMapping { host_ip: port.host_ip, host: port.host, inside: port.inside }
}

/// The arguments of plugins: those of the job and, as in Nomad, the names of the allocation, which a job can't change.
fn arguments(alloc: &Allocation, region: &str) -> String {
    let network = alloc.group().and_then(|group| group.network.as_ref());
    let of_job = network.map(|network| network.cni_args.clone()).unwrap_or_default();
    let id = alloc.id.to_string();
    let of_agent = [
        ("IgnoreUnknown", "true"),
        ("NOMAD_REGION", region),
        ("NOMAD_NAMESPACE", &*alloc.job_key.namespace),
        ("NOMAD_JOB_ID", &*alloc.job_key.id),
        ("NOMAD_GROUP_NAME", &alloc.group),
        ("NOMAD_ALLOC_ID", &id),
    ];
    let mut all: BTreeMap<String, String> = of_job;
    all.extend(of_agent.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let mut text = String::new();
    // Nothing can escape the separators.
    for (key, value) in all.iter().filter(|(key, value)| !key.contains([';', '=']) && !value.contains(';')) {
        let separator = if text.is_empty() { "" } else { ";" };
        let _ = write!(text, "{separator}{key}={value}");
    }
    text
}

/// The files about a network. Its plugins may name other name servers than the machine's, and the job others again.
fn files(made: &AttachedNetwork, about: &Description<'_>) -> NetworkFiles {
    let (name, of_job) = (about.name(), &about.dns);
    let address = made.connection.address();
    let connection = match &address {
        None => Connection::None { name: about.hostname.as_deref() },
        Some(ip) => Connection::Addresses { ips: std::slice::from_ref(ip), name: &name, name_server: None },
    };
    let files = NetworkFiles::for_connection(connection, of_job);
    match resolv_conf(&made.connection.dns).filter(|_| of_job.is_empty()) {
        Some(resolv_conf) => NetworkFiles { resolv_conf, ..files },
        None => files,
    }
}

fn resolv_conf(Dns { servers, searches, options }: &Dns) -> Option<String> {
    let mut text: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    for (word, list) in [("search", searches), ("options", options)] {
        if !list.is_empty() {
            let _ = writeln!(text, "{word} {}", list.join(" "));
        }
    }
    (!servers.is_empty()).then_some(text)
}

/// The revision changes with everything that a running task can't follow: its namespace, its addresses.
fn facts_of(made: &AttachedNetwork, alloc: &Allocation) -> Arc<Facts> {
    let connection = &made.connection;
    let folded = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => ip.octets().chunks(4).fold(0_u32, |sum, part| {
            let part: u32 = part.iter().fold(0, |number, byte| (number << 8) | u32::from(*byte));
            sum.rotate_left(1) ^ part
        }),
    };
    let addresses = connection.addresses.iter().fold(0_u32, |sum, ip| sum.rotate_left(1) ^ folded(ip));
    let revision = (u64::from(addresses) << 32) | (made.namespace.number() & u64::from(u32::MAX));
    let network = connection.address().map(|address| AllocNetwork {
        interface: connection.interface.as_str().to_owned(),
        address: address.to_string(),
        address6: connection.addresses.iter().find(|ip| ip.is_ipv6()).map(IpAddr::to_string),
        dns: reported_dns(&connection.dns),
    });
    let leads_nowhere = !made.maps_ports && !alloc.ports.is_empty();
    let message = leads_nowhere.then(|| PORTS_LEAD_NOWHERE.to_owned());
    Arc::new(Facts { revision: Revision(revision.max(1)), network, message, ..Facts::default() })
}

/// As in Nomad, nothing is reported of plugins that name no server.
fn reported_dns(Dns { servers, searches, options }: &Dns) -> job::Dns {
    if servers.is_empty() {
        return job::Dns::default();
    }
    let servers = servers.iter().map(IpAddr::to_string).collect();
    job::Dns { servers, searches: searches.clone(), options: options.clone() }
}

/// What an operator can install is waited for.
fn failed(error: &CniError) -> Outcome {
    let pending = |on: String| Outcome::Pending { on, ask_in: ASK_FOR_CNI };
    match error {
        CniError::Config(ConfigError::Absent { .. }) => {
            pending(format!("CNI: it failed to {}", in_full(error)))
        }
        CniError::Config(ConfigError::Untrusted { .. } | ConfigError::Invalid { .. })
        | CniError::Call(CallError::Untrusted { .. }) => fatal(in_full(error)),
        CniError::Call(call) if call.is_wait() => pending(format!("CNI: it failed to {}", in_full(error))),
        CniError::Hold(error) => not_held(error),
        CniError::Config(ConfigError::Read { .. })
        | CniError::Call(_)
        | CniError::Record(_)
        | CniError::Network(_)
        | CniError::Cleanup { .. }
        | CniError::Result { .. }
        | CniError::HalfMade { .. } => retry(in_full(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use herdlet_api_types::job::{Network, NetworkMode};

    use super::*;

    fn alloc(args: &[(&str, &str)]) -> Allocation {
        let job = herdlet_manifest::fixture::job("web", "g", "server");
        let mut alloc = (*herdlet_manifest::fixture::alloc_view(&job, 0, 1).spec).clone();
        let mut job = (*alloc.job).clone();
        job.groups[0].network = Some(Network {
            mode: NetworkMode::Cni("net".to_owned()),
            cni_args: args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..Network::default()
        });
        alloc.job = Arc::new(job);
        alloc
    }

    /// A plugin may decide by the names what an allocation may reach.
    #[test]
    fn a_job_adds_arguments_and_changes_no_name() {
        let alloc = alloc(&[
            ("IP", "10.0.0.7"),
            ("NOMAD_JOB_ID", "other"),
            ("a;b", "c"),
            ("d", "e;NOMAD_JOB_ID=other"),
        ]);
        let expected = format!(
            "IP=10.0.0.7;IgnoreUnknown=true;NOMAD_ALLOC_ID={};NOMAD_GROUP_NAME=g;NOMAD_JOB_ID=web;NOMAD_NAMESPACE=default;NOMAD_REGION=eu",
            alloc.id
        );
        assert_eq!(arguments(&alloc, "eu"), expected);
    }

    #[test]
    fn name_servers_of_plugins_replace_those_of_the_machine() {
        assert_eq!(resolv_conf(&Dns::default()), None);
        let dns = Dns {
            servers: vec!["10.0.0.53".parse().unwrap(), "fd00::53".parse().unwrap()],
            searches: vec!["a.example".to_owned(), "b.example".to_owned()],
            options: vec!["ndots:2".to_owned()],
        };
        let expected =
            "nameserver 10.0.0.53\nnameserver fd00::53\nsearch a.example b.example\noptions ndots:2\n";
        assert_eq!(resolv_conf(&dns).as_deref(), Some(expected));
    }

    #[test]
    fn what_an_operator_can_install_is_waited_for() {
        let dir = Path::new("/opt/cni/config").to_owned();
        let absent = ConfigError::Absent { name: "net".to_owned(), dir: dir.clone(), unreadable: None };
        let Outcome::Pending { on, .. } = failed(&absent.into()) else { panic!("it is not waited for") };
        assert!(
            on.contains("no file *.conflist, *.conf or *.json in /opt/cni/config has this name; install"),
            "{on}"
        );
        let missing = CallError::Missing { plugin: "bridge".to_owned(), dirs: "/opt/cni/bin".to_owned() };
        let Outcome::Pending { on, .. } = failed(&missing.into()) else { panic!("it is not waited for") };
        assert!(
            on.contains("no such program in /opt/cni/bin; install it, or set `network.cni_path`"),
            "{on}"
        );
        let invalid = ConfigError::Invalid { path: dir, why: "it is no JSON".to_owned() };
        let Outcome::Failed { why, .. } = failed(&invalid.into()) else { panic!("it is waited for") };
        assert_eq!(why, "use the CNI network of /opt/cni/config: it is no JSON");
    }
}
