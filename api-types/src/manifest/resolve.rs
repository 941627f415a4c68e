//! Manifest → canonical: fills in defaults and merges blocks.
//!
//! Total: missing required fields become empty; validation refuses them before. The defaults are Nomad's (job
//! specification, `nomad/structs`), except where the YAML format differs: services go to the built-in catalogue, and
//! absent resources are not limited (see [`super::defaults`]).

use std_alloc::{borrow::ToOwned, collections::BTreeMap, format, string::String, vec, vec::Vec};

use super::{
    Affinity, CheckType, Constraint, Dependency, GroupDependency, GroupSpec, Hook, JobManifest, Lifecycle,
    Reschedule, Restart, Scaling, Span, Spread, TaskSpec, Text, Update, VolumeManifest,
    defaults::{
        ARTIFACT_DESTINATION, CHECK_GRACE, DEFAULT_IDENTITY, DEFAULT_NAMESPACE, DISK_MIB, KILL_TIMEOUT, LOGS,
        MKDIR_MODE, NODE_POOL, PRESTOP_TIMEOUT, PRIORITY, REGION, TIME_ZONE, UPDATE, check_name,
        default_reschedule, default_restart,
    },
    service, strings,
};
use crate::{
    Duration,
    job::{
        self, AddressMode, ChangeMode, Check, CheckKind, CheckRestart, DependencyCondition, Group, Job,
        JobType, Network, PortRequest, Provider, ReschedulePolicy, RestartPolicy, Service, Task, Thresholds,
        VolumeRequest, Weights,
    },
    volume::{Volume, VolumeKind},
};

impl Restart {
    /// Merges these fields over an outer policy.
    pub fn over(&self, outer: &RestartPolicy) -> RestartPolicy {
        RestartPolicy {
            attempts: self.attempts.unwrap_or(outer.attempts),
            interval: length(self.interval, outer.interval),
            delay: length(self.delay, outer.delay),
            mode: self.mode.unwrap_or(outer.mode),
            render_templates: self.render_templates.unwrap_or(outer.render_templates),
        }
    }
}

impl Reschedule {
    /// Merges these fields over an outer policy. Explicit `attempts` above 0 disable an inherited `unlimited`; an
    /// explicit `unlimited: true` resets inherited attempts.
    pub fn over(&self, outer: &ReschedulePolicy) -> ReschedulePolicy {
        let attempts = if self.unlimited == Some(true) { 0 } else { outer.attempts };
        ReschedulePolicy {
            attempts: self.attempts.unwrap_or(attempts),
            interval: length(self.interval, outer.interval),
            delay: length(self.delay, outer.delay),
            delay_function: self.delay_function.unwrap_or(outer.delay_function),
            max_delay: length(self.max_delay, outer.max_delay),
            unlimited: self
                .unlimited
                .unwrap_or(outer.unlimited && self.attempts.is_none_or(|count| count == 0)),
        }
    }
}

impl Update {
    /// Merges these fields over outer rules.
    pub fn over(&self, outer: &job::Update) -> job::Update {
        job::Update {
            max_parallel: self.max_parallel.unwrap_or(outer.max_parallel),
            min_healthy_time: length(self.min_healthy_time, outer.min_healthy_time),
            healthy_deadline: length(self.healthy_deadline, outer.healthy_deadline),
            progress_deadline: length(self.progress_deadline, outer.progress_deadline),
            health_check: self.health_check.unwrap_or(outer.health_check),
            auto_revert: self.auto_revert.unwrap_or(outer.auto_revert),
            auto_promote: self.auto_promote.unwrap_or(outer.auto_promote),
            canary: self.canary.unwrap_or(outer.canary),
            stagger: length(self.stagger, outer.stagger),
        }
    }
}

impl Scaling {
    /// The scaling range for a group with this count.
    pub fn of(&self, count: u32) -> job::Scaling {
        job::Scaling {
            enabled: self.enabled.unwrap_or(true),
            min: self.min.unwrap_or(count),
            max: self.max.unwrap_or_default(),
            policy: self.policy.clone().map(serde_json::Value::Object),
        }
    }
}

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

