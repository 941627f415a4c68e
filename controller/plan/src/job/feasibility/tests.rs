//! Which node a group may run on, and the message where it may not.

use std_alloc::{borrow::ToOwned, vec};

use herdlet_api_types::{constraint::Affinity, fixture, job::JobType};

use super::*;

fn node() -> NodeFacts {
    NodeFacts {
        datacenter: "dc1".to_owned(),
        pool: "default".to_owned(),
        attributes: [("kernel.name".to_owned(), "linux".to_owned())].into(),
        meta: [("rack".to_owned(), "r1".to_owned())].into(),
        ..NodeFacts::default()
    }
}

fn job() -> Job {
    fixture::job("j", JobType::Service, vec![fixture::group("g", 2, vec![fixture::task("t")])])
}

fn constraint(attribute: &str, operator: Operator, value: &str) -> Constraint {
    Constraint { attribute: attribute.to_owned(), operator, value: value.to_owned() }
}

/// Why the group may not run there; empty if it may.
fn refusal(change: impl FnOnce(&mut Job)) -> String {
    let mut job = job();
    change(&mut job);
    check(&job, &job.groups[0], &node()).err().map(|unplaced| unplaced.message).unwrap_or_default()
}

#[test]
fn every_level_has_constraints_that_must_hold() {
    let linux = constraint("${attr.kernel.name}", Operator::Equal, "linux");
    let windows = constraint("${attr.kernel.name}", Operator::Equal, "windows");
    let gpu = constraint("${attr.gpu}", Operator::IsSet, "");
    assert_eq!(refusal(|job| job.constraints.push(linux)), "");
    assert_eq!(
        refusal(|job| job.groups[0].constraints.push(windows)),
        "${attr.kernel.name} is \"linux\" on this node, but must be \"windows\""
    );
    assert_eq!(
        refusal(|job| job.groups[0].tasks[0].constraints.push(gpu)),
        "${attr.gpu} is not set on this node, but must be set (constraint of task t)"
    );
    let consul = constraint("${attr.consul.version}", Operator::Semver, ">= 1.7.0");
    let why = refusal(|job| job.constraints.push(consul));
    assert_eq!(
        why,
        "${attr.consul.version} is not set on this node (no Consul agent has answered; set its address with consul.address or \
         CONSUL_HTTP_ADDR), but must be a version \">= 1.7.0\""
    );
    let both = constraint("${meta.rack}", Operator::NotEqual, "${node.datacenter}");
    assert_eq!(refusal(|job| job.constraints.push(both)), "", "the value may be an attribute too");
}

#[test]
fn datacenters_and_node_pool_are_names_of_the_node() {
    assert_eq!(refusal(|job| job.datacenters = vec!["eu-*".to_owned(), "dc*".to_owned()]), "");
    assert!(refusal(|job| job.datacenters = vec!["eu-*".to_owned()]).contains("datacenter \"dc1\""));
    assert_eq!(refusal(|job| job.node_pool = "all".to_owned()), "");
    assert!(refusal(|job| job.node_pool = "gpu".to_owned()).contains("must be in \"gpu\""));
}

