//! Canonical → manifest: the document that a person would write for this job or volume; defaults are left out.
//!
//! Total and exact: reading the manifest again gives an equal job.

use std_alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use super::{
    Affinity, ApiVersion, Artifact, Check, CheckType, Constraint, Dependency, DispatchPayload, EphemeralDisk,
    GroupDependency, GroupSpec, Hook, Identity, JobKind, JobManifest, JobSpec, Lifecycle, Logs, Metadata,
    MkdirParameters, Network, Parameterized, Periodic, Port, Prestop, Reschedule, Resources, Restart,
    Scaling, Service, Signal, Span, Spread, TaskSpec, Template, Text, Ui, UiLink, Update, VolumeKindName,
    VolumeManifest, VolumeMetadata, VolumeMount, VolumePlugin, VolumeRequest, VolumeSpec, VolumeType,
    defaults::{
        ARTIFACT_DESTINATION, CHECK_GRACE, DEFAULT_IDENTITY, DEFAULT_NAMESPACE, DISK_MIB, KILL_TIMEOUT, LOGS,
        MKDIR_MODE, NODE_POOL, PRESTOP_TIMEOUT, PRIORITY, REGION, TIME_ZONE, UPDATE, check_name,
        default_reschedule, default_restart,
    },
    non_empty, non_empty_map,
    resolve::Names,
    service::{CheckRestart, Protocol, Weights},
    texts, unless,
};
use crate::{
    Duration,
    job::{
        self, AddressMode, ArtifactMode, ChangeMode, CheckKind, DependencyCondition, Job, PayloadRule,
        Provider, ReschedulePolicy, RestartPolicy,
    },
    volume::{Volume, VolumeKind},
};

impl JobManifest {
    /// The document that describes this job.
    pub fn from_job(job: &Job) -> Self {
        Self {
            api_version: ApiVersion::V1,
            kind: JobKind::Job,
            metadata: Metadata {
                name: Some(job.id.clone()),
                namespace: unless(&job.namespace, DEFAULT_NAMESPACE),
                labels: texts(&job.labels),
                annotations: None,
            },
            spec: JobSpec {
                kind: Some(job.kind),
                name: unless(&job.name, &job.id),
                stop: yes(job.stop),
                priority: (job.priority != PRIORITY).then_some(job.priority),
                region: unless(&job.region, REGION),
                datacenters: (job.datacenters != ["*"]).then(|| job.datacenters.clone()),
                node_pool: unless(&job.node_pool, NODE_POOL),
                constraints: from_constraints(&job.constraints),
                affinities: from_affinities(&job.affinities),
                spreads: from_spreads(&job.spreads),
                ui: job.ui.as_ref().map(from_ui),
                meta: texts(&job.meta),
                // A child's manifest describes what it runs.
                parameterized: job
                    .parameterized
                    .as_ref()
                    .filter(|_| job.takes_dispatches())
                    .map(from_parameterized),
                periodic: job.periodic.as_ref().map(from_periodic),
                update: None,
                reschedule: None,
                groups: Some(job.groups.iter().map(|group| from_group(group, job)).collect()),
            },
        }
    }
}

impl VolumeManifest {
    /// The document that describes this volume.
    pub fn from_volume(volume: &Volume) -> Self {
        let mut spec = VolumeSpec {
            kind: Some(VolumeType::Host),
            read_only: yes(volume.read_only),
            ..VolumeSpec::default()
        };
        match &volume.kind {
            VolumeKind::HostPath { path } => spec.host_path = Some(path.clone()),
            VolumeKind::Mkdir { mode, uid, gid } => {
                let mode = (*mode != MKDIR_MODE).then(|| Text(format!("{mode:04o}")));
                spec.plugin_id = Some(VolumePlugin::Mkdir);
                spec.parameters = unless_empty(MkdirParameters { mode, uid: *uid, gid: *gid });
            }
        }
        Self {
            api_version: ApiVersion::V1,
            kind: VolumeKindName::Volume,
            metadata: VolumeMetadata { name: Some(volume.name.clone()), ..VolumeMetadata::default() },
            spec,
        }
    }
}

