//! Networks of single containers: on the bridge with ports of the machine, without a connection, or that of another container.
//!
//! In: a task without the network of a group, what is recorded of its container. Out: a namespace, found again by the attempt's name; its
//! addresses. A network is made after its container's directory and removed before it, so that the directories are a complete list. All
//! calls block.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use bollard::models::HostConfig;
use herdlet_api_types::{AllocId, driver::DriverNetwork};
use herdlet_base::{error::in_full, paths::hashed};
use herdlet_driver::{AttemptId, DriverError, DriverResult, TaskConfig, TaskEvent};
use herdlet_network::{
    networks::{AllocNetwork, ConnectError, NetworkError, NetworkRequest, NetworkState},
    ports::HoldError,
};
use herdlet_process::engine::Engine;

use super::{
    network_plan::{NetworkPlan, PublishedPort},
    shared::BuiltinState,
};
use crate::{
    config::FieldError,
    create::{Request, joined, not_joined},
    names::{self, Naming},
};

/// Number of digits of an attempt's digest in the name of its network.
const DIGITS: usize = 12;

/// The name of a container's network. No allocation has such a name.
pub(super) fn owner(id: &AttemptId) -> String {
    let digits = hashed(&id.name());
    let digits: String = digits.chars().filter(char::is_ascii_hexdigit).take(DIGITS).collect();
    format!("{}.{digits}", id.alloc)
}

pub(super) fn is_of_container(owner: &str) -> bool {
    owner.split_once('.').is_some_and(|(_, digits)| digits.len() == DIGITS)
}

impl BuiltinState {
    /// What network a task gets.
    ///
    /// # Errors
    /// A container that does not exist.
    pub(super) fn plan_network(&self, alloc: AllocId, request: &Request) -> DriverResult<NetworkPlan> {
        let host = request.body.host_config.clone().unwrap_or_default();
        let mode = host.network_mode.as_deref();
        if request.network.is_some() {
            return Ok(NetworkPlan::Given);
        }
        if let Some(name) = joined(mode) {
            return self.plan_joined(alloc, name);
        }
        Ok(match mode.unwrap_or_default() {
            "host" => NetworkPlan::Given,
            "none" => NetworkPlan::Lone,
            _ => NetworkPlan::Bridged { ports: published(&host)?, port_map: request.port_map.clone() },
        })
    }

    /// That of a container of the same allocation; any other may be a stranger's.
    fn plan_joined(&self, alloc: AllocId, name: &str) -> DriverResult<NetworkPlan> {
        let failed = |error| DriverError::retry(format!("list the containers: {error}"));
        // As on other engines, also by the name that it has on a node of a cluster.
        let namings = [Naming::Own, Naming::Nomad];
        let has_name = |id: &AttemptId| {
            namings.iter().any(|naming| names::container(id, &self.instance, *naming) == name)
        };
        let may_join = |id: &AttemptId| id.alloc == alloc || self.policy.may_join_network(name);
        let found = self.dirs.list().map_err(failed)?;
        let of = found.iter().rev().find(|id| has_name(id) && may_join(id));
        let of = of.filter(|id| self.dirs.has_network_files(id)).ok_or_else(|| not_joined(name, alloc))?;
        let record = self.recorded(of)?.ok_or_else(|| not_joined(name, alloc))?;
        Ok(NetworkPlan::Joined { attempt: of.name(), namespace: self.namespace_of(of, &record.network) })
    }

    /// The file of the namespace of a container without the network of its group.
    fn namespace_of(&self, id: &AttemptId, plan: &NetworkPlan) -> Option<PathBuf> {
        match plan {
            NetworkPlan::Bridged { .. } | NetworkPlan::Lone => Some(self.networks.lone.path(&owner(id))),
            NetworkPlan::Joined { namespace, .. } => namespace.clone(),
            NetworkPlan::Given => None,
        }
    }

    /// The file of the namespace that a task enters; none for the machine's.
    pub(super) fn namespace(&self, task: &TaskConfig) -> DriverResult<Option<PathBuf>> {
        let (_, request) = self.read(task)?;
        match request.network {
            Some(of_group) => Ok(Some(of_group.namespace)),
            None => Ok(self.namespace_of(&task.id, &self.record(&task.id)?.network)),
        }
    }

