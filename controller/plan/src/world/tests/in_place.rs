//! Versions that keep an allocation, and services that differ between them.

use herdlet_api_types::{
    Duration,
    job::{Provider, Service},
    service::{CheckResult, CheckStatus},
};

use super::*;
use crate::fixture::service;

fn checked(name: &str, tag: &str) -> Service {
    let check = herdlet_api_types::fixture::check("alive");
    Service { provider: Provider::Nomad, tags: vec![tag.to_owned()], checks: vec![check], ..service(name) }
}

fn serving(of_group: Vec<Service>, of_task: Vec<Service>) -> Vec<Job> {
    let mut jobs = one_task();
    jobs[0].groups[0].services = of_group;
    jobs[0].groups[0].tasks[0].services = of_task;
    jobs
}

/// The operations on parts, in order.
fn done(asked: &[Action]) -> Vec<(Part, &Verb)> {
    let part = |action: &'_ Action| match action.op.target {
        Target::Alloc(_, part) => part,
        Target::Volume(_) => panic!("there is none"),
    };
    asked.iter().map(|action| (part(action), &action.verb)).collect()
}

fn passing(alloc: AllocId, task: Option<&str>) -> Event {
    let task_name = task.map(ToOwned::to_owned);
    let base = herdlet_api_types::fixture::check_result("alive", CheckStatus::Success);
    let result = CheckResult { id: std_alloc::format!("{task:?}"), task: task_name, ..base };
    Event::Check { alloc, result }
}

#[test]
fn changed_tags_are_registered_without_new_checks() {
    let mut bench = Bench::new();
    let tagged = |tag| serving(vec![checked("one", tag)], vec![checked("two", tag)]);
    bench.apply(tagged("a"), Vec::new());
    bench.settle();
    let id = bench.id();
    bench.see(passing(id, None));
    bench.see(passing(id, Some("main")));
    bench.apply(tagged("b"), Vec::new());
    let asked = bench.settle();
    let up = |part| (part, &Verb::Up);
    assert_eq!(done(&asked), [up(Part::Services), up(Part::Task(0, TaskPart::Services))]);
    let (_, state) = bench.world.allocation(id).expect("the allocation");
    assert_eq!(state.checks.results.len(), 2, "readers of passing services see them all the time");
}

#[test]
fn changed_services_are_registered_and_checked_again() {
    let mut bench = Bench::new();
    bench.apply(serving(vec![checked("one", "a")], vec![checked("two", "a")]), Vec::new());
    bench.settle();
    let id = bench.id();
    bench.see(passing(id, None));
    bench.see(passing(id, Some("main")));

    let mut slower = checked("one", "b");
    slower.checks[0].interval = Duration::from_secs(2);
    bench.apply(serving(vec![slower.clone()], vec![checked("two", "a")]), Vec::new());
    let asked = bench.settle();
    let (checks, services) = (Part::Checks, Part::Services);
    assert_eq!(done(&asked), [(services, &Verb::Up), (checks, &Verb::Up)]);
    let (spec, state) = bench.world.allocation(id).expect("the allocation");
    assert_eq!((spec.job_version, spec.desired), (1, Desired::Run));
    assert_eq!(state.checks.results.len(), 2, "old results count until the new checks have results");

    let task = |part| Part::Task(0, part);
    bench.apply(serving(vec![slower], Vec::new()), Vec::new());
    let asked = bench.settle();
    let (checks, services) = (task(TaskPart::Checks), task(TaskPart::Services));
    let mut seen = done(&asked);
    seen.sort_by_key(|(part, _)| *part);
    assert_eq!(seen, [(services, &Verb::Down), (checks, &Verb::Down)]);
    assert_eq!(bench.world.allocs.iter().count(), 1);
    bench.restart(at(9));
    assert!(bench.settle().iter().all(|action| action.verb != Verb::Down), "nothing remains to deregister");
}

#[test]
fn promoted_canary_stays_registered() {
    let rolled = |color: &str, canary, canary_tags: &[&str]| {
        let canary_tags = canary_tags.iter().map(|tag| (*tag).to_owned()).collect();
        let mut jobs =
            serving(vec![Service { canary_tags, ..checked("one", "a") }], vec![checked("two", "a")]);
        let group = &mut jobs[0].groups[0];
        let health_check = herdlet_api_types::job::HealthCheck::Manual;
        group.update = Some(herdlet_api_types::job::Update { canary, health_check, ..fixture::update() });
        group.tasks[0].env.insert("COLOR".to_owned(), color.to_owned());
        jobs
    };
    for (canary_tags, wanted) in [(&["canary"][..], vec![(Part::Services, &Verb::Up)]), (&[], vec![])] {
        let mut bench = Bench::new();
        bench.apply(rolled("blue", 0, canary_tags), Vec::new());
        bench.settle();
        let deployment = |bench: &Bench| bench.job().deployments[0].id;
        let healthy = |bench: &mut Bench, alloc| {
            let id = deployment(bench);
            bench.ask(Command::SetAllocHealth { id, healthy: vec![alloc], unhealthy: Vec::new() });
            bench.settle();
        };
        let old = bench.id();
        healthy(&mut bench, old);
        bench.apply(rolled("green", 1, canary_tags), Vec::new());
        bench.settle();
        let canary =
            bench.world.allocations().map(|(spec, _)| spec.id).find(|id| *id != old).expect("a canary");
        bench.see(passing(canary, None));
        healthy(&mut bench, canary);
        let scope = crate::event::PromoteScope::All;
        bench.ask(Command::PromoteDeployment { id: deployment(&bench), scope });
        let asked = bench.settle();
        let of_canary =
            asked.iter().filter(|action| matches!(action.op.target, Target::Alloc(id, _) if id == canary));
        let of_canary: Vec<Action> = of_canary.cloned().collect();
        assert_eq!(done(&of_canary), wanted);
        assert_eq!(bench.world.allocation(canary).expect("the allocation").1.checks.results.len(), 1);
    }
}

#[test]
fn services_are_taken_back_also_by_the_next_agent() {
    let mut bench = Bench::new();
    bench.apply(serving(vec![checked("one", "a")], Vec::new()), Vec::new());
    bench.settle();
    bench.apply(serving(Vec::new(), Vec::new()), Vec::new());
    bench.restart(at(9));
    let asked = bench.settle();
    assert!(done(&asked).contains(&(Part::Services, &Verb::Down)), "{:?}", done(&asked));
}

#[test]
fn changed_policies_replace_nothing() {
    let mut bench = running();
    let mut jobs = one_task();
    jobs[0].priority = 80;
    jobs[0].groups[0].tasks[0].kill_timeout = Duration::from_secs(9);
    jobs[0].groups[0].tasks[0].restart.attempts = 7;
    bench.apply(jobs, Vec::new());
    assert!(done(&bench.settle()).is_empty());
    let (spec, _) = bench.world.allocation(bench.id()).expect("the allocation");
    assert_eq!((spec.job_version, spec.job.groups[0].tasks[0].restart.attempts), (1, 7));
    assert_eq!(bench.convergence(&one_task()[0].key()).state, ConvergenceState::Converged);
}
