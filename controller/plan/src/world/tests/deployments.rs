//! Requests about a deployment: promote its canaries, mark allocations as healthy or not.

use herdlet_api_types::{
    DeploymentId,
    deployment::{Deployment, DeploymentStatus},
    job::{HealthCheck, Update},
    view::Reason,
};

use std_alloc::string::String;

use super::*;
use crate::{event::PromoteScope, world::allocs::AllocEntry};

/// A job with two groups that wait for a manual health decision, with this version and number of canaries.
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
    Deployment::clone(&job.state.deployment().expect("a deployment").deployment)
}

/// The allocations of the deployment, by group.
fn allocs_of(bench: &Bench, id: DeploymentId) -> Vec<AllocId> {
    let of_it = |alloc: &AllocEntry| alloc.spec.deployment.is_some_and(|of| of.id == id);
    let mut members: Vec<_> = bench.world.allocs.iter().filter(|(_, alloc)| of_it(alloc)).collect();
    members.sort_by_key(|(_, alloc)| alloc.spec.group.clone());
    members.into_iter().map(|(id, _)| id).collect()
}

fn set_health(
    bench: &mut Bench,
    id: DeploymentId,
    healthy: Vec<AllocId>,
    unhealthy: Vec<AllocId>,
) -> (Reply, u64) {
    let reply = bench.ask(Command::SetAllocHealth { id, healthy, unhealthy });
    bench.settle();
    reply
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
    let members = allocs_of(&bench, id);
    set_health(&mut bench, id, members, Vec::new());
    assert_eq!(deployment(&bench).status, DeploymentStatus::Successful);
    bench
}

#[test]
fn set_health_changes_only_the_deployment() {
    let mut bench = stable();
    let old = allocs_of(&bench, deployment(&bench).id);
    bench.apply(version(1, 0), Vec::new());
    bench.settle();
    let id = deployment(&bench).id;
    let new = allocs_of(&bench, id);
    let before = bench.world.meta.index;
    let (refused, _) = set_health(&mut bench, id, vec![old[0]], Vec::new());
    assert!(matches!(refused, Reply::Refused(Refusal::NotFound(_))), "{refused:?}");
    let (refused, _) = set_health(&mut bench, id, vec![new[0]], vec![new[0]]);
    assert!(matches!(refused, Reply::Refused(Refusal::Conflict(_))), "{refused:?}");
    assert_eq!(bench.world.meta.index, before);
    let (reply, grown) = set_health(&mut bench, id, vec![new[0]], Vec::new());
    assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
    assert!(grown > 0);
    assert_eq!(deployment(&bench).groups["a"].healthy_allocs, 1);
    assert!(deployment(&bench).modify_index > before);
    set_health(&mut bench, id, Vec::new(), vec![new[1]]);
    assert_eq!(deployment(&bench).status, DeploymentStatus::Failed);
}

#[test]
fn canaries_are_promoted_by_group_once_all_of_it_are_healthy() {
    let mut bench = stable();
    bench.apply(version(1, 1), Vec::new());
    bench.settle();
    let id = deployment(&bench).id;
    let canaries = allocs_of(&bench, id);
    let only = |group: &str| PromoteScope::Groups(vec![group.to_owned()]);
    let refused = promote(&mut bench, id, only("a"));
    let Reply::Refused(Refusal::Conflict(why)) = refused else { panic!("{refused:?}") };
    assert_eq!(why, "task group \"a\" of job \"j\" has 0/1 healthy allocations");
    set_health(&mut bench, id, vec![canaries[0]], Vec::new());
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
    set_health(&mut bench, id, vec![canaries[1]], Vec::new());
    promote(&mut bench, id, only("b"));
    assert!(promoted(&bench, "b"));
}

/// The same job, with this `update` for its groups.
fn rolling(number: u64, update: Update) -> Vec<Job> {
    let mut jobs = version(number, 0);
    jobs[0].groups.iter_mut().for_each(|group| group.update = Some(update.clone()));
    jobs
}

/// State and reason of the job's verdict, its message, and whether it has a deadline.
fn verdict(bench: &Bench) -> (ConvergenceState, Option<Reason>, String, bool) {
    let known = bench.convergence(&version(0, 0)[0].key());
    let progress_by = bench.world.jobs.values().next().and_then(|job| {
        job.state.deployment().and_then(|known| known.progress_by.get("a").map(|by| (by.wall, by.boot_ns)))
    });
    let overdue_at = known.overdue_at.map(|at| (at.wall, at.boot_ns));
    (known.state, known.reason, known.message, overdue_at.is_some() && overdue_at == progress_by)
}

#[test]
fn a_job_says_what_its_canaries_wait_for() {
    use ConvergenceState::{Failed, Progressing, Waiting};
    let mut bench = stable();
    bench.apply(version(1, 1), Vec::new());
    bench.settle();
    let message = "group a: 0 of 1 canaries are healthy; others wait for a manual health decision";
    assert_eq!(verdict(&bench), (Waiting, Some(Reason::Promotion), message.to_owned(), true));
    let id = deployment(&bench).id;
    let canaries = allocs_of(&bench, id);
    set_health(&mut bench, id, vec![canaries[0]], Vec::new());
    let message = "group a: its canaries are healthy; to promote them: herdlet promote j";
    assert_eq!(verdict(&bench), (Waiting, Some(Reason::Promotion), message.to_owned(), false));
    let mut deleted = stable();
    deleted.apply(version(1, 1), Vec::new());
    deleted.settle();
    deleted.ask(Command::Delete { job: version(1, 1)[0].key() });
    assert_eq!((verdict(&deleted).0, &*verdict(&deleted).2), (Progressing, "is being deleted"));
    set_health(&mut bench, id, Vec::new(), vec![canaries[1]]);
    let (state, reason, message, _) = verdict(&bench);
    assert_eq!((state, reason), (Failed, Some(Reason::Error)));
    assert_eq!(message, deployment(&bench).description);
    // Where checks decide on health, nothing waits for a request.
    let mut bench = stable();
    bench.apply(rolling(1, Update { canary: 1, ..fixture::update() }), Vec::new());
    bench.settle();
    let message = "group a: 0 of 1 canaries are healthy";
    assert_eq!(verdict(&bench), (Progressing, Some(Reason::Health), message.to_owned(), true));
}