/// A job with three mistakes in its constraints had to be fixed three times, as each time only the first was reported.
#[test]
fn all_unmet_constraints_are_reported_together() {
    let mut job = job();
    let windows = constraint("${attr.kernel.name}", Operator::Equal, "windows");
    job.datacenters = vec!["eu-*".to_owned()];
    job.constraints = vec![windows.clone(), constraint("${meta.rack}", Operator::Equal, "r1")];
    job.groups[0].constraints = vec![windows, constraint("${meta.rack}", Operator::NotEqual, "r1")];
    job.groups[0].tasks[0].constraints.push(constraint("${attr.gpu}", Operator::IsSet, ""));
    let why = check(&job, &job.groups[0], &node()).expect_err("nothing of it holds");
    assert_eq!(
        why.message,
        "this node is in datacenter \"dc1\", but must be in one of: eu-*; change `datacenters` of the job, or `datacenter` in \
         the agent's config; ${attr.kernel.name} is \"linux\" on this node, but must be \"windows\"; \
         ${meta.rack} is \"r1\" on this node, but must not be \"r1\"; \
         ${attr.gpu} is not set on this node, but must be set (constraint of task t)"
    );
    assert_eq!(
        why.filtered_by,
        ["${attr.kernel.name} = windows", "${meta.rack} != r1", "${attr.gpu} is_set"]
    );
    job.groups[0].constraints =
        (0..100).map(|name| constraint("${meta.rack}", Operator::Equal, &format!("x{name}"))).collect();
    let why = check(&job, &job.groups[0], &node()).expect_err("nothing of it holds");
    assert!(why.message.ends_with("must be \"x5\"; and 95 more"), "{}", why.message);
    let hosts = constraint("", Operator::DistinctHosts, "");
    let racks = constraint("${meta.rack}", Operator::DistinctProperty, "2");
    (job.constraints, job.groups[0].constraints) = (vec![hosts], vec![racks]);
    let why = check_distinct(&job, &job.groups[0], 3, 2).expect_err("there are too many");
    assert_eq!(why.filtered_by.len(), 2, "{}", why.message);
}

#[test]
fn distinct_constraints_compare_other_allocations() {
    assert!(!is_distinct(&job(), &job().groups[0]), "the job has no such constraint");
    let may = |change: &dyn Fn(&mut Job), of_job, of_group| {
        let mut job = job();
        change(&mut job);
        assert!(is_distinct(&job, &job.groups[0]));
        check_distinct(&job, &job.groups[0], of_job, of_group).is_ok()
    };
    let hosts = constraint("", Operator::DistinctHosts, "");
    let of_group = |job: &mut Job| job.groups[0].constraints.push(hosts.clone());
    assert!(may(&of_group, 5, 0) && !may(&of_group, 5, 1));
    let system = |job: &mut Job| {
        job.kind = JobType::System;
        job.constraints.push(hosts.clone());
    };
    assert!(may(&system, 1, 0));
    let three = constraint("${meta.rack}", Operator::DistinctProperty, "3");
    let of_job = |job: &mut Job| job.constraints.push(three.clone());
    assert!(may(&of_job, 2, 0) && !may(&of_job, 3, 0));
    let nobody = constraint("${meta.shelf}", Operator::DistinctProperty, "");
    assert!(refusal(|job| job.constraints.push(nobody)).contains("${meta.shelf} is not set"));
}

#[test]
fn affinities_are_scores() {
    let mut job = job();
    assert_eq!(affinity_score(&job, &job.groups[0], &node()), None);
    for (value, weight) in [("linux", 50), ("windows", -25), ("plan9", 25)] {
        let wanted = constraint("${attr.kernel.name}", Operator::Equal, value);
        job.affinities.push(Affinity { wanted, weight });
    }
    assert_eq!(affinity_score(&job, &job.groups[0], &node()), Some(0.5));
}

#[test]
fn node_attributes_resolve_by_name() {
    let node = NodeFacts {
        id: "i".to_owned(),
        name: "n".to_owned(),
        region: "r".to_owned(),
        class: "c".to_owned(),
        ..node()
    };
    for (text, value) in [
        ("${node.unique.id}", Some("i")),
        ("${node.unique.name}", Some("n")),
        ("${node.datacenter}", Some("dc1")),
        ("${node.region}", Some("r")),
        ("${node.class}", Some("c")),
        ("${node.pool}", Some("default")),
        ("${attr.kernel.name}", Some("linux")),
        ("${meta.rack}", Some("r1")),
        ("${meta.shelf}", None),
        ("${node.shelf}", None),
        ("node.class", Some("node.class")),
    ] {
        assert_eq!(node.value_of(text), value, "{text}");
    }
}
