//! Which changes of a job its allocations outlive.

use std_alloc::{borrow::ToOwned, vec};

use herdlet_api_types::{
    Duration,
    fixture::{group, job, task},
    job::{JobType, Network, VolumeRequest},
};

use super::*;
use crate::fixture::service;

type Change = fn(&mut Job);

#[test]
fn an_allocation_is_replaced_where_its_tasks_could_notice() {
    let changes: [(&str, Change, bool); 17] = [
        ("nothing", |_| {}, true),
        ("priority", |job| job.priority = 80, true),
        ("datacenters", |job| job.datacenters.clear(), true),
        ("labels", |job| drop(job.labels.insert("team".to_owned(), "a".to_owned())), true),
        ("count", |job| job.groups[0].count = 7, true),
        ("another group", |job| job.groups.push(group("other", 1, vec![task("b")])), true),
        ("kind", |job| job.kind = JobType::Batch, false),
        ("name", |job| job.name.push('2'), false),
        ("region", |job| job.region.push('2'), false),
        ("meta", |job| drop(job.meta.insert("a".to_owned(), "b".to_owned())), false),
        ("network", |job| job.groups[0].network = Some(Network { ports: BTreeMap::new() }), false),
        (
            "volumes",
            |job| {
                let request = VolumeRequest { source: "data".to_owned(), read_only: false, per_alloc: false };
                job.groups[0].volumes.insert("data".to_owned(), request);
            },
            false,
        ),
        ("services", |job| job.groups[0].services.push(service("web")), false),
        ("tasks", |job| job.groups[0].tasks[0].leader = true, false),
        ("shutdown_delay", |job| job.groups[0].shutdown_delay = Duration::from_secs(1), false),
        ("group meta", |job| drop(job.groups[0].meta.insert("a".to_owned(), "b".to_owned())), false),
        ("disk", |job| job.groups[0].disk_mib += 1, false),
    ];
    let old = job("j", JobType::Service, vec![group("g", 1, vec![task("a")])]);
    for (name, change, same) in changes {
        let mut new = old.clone();
        change(&mut new);
        assert_eq!(same_work(&old, &new, "g"), same, "{name}");
    }
    assert!(!same_work(&old, &old, "other"), "a group that neither has");
}