/// A user who waits for the job would have given up.
#[test]
fn bad_allocation_fails_the_job_unless_auto_reverted() {
    use ConvergenceState::{Failed, Progressing};
    for (auto_revert, canary) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let mut bench = stable();
        let update = Update { auto_revert, canary, ..fixture::update() };
        bench.apply(rolling(1, update), Vec::new());
        bench.settle();
        let bad = allocs_of(&bench, deployment(&bench).id)[0];
        let entry = bench.world.allocs.get_mut(bad).expect("the allocation");
        entry.state.durable.health = Some(crate::state::Health { healthy: false, at: bench.now.wall });
        entry.verdict.as_mut().expect("a published verdict").message = "it is bad".to_owned();
        let name = if canary > 0 { "j.a[0] (canary)" } else { "j.a[0]" };
        let (state, reason, more) = if auto_revert {
            (Progressing, Reason::Health, "; its deployment will fail and revert the job")
        } else {
            (Failed, Reason::Error, "")
        };
        let message = std_alloc::format!("{name}: it is bad{more}");
        assert_eq!(verdict(&bench), (state, Some(reason), message, auto_revert), "{canary}");
        if !auto_revert && canary == 0 {
            bench.ask(Command::FailDeployment { id: deployment(&bench).id });
            let message = "Deployment marked as failed: j.a[0]: it is bad";
            assert_eq!(verdict(&bench), (state, Some(reason), message.to_owned(), false), "{canary}");
        }
    }
}

#[test]
fn healthy_allocations_end_the_failure_of_a_job() {
    let mut bench = Bench::new();
    bench.apply(rolling(0, fixture::update()), Vec::new());
    bench.settle();
    let id = deployment(&bench).id;
    bench.ask(Command::FailDeployment { id });
    bench.settle();
    assert_eq!(verdict(&bench).0, ConvergenceState::Failed);
    bench.now = at(9);
    bench.dirty = bench.world.keys();
    bench.plan();
    bench.settle();
    assert_eq!(deployment(&bench).status, DeploymentStatus::Failed);
    assert_eq!(verdict(&bench).0, ConvergenceState::Converged);
}

/// Allocations that keep running are judged again, with the full deadline.
#[test]
fn taken_over_allocation_gets_a_new_deadline() {
    let mut bench = Bench::new();
    bench.apply(rolling(0, fixture::update()), Vec::new());
    bench.settle();
    bench.now = at(9);
    bench.dirty = bench.world.keys();
    bench.plan();
    bench.settle();
    assert_eq!(deployment(&bench).status, DeploymentStatus::Successful);
    let mut jobs = rolling(0, fixture::update());
    jobs[0].groups[0].tasks[0].env.insert("VERSION".to_owned(), "1".to_owned());
    bench.now = at(15);
    bench.apply(jobs, Vec::new());
    let kept =
        bench.world.allocs.iter().find(|(_, alloc)| alloc.spec.group == "b").expect("the allocation of b").0;
    let (spec, state) = bench.world.allocation(kept).expect("the allocation");
    assert_eq!(spec.job_version, 1);
    assert_eq!(spec.deployment.map(|of| of.id), Some(deployment(&bench).id));
    assert_eq!(state.durable.health.map(|health| health.at), Some(at(15).wall));
    assert_eq!(state.durable.healthy_by.map(|by| by.boot_ns), Some(at(35).boot_ns));
}

/// Nothing is replaced or promoted for it, and its deadline stands still; then it goes on with the full deadline.
#[test]
fn paused_deployment_waits_until_resumed() {
    let mut bench = stable();
    bench.apply(version(1, 0), Vec::new());
    bench.settle();
    let id = deployment(&bench).id;
    let pause = |bench: &mut Bench, paused| {
        let (reply, _) = bench.ask(Command::PauseDeployment { id, paused });
        assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
        bench.settle();
    };
    pause(&mut bench, true);
    let shown = deployment(&bench);
    assert_eq!((shown.status_name(), &*shown.description), ("paused", "Deployment is paused"));
    assert_eq!(verdict(&bench).1, Some(Reason::Promotion), "{:?}", verdict(&bench));
    bench.now = at(90_000);
    bench.dirty = bench.world.keys();
    bench.plan();
    bench.settle();
    assert_eq!(deployment(&bench).status, DeploymentStatus::Running, "its deadline stands still");
    let refused = promote(&mut bench, id, PromoteScope::All);
    assert!(matches!(refused, Reply::Refused(Refusal::Conflict(_))), "{refused:?}");
    bench.restart(at(90_001));
    bench.settle();
    assert!(deployment(&bench).is_paused(), "it is durable");
    pause(&mut bench, false);
    let by = deployment(&bench).groups["a"].require_progress_by;
    assert!(by.is_none_or(|by| by > at(90_001).wall), "{by:?}");
    let members = allocs_of(&bench, id);
    set_health(&mut bench, id, members, Vec::new());
    assert_eq!(deployment(&bench).status, DeploymentStatus::Successful);
    let (refused, _) = bench.ask(Command::PauseDeployment { id, paused: true });
    assert!(matches!(refused, Reply::Refused(Refusal::Invalid(_))), "{refused:?}");
}
