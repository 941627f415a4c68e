//! Keys of Nomad's agent files that need more than another name.

use std::{path::Path, sync::Arc};

use herdlet_api_types::{
    driver::{DriverInfo, EXEC, JAVA, PODMAN, QEMU, built_in},
    job::ConsulAccess,
};
use herdlet_manifest::yaml::{Entry, Node, Value, phrases::describe_node};

use super::{
    super::{
        Reading,
        draft::{map, text},
        join,
        kinds::{ValueKind, as_bool, expanded},
        meant,
    },
    CONSUL, HOST_NETWORK, HOST_VOLUME, Key, Keys, VAULT,
};
use crate::cluster;

/// Herdlet keeps its state beside Nomad's, and takes over the identity of Nomad's client.
pub(in crate::nomad) fn data_dir(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    let Some(dir) = take(reading, ValueKind::Text, entry, path) else { return };
    let position = dir.position;
    let path_text = |path: &Path| text(path.to_string_lossy(), position);
    let dir = Path::new(&*dir.text);
    reading.put("state_dir", path, path_text(&cluster::state_dir_of(dir)));
    reading.names.push(("cluster.moved_from".to_owned(), path.to_owned()));
    reading.draft.put_default("cluster.moved_from", path_text(&dir.join("client")));
}

/// The directory of the Nomad client's identity, if it is not below `data_dir`.
pub(in crate::nomad) fn state_dir(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    if let Some(dir) = take(reading, ValueKind::Text, entry, path) {
        reading.put("cluster.moved_from", path, dir);
    }
}

/// Refuses to be a server.
pub(in crate::nomad) fn server(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    for body in reading.bodies(entry, path) {
        let enabled = body.entries().unwrap_or_default().iter().rev().find(|entry| &*entry.key == "enabled");
        let Some(enabled) = enabled else { continue };
        let path = join(path, "enabled");
        let is_on =
            take(reading, ValueKind::Flag, enabled, &path).is_some_and(|on| as_bool(&on.text) == Some(true));
        if is_on {
            let message = "herdlet can't be a server: run servers with Nomad, and remove this key".to_owned();
            reading.report(enabled.value.position, &path, message);
        }
    }
}

/// Nomad's defaults.
const VAULT_ADDRESS: &str = "https://vault.service.consul:8200";
const CONSUL_ADDRESS: &str = "127.0.0.1:8500";

/// Reads a server of Vault. The block may be repeated (1.7 and later), each with its name.
pub(in crate::nomad) fn vault(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    for body in reading.bodies(entry, path) {
        let name = name_of(&body);
        let Some(ours) = named(reading, &body, (path, name), "vault") else { continue };
        let is_on = body.get("enabled").and_then(Node::scalar_text).and_then(as_bool) == Some(true);
        if is_on && body.get("address").is_none() {
            default_address(reading, &body, (path, &ours), VAULT_ADDRESS);
        }
        named_body(reading, &body, (VAULT, path), &ours);
    }
}

/// The name of a block that may be repeated.
fn name_of(body: &Node) -> &str {
    body.get("name").and_then(Node::scalar_text).unwrap_or(ConsulAccess::DEFAULT_CLUSTER)
}

/// Where the settings of a block with this name are, or a report that the name is invalid.
fn named(
    reading: &mut Reading<'_>,
    body: &Node,
    (path, name): (&str, &str),
    section: &str,
) -> Option<String> {
    if name.contains('.') {
        let message = "must not contain a dot, because jobs name it in `cluster`".to_owned();
        reading.report(body.position, &join(path, "name"), message);
        return None;
    }
    Some(format!("{section}.{name}"))
}

fn default_address(reading: &mut Reading<'_>, body: &Node, (path, ours): (&str, &str), address: &str) {
    let at = format!("{ours}.address");
    reading.names.push((at.clone(), path.to_owned()));
    reading.draft.put_default(&at, text(address, body.position));
}

/// Reads a block whose fields are below `ours`.
fn named_body(reading: &mut Reading<'_>, body: &Node, (keys, path): (Keys, &str), ours: &str) {
    for entry in body.entries().unwrap_or_default() {
        let path = join(path, &entry.key);
        match keys.iter().find(|(name, _)| *name == &*entry.key).map(|(_, key)| key) {
            Some(Key::Field(kind, field)) => {
                if let Some(value) = take(reading, *kind, entry, &path) {
                    reading.put(&format!("{ours}.{field}"), &path, value);
                }
            }
            Some(Key::Block(keys)) => {
                let ours = format!("{ours}.{}", entry.key);
                for body in reading.bodies(entry, &path) {
                    named_body(reading, &body, (keys, &path), &ours);
                }
            }
            Some(Key::Unused) => reading.unused(entry, &path),
            Some(Key::Satisfied | Key::Special(_)) => {}
            None => reading.unknown(entry, &path, keys.iter().map(|(name, _)| *name)),
        }
    }
}

