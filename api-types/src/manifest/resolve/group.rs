//! Resolves a group.
//!
//! In: the group's block and the settings of its job ([`Outer`]). Out: a [`Group`] with all defaults.

use super::{
    length,
    names::Names,
    plain,
    service::to_services,
    task::{OfGroup, to_task},
    to_affinities, to_constraints, to_spreads,
};
use crate::{
    Duration,
    job::{
        self, DependencyCondition, Dns, Group, JobType, Network, PortRequest, ReschedulePolicy, VolumeRequest,
    },
    manifest::{
        self, Dns as DnsSpec, EphemeralDisk, GroupDependency, GroupSpec, Network as NetworkSpec, Reschedule,
        Update, Vault, VolumeRequest as VolumeRequestSpec,
        defaults::{DISK_MIB, UPDATE, default_reschedule, default_restart},
        strings,
    },
};

/// Job-level settings for all groups.
pub(super) struct Outer<'a> {
    pub(super) job: &'a str,
    pub(super) kind: JobType,
    pub(super) update: Option<&'a Update>,
    pub(super) reschedule: Option<&'a Reschedule>,
    pub(super) vault: Option<&'a Vault>,
}

pub(super) fn to_group(spec: &GroupSpec, outer: &Outer<'_>) -> Group {
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
    let of_group = OfGroup {
        restart: &restart,
        vault: spec.vault.as_ref().or(outer.vault),
        consul: spec.consul.as_ref(),
    };
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
        services: to_services(spec.services.as_deref(), spec.consul.as_ref(), &names),
        tasks: spec.tasks.iter().flatten().map(|task| to_task(task, &names, &of_group)).collect(),
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

fn to_kept_disk(spec: &EphemeralDisk) -> job::KeptDisk {
    job::KeptDisk { sticky: spec.sticky.unwrap_or(false), migrate: spec.migrate.unwrap_or(false) }
}

fn to_network(spec: &NetworkSpec) -> Network {
    let ports = || spec.ports.iter().flatten();
    let named = ports().filter_map(|(label, port)| {
        let network = port.host_network.as_ref()?.0.clone();
        let is_named = !network.is_empty() && network != Network::DEFAULT_HOST_NETWORK;
        is_named.then(|| (label.clone(), network))
    });
    Network {
        host_networks: named.collect(),
        ports: ports()
            .map(|(label, port)| (label.clone(), PortRequest { fixed: port.fixed, to: port.to }))
            .collect(),
        mode: to_mode(spec.mode.as_ref()),
        cni_args: strings(spec.cni.as_ref().and_then(|cni| cni.args.as_ref())),
        dns: spec.dns.as_ref().map(to_dns).unwrap_or_default(),
        hostname: spec.hostname.as_ref().map(|name| name.0.clone()).unwrap_or_default(),
    }
}

fn to_dns(spec: &DnsSpec) -> Dns {
    Dns {
        servers: plain(spec.servers.as_deref()),
        searches: plain(spec.searches.as_deref()),
        options: plain(spec.options.as_deref()),
    }
}

fn to_mode(mode: Option<&manifest::NetworkMode>) -> job::NetworkMode {
    match mode {
        None | Some(manifest::NetworkMode::Host) => job::NetworkMode::Host,
        Some(manifest::NetworkMode::Bridge) => job::NetworkMode::Bridge,
        Some(manifest::NetworkMode::None) => job::NetworkMode::None,
        Some(manifest::NetworkMode::Cni(name)) => job::NetworkMode::Cni(name.clone()),
    }
}

fn to_request(spec: &VolumeRequestSpec) -> VolumeRequest {
    VolumeRequest {
        source: spec.source.clone().unwrap_or_default(),
        read_only: spec.read_only.unwrap_or(false),
        per_alloc: spec.per_alloc.unwrap_or(false),
    }
}

fn to_group_dependency(spec: &GroupDependency) -> job::GroupDependency {
    job::GroupDependency {
        job: spec.job.clone(),
        group: spec.group.clone(),
        condition: spec.condition.unwrap_or(DependencyCondition::Healthy),
    }
}
