//! Removes the fields of a job that do not concern the node that runs it: servers have already decided by them, or they belong to features
//! that are not used here.
//!
//! In: a group of a job in the API's JSON, as servers send it. Out: the group without these fields. Unsupported fields that remain are
//! refused by name later, so nothing may be removed here that a task would need.
//!
//! Facts: `hashicorp/nomad:nomad/structs/structs.go`, `nomad/structs/services.go`, `nomad/job_endpoint_hook_implicit_identities.go`.

use herdlet_api_types::job::ConsulAccess;
use serde_json::{Map, Value as Json, json};

/// Fields of a job that only servers use, or that are read directly from the message.
pub(super) const OF_JOB: [&str; 27] = [
    "Affinities",
    "AllAtOnce",
    "Constraints",
    "ConsulNamespace",
    "ConsulToken",
    "Datacenters",
    "DispatchIdempotencyToken",
    "Dispatched",
    "ID",
    "Multiregion",
    "Name",
    "Namespace",
    "NodePool",
    "NomadTokenID",
    "ParentID",
    "Payload",
    "Periodic",
    "Priority",
    "Region",
    "Reschedule",
    "Spreads",
    "Stop",
    "TaskGroups",
    "UI",
    "Update",
    "VaultNamespace",
    "VaultToken",
];

/// Fields of a group likewise.
const OF_GROUP: [&str; 13] = [
    "Affinities",
    "Constraints",
    "Count",
    "Disconnect",
    "MaxClientDisconnect",
    "MaxRunDuration",
    "Migrate",
    "PreventRescheduleOnLost",
    "Reschedule",
    "ReschedulePolicy",
    "Scaling",
    "Spreads",
    "StopAfterClientDisconnect",
];

/// Fields of a task likewise.
const OF_TASK: [&str; 3] = ["Affinities", "Constraints", "ScalingPolicies"];

/// Fields of a task's resources likewise: since 0.5 disk belongs to the group.
const OF_RESOURCES: [&str; 2] = ["DiskMB", "IOPS"];

/// Fields of an identity likewise.
const OF_IDENTITY: [&str; 4] = ["Audience", "ExtraClaims", "ServiceName", "TTL"];

/// Fields of a host volume likewise: servers have chosen the volume, and it is mounted as it is.
const OF_HOST_VOLUME: [&str; 4] = ["AccessMode", "AttachmentMode", "MountOptions", "Sticky"];

/// Fields of a network in mode `host` that matter only in other modes.
const OF_HOST_NETWORK: [&str; 5] = ["CIDR", "CNI", "Device", "Hostname", "IP"];

/// Fields of a service of provider `nomad` that only Consul uses.
const OF_CONSUL: [&str; 3] = ["Cluster", "Identity", "Namespace"];

/// The audience of tokens that servers make, as far as this machine knows.
const SERVERS: &str = "servers";

/// The kinds of checks that use a field; other kinds ignore it.
const OF_CHECKS: [(&str, &[&str]); 14] = [
    ("Args", &["script"]),
    ("Body", &["http"]),
    ("Command", &["script"]),
    ("GRPCService", &["grpc"]),
    ("GRPCUseTLS", &["grpc"]),
    ("Header", &["http"]),
    ("Method", &["http"]),
    ("Path", &["http"]),
    ("PortLabel", &["grpc", "http", "tcp"]),
    ("AddressMode", &["grpc", "http", "tcp"]),
    ("Protocol", &["http"]),
    ("TLSServerName", &["grpc", "http"]),
    ("TLSSkipVerify", &["grpc", "http"]),
    ("TaskName", &["script"]),
];

/// Removes these fields from a group.
pub(super) fn leave_out(group: &mut Map<String, Json>) {
    group.retain(|name, _| !OF_GROUP.contains(&&**name));
    if let Some(update) = map(group, "Update") {
        // Zero means no rolling updates.
        update.retain(|name, value| name != "MaxParallel" || *value != json!(0));
    }
    let namespace = namespace_of(group);
    services(group, &namespace);
    networks(group);
    volumes(group);
    if let Some(disk) = map(group, "EphemeralDisk") {
        disk.retain(|name, _| name == "SizeMB");
    }
    maps(group, "Tasks").for_each(|of_group| task(of_group, &namespace));
    let uses_consul = uses_consul(group) | maps(group, "Tasks").any(uses_consul);
    let gets_tokens = maps(group, "Tasks").any(gets_token);
    consul(group, uses_consul || gets_tokens);
    maps(group, "Tasks").for_each(|task| {
        if !gets_token(task) {
            consul(task, uses_consul);
        }
    });
}