fn from_ui(ui: &job::Ui) -> Ui {
    let text = |text: &str| unless(text, "").map(Text);
    let link = |link: &job::UiLink| UiLink { label: text(&link.label), url: text(&link.url) };
    Ui { description: text(&ui.description), links: non_empty(ui.links.iter().map(link).collect()) }
}

fn from_parameterized(parameterized: &job::Parameterized) -> Parameterized {
    let keys = |keys: &Vec<String>| non_empty(keys.clone());
    Parameterized {
        payload: (parameterized.payload != PayloadRule::default()).then_some(parameterized.payload),
        meta_required: keys(&parameterized.meta_required),
        meta_optional: keys(&parameterized.meta_optional),
    }
}

fn from_periodic(periodic: &job::Periodic) -> Periodic {
    let (cron, crons) = match periodic.crons.as_slice() {
        [one] => (Some(one.clone()), None),
        several => (None, Some(several.to_vec())),
    };
    Periodic {
        cron,
        crons,
        time_zone: unless(&periodic.time_zone, TIME_ZONE),
        prohibit_overlap: yes(periodic.prohibit_overlap),
        enabled: (!periodic.enabled).then_some(false),
    }
}

fn from_group(group: &job::Group, job: &Job) -> GroupSpec {
    let default = default_restart(job.kind);
    // A policy that all tasks share was most likely written for the group.
    let shared = match group.tasks.split_first() {
        Some((first, rest)) if rest.iter().all(|task| task.restart == first.restart) => &first.restart,
        Some(_) | None => &default,
    };
    let names = Names { job: &job.name, group: &group.name, task: None };
    let tasks =
        group.tasks.iter().map(|task| from_task(task, &Names { task: Some(&task.name), ..names }, shared));
    GroupSpec {
        name: Some(group.name.clone()),
        count: (group.count != 1 || group.scaling.is_some()).then_some(group.count),
        scaling: group.scaling.as_ref().map(|scaling| from_scaling(scaling, group.count)),
        update: group.update.as_ref().map(from_update),
        depends_on: non_empty(group.depends_on.iter().map(from_group_dependency).collect()),
        restart: from_restart(shared, &default).map(Into::into),
        reschedule: from_reschedule(&group.reschedule, &default_reschedule(job.kind)),
        network: group.network.as_ref().map(|network| from_ports(&network.ports)),
        volumes: non_empty_map(
            group.volumes.iter().map(|(name, volume)| (name.clone(), from_request(volume))).collect(),
        ),
        services: from_services(&group.services, &names),
        tasks: Some(tasks.collect()),
        shutdown_delay: from_length(group.shutdown_delay, Duration::ZERO),
        max_run_duration: group.max_run_duration.map(Span),
        meta: texts(&group.meta),
        constraints: from_constraints(&group.constraints),
        affinities: from_affinities(&group.affinities),
        spreads: from_spreads(&group.spreads),
        ephemeral_disk: unless_empty(EphemeralDisk {
            size: (group.disk_mib != DISK_MIB).then_some(group.disk_mib),
            sticky: yes(group.kept_disk.sticky),
            migrate: yes(group.kept_disk.migrate),
        }),
    }
}

fn from_scaling(scaling: &job::Scaling, count: u32) -> Scaling {
    Scaling {
        enabled: (!scaling.enabled).then_some(false),
        min: (scaling.min != count).then_some(scaling.min),
        max: Some(scaling.max),
        policy: scaling.policy.as_ref().and_then(|policy| policy.as_object().cloned()),
    }
}

fn from_constraints(constraints: &[crate::constraint::Constraint]) -> Option<Vec<Constraint>> {
    non_empty(constraints.iter().map(Constraint::from_constraint).collect())
}

fn from_affinities(affinities: &[crate::constraint::Affinity]) -> Option<Vec<Affinity>> {
    non_empty(affinities.iter().map(Affinity::from_affinity).collect())
}

fn from_spreads(spreads: &[crate::constraint::Spread]) -> Option<Vec<Spread>> {
    non_empty(spreads.iter().map(Spread::from_spread).collect())
}

