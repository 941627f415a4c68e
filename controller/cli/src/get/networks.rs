//! Rows of networks: the bridge, then those of allocations.
//!
//! In: networks as the agent has found them. Out: rows in that order. The bridge's row names the chains that drop its packets.

use herdlet_api_types::network::{AllocNetworkView, BridgeView, NetworkView, PortView};

use super::{
    Form, events,
    listing::{Cell, Document, Listing, Row},
};

pub(super) fn list(views: Vec<NetworkView>, targets: &[String], form: Form) -> Listing {
    let mut columns = vec!["NETWORK", "MODE", "INTERFACE", "ADDRESS", "PORTS", "STATUS"];
    columns.extend((form == Form::Wide).then_some("WHERE"));
    let mut listing = Listing::new(&columns);
    for view in views.into_iter().filter(|view| is_meant(view, targets)) {
        let (key, name, cells, place) = match &view {
            NetworkView::Bridge(bridge) => {
                (bridge.name.clone(), bridge.name.clone(), bridge_cells(bridge), bridge_place(bridge))
            }
            NetworkView::Alloc(alloc) => {
                (alloc.alloc.to_string(), alloc.name.clone(), alloc_cells(alloc), alloc.namespace.clone())
            }
        };
        let mut cells: Vec<Cell> = cells.map(Cell::Text).into();
        cells.extend((form == Form::Wide).then_some(Cell::Text(place)));
        listing.rows.push(Row { key, name, cells, document: Document::Network(Box::new(view)) });
    }
    listing
}

/// Whether a target names the bridge, or the job, the group or the allocation; true if there are no targets.
pub(super) fn is_meant(view: &NetworkView, targets: &[String]) -> bool {
    match view {
        NetworkView::Bridge(bridge) => targets.is_empty() || targets.contains(&bridge.name),
        NetworkView::Alloc(AllocNetworkView { alloc, name, job, .. }) => {
            events::is_meant(job, name, Some(*alloc), targets)
        }
    }
}

fn bridge_cells(bridge: &BridgeView) -> [String; 6] {
    let BridgeView { name, address, address6, addresses_used, addresses_max, .. } = bridge;
    let free = addresses_max.saturating_sub(*addresses_used);
    let drops = bridge.obstacles().map(|chain| format!("{} drops its packets", chain.title()));
    let problems: Vec<String> = bridge.problem.iter().cloned().chain(drops).collect();
    let status = match problems.is_empty() {
        true => format!("{free} of {addresses_max} addresses are free"),
        false => problems.join("; "),
    };
    let addresses: Vec<&str> = std::iter::once(address).chain(address6).map(String::as_str).collect();
    [name.clone(), "-".to_owned(), name.clone(), addresses.join(","), "-".to_owned(), status]
}

/// Where its rules are.
fn bridge_place(bridge: &BridgeView) -> String {
    let passed = bridge.dropping_chains.iter().filter(|chain| chain.is_passed);
    let tables = passed.map(|chain| format!("{} {} {}", chain.family, chain.table, chain.rules_in));
    std::iter::once(bridge.table.clone()).chain(tables).collect::<Vec<_>>().join(", ")
}

fn alloc_cells(alloc: &AllocNetworkView) -> [String; 6] {
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let addresses: Vec<&str> =
        [Some(&alloc.address), alloc.address6.as_ref().filter(|ip| **ip != alloc.address)]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
    let ports: Vec<String> = alloc.ports.iter().map(port).collect();
    [
        alloc.name.clone(),
        alloc.mode.clone(),
        dash(&alloc.interface),
        dash(&addresses.join(",")),
        dash(&ports.join(",")),
        alloc.problem.clone().unwrap_or_else(|| "ready".to_owned()),
    ]
}

/// A port, with the process that has it if that is not the agent.
fn port(port: &PortView) -> String {
    let PortView { label, host_ip, host_port, port, held_by } = port;
    let host = if host_ip.contains(':') { format!("[{host_ip}]") } else { host_ip.clone() };
    let stranger = held_by.as_ref().filter(|holder| !holder.starts_with("herdlet "));
    let stranger = stranger.map(|holder| format!(" (held by {holder})")).unwrap_or_default();
    format!("{label}={host}:{host_port}->{port}{stranger}")
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, JobKey, network::DroppingChain};

    use super::*;
    use crate::{get::ObjectKind, table::Heading};

    fn bridge(is_passed: bool) -> NetworkView {
        let chain = DroppingChain {
            family: "ip".to_owned(),
            table: "filter".to_owned(),
            chain: "FORWARD".to_owned(),
            rules_in: "DOCKER-USER".to_owned(),
            is_passed,
            lock: None,
        };
        NetworkView::Bridge(BridgeView {
            name: "herdlet".to_owned(),
            address: "172.26.80.1/20".to_owned(),
            address6: None,
            mtu: 1500,
            addresses_used: 1,
            addresses_max: 4093,
            table: "inet herdlet-x".to_owned(),
            problem: None,
            dropping_chains: vec![chain],
        })
    }

    fn alloc(held_by: &str) -> NetworkView {
        NetworkView::Alloc(AllocNetworkView {
            alloc: AllocId::from_hash([0x11; 16]),
            name: "web.g[0]".to_owned(),
            job: JobKey { namespace: "default".into(), id: "web".into() },
            mode: "bridge".to_owned(),
            interface: "eth0".to_owned(),
            address: "172.26.80.2".to_owned(),
            address6: None,
            namespace: "/run/x".to_owned(),
            ports: vec![PortView {
                label: "http".to_owned(),
                host_ip: "127.0.0.1".to_owned(),
                host_port: 20000,
                port: 8080,
                held_by: Some(held_by.to_owned()),
            }],
            problem: None,
        })
    }

    #[test]
    fn bridge_and_networks_are_listed() {
        let views = vec![bridge(true), alloc("herdlet (process 7)")];
        let shown = list(views.clone(), &[], Form::Table).whole(ObjectKind::Networks, Heading::Shown);
        assert_eq!(
            shown,
            "\
NETWORK   MODE    INTERFACE  ADDRESS         PORTS                       STATUS
herdlet   -       herdlet    172.26.80.1/20  -                           4092 of 4093 addresses are free
web.g[0]  bridge  eth0       172.26.80.2     http=127.0.0.1:20000->8080  ready
"
        );
        let wide = list(views.clone(), &[], Form::Wide);
        let places: Vec<String> = wide.rows.iter().filter_map(|row| Some(row.cells.last()?.text())).collect();
        assert_eq!(places, ["inet herdlet-x, ip filter DOCKER-USER", "/run/x"]);
        for (target, expected) in [("herdlet", 1), ("web", 1), ("other", 0)] {
            assert_eq!(
                list(views.clone(), &[target.to_owned()], Form::Table).rows.len(),
                expected,
                "{target}"
            );
        }
    }

    #[test]
    fn chain_that_drops_packets_and_process_that_has_a_port_are_named() {
        let views = vec![bridge(false), alloc("python3 (process 12)")];
        let shown = list(views, &[], Form::Table).whole(ObjectKind::Networks, Heading::Hidden);
        for part in ["ip filter FORWARD drops its packets", "->8080 (held by python3 (process 12))"] {
            assert!(shown.contains(part), "{shown}");
        }
    }
}