pub(in crate::nomad) fn log_json(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    if let Some(json) = take(reading, ValueKind::Flag, entry, path) {
        let format = if as_bool(&json.text) == Some(true) { "json" } else { "text" };
        reading.put("log_format", path, text(format, json.position));
    }
}

/// Translates the level, which Nomad writes in capitals.
pub(in crate::nomad) fn log_level(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    let Some(level) = take(reading, ValueKind::Text, entry, path) else { return };
    let known = match level.text.to_ascii_lowercase().as_str() {
        "trace" => "trace",
        "debug" => "debug",
        "info" => "info",
        "warn" => "warn",
        "error" | "err" => "error",
        "off" => "off",
        _ => {
            let message =
                format!("expected TRACE, DEBUG, INFO, WARN or ERROR, found {}", describe_node(&entry.value));
            return reading.report(entry.value.position, path, message);
        }
    };
    reading.put("log_level", path, text(known, level.position));
}

/// If only the disk's size is configured, all of it is available to allocations.
pub(in crate::nomad) fn disk_total(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    if let Some(size) = take(reading, ValueKind::Whole, entry, path) {
        reading.names.push(("disk_total_mb".to_owned(), path.to_owned()));
        reading.draft.put_default("disk_total_mb", size);
    }
}

pub(in crate::nomad) fn no_host_uuid(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    let is_random =
        take(reading, ValueKind::Flag, entry, path).is_some_and(|flag| as_bool(&flag.text) == Some(true));
    if !is_random {
        let message = "is not used by herdlet: the node's id is the one in data_dir, otherwise a random one";
        reading.warn(entry.key_position, path, message.to_owned());
    }
}

/// Adds servers. Cloud auto-join, which herdlet does not support, is a warning.
pub(in crate::nomad) fn servers(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    let Some(all) = take(reading, ValueKind::Texts, entry, path) else { return };
    for server in all.items().unwrap_or_default() {
        if server.text.contains("provider=") {
            let message = "finds servers with a cloud's API, which herdlet does not support: name them, or use DNS or Consul";
            reading.warn(server.position, path, message.to_owned());
        } else {
            match expanded(&server.text, reading.interfaces) {
                Ok(address) => reading.add("servers", path, text(address, server.position)),
                Err(message) => reading.report(server.position, path, message),
            }
        }
    }
}

pub(in crate::nomad) fn network_interface(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    let Some(name) = take(reading, ValueKind::Text, entry, path) else { return };
    if name.text.contains("{{") {
        let message =
            "is a template, but herdlet requires the name of an interface here, such as eth0".to_owned();
        return reading.report(name.position, path, message);
    }
    reading.put("cluster.network_interface", path, name);
}

pub(in crate::nomad) fn meta(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    for body in reading.bodies(entry, path) {
        for entry in body.entries().unwrap_or_default() {
            if let Some(value) = take(reading, ValueKind::Text, entry, &join(path, &entry.key)) {
                reading.draft.put_into("meta", &entry.key, value);
            }
        }
    }
}

/// What isolated tasks see of the machine.
pub(in crate::nomad) fn chroot_env(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    for body in reading.bodies(entry, path) {
        let mut entries = Vec::new();
        for entry in body.entries().unwrap_or_default() {
            if let Some(value) = take(reading, ValueKind::Text, entry, &join(path, &entry.key)) {
                entries.push(Entry { value, ..entry.clone() });
            }
        }
        let shown = Node { value: Value::Map(entries), ..Node::clone(&body) };
        let shown = Arc::new(shown);
        for driver in [EXEC, JAVA] {
            reading.put(&format!("drivers.{driver}.chroot_env"), path, Arc::clone(&shown));
        }
    }
}

/// Translates options: names with dots, whose values are texts.
pub(in crate::nomad) fn options(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    for body in reading.bodies(entry, path) {
        for entry in body.entries().unwrap_or_default() {
            let path = join(path, &entry.key);
            let field = match &*entry.key {
                "driver.raw_exec.enable" => "drivers.raw_exec.enabled",
                "user.denylist" | "user.blacklist" => {
                    // Nomad's default of `user.checked_drivers`.
                    for driver in [EXEC, JAVA, QEMU] {
                        list_option(reading, entry, (&format!("drivers.{driver}.denied_users"), &path));
                    }
                    continue;
                }
                "driver.allowlist" | "driver.whitelist" => "cluster.drivers.allow",
                "driver.denylist" | "driver.blacklist" => "cluster.drivers.deny",
                "fingerprint.allowlist" | "fingerprint.whitelist" => "cluster.fingerprints.allow",
                "fingerprint.denylist" | "fingerprint.blacklist" => "cluster.fingerprints.deny",
                "fingerprint.network.disallow_link_local" => "cluster.disallow_link_local",
                _ => {
                    reading.unused(entry, &path);
                    continue;
                }
            };
            if ["allow", "deny"].iter().any(|end| field.ends_with(end)) {
                list_option(reading, entry, (field, &path));
            } else if let Some(value) = take(reading, ValueKind::Flag, entry, &path) {
                reading.put(field, &path, value);
            }
        }
    }
}