impl JobManifest {
    /// Converts to a job.
    pub fn to_job(&self) -> Job {
        let spec = &self.spec;
        let id = self.metadata.name.clone().unwrap_or_default();
        let name = spec.name.clone().unwrap_or_else(|| id.clone());
        let outer = Outer {
            job: &name,
            kind: spec.kind.unwrap_or(JobType::Service),
            update: spec.update.as_ref(),
            reschedule: spec.reschedule.as_ref(),
        };
        let groups = spec.groups.iter().flatten().map(|group| to_group(group, &outer)).collect();
        Job {
            namespace: self.metadata.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            labels: strings(self.metadata.labels.as_ref()),
            kind: outer.kind,
            stop: spec.stop.unwrap_or(false),
            priority: spec.priority.unwrap_or(PRIORITY),
            region: spec.region.clone().unwrap_or_else(|| REGION.to_owned()),
            datacenters: spec.datacenters.clone().unwrap_or_else(|| vec!["*".to_owned()]),
            node_pool: spec.node_pool.clone().unwrap_or_else(|| NODE_POOL.to_owned()),
            constraints: to_constraints(spec.constraints.as_deref()),
            affinities: to_affinities(spec.affinities.as_deref()),
            spreads: to_spreads(spec.spreads.as_deref()),
            ui: spec.ui.as_ref().map(to_ui),
            meta: strings(spec.meta.as_ref()),
            parameterized: spec.parameterized.as_ref().map(to_parameterized),
            periodic: spec.periodic.as_ref().map(to_periodic),
            child: None,
            groups,
            name,
            id,
        }
    }
}

impl VolumeManifest {
    /// Converts to a volume.
    pub fn to_volume(&self) -> Volume {
        let spec = &self.spec;
        let parameters = spec.parameters.clone().unwrap_or_default();
        let kind = match &spec.host_path {
            Some(path) => VolumeKind::HostPath { path: path.clone() },
            None => VolumeKind::Mkdir {
                mode: parameters
                    .mode
                    .and_then(|mode| u32::from_str_radix(&mode.0, 8).ok())
                    .unwrap_or(MKDIR_MODE),
                uid: parameters.uid,
                gid: parameters.gid,
            },
        };
        Volume {
            name: self.metadata.name.clone().unwrap_or_default(),
            kind,
            read_only: spec.read_only.unwrap_or(false),
        }
    }
}

/// Job-level settings for all groups.
struct Outer<'a> {
    job: &'a str,
    kind: JobType,
    update: Option<&'a Update>,
    reschedule: Option<&'a Reschedule>,
}

fn to_group(spec: &GroupSpec, outer: &Outer<'_>) -> Group {
    let name = spec.name.clone().unwrap_or_default();
    let update = match (outer.update, &spec.update) {
        (None, None) => None,
        (Some(update), None) | (None, Some(update)) => Some(update.over(&UPDATE)),
        (Some(of_job), Some(of_group)) => Some(of_group.over(&of_job.over(&UPDATE))),
    };
    // As in Nomad, 0 turns roll-outs off.
    let update = update.filter(|update| update.max_parallel > 0);
    let count = spec.count.or(spec.scaling.as_ref().and_then(|scaling| scaling.min)).unwrap_or(1);
    let default = default_reschedule(outer.kind);
    let reschedule = match (outer.reschedule, &spec.reschedule) {
        (None, None) => ReschedulePolicy::default(),
        (Some(policy), None) | (None, Some(policy)) => policy.over(&default),
        (Some(of_job), Some(of_group)) => of_group.over(&of_job.over(&default)),
    };
    let default = default_restart(outer.kind);
    let restart = spec.restart.as_ref().map_or(default.clone(), |written| written.fields.over(&default));
    let names = Names { job: outer.job, group: &name, task: None };
    Group {
        count,
        scaling: spec.scaling.as_ref().map(|scaling| scaling.of(count)),
        reschedule,
        update,
        network: spec.network.as_ref().map(to_network),
        volumes: spec
            .volumes
            .iter()
            .flatten()
            .map(|(name, volume)| (name.clone(), to_request(volume)))
            .collect(),
        services: to_services(spec.services.as_deref(), &names),
        tasks: spec.tasks.iter().flatten().map(|task| to_task(task, &names, &restart)).collect(),
        shutdown_delay: length(spec.shutdown_delay, Duration::ZERO),
        max_run_duration: spec.max_run_duration.map(|longest| longest.0),
        meta: strings(spec.meta.as_ref()),
        disk_mib: spec.ephemeral_disk.as_ref().and_then(|disk| disk.size).unwrap_or(DISK_MIB),
        kept_disk: spec.ephemeral_disk.as_ref().map(to_kept_disk).unwrap_or_default(),
        constraints: to_constraints(spec.constraints.as_deref()),
        affinities: to_affinities(spec.affinities.as_deref()),
        spreads: to_spreads(spec.spreads.as_deref()),
        depends_on: spec.depends_on.iter().flatten().map(to_group_dependency).collect(),
        name,
    }
}

