//! What a job can't have on one machine, although each of its fields is valid: a port several times, and addresses of the machine that
//! lead its own allocations nowhere.
//!
//! In: a job, and the address of the machine's ports. Out: warnings.

use std::net::IpAddr;

use herdlet_api_types::job::{AddressMode, Group, Job, Network, NetworkMode, Service};

/// The warnings about a job for an agent whose ports are at this address.
pub fn warnings(job: &Job, host_ip: IpAddr) -> Vec<String> {
    let shortages = job.groups.iter().filter_map(|group| fixed_port(job, group));
    let loopback = host_ip.is_loopback().then(|| unreachable_services(job, host_ip)).flatten();
    shortages.chain(loopback).collect()
}

/// The machine has each number once.
fn fixed_port(job: &Job, group: &Group) -> Option<String> {
    let port = group.port_requests().find_map(|(_, _, port)| port.fixed)?;
    let waiting = group.count.checked_sub(1).filter(|waiting| *waiting > 0)?;
    let noun = if waiting == 1 { "allocation" } else { "allocations" };
    Some(format!(
        "{}.{}: count is {}, but this machine has port {port} once: {waiting} {noun} will wait; remove `static`, or lower `count`",
        job.id, group.name, group.count
    ))
}

/// In the network of an allocation, a loopback address is its own.
fn unreachable_services(job: &Job, host_ip: IpAddr) -> Option<String> {
    let is_bridged =
        |group: &&Group| group.network.as_ref().is_some_and(|network| network.mode == NetworkMode::Bridge);
    let names: Vec<&str> = job.groups.iter().filter(is_bridged).flat_map(services_of_machine).collect();
    let (noun, verb) = if names.len() == 1 { ("service", "is") } else { ("services", "are") };
    (!names.is_empty()).then(|| {
        format!(
            "{}: {noun} {} {verb} registered at {host_ip}, where other allocations of mode bridge find only themselves; write \
             `address_mode: alloc`, or set `host_ip` in the agent's config",
            job.id,
            names.join(", ")
        )
    })
}

/// The services of a group that are registered at the machine's address.
fn services_of_machine(group: &Group) -> impl Iterator<Item = &str> {
    let of_tasks = group.tasks.iter().flat_map(|task| &task.services);
    let is_of_machine = |service: &&Service| {
        let is_default = match (&group.network, service.port.as_deref()) {
            (Some(network), Some(label)) => network.host_network(label) == Network::DEFAULT_HOST_NETWORK,
            (None, _) | (_, None) => true,
        };
        matches!(service.address_mode, AddressMode::Auto | AddressMode::Host)
            && service.address.is_none()
            && is_default
    };
    group.services.iter().chain(of_tasks).filter(is_of_machine).map(|service| service.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{Drivers, parse};

    fn warnings_about(group: &str, host_ip: &str) -> Vec<String> {
        let text = format!(
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: w}}\nspec:\n  groups:\n    - {{name: g, {group}}}\n"
        );
        let set = parse("x", text.as_bytes(), &Drivers::built_in()).unwrap_or_else(|all| panic!("{all}"));
        warnings(&set.jobs[0].object, host_ip.parse().unwrap())
    }

    const TASKS: &str = "tasks: [{name: t, driver: exec, config: {command: x}}]";

    /// Another allocation got 127.0.0.1 from the catalogue: its own address.
    #[test]
    fn services_that_other_allocations_do_not_reach_are_warned_about() {
        let group = |mode: &str, service: &str| {
            format!(
                "network: {{mode: {mode}, ports: {{db: {{to: 5432}}}}}}, services: [{{name: db, port: db{service}}}], {TASKS}"
            )
        };
        let found = warnings_about(&group("bridge", ""), "127.0.0.1");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("w: service db is registered at 127.0.0.1, where other"), "{found:?}");
        for (group, host_ip) in [
            (group("bridge", ""), "192.0.2.7"),
            (group("bridge", ", address_mode: alloc"), "127.0.0.1"),
            (group("bridge", ", address: db.example.org"), "127.0.0.1"),
            (group("host", ""), "127.0.0.1"),
        ] {
            assert_eq!(warnings_about(&group, host_ip), [""; 0], "{group}");
        }
    }

    #[test]
    fn a_port_that_several_allocations_need_is_warned_about() {
        let group =
            |count: u32, port: &str| format!("count: {count}, network: {{ports: {{http: {port}}}}}, {TASKS}");
        let found = warnings_about(&group(3, "{static: 8088}"), "127.0.0.1");
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("count is 3, but this machine has port 8088 once: 2 allocations will wait")
        );
        assert_eq!(warnings_about(&group(1, "{static: 8088}"), "127.0.0.1"), [""; 0]);
        assert_eq!(warnings_about(&group(3, "{}"), "127.0.0.1"), [""; 0]);
    }
}
