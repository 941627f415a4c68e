//! What network a container has, as its record stores it.
//!
//! In: ports and labels. Out: a value that later agents read; requests for the bridge.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use herdlet_network::networks::{Bridge, LoneNetworks, RequestedPort};
use serde::{Deserialize, Serialize};

/// Where networks of containers are made.
#[derive(Debug)]
pub struct ContainerNetworks {
    /// The bridge, which allocations have too.
    pub bridge: Arc<Bridge>,
    /// Networks without a connection.
    pub lone: LoneNetworks,
}

/// The network of a container, as it is recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NetworkPlan {
    /// The machine's, or that of its group.
    #[default]
    Given,
    /// On the bridge.
    Bridged {
        ports: Vec<PublishedPort>,
        /// Ports inside, by label.
        port_map: BTreeMap<String, u16>,
    },
    /// With a loopback interface alone.
    Lone,
    /// That of another container: its attempt, and the file of its namespace, if it is not the machine's.
    Joined { attempt: String, namespace: Option<PathBuf> },
}

/// A port of the machine that leads to a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct PublishedPort {
    /// None for all addresses.
    pub(super) host_ip: Option<IpAddr>,
    pub(super) host: u16,
    pub(super) inside: u16,
}

impl NetworkPlan {
    /// Whether it is made for the container alone.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Bridged { .. } | Self::Lone)
    }

    pub(super) fn ports(&self) -> Vec<RequestedPort> {
        let Self::Bridged { ports, .. } = self else { return Vec::new() };
        let requested = ports.iter().map(|port| {
            let PublishedPort { host_ip, host, inside } = *port;
            RequestedPort { host_ip, host, inside }
        });
        requested.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_stored() {
        let ports = vec![PublishedPort { host_ip: None, host: 1, inside: 2 }];
        for plan in [
            NetworkPlan::Given,
            NetworkPlan::Lone,
            NetworkPlan::Bridged { ports, port_map: [("http".to_owned(), 2)].into() },
            NetworkPlan::Joined { attempt: "a".to_owned(), namespace: None },
        ] {
            let text = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<NetworkPlan>(&text).unwrap(), plan, "{text}");
        }
    }
}
