//! A task as the engine's request to create its container.
//!
//! In: a task's description, its `config`, the policy, what is known of the engine. Out: a [`Request`]. What the policy forbids or
//! the engine can't do is refused by the field's name. Nothing here talks to the engine.

mod capabilities;
mod group;
mod limits;
mod mounts;
mod network;
mod security;
mod sources;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig,
};
use herdlet_api_types::driver::{Planned, Sharing};
use herdlet_driver::{DriverResult, TaskConfig};
use sha2::{Digest as _, Sha256};

use crate::{
    config::{ContainerConfig, FieldError},
    engine::About,
    names,
    policy::Policy,
};

pub(crate) use capabilities::granted as granted_capabilities;
pub(crate) use group::GroupNetwork;
pub(crate) use group::host_lines;
pub(crate) use limits::Compute;
pub(crate) use network::{joined, not_joined};
#[cfg(test)]
pub(crate) use sources::Bounds;
pub(crate) use sources::{Missing, Pin};

/// Docker's log driver whose files are read. Podman has the same name for its own format.
const JSON_FILE: &str = "json-file";
/// Limits of the engine's own log files, as in Nomad. They are a buffer: the lines are copied as they arrive.
const LOG_FILES: [(&str, &str); 2] = [("max-file", "2"), ("max-size", "2m")];

/// What a request is made from.
pub(crate) struct Material<'m> {
    pub(crate) task: &'m TaskConfig,
    pub(crate) config: &'m ContainerConfig,
    pub(crate) policy: &'m Policy,
    pub(crate) about: &'m About,
    pub(crate) compute: Compute,
    pub(crate) labels: BTreeMap<String, String>,
    /// Where the agent mounts paths of the allocation for the engine; none if it can't mount.
    pub(crate) pins: Option<PathBuf>,
    /// The name of the container through which Docker's containers join the network of their group.
    pub(crate) pause: String,
}

/// The request to create a container.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) body: ContainerCreateBody,
    /// Ports inside the container, by label.
    pub(crate) port_map: BTreeMap<String, u16>,
    /// Whether the engine stores its logs in files that the agent can read.
    pub(crate) logs: LogSource,
    /// Keys of the config that have no effect, as messages.
    pub(crate) notes: Vec<String>,
    /// The network of the group, which it joins.
    pub(crate) network: Option<GroupNetwork>,
    /// What the agent has to mount before the container is created, until it has started.
    pub(crate) pins: Vec<Pin>,
}

/// Where the engine stores a container's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogSource {
    /// In files that are copied.
    Files,
    /// Elsewhere: in this log driver.
    Elsewhere(String),
    /// The task or the agent wants no logs.
    Disabled,
}

impl Request {
    /// The options of the container's storage.
    pub(crate) fn storage_options(&self) -> impl Iterator<Item = (&String, &String)> {
        self.body.host_config.iter().filter_map(|host| host.storage_opt.as_ref()).flatten()
    }

    /// A hash of the whole request: a container with another one is never adopted.
    pub(crate) fn hash(&self) -> String {
        // Hash maps of the request have no order; a JSON value sorts its keys.
        let sorted = serde_json::to_value(&self.body).map(|value| value.to_string()).unwrap_or_default();
        names::hex(&Sha256::digest(sorted.as_bytes())).chars().take(16).collect()
    }
}

/// Everything in a config that is refused whatever the agent, its options and its engine are. [`request`] refuses it too.
pub(crate) fn refusals(config: &ContainerConfig, planned: &Planned<'_>) -> Vec<FieldError> {
    let docker = &config.docker;
    let mut found = network::refusals(config, planned);
    found.extend(cgroup_namespace(docker.cgroupns.as_deref()).err());
    found.extend(limits::refusals(config, planned.resources));
    found.extend(security::refusals(docker));
    found.extend(mounts::refusals(docker));
    found
}

/// Why the policy denies each start of a container with this config; none if it does not, or that is not known yet. [`request`] refuses
/// it too.
pub(crate) fn denial(config: &ContainerConfig, policy: &Policy) -> Option<String> {
    let docker = &config.docker;
    let mut found = security::denials(docker, policy);
    found.extend(mounts::denials(docker, policy));
    found.iter().find(|denied| denied.is_of_text()).map(FieldError::to_string)
}