    /// Makes the network of a container, or corrects what differs. Returns its addresses.
    pub(super) fn connect(&self, id: &AttemptId, plan: &NetworkPlan) -> DriverResult<Vec<IpAddr>> {
        match plan {
            NetworkPlan::Bridged { .. } => {
                let ports = plan.ports();
                let made = self.networks.bridge.connect(&NetworkRequest { owner: &owner(id), ports: &ports });
                let made = made.map_err(refused)?;
                self.connected.notify_one();
                Ok(addresses(&made))
            }
            NetworkPlan::Lone => {
                self.networks.lone.up(&owner(id)).map_err(|error| DriverError::retry(in_full(&error)))?;
                Ok(Vec::new())
            }
            NetworkPlan::Given | NetworkPlan::Joined { .. } => Ok(Vec::new()),
        }
    }

    /// The address of the machine, as a container reaches it; none if it does not.
    pub(super) fn machine_address(&self, plan: &NetworkPlan) -> DriverResult<Option<IpAddr>> {
        match plan {
            NetworkPlan::Bridged { .. } => {
                let networks = self.networks.bridge.networks();
                let networks = networks.map_err(|error| DriverError::retry(in_full(&error)))?;
                Ok(Some(networks.gateway()))
            }
            NetworkPlan::Given => Ok(Some(Ipv4Addr::LOCALHOST.into())),
            NetworkPlan::Lone | NetworkPlan::Joined { .. } => Ok(None),
        }
    }

    /// The name server of a container.
    pub(super) fn name_server(&self, plan: &NetworkPlan) -> Option<IpAddr> {
        let networks =
            self.networks.bridge.opened().filter(|_| matches!(plan, NetworkPlan::Bridged { .. }))?;
        self.networks.bridge.name_server(&networks)
    }

    /// Removes what was made for a container, none of whose processes runs, and then its directory.
    pub(super) fn remove(&self, id: &AttemptId) -> DriverResult<()> {
        // A repair must not make the network once more.
        let _turn = self.network_turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let plan = self.recorded(id)?.map(|record| record.network);
        if plan.as_ref().is_none_or(NetworkPlan::is_own) {
            self.disconnect(&owner(id)).map_err(|error| DriverError::retry(in_full(&error)))?;
        }
        let removed = self.dirs.remove(id);
        removed.map_err(|error| DriverError::retry(format!("remove the directory of {id}: {error}")))
    }

    pub(super) fn disconnect(&self, owner: &str) -> Result<(), NetworkError> {
        match self.networks.bridge.may_be_used() {
            true => self.networks.bridge.disconnect(owner),
            false => self.networks.lone.down(owner),
        }
    }

    /// The network of a running container, for services. It is repaired before, and its ports are held.
    pub(super) fn driver_network(
        &self,
        engine: &Engine,
        id: &AttemptId,
    ) -> DriverResult<Option<DriverNetwork>> {
        let Some(record) = self.recorded(id)? else { return Ok(None) };
        let NetworkPlan::Bridged { port_map, .. } = &record.network else { return Ok(None) };
        let made = self.repaired(engine, id, &record.network)?;
        let network = |made: AllocNetwork| DriverNetwork {
            ip: made.address4.to_string(),
            port_map: port_map.clone(),
            // As for Docker's default bridge, which other machines don't reach.
            auto_advertise: false,
        };
        Ok(made.map(network))
    }

    /// The network of a container, as it was recorded, with what differed corrected; none if the container has ended.
    pub(super) fn repaired(
        &self,
        engine: &Engine,
        id: &AttemptId,
        plan: &NetworkPlan,
    ) -> DriverResult<Option<AllocNetwork>> {
        let retry = |error: NetworkError| DriverError::retry(in_full(&error));
        let _turn = self.network_turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(main) = engine.main_process(id)?.filter(|_| self.dirs.exists(id)) else { return Ok(None) };
        let (owner, ports, bridge) = (owner(id), plan.ports(), &self.networks.bridge);
        let request = NetworkRequest { owner: &owner, ports: &ports };
        let networks = bridge.networks().map_err(retry)?;
        let what = match networks.inspect(&request).map_err(retry)? {
            NetworkState::Complete(made) => {
                bridge.hold(&request);
                // The container's programs send their queries to sockets of this agent, which are opened here.
                bridge.name_server(&networks);
                return Ok(Some(made));
            }
            NetworkState::Incomplete { what } => what,
            NetworkState::Absent => "files were removed",
        };
        if self.networks.lone.kept(&owner).is_none() {
            networks.keep_of_process(&owner, main.process().pid).map_err(retry)?;
        }
        let made = bridge.connect(&request).map_err(refused)?;
        bridge.name_server(&networks);
        let repaired = TaskEvent::Repaired { id: id.clone(), kind: "network", what: format!("its {what}") };
        if !self.events.try_send(repaired) {
            tracing::debug!(%id, "the repair of a network was not reported: too many reports are waiting");
        }
        Ok(Some(made))
    }
}

