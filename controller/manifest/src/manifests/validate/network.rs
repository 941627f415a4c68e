//! `network` of a group and `resources.network` of its tasks: modes, port labels and static ports.

mod cni;
mod listening;

use std::{collections::BTreeMap, net::IpAddr};

use herdlet_api_types::{
    driver::{FsIsolation, Networking},
    job::{self, Group},
    manifest::{Dns, Network, NetworkMode, Text},
    names::NameKind,
};

use super::{Findings, GroupContext, text};
use crate::yaml::Trail;

/// The networks of one group.
struct Networks<'s> {
    group: Option<&'s Network>,
    /// Static ports, with the first label of each.
    taken: BTreeMap<u16, String>,
}

/// Validates the networks of a group and its tasks. Each allocation has one of every port, so a static port twice is
/// impossible. Several allocations or groups with the same port are valid: one of them runs, the others wait.
pub(super) fn of_group(context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { spec, trail, .. } = *context;
    joined(context, findings);
    let mut networks = Networks { group: spec.network.as_ref(), taken: BTreeMap::new() };
    if let Some(network) = &spec.network {
        let trail = trail.field("network");
        labels(network, &trail, findings);
        networks.static_ports(network, &trail, findings);
        cni::arguments(network, &trail, findings);
        for (label, port) in network.ports.iter().flatten() {
            let name = port.host_network.as_ref().map(|text| &*text.0);
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                text::plain(name, &trail.field("ports").field(label).field("host_network"), findings);
            }
        }
        if let Some(dns) = &network.dns {
            resolver(dns, &trail.field("dns"), findings);
            unused_resolver(context, &trail.field("dns"), findings);
        }
        if let Some(Text(name)) = network.hostname.as_ref().filter(|name| !name.0.is_empty()) {
            hostname(name, &trail.field("hostname"), findings);
            unused_hostname(context, &trail.field("hostname"), findings);
        }
        listening::unused_numbers(context, network, &trail, findings);
        if network.mode == Some(NetworkMode::None) && network.ports.iter().flatten().next().is_some() {
            let message = "has no effect with `mode: none`: nothing leads into the network";
            findings.warning(&trail.field("ports"), message);
        }
    }
    let tasks = trail.field("tasks");
    for (index, task) in context.group.tasks.iter().enumerate() {
        listening::addresses(context, task, &tasks.item(index), findings);
    }
    for (index, task) in spec.tasks.iter().flatten().enumerate() {
        let Some(network) = task.resources.as_ref().and_then(|resources| resources.network.as_ref()) else {
            continue;
        };
        let trail = tasks.item(index);
        let resources = trail.field("resources");
        networks.of_task(network, &resources.field("network"), findings);
    }
}

/// Validates that all tasks of a group with a network of its own can use it.
pub(super) fn joined(context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { spec, group, trail, drivers, .. } = *context;
    if !group.has_own_network() {
        return;
    }
    let tasks = trail.field("tasks");
    for (index, (spec, task)) in spec.tasks.iter().flatten().zip(&group.tasks).enumerate() {
        let trail = tasks.item(index);
        let networks = drivers.get(&task.driver).map(|rules| rules.capabilities.networks);
        if networks == Some(Networking::Own) {
            let message = format!(
                "the driver {} can't use the network of the group, mode {}; write `mode: host`, and use the networks of \
                 the driver itself",
                task.driver,
                mode_of(group),
            );
            findings.problem(&trail.field("driver"), message);
        }
        let resources = spec.resources.as_ref();
        if resources.is_some_and(|resources| resources.network.is_some()) {
            let message = "a single task has ports only in the machine's network; write them into the group's `network`";
            findings.problem(&trail.field("resources").field("network"), message);
        }
    }
}

fn mode_of(group: &Group) -> String {
    group.network.as_ref().map(|network| network.mode.to_string()).unwrap_or_default()
}