fn to_kept_disk(spec: &super::EphemeralDisk) -> job::KeptDisk {
    job::KeptDisk { sticky: spec.sticky.unwrap_or(false), migrate: spec.migrate.unwrap_or(false) }
}

fn to_ui(spec: &super::Ui) -> job::Ui {
    let text = |text: &Option<Text>| text.clone().unwrap_or_default().0;
    let link = |link: &super::UiLink| job::UiLink { label: text(&link.label), url: text(&link.url) };
    job::Ui { description: text(&spec.description), links: spec.links.iter().flatten().map(link).collect() }
}

fn to_parameterized(spec: &super::Parameterized) -> job::Parameterized {
    job::Parameterized {
        payload: spec.payload.unwrap_or_default(),
        meta_required: spec.meta_required.clone().unwrap_or_default(),
        meta_optional: spec.meta_optional.clone().unwrap_or_default(),
    }
}

fn to_constraints(specs: Option<&[Constraint]>) -> Vec<crate::constraint::Constraint> {
    specs.into_iter().flatten().map(Constraint::to_constraint).collect()
}

fn to_affinities(specs: Option<&[Affinity]>) -> Vec<crate::constraint::Affinity> {
    specs.into_iter().flatten().map(Affinity::to_affinity).collect()
}

fn to_spreads(specs: Option<&[Spread]>) -> Vec<crate::constraint::Spread> {
    specs.into_iter().flatten().map(Spread::to_spread).collect()
}

fn to_periodic(spec: &super::Periodic) -> job::Periodic {
    job::Periodic {
        crons: spec.cron.iter().chain(spec.crons.iter().flatten()).cloned().collect(),
        time_zone: spec.time_zone.clone().unwrap_or_else(|| TIME_ZONE.to_owned()),
        prohibit_overlap: spec.prohibit_overlap.unwrap_or(false),
        enabled: spec.enabled.unwrap_or(true),
    }
}

fn to_network(spec: &super::Network) -> Network {
    let ports = spec.ports.iter().flatten();
    Network {
        ports: ports
            .map(|(label, port)| (label.clone(), PortRequest { fixed: port.fixed, to: port.to }))
            .collect(),
    }
}

/// The ports of a task. As in Nomad, the task listens on the host port.
fn to_task_ports(spec: Option<&super::Resources>) -> BTreeMap<String, PortRequest> {
    let network = spec.and_then(|resources| resources.network.as_ref());
    let ports = network.and_then(|network| network.ports.as_ref()).into_iter().flatten();
    ports.map(|(label, port)| (label.clone(), PortRequest { fixed: port.fixed, to: None })).collect()
}

fn to_request(spec: &super::VolumeRequest) -> VolumeRequest {
    VolumeRequest {
        source: spec.source.clone().unwrap_or_default(),
        read_only: spec.read_only.unwrap_or(false),
        per_alloc: spec.per_alloc.unwrap_or(false),
    }
}

