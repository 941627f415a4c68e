//! Versions under which an allocation goes on, and services that differ between them.

use herdlet_api_types::{
    Duration,
    job::{Check, CheckKind, Provider, Service},
    service::{CheckResult, CheckStatus},
};

use super::*;
use crate::fixture::service;

fn checked(name: &str, tag: &str) -> Service {
    let check = Check {
        name: "alive".to_owned(),
        kind: CheckKind::Tcp,
        port: None,
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
    };
    Service { provider: Provider::Nomad, tags: vec![tag.to_owned()], checks: vec![check], ..service(name) }
}

fn serving(of_group: Vec<Service>, of_task: Vec<Service>) -> Vec<Job> {
    let mut jobs = one_task();
    jobs[0].groups[0].services = of_group;
    jobs[0].groups[0].tasks[0].services = of_task;
    jobs
}

/// What was done to parts, in order.
fn done(asked: &[Action]) -> Vec<(Part, &Verb)> {
    let part = |action: &'_ Action| match action.op.target {
        Target::Alloc(_, part) => part,
        Target::Volume(_) => panic!("there is none"),
    };
    asked.iter().map(|action| (part(action), &action.verb)).collect()
}

fn passing(alloc: AllocId, task: Option<&str>) -> Event {
    let result = CheckResult {
        id: std_alloc::format!("{task:?}"),
        service: "one".to_owned(),
        check: "alive".to_owned(),
        task: task.map(ToOwned::to_owned),
        status: CheckStatus::Success,
        output: String::new(),
        http_status: None,
        at: Default::default(),
    };
    Event::Check { alloc, result }
}

#[test]
fn services_that_differ_are_registered_anew_and_checked_anew() {
    let mut bench = Bench::new();
    bench.apply(serving(vec![checked("one", "a")], vec![checked("two", "a")]), Vec::new());
    bench.settle();
    let id = bench.id();
    bench.see(passing(id, None));
    bench.see(passing(id, Some("main")));

    bench.apply(serving(vec![checked("one", "b")], vec![checked("two", "a")]), Vec::new());
    let asked = bench.settle();
    let (checks, services) = (Part::Checks, Part::Services);
    assert_eq!(done(&asked), [(checks, &Verb::Down), (services, &Verb::Up), (checks, &Verb::Up)]);
    let (spec, state) = bench.world.allocation(id).expect("it goes on");
    assert_eq!((spec.job_version, spec.desired), (1, Desired::Run));
    let left: Vec<_> = state.checks.values().map(|result| result.task.as_deref()).collect();
    assert_eq!(left, [Some("main")], "the task's services are the same");

    let task = |part| Part::Task(0, part);
    bench.apply(serving(vec![checked("one", "b")], Vec::new()), Vec::new());
    let asked = bench.settle();
    let (checks, services) = (task(TaskPart::Checks), task(TaskPart::Services));
    let mut seen = done(&asked);
    seen.sort_by_key(|(part, _)| *part);
    assert_eq!(seen, [(services, &Verb::Down), (checks, &Verb::Down)]);
    assert_eq!(bench.world.allocs.iter().count(), 1);
    bench.restart(at(9));
    assert!(bench.settle().iter().all(|action| action.verb != Verb::Down), "nothing is left to take back");
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
fn what_only_policies_differ_in_asks_for_nothing() {
    let mut bench = running();
    let mut jobs = one_task();
    jobs[0].priority = 80;
    jobs[0].groups[0].tasks[0].kill_timeout = Duration::from_secs(9);
    jobs[0].groups[0].tasks[0].restart.attempts = 7;
    bench.apply(jobs, Vec::new());
    assert!(done(&bench.settle()).is_empty());
    let (spec, _) = bench.world.allocation(bench.id()).expect("it goes on");
    assert_eq!((spec.job_version, spec.job.groups[0].tasks[0].restart.attempts), (1, 7));
    assert_eq!(bench.convergence(&one_task()[0].key()).state, ConvergenceState::Converged);
}
