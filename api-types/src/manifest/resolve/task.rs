//! Resolves a task.
//!
//! In: the task's block, the names around it, and the settings of its group. Out: a [`Task`] with all defaults.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String};

use super::{
    identity::{to_identity, to_signal},
    length,
    names::Names,
    plain,
    service::to_services,
    to_affinities, to_constraints,
};
use crate::{
    Duration,
    job::{self, ConsulAccess, DependencyCondition, PortRequest, RestartPolicy, Task},
    manifest::{
        self, Consul, Dependency, Hook, Lifecycle, TaskSpec, Vault,
        defaults::{ARTIFACT_DESTINATION, KILL_TIMEOUT, LOGS, PRESTOP_TIMEOUT},
        strings,
    },
};

impl Lifecycle {
    /// The lifecycle for these fields; a poststop task is never a sidecar.
    pub fn stage(&self) -> job::Lifecycle {
        match (self.hook, self.sidecar.unwrap_or(false)) {
            (None, _) => job::Lifecycle::Main,
            (Some(Hook::Prestart), false) => job::Lifecycle::Prestart,
            (Some(Hook::Prestart), true) => job::Lifecycle::PrestartSidecar,
            (Some(Hook::Poststart), false) => job::Lifecycle::Poststart,
            (Some(Hook::Poststart), true) => job::Lifecycle::PoststartSidecar,
            (Some(Hook::Poststop), _) => job::Lifecycle::Poststop,
        }
    }
}

/// A group's settings for its tasks.
pub(super) struct OfGroup<'a> {
    pub(super) restart: &'a RestartPolicy,
    /// For tasks without a block of their own; as in Nomad, blocks are not merged.
    pub(super) vault: Option<&'a Vault>,
    /// Likewise.
    pub(super) consul: Option<&'a Consul>,
}

pub(super) fn to_task(spec: &TaskSpec, group: &Names<'_>, outer: &OfGroup<'_>) -> Task {
    let restart = outer.restart;
    let name = spec.name.clone().unwrap_or_default();
    let names = Names { task: Some(&name), ..*group };
    Task {
        driver: spec.driver.clone().unwrap_or_default(),
        user: spec.user.clone().map(|user| user.0),
        config: serde_json::Value::Object(spec.config.clone().unwrap_or_default()),
        env: strings(spec.env.as_ref()),
        meta: strings(spec.meta.as_ref()),
        leader: spec.leader.unwrap_or(false),
        lifecycle: spec.lifecycle.as_ref().map(Lifecycle::stage).unwrap_or_default(),
        depends_on: spec.depends_on.iter().flatten().map(to_dependency).collect(),
        prestop: spec.prestop.as_ref().map(to_prestop),
        actions: spec.actions.iter().flatten().map(to_action).collect(),
        restart: spec.restart.as_ref().map_or(restart.clone(), |written| written.fields.over(restart)),
        services: to_services(spec.services.as_deref(), spec.consul.as_ref().or(outer.consul), &names),
        volume_mounts: spec.volume_mounts.iter().flatten().map(to_mount).collect(),
        artifacts: spec.artifacts.iter().flatten().map(to_artifact).collect(),
        templates: spec.templates.iter().flatten().map(manifest::Template::to_template).collect(),
        secrets: spec.secrets.iter().flatten().map(manifest::Secret::to_secret).collect(),
        vault: spec.vault.as_ref().or(outer.vault).map(Vault::to_access),
        consul: to_consul(spec, outer.consul),
        csi_plugin: spec.csi_plugin.as_ref().map(manifest::CsiPlugin::to_plugin),
        dispatch_payload: spec
            .dispatch_payload
            .as_ref()
            .and_then(|payload| payload.file.as_ref())
            .map(|file| file.trim_start_matches('/').to_owned()),
        identities: spec.identities.iter().flatten().map(to_identity).collect(),
        resources: spec.resources.as_ref().map(to_resources).unwrap_or_default(),
        ports: to_task_ports(spec.resources.as_ref()),
        logs: spec.logs.as_ref().map_or(LOGS, to_logs),
        kill_signal: to_signal(spec.kill_signal.as_ref()),
        kill_timeout: length(spec.kill_timeout, KILL_TIMEOUT),
        shutdown_delay: length(spec.shutdown_delay, Duration::ZERO),
        constraints: to_constraints(spec.constraints.as_deref()),
        affinities: to_affinities(spec.affinities.as_deref()),
        name,
    }
}

