//! What somebody may say of a deployment: that its canaries are good, that allocations are healthy or not.

use herdlet_api_types::{
    DeploymentId,
    deployment::{Deployment, DeploymentStatus},
    job::HealthCheck,
};

use super::*;
use crate::world::{allocs::AllocEntry, deployments::PromoteScope};

/// A job with two groups that wait for somebody's word, in this version, with so many canaries.
fn version(number: u64, canary: u32) -> Vec<Job> {
    let mut groups = vec![group("a", 1, vec![task("main")]), group("b", 1, vec![task("main")])];
    for group in &mut groups {
        group.update = Some(herdlet_api_types::job::Update {
            health_check: HealthCheck::Manual,
            canary,
            ..fixture::update()
        });
        group.tasks[0].env.insert("VERSION".to_owned(), std_alloc::format!("{number}"));
    }
    vec![job("j", JobType::Service, groups)]
}

fn deployment(bench: &Bench) -> Deployment {
    let job = bench.world.jobs.values().next().expect("the job");
    Deployment::clone(&job.state.deployment().expect("it has one").deployment)
}

/// The allocations of the deployment, by group.
fn of(bench: &Bench, id: DeploymentId) -> Vec<AllocId> {
    let of_it = |alloc: &AllocEntry| alloc.spec.deployment.is_some_and(|of| of.id == id);
    let mut members: Vec<_> = bench.world.allocs.iter().filter(|(_, alloc)| of_it(alloc)).collect();
    members.sort_by_key(|(_, alloc)| alloc.spec.group.clone());
    members.into_iter().map(|(id, _)| id).collect()
}

fn say(bench: &mut Bench, id: DeploymentId, healthy: Vec<AllocId>, unhealthy: Vec<AllocId>) -> (Reply, u64) {
    let said = bench.ask(Command::SetAllocHealth { id, healthy, unhealthy });
    bench.settle();
    said
}

fn promote(bench: &mut Bench, id: DeploymentId, scope: PromoteScope) -> Reply {
    let (reply, _) = bench.ask(Command::PromoteDeployment { id, scope });
    bench.settle();
    reply
}

/// The first version runs and is stable.
fn stable() -> Bench {
    let mut bench = Bench::new();
    bench.apply(version(0, 0), Vec::new());
    bench.settle();
    let id = deployment(&bench).id;
    let members = of(&bench, id);
    say(&mut bench, id, members, Vec::new());
    assert_eq!(deployment(&bench).status, DeploymentStatus::Successful);
    bench
}

#[test]
fn a_word_on_health_is_a_change_and_is_about_the_deployment_alone() {
    let mut bench = stable();
    let old = of(&bench, deployment(&bench).id);
    bench.apply(version(1, 0), Vec::new());
    bench.settle();
    let id = deployment(&bench).id;
    let new = of(&bench, id);
    let before = bench.world.meta.index;
    let (refused, _) = say(&mut bench, id, vec![old[0]], Vec::new());
    assert!(matches!(refused, Reply::Refused(Refusal::NotFound(_))), "{refused:?}");
    let (refused, _) = say(&mut bench, id, vec![new[0]], vec![new[0]]);
    assert!(matches!(refused, Reply::Refused(Refusal::Conflict(_))), "{refused:?}");
    assert_eq!(bench.world.meta.index, before);
    let (reply, grown) = say(&mut bench, id, vec![new[0]], Vec::new());
    assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
    assert!(grown > 0);
    assert_eq!(deployment(&bench).groups["a"].healthy_allocs, 1);
    assert!(deployment(&bench).modify_index > before);
    say(&mut bench, id, Vec::new(), vec![new[1]]);
    assert_eq!(deployment(&bench).status, DeploymentStatus::Failed);
}

#[test]
fn canaries_are_promoted_by_group_once_all_of_it_are_healthy() {
    let mut bench = stable();
    bench.apply(version(1, 1), Vec::new());
    bench.settle();
    let id = deployment(&bench).id;
    let canaries = of(&bench, id);
    let only = |group: &str| PromoteScope::Groups(vec![group.to_owned()]);
    let refused = promote(&mut bench, id, only("a"));
    let Reply::Refused(Refusal::Conflict(why)) = refused else { panic!("{refused:?}") };
    assert_eq!(why, "task group \"a\" of job \"j\" has 0/1 healthy allocations");
    say(&mut bench, id, vec![canaries[0]], Vec::new());
    let refused = promote(&mut bench, id, PromoteScope::All);
    assert!(matches!(refused, Reply::Refused(Refusal::Conflict(_))), "b has none: {refused:?}");
    let refused = promote(&mut bench, id, only("c"));
    assert!(matches!(refused, Reply::Refused(Refusal::NotFound(_))), "{refused:?}");
    assert!(matches!(promote(&mut bench, id, only("a")), Reply::Accepted { .. }));
    let promoted = |bench: &Bench, group: &str| deployment(bench).groups[group].promoted;
    assert!(promoted(&bench, "a") && !promoted(&bench, "b"));
    let again = promote(&mut bench, id, only("a"));
    let Reply::Refused(Refusal::Conflict(why)) = again else { panic!("{again:?}") };
    assert!(why.contains("has no canaries to promote"), "{why}");
    say(&mut bench, id, vec![canaries[1]], Vec::new());
    promote(&mut bench, id, only("b"));
    assert!(promoted(&bench, "b"));
}