fn task(task: &mut Map<String, Json>, of_group: &str) {
    task.retain(|name, _| !OF_TASK.contains(&&**name));
    if let Some(identity) = map(task, "Identity") {
        // Servers sign it from their own copy.
        identity.retain(|name, _| !OF_IDENTITY.contains(&&**name));
    }
    maps(task, "Identities").for_each(signed_by_servers);
    if let Some(resources) = map(task, "Resources") {
        resources.retain(|name, _| !OF_RESOURCES.contains(&&**name));
        if let Some(networks) = resources.get_mut("Networks").and_then(Json::as_array_mut) {
            // Servers assign only the ports of the first.
            networks.truncate(1);
        }
        networks(resources);
        let is_spread = map(resources, "NUMA").is_some_and(|numa| is_one_of(numa, "Affinity", &["", "none"]));
        if is_spread {
            resources.remove("NUMA");
        }
        // −1 is the same as a missing value; unlimited memory shows in the assigned resources.
        resources.retain(|name, value| name != "MemoryMaxMB" || value.as_i64() != Some(-1));
    }
    maps(task, "VolumeMounts").for_each(|mount| drop(mount.remove("SELinuxLabel")));
    let namespace = Some(namespace_of(task)).filter(|own| !own.is_empty());
    services(task, namespace.as_deref().unwrap_or(of_group));
}

/// The namespace that the block `Consul` names.
fn namespace_of(owner: &mut Map<String, Json>) -> String {
    let consul = map(owner, "Consul");
    let namespace = consul.and_then(|consul| Some(consul.get("Namespace")?.as_str()?.to_owned()));
    namespace.unwrap_or_default()
}

/// An identity whose token servers make: they know its audience. The node must know whether it expires.
fn signed_by_servers(identity: &mut Map<String, Json>) {
    let expires = identity.get("TTL").is_some_and(|ttl| *ttl != json!(0));
    identity.retain(|name, _| !OF_IDENTITY.contains(&&**name) || (name == "TTL" && expires));
    identity.insert("Audience".into(), json!([SERVERS]));
}

/// Services repeat the namespace of their block, also if there is only one.
fn services(owner: &mut Map<String, Json>, namespace: &str) {
    for service in maps(owner, "Services") {
        if is_one_of(service, "Provider", &["nomad"]) {
            service.retain(|name, _| !OF_CONSUL.contains(&&**name));
        }
        service.retain(|name, value| name != "Namespace" || (*value != "default" && *value != namespace));
        maps(service, "Checks").for_each(check);
    }
}

fn check(check: &mut Map<String, Json>) {
    let kind = check.get("Type").and_then(Json::as_str).unwrap_or_default().to_ascii_lowercase();
    for (field, kinds) in OF_CHECKS {
        if !kinds.contains(&&*kind) {
            check.remove(field);
        }
    }
    check.insert("Type".into(), kind.into());
}

/// Removes addresses and ports from the networks of a group or of a task's resources: the values are in the assigned
/// resources.
fn networks(owner: &mut Map<String, Json>) {
    for network in maps(owner, "Networks") {
        network.remove("MBits");
        if is_one_of(network, "Mode", &["", "host"]) {
            network.retain(|name, _| !OF_HOST_NETWORK.contains(&&**name));
        }
        for port in maps(network, "ReservedPorts") {
            port.retain(|name, _| name == "Label" || name == "Value");
        }
        for port in maps(network, "DynamicPorts") {
            port.retain(|name, _| name == "Label");
        }
    }
}

fn volumes(group: &mut Map<String, Json>) {
    let volumes = map(group, "Volumes").map(|volumes| volumes.values_mut());
    for volume in volumes.into_iter().flatten().filter_map(Json::as_object_mut) {
        if is_one_of(volume, "Type", &["host"]) {
            volume.retain(|name, _| !OF_HOST_VOLUME.contains(&&**name));
        }
    }
}

/// Removes settings for Consul if nothing uses them, or if they equal the defaults.
fn consul(owner: &mut Map<String, Json>, is_used: bool) {
    let Some(consul) = map(owner, "Consul") else { return };
    consul.retain(|_, value| *value != "default" && *value != "");
    if !is_used || consul.is_empty() {
        owner.remove("Consul");
    }
}

/// Whether servers sign an identity of a task for Consul: then its block names the Consul that gives it a token.
fn gets_token(task: &mut Map<String, Json>) -> bool {
    maps(task, "Identities").any(|identity| {
        let name = identity.get("Name").and_then(Json::as_str);
        name.is_some_and(|name| name.starts_with(ConsulAccess::IDENTITY_PREFIX))
    })
}

/// Whether any service has the provider `consul`.
fn uses_consul(owner: &mut Map<String, Json>) -> bool {
    maps(owner, "Services").any(|service| !is_one_of(service, "Provider", &["nomad"]))
}

fn is_one_of(owner: &Map<String, Json>, field: &str, words: &[&str]) -> bool {
    words.contains(&owner.get(field).and_then(Json::as_str).unwrap_or_default())
}

fn map<'m>(owner: &'m mut Map<String, Json>, field: &str) -> Option<&'m mut Map<String, Json>> {
    owner.get_mut(field).and_then(Json::as_object_mut)
}

pub(super) fn maps<'m>(
    owner: &'m mut Map<String, Json>,
    list: &str,
) -> impl Iterator<Item = &'m mut Map<String, Json>> {
    let items = owner.get_mut(list).and_then(Json::as_array_mut).map(|items| items.iter_mut());
    items.into_iter().flatten().filter_map(Json::as_object_mut)
}
