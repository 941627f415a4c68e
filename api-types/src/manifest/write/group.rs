//! Writes a group.
//!
//! In: the group and its job. Out: the block that a person would write, without the defaults.

use super::{
    from_affinities, from_constraints, from_length, from_plain, from_ports, from_restart, from_spreads,
    service::from_services, task::from_task, unless_empty, yes,
};
use crate::{
    Duration,
    job::{self, Job, ReschedulePolicy},
    manifest::{
        Cni, Consul, Dns, EphemeralDisk, GroupDependency, GroupSpec, Network, NetworkMode, Reschedule,
        Scaling, Span, Text, Update, VolumeRequest, VolumeType,
        defaults::{DISK_MIB, UPDATE, default_reschedule, default_restart},
        non_empty, non_empty_map,
        resolve::Names,
        texts,
    },
};

pub(super) fn from_group(group: &job::Group, job: &Job) -> GroupSpec {
    let default = default_restart(job.kind);
    // A policy that all tasks share was most likely written for the group.
    let shared = match group.tasks.split_first() {
        Some((first, rest)) if rest.iter().all(|task| task.restart == first.restart) => &first.restart,
        Some(_) | None => &default,
    };
    let names = Names { job: &job.name, group: &group.name, task: None };
    // Only a block has a namespace, and then each task has the block too.
    let block = group.consul_scope();
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
        network: group.network.as_ref().map(from_network),
        volumes: non_empty_map(
            group.volumes.iter().map(|(name, volume)| (name.clone(), from_request(volume))).collect(),
        ),
        services: from_services(&group.services, block, &names),
        vault: None,
        consul: block.map(Consul::from_access),
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

fn from_network(network: &job::Network) -> Network {
    let mode = match &network.mode {
        job::NetworkMode::Host => None,
        job::NetworkMode::Bridge => Some(NetworkMode::Bridge),
        job::NetworkMode::None => Some(NetworkMode::None),
        job::NetworkMode::Cni(name) => Some(NetworkMode::Cni(name.clone())),
    };
    let cni = unless_empty(Cni { args: texts(&network.cni_args) });
    let job::Dns { servers, searches, options } = &network.dns;
    let dns = unless_empty(Dns {
        servers: from_plain(servers),
        searches: from_plain(searches),
        options: from_plain(options),
    });
    let hostname = (!network.hostname.is_empty()).then(|| Text(network.hostname.clone()));
    let mut written = Network { mode, cni, dns, hostname, ..from_ports(&network.ports) };
    for (label, port) in written.ports.iter_mut().flatten() {
        port.host_network = network.host_networks.get(label).cloned().map(Text);
    }
    written
}

fn from_scaling(scaling: &job::Scaling, count: u32) -> Scaling {
    Scaling {
        enabled: (!scaling.enabled).then_some(false),
        min: (scaling.min != count).then_some(scaling.min),
        max: Some(scaling.max),
        policy: scaling.policy.as_ref().and_then(|policy| policy.as_object().cloned()),
    }
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

fn from_request(request: &job::VolumeRequest) -> VolumeRequest {
    VolumeRequest {
        kind: Some(VolumeType::Host),
        source: Some(request.source.clone()),
        read_only: yes(request.read_only),
        per_alloc: yes(request.per_alloc),
    }
}