fn to_task(spec: &TaskSpec, group: &Names<'_>, restart: &RestartPolicy) -> Task {
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
        restart: spec.restart.as_ref().map_or(restart.clone(), |written| written.fields.over(restart)),
        services: to_services(spec.services.as_deref(), &names),
        volume_mounts: spec.volume_mounts.iter().flatten().map(to_mount).collect(),
        artifacts: spec.artifacts.iter().flatten().map(to_artifact).collect(),
        templates: spec.templates.iter().flatten().map(super::Template::to_template).collect(),
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

/// Nomad takes names of signals in any case.
fn to_signal(signal: Option<&super::Signal>) -> Option<String> {
    signal.map(|signal| signal.0.to_ascii_uppercase())
}

fn to_dependency(spec: &Dependency) -> job::Dependency {
    job::Dependency {
        task: spec.task.clone().unwrap_or_default(),
        condition: spec.condition.unwrap_or(DependencyCondition::Started),
    }
}

fn to_group_dependency(spec: &GroupDependency) -> job::GroupDependency {
    job::GroupDependency {
        job: spec.job.clone(),
        group: spec.group.clone(),
        condition: spec.condition.unwrap_or(DependencyCondition::Healthy),
    }
}

fn to_prestop(spec: &super::Prestop) -> job::Prestop {
    job::Prestop {
        command: spec.command.clone().unwrap_or_default(),
        args: plain(spec.args.as_deref()),
        timeout: length(spec.timeout, PRESTOP_TIMEOUT),
    }
}

fn to_mount(spec: &super::VolumeMount) -> job::VolumeMount {
    job::VolumeMount {
        volume: spec.volume.clone().unwrap_or_default(),
        destination: spec.destination.clone().unwrap_or_default(),
        read_only: spec.read_only.unwrap_or(false),
    }
}

fn to_artifact(spec: &super::Artifact) -> job::Artifact {
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

fn to_identity(spec: &super::Identity) -> job::Identity {
    let name = spec.name.clone().unwrap_or_else(|| DEFAULT_IDENTITY.to_owned());
    job::Identity {
        // The audience of the default identity is fixed.
        aud: spec.aud.clone().filter(|_| name != DEFAULT_IDENTITY).unwrap_or_default(),
        name,
        ttl: spec.ttl.map(|ttl| ttl.0).filter(|ttl| !ttl.is_zero()),
        env: spec.env.unwrap_or(false),
        file: spec.file.unwrap_or(false),
        filepath: spec.filepath.clone(),
        change_mode: spec.change_mode.unwrap_or(ChangeMode::Noop),
        change_signal: to_signal(spec.change_signal.as_ref()),
    }
}

fn to_resources(spec: &super::Resources) -> job::Resources {
    let memory_max_mib = match spec.memory_max {
        None | Some(0) => None,
        Some(most) => Some(u64::try_from(most).unwrap_or(job::Resources::ALL_MEMORY)),
    };
    job::Resources { cpu_mhz: spec.cpu, memory_mib: spec.memory, memory_max_mib }
}

fn to_logs(spec: &super::Logs) -> job::Logs {
    job::Logs {
        max_files: spec.max_files.unwrap_or(LOGS.max_files),
        max_file_size_mib: spec.max_file_size.unwrap_or(LOGS.max_file_size_mib),
        disabled: spec.disabled.unwrap_or(LOGS.disabled),
        mode: spec.mode.unwrap_or(LOGS.mode),
    }
}

/// The names that a service's name may contain.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    /// The job's name, which is its id unless it has another one.
    pub(super) job: &'a str,
    /// The group's name.
    pub(super) group: &'a str,
    /// The task's name; `None` for a group service.
    pub(super) task: Option<&'a str>,
}

impl Names<'_> {
    /// The task that runs a check's command: the given one, else the service's own.
    fn script_task(&self, written: Option<&str>) -> String {
        written.or(self.task).unwrap_or_default().to_owned()
    }

    /// Replaces the placeholders in a service's name, or returns the default name. Other placeholders (`${NOMAD_…}`)
    /// remain.
    pub(super) fn service(&self, written: Option<&str>) -> String {
        let Self { job, group, task } = self;
        let Some(written) = written else {
            return match task {
                Some(task) => format!("{job}-{group}-{task}"),
                None => format!("{job}-{group}"),
            };
        };
        // Nomad uses "group" as the task name of group services.
        let task = &task.unwrap_or("group");
        let base = format!("{job}-{group}-{task}");
        [
            ("${JOB}", *job),
            ("${TASKGROUP}", group),
            ("${GROUP}", group),
            ("${TASK}", task),
            ("${BASE}", &base),
        ]
        .iter()
        .fold(written.to_owned(), |name, (placeholder, value)| name.replace(placeholder, value))
    }
}

fn to_services(services: Option<&[service::Service]>, names: &Names<'_>) -> Vec<Service> {
    services.into_iter().flatten().map(|service| to_service(service, names)).collect()
}

fn to_service(spec: &service::Service, names: &Names<'_>) -> Service {
    let name = names.service(spec.name.as_deref());
    let weights = spec.weights.clone().unwrap_or_default();
    let default = Weights::default();
    Service {
        provider: spec.provider.unwrap_or(Provider::Nomad),
        port: spec.port.clone().map(|port| port.0),
        address: spec.address.clone(),
        address_mode: spec.address_mode.unwrap_or(AddressMode::Auto),
        tags: plain(spec.tags.as_deref()),
        canary_tags: plain(spec.canary_tags.as_deref()),
        meta: strings(spec.meta.as_ref()),
        canary_meta: strings(spec.canary_meta.as_ref()),
        tagged_addresses: strings(spec.tagged_addresses.as_ref()),
        enable_tag_override: spec.enable_tag_override.unwrap_or(false),
        weights: Weights {
            // As in Nomad, 0 is the default.
            passing: weights.passing.filter(|weight| *weight > 0).unwrap_or(default.passing),
            warning: weights.warning.filter(|weight| *weight > 0).unwrap_or(default.warning),
        },
        task: spec.task.clone().filter(|_| names.task.is_none()),
        checks: spec.checks.iter().flatten().map(|check| to_check(check, spec, &name, names)).collect(),
        name,
    }
}