/// The ports of the machine that a request publishes.
fn published(host: &HostConfig) -> DriverResult<Vec<PublishedPort>> {
    let mut ports = BTreeSet::new();
    for (inside, bindings) in host.port_bindings.iter().flatten() {
        let inside = inside.split('/').next().and_then(|port| port.parse().ok());
        for binding in bindings.iter().flatten() {
            let host = binding.host_port.as_deref().and_then(|port| port.parse().ok());
            let text = binding.host_ip.as_deref().filter(|ip| !ip.is_empty());
            let host_ip = text.map(str::parse::<IpAddr>).transpose().ok();
            let refused = || FieldError::new("ports", format!("{binding:?} is no port of the machine"));
            let ((inside, host), host_ip) = inside.zip(host).zip(host_ip).ok_or_else(refused)?;
            ports.insert(PublishedPort { host_ip, host, inside });
        }
    }
    Ok(ports.into_iter().collect())
}

/// The addresses, IPv4 first.
fn addresses(made: &AllocNetwork) -> Vec<IpAddr> {
    std::iter::once(made.address4.into()).chain(made.address6.map(IpAddr::from)).collect()
}

fn refused(error: ConnectError) -> DriverError {
    match &error {
        ConnectError::Port(HoldError::Taken { .. }) => DriverError::recoverable(in_full(&error)),
        ConnectError::Network(NetworkError::NoIpv6 { .. }) => DriverError::fatal(format!(
            "{}; set `network.subnet6` in the agent's config, or put the port on an IPv4 address",
            in_full(&error)
        )),
        ConnectError::Network(NetworkError::Loopback6 { .. }) => {
            DriverError::fatal(format!("{}; use 127.0.0.1", in_full(&error)))
        }
        ConnectError::Network(NetworkError::Overlap { .. }) => DriverError::retry(format!(
            "{}; set `network.subnet` or `network.subnet6` in the agent's config to a network that is free",
            in_full(&error)
        )),
        ConnectError::Port(HoldError::Io { .. }) | ConnectError::Network(_) => {
            DriverError::retry(in_full(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use bollard::models::PortBinding;

    #[test]
    fn ports_are_those_of_the_request_for_both_protocols() {
        let binding = |ip: &str, port: &str| PortBinding {
            host_ip: Some(ip.to_owned()),
            host_port: Some(port.to_owned()),
        };
        let of = |bindings: Vec<(&str, PortBinding)>| {
            let bindings = bindings.into_iter().map(|(name, binding)| (name.to_owned(), Some(vec![binding])));
            published(&HostConfig {
                port_bindings: Some(bindings.collect::<HashMap<_, _>>()),
                ..HostConfig::default()
            })
        };
        let found =
            of(vec![("80/tcp", binding("127.0.0.1", "8080")), ("80/udp", binding("127.0.0.1", "8080"))]);
        let expected = PublishedPort { host_ip: "127.0.0.1".parse().ok(), host: 8080, inside: 80 };
        assert_eq!(found.unwrap(), [expected]);
        assert_eq!(of(vec![("80/tcp", binding("", "8080"))]).unwrap()[0].host_ip, None);
        assert!(
            of(vec![("80/tcp", binding("x", "8080"))]).unwrap_err().why().starts_with("use config.ports: ")
        );
    }

    #[test]
    fn names_of_networks_are_no_allocations() {
        let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".repeat(128), attempt: 7 };
        let name = owner(&id);
        assert!(is_of_container(&name) && name.parse::<uuid::Uuid>().is_err() && name.len() < 64, "{name}");
        assert_ne!(name, owner(&AttemptId { attempt: 8, ..id.clone() }));
        assert!(!is_of_container(&id.alloc.to_string()));
    }
}
