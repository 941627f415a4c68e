//! Groups that wait for other groups and jobs.

use herdlet_api_types::{
    JobKey,
    job::{DependencyCondition, Group, GroupDependency, Job, JobType},
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

/// With the name of the waiting job before that of the other one, the old version's allocations met the condition.
#[test]
fn allocations_of_an_older_version_do_not_meet_a_condition() {
    use DependencyCondition::{Completed, Healthy};
    for (waiting, other, kind, condition) in [
        ("a", "z", JobType::Batch, Completed),
        ("z", "a", JobType::Batch, Completed),
        ("a", "z", JobType::Service, Healthy),
        ("z", "a", JobType::Service, Healthy),
    ] {
        let mut bench = Bench::new();
        let mut migrate = Job { kind, ..job_with(other, &[("g", Vec::new())]) };
        bench.apply(vec![migrate.clone()], Vec::new());
        bench.settle();
        let end = |bench: &mut Bench| {
            let runs = bench.world.allocs.iter().filter(|(_, entry)| &*entry.spec.job_key.id == other);
            let alloc = runs.map(|(id, entry)| (entry.spec.job_version, id)).max().map(|(_, id)| id).unwrap();
            let (task, result) = ("main".to_string(), crate::fixture::exit(0));
            bench.see(Event::Exited { alloc, task, attempt: 1, result });
        };
        if kind == JobType::Batch {
            end(&mut bench);
            bench.settle();
        }
        migrate.groups[0].tasks[0].env.insert("RELEASE".to_string(), "2".to_string());
        let web = job_with(waiting, &[("g", vec![on(Some(other), None, condition)])]);
        let name = std_alloc::format!("{waiting}.g[0]");
        bench.apply(vec![migrate, web], Vec::new());
        assert!(!groups_of(&bench).contains(&name), "{waiting} waits for {other} to be {condition:?}");
        bench.settle();
        if kind == JobType::Batch {
            assert!(!groups_of(&bench).contains(&name), "{waiting} waits for {other} to be {condition:?}");
            end(&mut bench);
            bench.settle();
        }
        assert!(groups_of(&bench).contains(&name), "{waiting} after {other}");
    }
}

/// The jobs waited for each other for ever, and each message named only the next one.
#[test]
fn jobs_that_wait_for_each_other_are_named() {
    let mut bench = Bench::new();
    let after = |id: &str| vec![on(Some(id), None, DependencyCondition::Healthy)];
    let jobs: Vec<Job> =
        [("a", "b"), ("b", "c"), ("c", "a")].map(|(id, other)| job_with(id, &[("g", after(other))])).into();
    let first = jobs[0].key();
    bench.apply(jobs, Vec::new());
    bench.settle();
    let why = bench.convergence(&first).message;
    assert!(
        why.ends_with(
            "waits for b.g to be healthy, which waits for c.g, which waits for a.g: they never start; remove one depends_on"
        ),
        "{why}"
    );
    assert!(groups_of(&bench).is_empty());
    // One that only waits for them is not part of it.
    let other = job_with("d", &[("g", after("a"))]);
    let key = other.key();
    bench.apply(vec![other], Vec::new());
    bench.settle();
    assert!(bench.convergence(&key).message.ends_with("waits for a.g to be healthy"));
}