fn from_update(update: &job::Update) -> Update {
    let flag = |value: bool, default: bool| (value != default).then_some(value);
    Update {
        max_parallel: Some(update.max_parallel),
        min_healthy_time: from_length(update.min_healthy_time, UPDATE.min_healthy_time),
        healthy_deadline: from_length(update.healthy_deadline, UPDATE.healthy_deadline),
        progress_deadline: from_length(update.progress_deadline, UPDATE.progress_deadline),
        health_check: (update.health_check != UPDATE.health_check).then_some(update.health_check),
        auto_revert: flag(update.auto_revert, UPDATE.auto_revert),
        auto_promote: flag(update.auto_promote, UPDATE.auto_promote),
        canary: (update.canary != UPDATE.canary).then_some(update.canary),
        stagger: from_length(update.stagger, UPDATE.stagger),
    }
}

fn from_group_dependency(one: &job::GroupDependency) -> GroupDependency {
    GroupDependency { job: one.job.clone(), group: one.group.clone(), condition: Some(one.condition) }
}

fn from_restart(policy: &RestartPolicy, outer: &RestartPolicy) -> Option<Restart> {
    unless_empty(Restart {
        attempts: (policy.attempts != outer.attempts).then_some(policy.attempts),
        interval: from_length(policy.interval, outer.interval),
        delay: from_length(policy.delay, outer.delay),
        mode: (policy.mode != outer.mode).then_some(policy.mode),
        render_templates: (policy.render_templates != outer.render_templates).then_some(policy.render_templates),
    })
}

fn from_reschedule(policy: &ReschedulePolicy, default: &ReschedulePolicy) -> Option<Reschedule> {
    if *policy == ReschedulePolicy::default() {
        return None;
    }
    let is_meant = default.unlimited && policy.attempts == 0;
    let unlimited = (policy.unlimited != is_meant).then_some(policy.unlimited);
    let attempts = if unlimited == Some(true) { 0 } else { default.attempts };
    Some(Reschedule {
        attempts: (policy.attempts != attempts).then_some(policy.attempts),
        interval: from_length(policy.interval, default.interval),
        delay: from_length(policy.delay, default.delay),
        delay_function: (policy.delay_function != default.delay_function).then_some(policy.delay_function),
        max_delay: from_length(policy.max_delay, default.max_delay),
        unlimited,
    })
}

fn from_ports(ports: &BTreeMap<String, job::PortRequest>) -> Network {
    let ports = ports.iter();
    let ports = ports.map(|(label, port)| (label.clone(), Port { fixed: port.fixed, to: port.to }));
    Network { mode: None, ports: Some(ports.collect()) }
}

fn from_request(request: &job::VolumeRequest) -> VolumeRequest {
    VolumeRequest {
        kind: Some(VolumeType::Host),
        source: Some(request.source.clone()),
        read_only: yes(request.read_only),
        per_alloc: yes(request.per_alloc),
    }
}

