//! What of a job says nothing to the node that runs it: servers have decided by it, or it belongs to what isn't used here.
//!
//! In: a group of a job in the API's JSON, as servers give it out. Out: the same without that. What is left and isn't built is refused by
//! name later on; so nothing may be left out here that a task would miss.
//!
//! Facts: `hashicorp/nomad:nomad/structs/structs.go`, `nomad/structs/services.go`, `nomad/job_endpoint_hook_implicit_identities.go`.

use serde_json::{Map, Value as Json, json};

/// What of a job only servers look at, and what is read from the message itself.
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

/// The same of a group.
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

/// The same of a task. Its actions are read from the message.
const OF_TASK: [&str; 4] = ["Actions", "Affinities", "Constraints", "ScalingPolicies"];

/// The same of what a task may use: disks are the group's since 0.5.
const OF_RESOURCES: [&str; 2] = ["DiskMB", "IOPS"];

/// The same of an identity.
const OF_IDENTITY: [&str; 4] = ["Audience", "ExtraClaims", "ServiceName", "TTL"];

/// The same of a volume of the machine: which one an allocation gets has been decided, and it is mounted as it is.
const OF_HOST_VOLUME: [&str; 4] = ["AccessMode", "AttachmentMode", "MountOptions", "Sticky"];

/// Of a network in mode `host` what would be made for it elsewhere. `raw_exec` has no file system in which a name server could be written.
const OF_HOST_NETWORK: [&str; 6] = ["CIDR", "CNI", "DNS", "Device", "Hostname", "IP"];

/// Of a service of provider `nomad` what only Consul is told.
const OF_CONSUL: [&str; 3] = ["Cluster", "Identity", "Namespace"];

/// For whom tokens are that servers make, as far as this machine knows.
const SERVERS: &str = "servers";

/// Which checks a field is for; of others it says nothing.
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

/// Leaves it out of a group.
pub(super) fn leave_out(group: &mut Map<String, Json>) {
    group.retain(|name, _| !OF_GROUP.contains(&&**name));
    if let Some(update) = map(group, "Update") {
        // No roll-out at all.
        update.retain(|name, value| name != "MaxParallel" || *value != json!(0));
    }
    restart(group);
    services(group);
    networks(group);
    volumes(group);
    if let Some(disk) = map(group, "EphemeralDisk") {
        disk.retain(|name, _| name == "SizeMB");
    }
    maps(group, "Tasks").for_each(task);
    let uses_consul = asks_consul(group) | maps(group, "Tasks").any(asks_consul);
    consul(group, uses_consul);
    maps(group, "Tasks").for_each(|task| {
        consul_token(task);
        consul(task, uses_consul);
    });
}

fn task(task: &mut Map<String, Json>) {
    task.retain(|name, _| !OF_TASK.contains(&&**name));
    if let Some(identity) = map(task, "Identity") {
        // Servers sign it by what they know.
        identity.retain(|name, _| !OF_IDENTITY.contains(&&**name));
    }
    maps(task, "Identities").for_each(signed_by_servers);
    if let Some(resources) = map(task, "Resources") {
        resources.retain(|name, _| !OF_RESOURCES.contains(&&**name));
        let is_spread = map(resources, "NUMA").is_some_and(|numa| is_one_of(numa, "Affinity", &["", "none"]));
        if is_spread {
            resources.remove("NUMA");
        }
        // The same as if it were not there; what has no bound is said by what is given.
        resources.retain(|name, value| name != "MemoryMaxMB" || value.as_i64() != Some(-1));
    }
    maps(task, "VolumeMounts").for_each(|mount| drop(mount.remove("SELinuxLabel")));
    restart(task);
    services(task);
}

/// An identity whose token servers make: whom it is for is theirs. That it expires at all is to be known here.
fn signed_by_servers(identity: &mut Map<String, Json>) {
    let expires = identity.get("TTL").is_some_and(|ttl| *ttl != json!(0));
    identity.retain(|name, _| !OF_IDENTITY.contains(&&**name) || (name == "TTL" && expires));
    identity.insert("Audience".into(), json!([SERVERS]));
}

/// There are no templates yet that could be rendered anew.
fn restart(owner: &mut Map<String, Json>) {
    if let Some(policy) = map(owner, "RestartPolicy") {
        policy.remove("RenderTemplates");
    }
}

/// Services tell of Consul's namespace also where there is but one.
fn services(owner: &mut Map<String, Json>) {
    for service in maps(owner, "Services") {
        if is_one_of(service, "Provider", &["nomad"]) {
            service.retain(|name, _| !OF_CONSUL.contains(&&**name));
        }
        service.retain(|name, value| name != "Namespace" || *value != "default");
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
    let path = check.get("Path").and_then(Json::as_str).unwrap_or_default();
    if !path.is_empty() && !path.starts_with(['/', '$']) {
        let path = format!("/{path}");
        check.insert("Path".into(), path.into());
    }
    check.insert("Type".into(), kind.into());
}

/// On which address a port is, and which one, is told with what an allocation is given.
fn networks(group: &mut Map<String, Json>) {
    for network in maps(group, "Networks") {
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
    networks_of_tasks(group);
}

/// Before groups had networks each task had its own. Services may name the ports of either, and what they are is told with what an allocation is
/// given: so they stand among the group's.
fn networks_of_tasks(group: &mut Map<String, Json>) {
    let mut labels = Vec::new();
    for task in maps(group, "Tasks") {
        let Some(resources) = map(task, "Resources") else { continue };
        if !maps(resources, "Networks").all(|network| is_one_of(network, "Mode", &["", "host"])) {
            continue;
        }
        for network in maps(resources, "Networks") {
            for list in ["ReservedPorts", "DynamicPorts"] {
                labels.extend(maps(network, list).filter_map(|port| port.get("Label").cloned()));
            }
        }
        resources.remove("Networks");
    }
    if labels.is_empty() {
        return;
    }
    if maps(group, "Networks").next().is_none() {
        group.insert("Networks".into(), json!([{ "Mode": "host" }]));
    }
    let Some(network) = maps(group, "Networks").next() else { return };
    for label in labels {
        let is_there = ["ReservedPorts", "DynamicPorts"]
            .iter()
            .any(|list| maps(network, list).any(|port| port.get("Label") == Some(&label)));
        if !is_there {
            let ports = network.entry("DynamicPorts").or_insert_with(|| json!([]));
            match ports.as_array_mut() {
                Some(ports) => ports.push(json!({ "Label": label })),
                None => *ports = json!([{ "Label": label }]),
            }
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

/// Which Consul is asked: nothing where none is, and where it is the one that there is.
fn consul(owner: &mut Map<String, Json>, is_used: bool) {
    let Some(consul) = map(owner, "Consul") else { return };
    consul.retain(|name, value| name == "Cluster" || *value != "default");
    if !is_used && !consul.contains_key("Token") {
        owner.remove("Consul");
    }
}

/// A task that says which Consul it means gets a token of it, where servers sign an identity for that.
fn consul_token(task: &mut Map<String, Json>) {
    let is_of_consul = |identity: &mut Map<String, Json>| {
        identity.get("Name").and_then(Json::as_str).is_some_and(|name| name.starts_with("consul_"))
    };
    let is_written = task.get("Consul").is_some_and(Json::is_object);
    if is_written && maps(task, "Identities").any(is_of_consul) {
        // What isn't as it is by default is refused by name.
        task.insert("Consul".into(), json!({ "Token": true }));
    }
}

/// Whether any service is Consul's.
fn asks_consul(owner: &mut Map<String, Json>) -> bool {
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