/// Converts a check; settings of the service apply to each of its checks.
fn to_check(spec: &service::Check, of: &service::Service, service: &str, names: &Names<'_>) -> Check {
    let tls_server_name = || spec.tls_server_name.clone().unwrap_or_default();
    let kind = match spec.kind.unwrap_or_default() {
        CheckType::Tcp => CheckKind::Tcp,
        CheckType::Http => CheckKind::Http {
            path: to_path(spec.path.as_deref().unwrap_or_default()),
            method: spec.method.as_ref().map_or_else(|| "GET".to_owned(), |method| to_method(method)),
            protocol: match spec.protocol.unwrap_or_default() {
                service::Protocol::Http => "http".to_owned(),
                service::Protocol::Https => "https".to_owned(),
            },
            header: to_header(spec.header.as_ref()),
            body: spec.body.clone().unwrap_or_default().0,
            tls_skip_verify: spec.tls_skip_verify.unwrap_or(false),
            tls_server_name: tls_server_name(),
        },
        CheckType::Grpc => CheckKind::Grpc {
            service: spec.grpc_service.clone().unwrap_or_default(),
            tls: spec.grpc_use_tls.unwrap_or(false),
            tls_skip_verify: spec.tls_skip_verify.unwrap_or(false),
            tls_server_name: tls_server_name(),
        },
        CheckType::Script => CheckKind::Script {
            command: spec.command.clone().unwrap_or_default(),
            args: plain(spec.args.as_deref()),
            task: names.script_task(spec.task.as_deref().or(of.task.as_deref())),
        },
    };
    Check {
        name: spec.name.clone().unwrap_or_else(|| check_name(service)),
        kind,
        port: spec.port.clone().map(|port| port.0),
        address_mode: spec.address_mode,
        interval: length(spec.interval, Duration::ZERO),
        timeout: length(spec.timeout, Duration::ZERO),
        initial_status: spec.initial_status,
        thresholds: Thresholds {
            success_before_passing: spec.success_before_passing.unwrap_or(0),
            failures_before_critical: spec.failures_before_critical.unwrap_or(0),
            failures_before_warning: spec.failures_before_warning.unwrap_or(0),
        },
        on_update: spec.on_update.or(of.on_update).unwrap_or_default(),
        check_restart: to_check_restart(of.check_restart.as_ref(), spec.check_restart.as_ref()),
        notes: spec.notes.clone().unwrap_or_default(),
    }
}

/// A path needs no leading `/`, and may begin with a variable.
fn to_path(path: &str) -> String {
    let is_whole = path.is_empty() || path.starts_with('/') || path.starts_with("${");
    if is_whole { path.to_owned() } else { format!("/{path}") }
}

/// Nomad takes the names of methods in any case.
fn to_method(method: &str) -> String {
    if method.contains("${") { method.to_owned() } else { method.to_ascii_uppercase() }
}

/// Each field comes from the check, else from the service.
fn to_check_restart(
    service: Option<&service::CheckRestart>,
    check: Option<&service::CheckRestart>,
) -> Option<CheckRestart> {
    let (outer, inner) = (service.cloned().unwrap_or_default(), check.cloned().unwrap_or_default());
    let limit = inner.limit.or(outer.limit).filter(|limit| *limit > 0)?;
    Some(CheckRestart {
        limit,
        grace: length(inner.grace.or(outer.grace), CHECK_GRACE),
        ignore_warnings: inner.ignore_warnings.or(outer.ignore_warnings).unwrap_or(false),
    })
}

fn to_header(header: Option<&BTreeMap<String, Vec<Text>>>) -> BTreeMap<String, Vec<String>> {
    header.into_iter().flatten().map(|(field, values)| (field.clone(), plain(Some(values)))).collect()
}

fn length(written: Option<Span>, default: Duration) -> Duration {
    written.map_or(default, |span| span.0)
}

fn plain(texts: Option<&[Text]>) -> Vec<String> {
    texts.into_iter().flatten().map(|text| text.0.clone()).collect()
}
