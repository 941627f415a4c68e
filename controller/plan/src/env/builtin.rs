//! The variables that do not depend on other variables, from the table in Nomad's "Runtime environment settings".
//!
//! In: [`Inputs`]. Out: entries in a [`TaskEnv`]. Precedence is the order of the calls in `build`.

use std_alloc::{
    borrow::Cow,
    format,
    string::{String, ToString},
};

use herdlet_api_types::alloc::AssignedPort;

use super::{Inputs, NodeFacts, TaskEnv, Variables, key, layer::Layer};
use crate::network::join_host_port;

/// Name of the identity that is exported as `NOMAD_TOKEN`.
const DEFAULT_IDENTITY: &str = "default";

/// The names that only `${…}` can refer to.
pub(super) fn node_keys(node: &NodeFacts) -> Variables {
    let own = [
        ("node.unique.id", &node.id),
        ("node.unique.name", &node.name),
        ("node.datacenter", &node.datacenter),
        ("node.region", &node.region),
        ("node.class", &node.class),
        ("node.pool", &node.pool),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_string(), value.clone()));
    let attributes = node.attributes.iter().map(|(name, value)| (format!("attr.{name}"), value.clone()));
    let meta = node.meta.iter().map(|(name, value)| (format!("meta.{name}"), value.clone()));
    own.chain(attributes).chain(meta).collect()
}

/// Directories and cgroup of the task.
pub(super) fn set_places(env: &mut TaskEnv, inputs: &Inputs<'_>) {
    if let Some(dirs) = inputs.dirs {
        set_unless_empty(env, "NOMAD_ALLOC_DIR", &dirs.alloc);
        set_unless_empty(env, "NOMAD_TASK_DIR", &dirs.task);
        set_unless_empty(env, "NOMAD_SECRETS_DIR", &dirs.secrets);
    }
    set_unless_empty(env, "NOMAD_PARENT_CGROUP", inputs.cgroup_parent.unwrap_or_default());
}

/// Resource limits of the task. A missing limit has no variable.
pub(super) fn set_limits(env: &mut TaskEnv, inputs: &Inputs<'_>) {
    let Some(task) = inputs.task else { return };
    let allocated = inputs.alloc.resources_of(task).allocated();
    if let Some(assigned) = inputs.alloc.task_cores.get(&task.name) {
        env.set("NOMAD_CPU_CORES", &assigned.cores);
    }
    let limits = [("NOMAD_MEMORY_LIMIT", allocated.memory_mib), ("NOMAD_CPU_LIMIT", allocated.cpu_mhz)];
    for (name, limit) in limits {
        if let Some(limit) = limit.filter(|&limit| limit > 0) {
            env.set(name, limit);
        }
    }
    let most = allocated.memory_max_mb();
    if most != 0 {
        env.set("NOMAD_MEMORY_MAX_LIMIT", most);
    }
}

/// Names and ids of the task.
pub(super) fn set_names(env: &mut TaskEnv, inputs: &Inputs<'_>) {
    let alloc = inputs.alloc;
    env.set("NOMAD_ALLOC_ID", alloc.id);
    env.set("NOMAD_SHORT_ALLOC_ID", alloc.id.short());
    env.set("NOMAD_ALLOC_NAME", alloc.name());
    env.set("NOMAD_ALLOC_INDEX", alloc.index);
    set_unless_empty(env, "NOMAD_GROUP_NAME", &alloc.group);
    set_unless_empty(env, "NOMAD_JOB_ID", &alloc.job_key.id);
    set_unless_empty(env, "NOMAD_JOB_PARENT_ID", alloc.job.parent_id().unwrap_or_default());
    set_unless_empty(env, "NOMAD_JOB_NAME", &alloc.job.name);
    set_unless_empty(env, "NOMAD_NAMESPACE", &alloc.job_key.namespace);
    set_unless_empty(env, "NOMAD_DC", &inputs.node.datacenter);
    set_unless_empty(env, "NOMAD_REGION", &inputs.node.region);
    if let Some(task) = inputs.task {
        env.set("NOMAD_TASK_NAME", &task.name);
    }
}

/// The group's ports: the host's side, the task's side and the allocation network's.
pub(super) fn set_ports(env: &mut TaskEnv, inputs: &Inputs<'_>) {
    for (label, port) in &inputs.alloc.ports {
        let bind = bind_port(port);
        let host_addr = join_host_port(&port.host_ip, port.value);
        env.set(&format!("NOMAD_IP_{label}"), &port.host_ip);
        env.set(&format!("NOMAD_ADDR_{label}"), &host_addr);
        env.set(&format!("NOMAD_PORT_{label}"), bind);
        env.set(&format!("NOMAD_HOST_IP_{label}"), &port.host_ip);
        env.set(&format!("NOMAD_HOST_ADDR_{label}"), &host_addr);
        env.set(&format!("NOMAD_HOST_PORT_{label}"), port.value);
        env.set(&format!("NOMAD_ALLOC_PORT_{label}"), bind);
        if let Some(network) = inputs.network {
            env.set(&format!("NOMAD_ALLOC_INTERFACE_{label}"), &network.interface);
            env.set(&format!("NOMAD_ALLOC_IP_{label}"), &network.address);
            env.set(&format!("NOMAD_ALLOC_ADDR_{label}"), join_host_port(&network.address, bind));
        }
    }
}

