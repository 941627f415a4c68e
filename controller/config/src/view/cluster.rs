//! The effective settings of the section `cluster`.

use herdlet_fingerprint::HostNetwork;
use serde_json::{Value, json};

use crate::{Allowed, Cluster};

/// Returns the settings under the file's names. On a machine outside a cluster, only `cluster.enabled` has an
/// effect.
pub(super) fn values(cluster: Option<&Cluster>) -> Vec<(&'static str, Value)> {
    let Some(cluster) = cluster else { return Vec::from([("cluster.enabled", json!(false))]) };
    let names = |names: &Allowed| json!({ "allow": names.allow, "deny": names.deny });
    let networks = cluster.network.host_networks.iter().map(host_network);
    let tls = |tls: &crate::RpcTls| {
        json!({
            "rpc": true, "ca_file": tls.authority, "cert_file": tls.certificate, "key_file": tls.key,
            "verify_server_hostname": tls.verify_server_hostname,
        })
    };
    let drain = |drain: &crate::DrainOnShutdown| {
        json!({
            "deadline": drain.deadline.map(|span| span.to_string()), "force": drain.force,
            "ignore_system_jobs": drain.ignore_system_jobs,
        })
    };
    let acl = &cluster.acl;
    Vec::from([
        ("cluster.enabled", json!(true)),
        ("cluster.retry_interval", json!(super::short(cluster.retry_interval))),
        ("cluster.retry_max", json!(cluster.retry_max)),
        ("cluster.tls", json!(cluster.tls.as_ref().map(tls))),
        ("cluster.http_addr", json!(cluster.http.host)),
        ("cluster.http_port", json!(cluster.http.port)),
        ("cluster.advertise_http", json!(cluster.advertise_http)),
        ("cluster.network_interface", json!(cluster.network.interface)),
        ("cluster.network_speed", json!(cluster.network.speed)),
        ("cluster.preferred_address_family", json!(cluster.network.family.map(|family| family.to_string()))),
        ("cluster.disallow_link_local", json!(cluster.network.disallow_link_local)),
        ("cluster.host_networks", networks.collect()),
        ("cluster.node_max_allocs", json!(cluster.node_max_allocs)),
        ("cluster.moved_from", json!(cluster.moved_from)),
        ("cluster.drain_on_shutdown", json!(cluster.drain_on_shutdown.as_ref().map(drain))),
        ("cluster.leave_on_interrupt", json!(cluster.leave_on_interrupt)),
        ("cluster.leave_on_terminate", json!(cluster.leave_on_terminate)),
        ("cluster.enable_debug", json!(cluster.enable_debug)),
        ("cluster.disable_remote_exec", json!(cluster.disable_remote_exec)),
        (
            "cluster.acl",
            json!({
                "enabled": acl.enabled, "token_ttl": super::short(acl.token_ttl),
                "policy_ttl": super::short(acl.policy_ttl), "role_ttl": super::short(acl.role_ttl),
            }),
        ),
        ("cluster.drivers", names(&cluster.drivers)),
        ("cluster.fingerprints", names(&cluster.fingerprints)),
        ("cluster.intro_token_file", json!(cluster.intro_token_file)),
        ("cluster.start_offline", json!(cluster.start_offline)),
    ])
}

/// A network of the machine.
pub(super) fn host_network(network: &HostNetwork) -> Value {
    let cidr: Vec<String> = network.cidr.iter().map(ToString::to_string).collect();
    json!({
        "name": network.name, "cidr": cidr.join(","), "interface": network.interface.as_deref().unwrap_or_default(),
        "reserved_ports": network.reserved_ports,
    })
}