/// The Consul of a task: of its block, or the default one if the task has an identity to log in there. An identity for another one
/// is only for the task's own use.
fn to_consul(spec: &TaskSpec, of_group: Option<&Consul>) -> Option<ConsulAccess> {
    let default = ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER);
    let name = default.identity_name();
    let logs_in =
        spec.identities.iter().flatten().any(|identity| identity.name.as_deref() == Some(name.as_str()));
    // Servers write a group's block with nothing but defaults into each job.
    let of_group = of_group.map(Consul::to_access).filter(|access| *access != default);
    spec.consul.as_ref().map(Consul::to_access).or(of_group).or_else(|| logs_in.then_some(default))
}

/// The ports of a task. As in Nomad, the task listens on the host port.
fn to_task_ports(spec: Option<&manifest::Resources>) -> BTreeMap<String, PortRequest> {
    let network = spec.and_then(|resources| resources.network.as_ref());
    let ports = network.and_then(|network| network.ports.as_ref()).into_iter().flatten();
    ports.map(|(label, port)| (label.clone(), PortRequest { fixed: port.fixed, to: None })).collect()
}

fn to_dependency(spec: &Dependency) -> job::Dependency {
    job::Dependency {
        task: spec.task.clone().unwrap_or_default(),
        condition: spec.condition.unwrap_or(DependencyCondition::Started),
    }
}

fn to_action(spec: &manifest::Action) -> job::TaskAction {
    job::TaskAction {
        name: spec.name.clone().unwrap_or_default(),
        command: spec.command.clone().unwrap_or_default(),
        args: plain(spec.args.as_deref()),
    }
}

fn to_prestop(spec: &manifest::Prestop) -> job::Prestop {
    job::Prestop {
        command: spec.command.clone().unwrap_or_default(),
        args: plain(spec.args.as_deref()),
        timeout: length(spec.timeout, PRESTOP_TIMEOUT),
    }
}

fn to_mount(spec: &manifest::VolumeMount) -> job::VolumeMount {
    job::VolumeMount {
        volume: spec.volume.clone().unwrap_or_default(),
        destination: spec.destination.clone().unwrap_or_default(),
        read_only: spec.read_only.unwrap_or(false),
        propagation: spec.propagation_mode.unwrap_or_default(),
    }
}

fn to_artifact(spec: &manifest::Artifact) -> job::Artifact {
    let destination = spec.destination.clone().map(|destination| destination.0);
    job::Artifact {
        source: spec.source.clone().unwrap_or_default().0,
        options: strings(spec.options.as_ref()),
        headers: strings(spec.headers.as_ref()),
        mode: spec.mode.unwrap_or_default(),
        insecure: spec.insecure.unwrap_or(false),
        destination: destination.unwrap_or_else(|| ARTIFACT_DESTINATION.to_owned()),
        chown: spec.chown.unwrap_or(false),
    }
}

fn to_resources(spec: &manifest::Resources) -> job::Resources {
    let memory_max_mib = match spec.memory_max {
        None | Some(0) => None,
        Some(most) => Some(u64::try_from(most).unwrap_or(job::Resources::ALL_MEMORY)),
    };
    let secrets_mib = spec.secrets.filter(|size| *size != 0);
    let cores = spec.cores.filter(|cores| *cores != 0);
    job::Resources { cpu_mhz: spec.cpu, cores, memory_mib: spec.memory, memory_max_mib, secrets_mib }
}

fn to_logs(spec: &manifest::Logs) -> job::Logs {
    job::Logs {
        max_files: spec.max_files.unwrap_or(LOGS.max_files),
        max_file_size_mib: spec.max_file_size.unwrap_or(LOGS.max_file_size_mib),
        disabled: spec.disabled.unwrap_or(LOGS.disabled),
        mode: spec.mode.unwrap_or(LOGS.mode),
    }
}
