//! Writes a task.
//!
//! In: the task, the names around it, and the restart policy of its group. Out: the block that a person would write,
//! without the defaults.

use super::{
    from_affinities, from_constraints, from_length, from_plain, from_ports, from_restart,
    identity::from_identity, service::from_services, unless_empty, yes,
};
use crate::{
    Duration,
    job::{self, ArtifactMode, DependencyCondition, RestartPolicy},
    manifest::{
        Action, Artifact, Consul, CsiPlugin, Dependency, DispatchPayload, Hook, Lifecycle, Logs, Prestop,
        Resources, Secret, Signal, TaskSpec, Template, Text, Vault, VolumeMount,
        defaults::{ARTIFACT_DESTINATION, KILL_TIMEOUT, LOGS, PRESTOP_TIMEOUT},
        non_empty,
        resolve::Names,
        texts, unless,
    },
};

pub(super) fn from_task(task: &job::Task, names: &Names<'_>, restart: &RestartPolicy) -> TaskSpec {
    TaskSpec {
        name: Some(task.name.clone()),
        driver: Some(task.driver.clone()),
        user: task.user.clone().map(Text),
        config: task.config.as_object().filter(|fields| !fields.is_empty()).cloned(),
        env_file: None,
        env: texts(&task.env),
        meta: texts(&task.meta),
        leader: yes(task.leader),
        lifecycle: from_stage(task.lifecycle),
        depends_on: non_empty(task.depends_on.iter().map(from_dependency).collect()),
        prestop: task.prestop.as_ref().map(from_prestop),
        actions: non_empty(task.actions.iter().map(from_action).collect()),
        restart: from_restart(&task.restart, restart).map(Into::into),
        services: from_services(&task.services, task.consul.as_ref(), names),
        volume_mounts: non_empty(task.volume_mounts.iter().map(from_mount).collect()),
        artifacts: non_empty(task.artifacts.iter().map(from_artifact).collect()),
        templates: non_empty(task.templates.iter().map(Template::of).collect()),
        secrets: non_empty(task.secrets.iter().map(Secret::of).collect()),
        vault: task.vault.as_ref().map(Vault::from_access),
        consul: task.consul.as_ref().map(Consul::from_access),
        csi_plugin: task.csi_plugin.as_ref().map(CsiPlugin::from_plugin),
        dispatch_payload: task
            .dispatch_payload
            .as_ref()
            .map(|file| DispatchPayload { file: Some(file.clone()) }),
        identities: non_empty(task.identities.iter().map(from_identity).collect()),
        resources: unless_empty(Resources {
            cpu: task.resources.cpu_mhz,
            cores: task.resources.cores,
            memory: task.resources.memory_mib,
            memory_max: Some(task.resources.memory_max_mb()).filter(|most| *most != 0),
            secrets: task.resources.secrets_mib,
            network: (!task.ports.is_empty()).then(|| from_ports(&task.ports)),
        }),
        logs: from_logs(&task.logs),
        kill_signal: task.kill_signal.clone().map(Signal),
        kill_timeout: from_length(task.kill_timeout, KILL_TIMEOUT),
        shutdown_delay: from_length(task.shutdown_delay, Duration::ZERO),
        constraints: from_constraints(&task.constraints),
        affinities: from_affinities(&task.affinities),
    }
}

fn from_stage(stage: job::Lifecycle) -> Option<Lifecycle> {
    let (hook, sidecar) = match stage {
        job::Lifecycle::Main => return None,
        job::Lifecycle::Prestart => (Hook::Prestart, None),
        job::Lifecycle::PrestartSidecar => (Hook::Prestart, Some(true)),
        job::Lifecycle::Poststart => (Hook::Poststart, None),
        job::Lifecycle::PoststartSidecar => (Hook::Poststart, Some(true)),
        job::Lifecycle::Poststop => (Hook::Poststop, None),
    };
    Some(Lifecycle { hook: Some(hook), sidecar })
}

fn from_dependency(dependency: &job::Dependency) -> Dependency {
    let condition = (dependency.condition != DependencyCondition::Started).then_some(dependency.condition);
    Dependency { task: Some(dependency.task.clone()), condition }
}

fn from_action(action: &job::TaskAction) -> Action {
    Action {
        name: Some(action.name.clone()),
        command: Some(action.command.clone()),
        args: from_plain(&action.args),
    }
}

fn from_prestop(prestop: &job::Prestop) -> Prestop {
    Prestop {
        command: Some(prestop.command.clone()),
        args: from_plain(&prestop.args),
        timeout: from_length(prestop.timeout, PRESTOP_TIMEOUT),
    }
}

fn from_mount(mount: &job::VolumeMount) -> VolumeMount {
    VolumeMount {
        volume: Some(mount.volume.clone()),
        destination: Some(mount.destination.clone()),
        read_only: yes(mount.read_only),
        propagation_mode: (!mount.propagation.is_private()).then_some(mount.propagation),
    }
}

fn from_artifact(artifact: &job::Artifact) -> Artifact {
    Artifact {
        source: Some(Text(artifact.source.clone())),
        options: texts(&artifact.options),
        headers: texts(&artifact.headers),
        mode: (artifact.mode != ArtifactMode::Any).then_some(artifact.mode),
        insecure: yes(artifact.insecure),
        destination: unless(&artifact.destination, ARTIFACT_DESTINATION).map(Text),
        chown: yes(artifact.chown),
    }
}

fn from_logs(logs: &job::Logs) -> Option<Logs> {
    unless_empty(Logs {
        max_files: (logs.max_files != LOGS.max_files).then_some(logs.max_files),
        max_file_size: (logs.max_file_size_mib != LOGS.max_file_size_mib).then_some(logs.max_file_size_mib),
        disabled: yes(logs.disabled),
        mode: (logs.mode != LOGS.mode).then_some(logs.mode),
    })
}