impl Networks<'_> {
    /// Validates the network of one task. As in Nomad, labels may repeat in other tasks, and not in the group.
    fn of_task(&mut self, network: &Network, trail: &Trail<'_>, findings: &mut Findings<'_>) {
        let Network { mode, ports, cni, dns, hostname } = network;
        if hostname.is_some() {
            let message = "belongs to the group's `network`: the tasks of a group have the same host name";
            findings.problem(&trail.field("hostname"), message);
        }
        if cni.is_some() {
            findings.problem(&trail.field("cni"), "only the network of a group can be one of CNI");
        }
        if dns.is_some() {
            let message =
                "belongs to the group's `network`: the tasks of a group resolve names in the same way";
            findings.problem(&trail.field("dns"), message);
        }
        match mode {
            None | Some(NetworkMode::Host) => {}
            Some(NetworkMode::Bridge | NetworkMode::None | NetworkMode::Cni(_)) => {
                let message = "must be host: only a group has a network of its own";
                findings.problem(&trail.field("mode"), message);
            }
        }
        labels(network, trail, findings);
        self.static_ports(network, trail, findings);
        let of_group = self.group.and_then(|group| group.ports.as_ref());
        let trail = trail.field("ports");
        for (label, port) in ports.iter().flatten() {
            let trail = trail.field(label);
            if of_group.is_some_and(|ports| ports.contains_key(label)) {
                let message = format!("the group's `network` has a port `{label}` too; rename one of them");
                findings.problem(&trail, message);
            }
            let named = port.host_network.as_ref().map(|text| &*text.0);
            if named.is_some_and(|name| !["", job::Network::DEFAULT_HOST_NETWORK].contains(&name)) {
                let message = "only a port of the group's `network` can be on another network of the machine";
                findings.problem(&trail.field("host_network"), message);
            }
            if port.to.is_some() {
                let message = "has no effect here, as in Nomad: a task listens on the host port; \
                               `port_map` of the docker driver maps it to another one";
                findings.warning(&trail.field("to"), message);
            }
        }
    }

    fn static_ports(&mut self, network: &Network, trail: &Trail<'_>, findings: &mut Findings<'_>) {
        let ports = trail.field("ports");
        for (label, port) in network.ports.iter().flatten() {
            let Some(number) = port.fixed else { continue };
            let label = ports.field(label);
            match self.taken.get(&number) {
                Some(first) => {
                    let message = format!("port {number} is already taken at `{first}`");
                    findings.problem(&label.field("static"), message);
                }
                None => {
                    self.taken.insert(number, label.to_string());
                }
            }
        }
    }
}

/// Validates `dns`.
fn resolver(dns: &Dns, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Dns { servers, searches, options } = dns;
    for (name, list) in [("servers", servers), ("searches", searches), ("options", options)] {
        for (index, value) in list.iter().flatten().enumerate() {
            text::plain(&value.0, &trail.field(name).item(index), findings);
        }
    }
    let trail = trail.field("servers");
    for (index, Text(server)) in servers.iter().flatten().enumerate() {
        // An IPv6 address may name an interface.
        let address = server.split('%').next().unwrap_or_default();
        if address.parse::<IpAddr>().is_err() && !server.contains("${") {
            let message = "has no effect: resolvers ignore what is no IP address";
            findings.warning(&trail.item(index), message);
        }
    }
    if servers.iter().flatten().count() > SERVERS_MAX {
        findings.warning(&trail, format!("resolvers use the first {SERVERS_MAX}"));
    }
}

/// Validates `hostname`. One with variables is checked when it is known.
fn hostname(name: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    text::plain(name, trail, findings);
    if let Some(problem) = NameKind::Host.problem(name).filter(|_| !name.contains("${")) {
        findings.problem(trail, problem);
    }
}

/// Warns of a `hostname` that no task sees.
fn unused_hostname(context: &GroupContext<'_>, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if !context.group.has_own_network() {
        findings.warning(trail, "has no effect with `mode: host`: tasks have the machine's host name");
    } else if let Some(driver) = only_drivers_of_machine(context) {
        findings.warning(trail, format!("has no effect: tasks of {driver} have the machine's host name"));
    }
}

/// The first driver, if all tasks of the group see the machine as it is.
fn only_drivers_of_machine<'g>(context: &GroupContext<'g>) -> Option<&'g str> {
    let GroupContext { group, drivers, .. } = *context;
    let sees_machine = |driver: &str| {
        drivers.get(driver).is_some_and(|rules| rules.capabilities.fs_isolation == FsIsolation::None)
    };
    let first = group.tasks.first()?;
    group.tasks.iter().all(|task| sees_machine(&task.driver)).then_some(&*first.driver)
}

/// Warns of `dns` that no task sees.
fn unused_resolver(context: &GroupContext<'_>, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if context.group.has_own_dns()
        && let Some(driver) = only_drivers_of_machine(context)
    {
        let message = format!("has no effect: tasks of {driver} see the machine's /etc/resolv.conf");
        findings.warning(trail, message);
    }
}

/// As many name servers a resolver uses: `MAXNS` of resolv.conf(5).
const SERVERS_MAX: usize = 3;

/// Validates the labels of a network's ports.
fn labels(network: &Network, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let trail = trail.field("ports");
    let mut variables: BTreeMap<String, &str> = BTreeMap::new();
    for label in network.ports.iter().flatten().map(|(label, _)| label) {
        let fits = (1..=64).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            && label.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !fits {
            let rule = "the label must be 1 to 64 letters, digits, `_` and `-`, and not begin with a digit";
            findings.problem(&trail.field(label), rule);
            continue;
        }
        // Names of environment variables have no dashes.
        let variable = format!("NOMAD_PORT_{}", label.replace('-', "_"));
        match variables.get(&variable) {
            Some(other) => {
                let message = format!("labels `{other}` and `{label}` both make {variable}");
                findings.problem(&trail.field(label), message);
            }
            None => {
                variables.insert(variable, label);
            }
        }
    }
}
