//! Every field of a job: whether an allocation continues after its change.

use herdlet_api_types::{
    Duration,
    constraint::{Affinity, Constraint, Operator, Spread},
    fixture::{self, group, job, scaling, task},
    job::ConsulAccess,
    job::{
        ChangeMode, Dependency, DependencyCondition, Dns, GroupDependency, Identity, JobType, Lifecycle,
        LogMode, MountPropagation, Network, NetworkMode, PortRequest, Prestop, Publish, Service,
        TemplateChange, Ui, VolumeMount, VolumeRequest,
    },
};
use std_alloc::vec;

use super::*;
use crate::fixture::service;

type Change = fn(&mut Job);

fn first(job: &mut Job) -> &mut Task {
    &mut job.groups[0].tasks[0]
}

fn constraint() -> Constraint {
    Constraint { attribute: "${attr.x}".to_owned(), operator: Operator::IsSet, value: String::new() }
}

fn affinity() -> Affinity {
    Affinity { wanted: constraint(), weight: 50 }
}

fn spread() -> Spread {
    Spread { attribute: "${attr.x}".to_owned(), weight: 50, targets: Vec::new() }
}

fn old() -> Job {
    job("j", JobType::Service, vec![group("g", 1, vec![task("a"), task("b")])])
}

/// Which fields require a new allocation when one field of a job changes; empty if it continues.
#[test]
fn each_job_field_changes_in_place_or_replaces() {
    let in_place: [(&str, Change); 31] = [
        ("nothing", |_| {}),
        ("name", |job| job.name.push('2')),
        ("labels", |job| drop(job.labels.insert("team".to_owned(), "a".to_owned()))),
        ("priority", |job| job.priority = 80),
        ("datacenters", |job| job.datacenters.clear()),
        ("node_pool", |job| job.node_pool.push('2')),
        ("constraints", |job| job.constraints.push(constraint())),
        ("group constraints", |job| job.groups[0].constraints.push(constraint())),
        ("task constraints", |job| first(job).constraints.push(constraint())),
        ("another group", |job| job.groups.push(group("other", 1, vec![task("b")]))),
        ("count", |job| job.groups[0].count = 7),
        ("scaling", |job| job.groups[0].scaling = Some(scaling(1, 9))),
        ("ui", |job| job.ui = Some(Ui::default())),
        ("max_run_duration", |job| job.groups[0].max_run_duration = Some(Duration::from_secs(60))),
        ("update", |job| {
            job.groups[0].update = Some(fixture::update());
        }),
        ("group depends_on", |job| {
            let condition = DependencyCondition::Healthy;
            let on = GroupDependency { job: Some("db".to_owned()), group: None, condition };
            job.groups[0].depends_on.push(on);
        }),
        ("services", |job| job.groups[0].services.push(service("web"))),
        ("shutdown_delay", |job| job.groups[0].shutdown_delay = Duration::from_secs(1)),
        ("leader", |job| first(job).leader = true),
        ("depends_on", |job| {
            let condition = DependencyCondition::Started;
            first(job).depends_on.push(Dependency { task: "b".to_owned(), condition });
        }),
        ("prestop", |job| {
            let timeout = Duration::from_secs(1);
            first(job).prestop = Some(Prestop { command: "x".to_owned(), args: Vec::new(), timeout });
        }),
        ("restart", |job| first(job).restart.attempts += 1),
        ("task services", |job| first(job).services.push(service("web"))),
        ("max_files", |job| first(job).logs.max_files += 1),
        ("max_file_size", |job| first(job).logs.max_file_size_mib += 1),
        ("mode", |job| first(job).logs.mode = LogMode::Block),
        ("kill_signal", |job| first(job).kill_signal = Some("SIGTERM".to_owned())),
        ("kill_timeout", |job| first(job).kill_timeout = Duration::from_secs(77)),
        ("task shutdown_delay", |job| first(job).shutdown_delay = Duration::from_secs(1)),
        ("meta that a task has already", |job| {
            for task in &mut job.groups[0].tasks {
                task.meta.insert("k".to_owned(), "v".to_owned());
            }
            job.meta.insert("k".to_owned(), "other".to_owned());
        }),
        ("meta moved from the task to the group", |job| {
            let meta = core::mem::take(&mut first(job).meta);
            job.groups[0].meta = meta;
        }),
    ];
    let replacing: [(&str, Change); 35] = [
        ("services.publish", |job| {
            let publish = Some(Publish { port: 80, host_network: None });
            job.groups[0].services.push(Service { publish, ..service("web") });
        }),
        ("tasks[a].vault", |job| first(job).vault = Some(fixture::vault_access())),
        ("tasks[a].consul", |job| first(job).consul = Some(ConsulAccess::of_cluster("default"))),
        ("spec.type", |job| job.kind = JobType::Batch),
        ("spec.region", |job| job.region.push('2')),
        ("spec.affinities", |job| job.affinities.push(affinity())),
        ("affinities", |job| job.groups[0].affinities.push(affinity())),
        ("spec.spreads", |job| job.spreads.push(spread())),
        ("spreads", |job| job.groups[0].spreads.push(spread())),
        ("tasks[a].affinities", |job| first(job).affinities.push(affinity())),
        ("spec.meta.a", |job| drop(job.meta.insert("a".to_owned(), "b".to_owned()))),
        ("meta.a", |job| drop(job.groups[0].meta.insert("a".to_owned(), "b".to_owned()))),
        ("tasks[a].meta.a", |job| drop(first(job).meta.insert("a".to_owned(), "b".to_owned()))),
        ("network", |job| job.groups[0].network = Some(Network::default())),
        ("network", |job| {
            job.groups[0].network = Some(Network { mode: NetworkMode::Bridge, ..Network::default() })
        }),
        ("network", |job| {
            let dns = Dns { servers: vec!["192.0.2.1".to_owned()], ..Dns::default() };
            job.groups[0].network = Some(Network { dns, ..Network::default() });
        }),
        ("volumes", |job| {
            let request = VolumeRequest { source: "data".to_owned(), read_only: false, per_alloc: false };
            job.groups[0].volumes.insert("data".to_owned(), request);
        }),
        ("ephemeral_disk", |job| job.groups[0].disk_mib += 1),
        ("ephemeral_disk", |job| job.groups[0].kept_disk.sticky = true),
        ("tasks[c]", |job| job.groups[0].tasks.push(task("c"))),
        ("tasks[b]", |job| drop(job.groups[0].tasks.pop())),
        ("tasks", |job| job.groups[0].tasks.reverse()),
        ("tasks[a].driver", |job| first(job).driver.push('2')),
        ("tasks[a].user", |job| first(job).user = Some("www".to_owned())),
        ("tasks[a].config", |job| first(job).config = serde_json::json!({ "command": "other" })),
        ("tasks[a].env", |job| drop(first(job).env.insert("A".to_owned(), "1".to_owned()))),
        ("tasks[a].lifecycle", |job| first(job).lifecycle = Lifecycle::Prestart),
        ("tasks[a].volume_mounts", |job| {
            first(job).volume_mounts.push(VolumeMount {
                volume: "data".to_owned(),
                destination: "local".to_owned(),
                read_only: false,
                propagation: MountPropagation::Private,
            });
        }),
        ("tasks[a].identities", |job| {
            first(job).identities.push(Identity {
                extra_claims: Vec::new(),
                name: "x".to_owned(),
                aud: Vec::new(),
                ttl: None,
                env: false,
                file: false,
                filepath: None,
                change_mode: ChangeMode::Noop,
                change_signal: None,
            });
        }),
        ("tasks[a].templates", |job| first(job).templates.push(fixture::template(TemplateChange::Noop))),
        ("tasks[a].csi_plugin", |job| first(job).csi_plugin = Some(fixture::csi_plugin("disks"))),
        ("tasks[a].resources", |job| first(job).resources.memory_max_mib = Some(1)),
        ("tasks[a].resources.network", |job| {
            let request = PortRequest { fixed: None, to: None };
            let _ = first(job).ports.insert("db".to_owned(), request);
        }),
        ("tasks[a].logs.disabled", |job| first(job).logs.disabled = true),
        ("name", |job| job.groups[0].name.push('2')),
    ];
    for (name, change) in in_place {
        let mut old = old();
        if name.contains("meta") {
            first(&mut old).meta.insert("k".to_owned(), "v".to_owned());
            old.groups[0].tasks[1].meta.insert("k".to_owned(), "v".to_owned());
        }
        let mut new = old.clone();
        change(&mut new);
        assert_eq!(replacing_of(&old, &new), Vec::<String>::new(), "{name}");
    }
    for (path, change) in replacing {
        let (old, mut new) = (old(), old());
        change(&mut new);
        assert!(replacing_of(&old, &new).iter().any(|found| found == path), "{path}");
    }
}

fn replacing_of(old: &Job, new: &Job) -> Vec<String> {
    super::replacing(old, new, "g")
}

#[test]
fn only_the_tasks_that_differ_are_named() {
    let (old, mut new) = (old(), old());
    first(&mut new).env.insert("A".to_owned(), "1".to_owned());
    first(&mut new).kill_timeout = Duration::from_secs(77);
    new.groups[0].tasks[1].user = Some("www".to_owned());
    assert_eq!(replacing_of(&old, &new), ["tasks[a].env", "tasks[b].user"]);
    assert!(!same_work(&old, &new, "g") && same_work(&old, &old, "g"));
}