fn from_task(task: &job::Task, names: &Names<'_>, restart: &RestartPolicy) -> TaskSpec {
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
        restart: from_restart(&task.restart, restart).map(Into::into),
        services: from_services(&task.services, names),
        volume_mounts: non_empty(task.volume_mounts.iter().map(from_mount).collect()),
        artifacts: non_empty(task.artifacts.iter().map(from_artifact).collect()),
        templates: non_empty(task.templates.iter().map(Template::of).collect()),
        dispatch_payload: task
            .dispatch_payload
            .as_ref()
            .map(|file| DispatchPayload { file: Some(file.clone()) }),
        identities: non_empty(task.identities.iter().map(from_identity).collect()),
        resources: unless_empty(Resources {
            cpu: task.resources.cpu_mhz,
            memory: task.resources.memory_mib,
            memory_max: Some(task.resources.memory_max_mb()).filter(|most| *most != 0),
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

fn from_identity(identity: &job::Identity) -> Identity {
    Identity {
        name: unless(&identity.name, DEFAULT_IDENTITY),
        aud: non_empty(identity.aud.clone()),
        ttl: identity.ttl.map(Span),
        env: yes(identity.env),
        file: yes(identity.file),
        filepath: identity.filepath.clone(),
        change_mode: (identity.change_mode != ChangeMode::Noop).then_some(identity.change_mode),
        change_signal: identity.change_signal.clone().map(Signal),
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

fn from_services(services: &[job::Service], names: &Names<'_>) -> Option<Vec<Service>> {
    non_empty(services.iter().map(|service| from_service(service, names)).collect())
}

fn from_service(service: &job::Service, names: &Names<'_>) -> Service {
    Service {
        name: unless(&service.name, &names.service(None)),
        provider: (service.provider != Provider::Nomad).then_some(service.provider),
        port: service.port.clone().map(Text),
        address: service.address.clone(),
        address_mode: (service.address_mode != AddressMode::Auto).then_some(service.address_mode),
        tags: from_plain(&service.tags),
        canary_tags: from_plain(&service.canary_tags),
        meta: texts(&service.meta),
        canary_meta: texts(&service.canary_meta),
        tagged_addresses: texts(&service.tagged_addresses),
        enable_tag_override: yes(service.enable_tag_override),
        weights: from_weights(service.weights),
        checks: non_empty(
            service.checks.iter().map(|check| from_check(check, &service.name, names.task)).collect(),
        ),
        task: service.task.clone(),
        // The checks have these settings.
        on_update: None,
        check_restart: None,
    }
}

fn from_weights(weights: job::Weights) -> Option<Weights> {
    let default = job::Weights::default();
    unless_empty(Weights {
        passing: (weights.passing != default.passing).then_some(weights.passing),
        warning: (weights.warning != default.warning).then_some(weights.warning),
    })
}

/// `of_task` is the service's task.
fn from_check(check: &job::Check, service: &str, of_task: Option<&str>) -> Check {
    let times = |number: u32| (number != 0).then_some(number);
    let thresholds = check.thresholds;
    let mut spec = Check {
        name: unless(&check.name, &check_name(service)),
        port: check.port.clone().map(Text),
        address_mode: check.address_mode,
        interval: Some(Span(check.interval)),
        timeout: Some(Span(check.timeout)),
        initial_status: check.initial_status,
        success_before_passing: times(thresholds.success_before_passing),
        failures_before_critical: times(thresholds.failures_before_critical),
        failures_before_warning: times(thresholds.failures_before_warning),
        on_update: (!check.on_update.is_default()).then_some(check.on_update),
        check_restart: check.check_restart.map(|restart| CheckRestart {
            limit: Some(restart.limit),
            grace: from_length(restart.grace, CHECK_GRACE),
            ignore_warnings: yes(restart.ignore_warnings),
        }),
        notes: unless(&check.notes, ""),
        ..Check::default()
    };
    match &check.kind {
        CheckKind::Tcp => spec.kind = Some(CheckType::Tcp),
        CheckKind::Http { path, method, protocol, header, body, tls_skip_verify, tls_server_name } => {
            spec.kind = Some(CheckType::Http);
            spec.path = Some(path.clone());
            spec.method = unless(method, "GET");
            spec.protocol = (protocol == "https").then_some(Protocol::Https);
            spec.header = from_header(header);
            spec.body = unless(body, "").map(Text);
            spec.tls_skip_verify = yes(*tls_skip_verify);
            spec.tls_server_name = unless(tls_server_name, "");
        }
        CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => {
            spec.kind = Some(CheckType::Grpc);
            spec.grpc_service = unless(service, "");
            spec.grpc_use_tls = yes(*tls);
            spec.tls_skip_verify = yes(*tls_skip_verify);
            spec.tls_server_name = unless(tls_server_name, "");
        }
        CheckKind::Script { command, args, task } => {
            spec.kind = Some(CheckType::Script);
            spec.command = Some(command.clone());
            spec.args = from_plain(args);
            spec.task = (Some(task.as_str()) != of_task).then(|| task.clone());
        }
    }
    spec
}

fn from_header(header: &BTreeMap<String, Vec<String>>) -> Option<BTreeMap<String, Vec<Text>>> {
    let texts = |values: &[String]| values.iter().cloned().map(Text).collect();
    non_empty_map(header.iter().map(|(field, values)| (field.clone(), texts(values))).collect())
}

fn from_plain(strings: &[String]) -> Option<Vec<Text>> {
    non_empty(strings.iter().cloned().map(Text).collect())
}

fn from_length(length: Duration, default: Duration) -> Option<Span> {
    (length != default).then_some(Span(length))
}

/// A flag; `None` if it is false.
fn yes(flag: bool) -> Option<bool> {
    flag.then_some(true)
}

/// A block; `None` if it is empty.
fn unless_empty<T: Default + PartialEq>(block: T) -> Option<T> {
    (block != T::default()).then_some(block)
}
