//! Groups that wait for other groups and jobs.

use herdlet_api_types::{
    JobKey,
    job::{DependencyCondition, Group, GroupDependency, Job},
};
use std_alloc::{
    string::{String, ToString},
    vec,
    vec::Vec,
};

use super::*;

fn on(job: Option<&str>, group: Option<&str>, condition: DependencyCondition) -> GroupDependency {
    GroupDependency { job: job.map(ToString::to_string), group: group.map(ToString::to_string), condition }
}

/// A job with a group `g` for each list of dependencies.
fn job_with(id: &str, groups: &[(&str, Vec<GroupDependency>)]) -> Job {
    let mut job = one_task().remove(0);
    let template = job.groups.remove(0);
    id.clone_into(&mut job.id);
    job.groups = groups
        .iter()
        .map(|(name, on)| Group { name: (*name).to_string(), depends_on: on.clone(), ..template.clone() })
        .collect();
    job
}

fn groups_of(bench: &Bench) -> Vec<String> {
    let mut groups: Vec<String> = bench.world.allocs.iter().map(|(_, entry)| entry.spec.name()).collect();
    groups.sort();
    groups
}

#[test]
fn a_group_is_placed_when_the_groups_before_it_have_started() {
    let mut bench = Bench::new();
    let after = |group: &str| vec![on(None, Some(group), DependencyCondition::Healthy)];
    let job = job_with("shop", &[("web", after("api")), ("api", after("db")), ("db", Vec::new())]);
    let key = job.key();
    bench.apply(vec![job], Vec::new());
    assert_eq!(groups_of(&bench), ["shop.db[0]"]);
    let why = bench.convergence(&key);
    assert_eq!(why.reason, Some(herdlet_api_types::view::Reason::Dependency));
    assert!(why.message.contains("waits for shop."), "{}", why.message);
    bench.settle();
    assert_eq!(groups_of(&bench), ["shop.api[0]", "shop.db[0]", "shop.web[0]"]);
}

#[test]
fn a_job_waits_for_another_one_that_may_come_later() {
    let mut bench = Bench::new();
    let web = job_with("web", &[("g", vec![on(Some("db"), None, DependencyCondition::Started)])]);
    let key = web.key();
    bench.apply(vec![web], Vec::new());
    bench.settle();
    assert!(groups_of(&bench).is_empty());
    let why = bench.convergence(&key).message;
    assert!(why.contains("web.g waits for job db, which is not applied"), "{why}");
    bench.apply(vec![job_with("db", &[("g", Vec::new())])], Vec::new());
    bench.settle();
    assert_eq!(groups_of(&bench), ["db.g[0]", "web.g[0]"]);
    // Its successor does not wait, and neither does what runs.
    bench.ask(Command::Stop { job: JobKey { id: "db".into(), ..key.clone() } });
    bench.settle();
    assert!(groups_of(&bench).contains(&"web.g[0]".to_string()));
}

#[test]
fn dependency_wait_survives_a_restart() {
    let mut bench = Bench::new();
    bench.apply(
        vec![job_with("web", &[("g", vec![on(Some("db"), None, DependencyCondition::Healthy)])])],
        Vec::new(),
    );
    bench.settle();
    bench.restart(at(9));
    bench.settle();
    assert!(groups_of(&bench).is_empty());
    bench.apply(vec![job_with("db", &[("g", Vec::new())])], Vec::new());
    bench.settle();
    assert_eq!(groups_of(&bench), ["db.g[0]", "web.g[0]"]);
}