/// Translates a text with items between commas. An empty list differs from none.
fn list_option(reading: &mut Reading<'_>, entry: &Entry, (field, path): (&str, &str)) {
    let Some(value) = take(reading, ValueKind::Text, entry, path) else { return };
    let empty = Node { value: Value::Seq(Vec::new()), ..Node::clone(&value) };
    reading.put(field, path, Arc::new(empty));
    for name in value.text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        reading.add(field, path, text(name, value.position));
    }
}

/// The name of Nomad's plugin for Podman.
const PODMAN_PLUGIN: &str = "nomad-driver-podman";

/// Translates `plugin "NAME" { config { … } }` into options of the driver.
pub(in crate::nomad) fn plugin(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    let known = built_in();
    for (label, body) in reading.labelled(entry, path) {
        let path = join(path, &label.key);
        let name = if &*label.key == PODMAN_PLUGIN { PODMAN } else { &*label.key };
        let Some(driver) = known.iter().find(|driver| driver.name == name) else {
            let hint = meant(&label.key, known.iter().map(|driver| driver.name.as_str()));
            let message = format!("is not used by herdlet{hint}");
            reading.warn(label.key_position, &path, message);
            continue;
        };
        for config in body.entries().unwrap_or_default() {
            let path = join(&path, &config.key);
            if &*config.key != "config" {
                reading.unused(config, &path);
                continue;
            }
            for body in reading.bodies(config, &path) {
                driver_options(reading, driver, &body, &path);
            }
        }
    }
}

/// Reads the options that herdlet's driver has; the others are Nomad's and unused.
fn driver_options(reading: &mut Reading<'_>, driver: &DriverInfo, body: &Node, path: &str) {
    let options = driver.options.as_value().get("properties").and_then(|fields| fields.as_object());
    for entry in body.entries().unwrap_or_default() {
        let path = join(path, &entry.key);
        let ours = format!("drivers.{}.{}", driver.name, entry.key);
        match &*entry.key {
            "enabled" => {
                if let Some(flag) = take(reading, ValueKind::Flag, entry, &path) {
                    reading.put(&ours, &path, flag);
                }
            }
            key if options.is_some_and(|options| options.contains_key(key)) => {
                reading.put(&ours, &path, Arc::clone(&entry.value));
            }
            _ => reading.unused(entry, &path),
        }
    }
}

/// Reads a Consul. The block may be repeated (1.7 and later), each with its name.
pub(in crate::nomad) fn consul(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    for body in reading.bodies(entry, path) {
        let name = name_of(&body);
        if name == ConsulAccess::DEFAULT_CLUSTER {
            named_body(reading, &body, (CONSUL, path), "consul");
            continue;
        }
        let Some(ours) = named(reading, &body, (path, name), "consul.clusters") else { continue };
        default_address(reading, &body, (path, &ours), CONSUL_ADDRESS);
        // Only the default one is searched for servers.
        let own = body.entries().unwrap_or_default().iter().filter(|own| &*own.key != "client_auto_join");
        let body = Node { value: Value::Map(own.cloned().collect()), ..Node::clone(&body) };
        named_body(reading, &body, (CONSUL, path), &ours);
    }
}

pub(in crate::nomad) fn host_volume(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    items(reading, entry, path, "host_volumes", HOST_VOLUME);
}

pub(in crate::nomad) fn host_network(reading: &mut Reading<'_>, entry: &Entry, path: &str) {
    items(reading, entry, path, "cluster.host_networks", HOST_NETWORK);
}

/// Translates named blocks into items of a list, each with its name.
fn items(reading: &mut Reading<'_>, entry: &Entry, path: &str, field: &str, keys: Keys) {
    for (label, body) in reading.labelled(entry, path) {
        let path = join(path, &label.key);
        let name = text(label.key.clone(), label.key_position);
        let mut fields = vec![Entry { key: "name".into(), key_position: label.key_position, value: name }];
        for entry in body.entries().unwrap_or_default() {
            let path = join(&path, &entry.key);
            if !keys.iter().any(|(name, _)| *name == &*entry.key) {
                reading.unknown(entry, &path, keys.iter().map(|(name, _)| *name));
                continue;
            }
            let kind = if &*entry.key == "read_only" { ValueKind::Flag } else { ValueKind::Text };
            // The problem is already reported; the field must not be reported as missing too.
            let refused = || Arc::new(Node { value: Value::Refused, ..Node::clone(&entry.value) });
            let value = take(reading, kind, entry, &path).unwrap_or_else(refused);
            fields.retain(|field| field.key != entry.key);
            fields.push(Entry { value, ..entry.clone() });
        }
        reading.add(field, &path, map(fields, label.key_position));
    }
}

/// Returns the value, or reports that it is of another kind.
fn take(reading: &mut Reading<'_>, kind: ValueKind, entry: &Entry, path: &str) -> Option<Arc<Node>> {
    match kind.take(&entry.value, reading.interfaces) {
        Ok(value) => Some(value),
        Err(message) => {
            reading.report(entry.value.position, path, message);
            None
        }
    }
}
