//! Manifests with all defaults written out.

use std_alloc::{borrow::ToOwned, format, vec::Vec};

use super::{
    Affinity, Check, Constraint, Dependency, EphemeralDisk, GroupSpec, Identity, JobManifest, Logs, Prestop,
    Reschedule, Restart, Service, Span, Spread, TaskSpec, Update, VolumeManifest, VolumeMount, VolumeRequest,
    constraint::{OperatorName, WEIGHT},
    defaults::{DEFAULT_NAMESPACE, MKDIR_MODE},
    service::Protocol,
};
use crate::{
    job::{
        AddressMode, ChangeMode, CheckKind, DependencyCondition, Group, Job, Provider, RestartPolicy, Task,
    },
    volume::{Volume, VolumeKind},
};

impl JobManifest {
    /// The complete document for this job. Values without a representation (no limit, a service without a port) stay
    /// absent.
    pub fn whole(job: &Job) -> Self {
        let mut manifest = Self::from_job(job);
        manifest.metadata.namespace.get_or_insert_with(|| DEFAULT_NAMESPACE.to_owned());
        let spec = &mut manifest.spec;
        spec.name.get_or_insert_with(|| job.name.clone());
        spec.priority.get_or_insert(job.priority);
        spec.region.get_or_insert_with(|| job.region.clone());
        spec.datacenters.get_or_insert_with(|| job.datacenters.clone());
        spec.node_pool.get_or_insert_with(|| job.node_pool.clone());
        fill_placement(&mut spec.constraints, &mut spec.affinities);
        fill_spreads(&mut spec.spreads);
        if let (Some(written), Some(parameterized)) = (&mut spec.parameterized, &job.parameterized) {
            written.payload.get_or_insert(parameterized.payload);
        }
        if let (Some(written), Some(periodic)) = (&mut spec.periodic, &job.periodic) {
            written.time_zone.get_or_insert_with(|| periodic.time_zone.clone());
            written.prohibit_overlap.get_or_insert(periodic.prohibit_overlap);
            written.enabled.get_or_insert(periodic.enabled);
        }
        for (written, group) in spec.groups.iter_mut().flatten().zip(&job.groups) {
            fill_group(written, group, job);
        }
        manifest
    }
}

impl VolumeManifest {
    /// The complete document for this volume.
    pub fn whole(volume: &Volume) -> Self {
        let mut manifest = Self::from_volume(volume);
        manifest.spec.read_only.get_or_insert(volume.read_only);
        if let VolumeKind::Mkdir { .. } = &volume.kind {
            let parameters = manifest.spec.parameters.get_or_insert_default();
            parameters.mode.get_or_insert_with(|| super::Text(format!("{MKDIR_MODE:04o}")));
        }
        manifest
    }
}

fn fill_group(written: &mut GroupSpec, group: &Group, job: &Job) {
    written.count.get_or_insert(group.count);
    for dependency in written.depends_on.iter_mut().flatten() {
        dependency.condition.get_or_insert(DependencyCondition::Healthy);
    }
    if let (Some(written), Some(scaling)) = (&mut written.scaling, &group.scaling) {
        written.enabled.get_or_insert(scaling.enabled);
        written.min.get_or_insert(scaling.min);
    }
    fill_placement(&mut written.constraints, &mut written.affinities);
    fill_spreads(&mut written.spreads);
    if let (Some(written), Some(update)) = (&mut written.update, &group.update) {
        fill_update(written, update);
    }
    // The group's policy applies to every task without its own.
    let policy =
        written.restart.clone().unwrap_or_default().fields.over(&super::defaults::default_restart(job.kind));
    written.restart = Some(restart(&policy).into());
    let reschedule = &group.reschedule;
    written.reschedule = Some(Reschedule {
        attempts: Some(reschedule.attempts),
        interval: Some(Span(reschedule.interval)),
        delay: Some(Span(reschedule.delay)),
        delay_function: Some(reschedule.delay_function),
        max_delay: Some(Span(reschedule.max_delay)),
        unlimited: Some(reschedule.unlimited),
    });
    for request in written.volumes.iter_mut().flatten().map(|(_, request)| request) {
        fill_request(request);
    }
    fill_services(written.services.as_deref_mut(), &group.services);
    written.shutdown_delay.get_or_insert(Span(group.shutdown_delay));
    written.ephemeral_disk = Some(EphemeralDisk {
        size: Some(group.disk_mib),
        sticky: Some(group.kept_disk.sticky),
        migrate: Some(group.kept_disk.migrate),
    });
    for (written, task) in written.tasks.iter_mut().flatten().zip(&group.tasks) {
        fill_task(written, task);
    }
}

fn fill_placement(constraints: &mut Option<Vec<Constraint>>, affinities: &mut Option<Vec<Affinity>>) {
    for constraint in constraints.iter_mut().flatten() {
        constraint.operator.get_or_insert(OperatorName::Equal);
    }
    for affinity in affinities.iter_mut().flatten() {
        affinity.operator.get_or_insert(OperatorName::Equal);
        affinity.weight.get_or_insert(WEIGHT);
    }
}

fn fill_spreads(spreads: &mut Option<Vec<Spread>>) {
    for spread in spreads.iter_mut().flatten() {
        spread.weight.get_or_insert(WEIGHT);
        spread.targets.iter_mut().flatten().for_each(|target| {
            target.percent.get_or_insert_default();
        });
    }
}