/// Ports of single tasks. The task's own ports are like the group's, but it listens on the host port; those of other
/// tasks include the task's name.
pub(super) fn set_task_ports(env: &mut TaskEnv, inputs: &Inputs<'_>) {
    let own = inputs.task.map(|task| task.name.as_str());
    for (task, ports) in &inputs.alloc.task_ports {
        for (label, AssignedPort { host_ip, value, .. }) in ports {
            let address = join_host_port(host_ip, *value);
            if own == Some(task) {
                let family = if host_ip.contains(':') { "IPv6" } else { "IPv4" };
                env.set(&format!("NOMAD_IP_{label}"), host_ip);
                env.set(&format!("NOMAD_{family}_{label}"), host_ip);
                env.set(&format!("NOMAD_HOST_PORT_{label}"), value);
                env.set(&format!("NOMAD_PORT_{label}"), value);
                env.set(&format!("NOMAD_ADDR_{label}"), address);
            } else {
                env.set(&format!("NOMAD_IP_{task}_{label}"), host_ip);
                env.set(&format!("NOMAD_PORT_{task}_{label}"), value);
                env.set(&format!("NOMAD_ADDR_{task}_{label}"), address);
            }
        }
    }
}

/// Upstreams, under the service's name and under its cleaned name.
pub(super) fn set_upstreams(env: &mut TaskEnv, inputs: &Inputs<'_>) {
    const LOCAL: &str = "127.0.0.1";
    for upstream in inputs.upstreams {
        for name in [key::clean(&upstream.destination), upstream.destination.clone()] {
            env.set(&format!("NOMAD_UPSTREAM_IP_{name}"), LOCAL);
            env.set(&format!("NOMAD_UPSTREAM_PORT_{name}"), upstream.bind_port);
            env.set(&format!("NOMAD_UPSTREAM_ADDR_{name}"), join_host_port(LOCAL, upstream.bind_port));
        }
    }
}

/// Tokens of identities with `env`, and the address of the task API.
pub(super) fn set_tokens(env: &mut TaskEnv, inputs: &Inputs<'_>) {
    let Some(task) = inputs.task else { return };
    for identity in task.identities.iter().filter(|identity| identity.env) {
        let Some(token) = inputs.tokens.get(&identity.name) else { continue };
        if identity.name == DEFAULT_IDENTITY {
            env.set("NOMAD_TOKEN", token);
        } else {
            env.set(&format!("NOMAD_TOKEN_{}", identity.name), token);
        }
        if let Some(socket) = inputs.api_socket {
            env.set("NOMAD_UNIX_ADDR", format!("unix://{socket}"));
        }
    }
}

/// Meta of job, group and task, each key as written and in upper case; a key as written wins over an upper-cased one.
pub(super) fn meta<'a>(inputs: &Inputs<'a>) -> Layer<'a> {
    let parameterized = inputs.alloc.job.parameterized.iter();
    // Optional meta of a dispatch exists but is empty unless the dispatch sets it.
    let mut merged: Layer<'a> = parameterized
        .flat_map(|block| &block.meta_optional)
        .map(|key| (Cow::Borrowed(key.as_str()), ""))
        .collect();
    let group = inputs.alloc.group();
    let levels = [Some(&inputs.alloc.job.meta), group.map(|g| &g.meta), inputs.task.map(|t| &t.meta)];
    for level in levels.into_iter().flatten() {
        merged.extend(level.iter().map(|(name, value)| (Cow::Borrowed(name.as_str()), value.as_str())));
    }
    let upper = merged.iter().map(|(name, value)| (meta_name(&name.to_uppercase()), *value));
    let written = merged.iter().map(|(name, value)| (meta_name(name), *value));
    upper.chain(written).collect()
}

fn meta_name(name: &str) -> Cow<'static, str> {
    Cow::Owned(format!("NOMAD_META_{name}"))
}

/// The port that the task listens on.
fn bind_port(port: &AssignedPort) -> u16 {
    if port.to > 0 { port.to } else { port.value }
}

fn set_unless_empty(env: &mut TaskEnv, name: &str, value: &str) {
    if !value.is_empty() {
        env.set(name, String::from(value));
    }
}