/// Keys that have no effect, each with a message.
pub(crate) fn without_effect(config: &ContainerConfig, group: Sharing) -> Vec<(&'static str, String)> {
    let cores = config.docker.cpuset_cpus.is_some();
    let cores = cores.then(|| ("cpuset_cpus", "cpuset_cpus has no effect, as in Nomad".to_owned()));
    cores.into_iter().chain(network::without_effect(&config.docker, group)).collect()
}

/// Whether the group of a task has a network of its own.
pub(crate) fn sharing(task: &TaskConfig) -> Sharing {
    if task.network.is_some() { Sharing::Shares } else { Sharing::Own }
}

/// Makes the request.
///
/// # Errors
/// A field that can't be used.
pub(crate) fn request(material: &Material<'_>) -> DriverResult<Request> {
    let Material { task, config, policy, .. } = material;
    let docker = &config.docker;
    let network = network::of(material)?;
    let mut notes: Vec<String> =
        without_effect(config, sharing(task)).into_iter().map(|(_, note)| note).collect();
    notes.extend(network.note.clone());
    let (log_config, logs) = logging(material, &mut notes);
    let mut labels = material.labels.clone();
    for (name, value) in &docker.labels.0 {
        labels.entry(name.clone()).or_insert_with(|| value.clone());
    }
    let mut env: Vec<(String, String)> = task.env.clone();
    for (label, port) in &network.port_map {
        if docker.port_map.0.contains_key(label) {
            let name = format!("NOMAD_PORT_{}", label.replace(['.', '-'], "_"));
            env.retain(|(known, _)| *known != name);
            env.push((name, port.to_string()));
        }
    }
    let is_own = network.group.is_none();
    let mut host = HostConfig {
        log_config,
        network_mode: Some(network.mode),
        port_bindings: some(network.bindings),
        // Names in the group's network are in files that are mounted.
        dns: is_own.then(|| texts(&docker.dns_servers)).flatten(),
        dns_search: is_own.then(|| texts(&docker.dns_search_domains)).flatten(),
        dns_options: is_own.then(|| texts(&docker.dns_options)).flatten(),
        extra_hosts: is_own.then(|| texts(&docker.extra_hosts)).flatten(),
        group_add: texts(&docker.group_add),
        devices: some(devices(material)),
        init: docker.init.then_some(true),
        readonly_rootfs: docker.readonly_rootfs.then_some(true),
        shm_size: docker.shm_size.and_then(|size| i64::try_from(size).ok()),
        storage_opt: some(docker.storage_opt.0.clone().into_iter().collect()),
        sysctls: some(docker.sysctl.0.clone().into_iter().collect()),
        volume_driver: docker.volume_driver.clone().filter(|name| !name.is_empty()),
        runtime: security::runtime(docker, policy)?,
        oom_score_adj: docker.oom_score_adj.or(policy.oom_score_adj).map(i64::from),
        cgroupns_mode: cgroup_namespace(docker.cgroupns.as_deref())?,
        ..HostConfig::default()
    };
    limits::set(&mut host, material)?;
    security::set(&mut host, material)?;
    let pins = mounts::set(&mut host, material)?;
    let cmd = docker.command.iter().chain(&docker.args).map(|text| text.0.clone()).collect();
    let disables_check = docker.healthchecks.as_ref().is_some_and(|checks| checks.0.disable);
    let body = ContainerCreateBody {
        image: Some(docker.image.clone()),
        cmd: some(cmd),
        entrypoint: docker.entrypoint.as_ref().and_then(|entrypoint| some(entrypoint.0.clone())),
        env: some(env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
        user: task.user.clone().filter(|user| !user.is_empty()),
        hostname: hostname(material, network.group.as_ref()),
        working_dir: docker.work_dir.clone().filter(|dir| !dir.is_empty()),
        tty: docker.tty.then_some(true),
        open_stdin: docker.interactive.then_some(true),
        exposed_ports: some(network.exposed),
        labels: Some(labels.into_iter().collect()),
        healthcheck: disables_check
            .then(|| HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        networking_config: network.endpoints,
        host_config: Some(host),
        ..ContainerCreateBody::default()
    };
    Ok(Request { body, port_map: network.port_map, logs, notes, network: network.group, pins })
}

/// The container's own host name, else that of its group. Containers of Docker have the name of the container whose network they join.
fn hostname(material: &Material<'_>, group: Option<&GroupNetwork>) -> Option<String> {
    let own = material.config.docker.hostname.as_ref().map(|name| name.0.clone());
    let of_group = || group.filter(|_| !material.about.is_docker()).and_then(|group| group.hostname.clone());
    own.filter(|name| !name.is_empty()).or_else(of_group)
}

fn logging(material: &Material<'_>, notes: &mut Vec<String>) -> (Option<HostConfigLogConfig>, LogSource) {
    let Material { task, config, policy, .. } = material;
    let own = config.docker.logging.as_ref().map(|logging| &logging.0);
    let (name, options) = match (own, &policy.logging) {
        (Some(own), _) => (own.name().unwrap_or(JSON_FILE).to_owned(), own.all_options().0),
        (None, Some((name, options))) => (name.clone(), options.0.clone()),
        (None, None) => (JSON_FILE.to_owned(), BTreeMap::new()),
    };
    let is_file = name == JSON_FILE || name == "k8s-file";
    let mut options: HashMap<String, String> = options.into_iter().collect();
    if is_file && options.is_empty() {
        let limits = LOG_FILES.iter().filter(|_| name == JSON_FILE && material.about.is_docker());
        options = limits.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    }
    let logs = match is_file {
        _ if task.logs.disabled || policy.logs_disabled => LogSource::Disabled,
        true => LogSource::Files,
        false => LogSource::Elsewhere(name.clone()),
    };
    // A compressed file can't be read further from a position. The files are a buffer: what is copied needs no compression.
    if logs == LogSource::Files && options.remove("compress").is_some_and(|value| value == "true") {
        notes.push(
            "the log option compress has no effect: the engine's files are only a buffer for the task's logs"
                .to_owned(),
        );
    }
    let config = HostConfigLogConfig { typ: Some(name), config: some_map(options) };
    (Some(config), logs)
}

fn devices(material: &Material<'_>) -> Vec<DeviceMapping> {
    let mapping = |host: &str, task: &str, permissions: &str| DeviceMapping {
        path_on_host: Some(host.to_owned()),
        path_in_container: Some(if task.is_empty() { host } else { task }.to_owned()),
        cgroup_permissions: Some(if permissions.is_empty() { "rwm" } else { permissions }.to_owned()),
    };
    let text = |text: &Option<herdlet_api_types::manifest::Text>| {
        text.as_ref().map(|text| text.0.clone()).unwrap_or_default()
    };
    let written = material.config.docker.devices.iter().map(|device| {
        mapping(&device.host_path.0, &text(&device.container_path), &text(&device.cgroup_permissions))
    });
    let of_parts = material.task.devices.iter().map(|device| {
        mapping(&device.host_path.to_string_lossy(), &device.task_path.to_string_lossy(), &device.permissions)
    });
    written.chain(of_parts).collect()
}

fn cgroup_namespace(mode: Option<&str>) -> Result<Option<HostConfigCgroupnsModeEnum>, FieldError> {
    match mode {
        None | Some("") => Ok(None),
        Some("private") => Ok(Some(HostConfigCgroupnsModeEnum::PRIVATE)),
        Some("host") => Ok(Some(HostConfigCgroupnsModeEnum::HOST)),
        Some(other) => Err(FieldError::new("cgroupns", format!("expected private or host, found {other:?}"))),
    }
}

/// A list, unless it is empty.
fn some<T: Default + PartialEq>(all: T) -> Option<T> {
    (all != T::default()).then_some(all)
}

fn some_map(all: HashMap<String, String>) -> Option<HashMap<String, String>> {
    some(all)
}

fn texts(all: &[herdlet_api_types::manifest::Text]) -> Option<Vec<String>> {
    some(all.iter().map(|text| text.0.clone()).collect())
}

#[cfg(test)]
mod tests;