fn fill_update(written: &mut Update, update: &crate::job::Update) {
    *written = Update {
        max_parallel: Some(update.max_parallel),
        min_healthy_time: Some(Span(update.min_healthy_time)),
        healthy_deadline: Some(Span(update.healthy_deadline)),
        progress_deadline: Some(Span(update.progress_deadline)),
        health_check: Some(update.health_check),
        auto_revert: Some(update.auto_revert),
        auto_promote: Some(update.auto_promote),
        canary: Some(update.canary),
        stagger: Some(Span(update.stagger)),
    };
}

fn restart(policy: &RestartPolicy) -> Restart {
    Restart {
        attempts: Some(policy.attempts),
        interval: Some(Span(policy.interval)),
        delay: Some(Span(policy.delay)),
        mode: Some(policy.mode),
        render_templates: Some(policy.render_templates),
    }
}

fn fill_request(request: &mut VolumeRequest) {
    request.read_only.get_or_insert(false);
    request.per_alloc.get_or_insert(false);
}

fn fill_services(written: Option<&mut [Service]>, services: &[crate::job::Service]) {
    for (written, service) in written.into_iter().flatten().zip(services) {
        written.name.get_or_insert_with(|| service.name.clone());
        written.provider.get_or_insert(Provider::Nomad);
        written.address_mode.get_or_insert(AddressMode::Auto);
        if let (Some(written), Some(identity)) = (&mut written.identity, &service.identity) {
            written.name = Some(identity.name.clone());
            fill_identity(written);
        }
        for (written, check) in written.checks.iter_mut().flatten().zip(&service.checks) {
            fill_check(written, check);
        }
    }
}

fn fill_check(written: &mut Check, check: &crate::job::Check) {
    written.name.get_or_insert_with(|| check.name.clone());
    written.on_update.get_or_insert(check.on_update);
    match &check.kind {
        CheckKind::Http { method, .. } => {
            written.method.get_or_insert_with(|| method.clone());
            written.protocol.get_or_insert(Protocol::Http);
            written.tls_skip_verify.get_or_insert(false);
        }
        CheckKind::Grpc { .. } => {
            written.grpc_use_tls.get_or_insert(false);
            written.tls_skip_verify.get_or_insert(false);
        }
        CheckKind::Script { task, .. } => {
            written.task.get_or_insert_with(|| task.clone());
        }
        CheckKind::Tcp => {}
    }
    if let (Some(written), Some(restart)) = (&mut written.check_restart, &check.check_restart) {
        written.grace.get_or_insert(Span(restart.grace));
        written.ignore_warnings.get_or_insert(false);
    }
}

fn fill_task(written: &mut TaskSpec, task: &Task) {
    written.leader.get_or_insert(task.leader);
    fill_placement(&mut written.constraints, &mut written.affinities);
    if let Some(lifecycle) = &mut written.lifecycle {
        lifecycle.sidecar.get_or_insert(false);
    }
    for dependency in written.depends_on.iter_mut().flatten() {
        fill_dependency(dependency);
    }
    if let (Some(written), Some(prestop)) = (&mut written.prestop, &task.prestop) {
        fill_prestop(written, prestop);
    }
    fill_services(written.services.as_deref_mut(), &task.services);
    for mount in written.volume_mounts.iter_mut().flatten() {
        fill_mount(mount);
    }
    for artifact in written.artifacts.iter_mut().flatten() {
        artifact.mode.get_or_insert_default();
        artifact.insecure.get_or_insert(false);
        artifact.destination.get_or_insert_with(|| super::defaults::ARTIFACT_DESTINATION.into());
        artifact.chown.get_or_insert(false);
    }
    for (written, template) in written.templates.iter_mut().flatten().zip(&task.templates) {
        written.fill(template);
    }
    for identity in written.identities.iter_mut().flatten() {
        fill_identity(identity);
    }
    if let (Some(written), Some(access)) = (&mut written.vault, &task.vault) {
        written.fill(access);
    }
    if let (Some(written), Some(access)) = (&mut written.consul, &task.consul) {
        written.fill(access);
    }
    if let (Some(written), Some(plugin)) = (&mut written.csi_plugin, &task.csi_plugin) {
        written.fill(plugin);
    }
    written.logs = Some(Logs {
        max_files: Some(task.logs.max_files),
        max_file_size: Some(task.logs.max_file_size_mib),
        disabled: Some(task.logs.disabled),
        mode: Some(task.logs.mode),
    });
    written.kill_timeout.get_or_insert(Span(task.kill_timeout));
    written.shutdown_delay.get_or_insert(Span(task.shutdown_delay));
}

fn fill_dependency(dependency: &mut Dependency) {
    dependency.condition.get_or_insert(DependencyCondition::Started);
}

fn fill_prestop(written: &mut Prestop, prestop: &crate::job::Prestop) {
    written.timeout.get_or_insert(Span(prestop.timeout));
}

fn fill_mount(mount: &mut VolumeMount) {
    mount.read_only.get_or_insert(false);
    mount.propagation_mode.get_or_insert_default();
}

fn fill_identity(identity: &mut Identity) {
    identity.name.get_or_insert_with(|| super::defaults::DEFAULT_IDENTITY.to_owned());
    identity.env.get_or_insert(false);
    identity.file.get_or_insert(false);
    identity.change_mode.get_or_insert(ChangeMode::Noop);
}
