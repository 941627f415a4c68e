//! Garbage collection: only what has ended is collected.

use herdlet_api_types::job::RestartMode;

use super::*;

fn key() -> JobKey {
    JobKey { namespace: "default".into(), id: "j".into() }
}

/// Whether the job and which of its allocations were collected.
fn collect(bench: &mut Bench) -> (usize, Vec<AllocId>) {
    let all = bench.world.allocs.iter().map(|(id, _)| id).collect();
    let Reply::Collected { jobs, allocs, .. } =
        bench.ask(Command::Collect { jobs: vec![key()], allocs: all }).0
    else {
        panic!("expected a collection");
    };
    (jobs.len(), allocs)
}

fn collect_allocs(bench: &mut Bench) -> Vec<AllocId> {
    let all = bench.world.allocs.iter().map(|(id, _)| id).collect();
    let Reply::Collected { allocs, .. } = bench.ask(Command::Collect { jobs: Vec::new(), allocs: all }).0
    else {
        panic!("expected a collection");
    };
    allocs
}

fn batch() -> Vec<Job> {
    let mut task = task("main");
    (task.restart.attempts, task.restart.mode) = (0, RestartMode::Fail);
    vec![job("j", JobType::Batch, vec![group("g", 1, vec![task])])]
}

/// A batch job whose task has ended like this.
fn ended(code: i32) -> Bench {
    let mut bench = Bench::new();
    bench.apply(batch(), Vec::new());
    bench.settle();
    let (alloc, task, result) = (bench.id(), "main".to_owned(), crate::fixture::exit(code));
    bench.see(Event::Exited { alloc, task, attempt: 1, result });
    bench.settle();
    bench
}

#[test]
fn running_job_is_never_collected() {
    let mut bench = running();
    assert_eq!(collect(&mut bench), (0, Vec::new()));
    let mut bench = Bench::new();
    bench.apply(batch(), Vec::new());
    assert_eq!(collect(&mut bench), (0, Vec::new()), "the job has not started");
    bench.settle();
    assert_eq!(collect(&mut bench), (0, Vec::new()), "the job runs");
    let parent = Job { parameterized: Some(Default::default()), ..batch().remove(0) };
    let mut bench = Bench::new();
    bench.apply(vec![parent], Vec::new());
    assert_eq!(collect(&mut bench), (0, Vec::new()), "the parent is kept for its children");
}

#[test]
fn job_with_a_pending_reschedule_is_not_over() {
    let mut job = batch().remove(0);
    let mut again = job.groups[0].clone();
    (again.name, again.reschedule) = ("again".to_owned(), fixture::reschedule());
    job.groups.push(again);
    let mut bench = Bench::new();
    bench.apply(vec![job], Vec::new());
    bench.settle();
    let all: Vec<AllocId> = bench.world.allocs.iter().map(|(id, _)| id).collect();
    all.into_iter().for_each(|id| bench.fail(id));
    bench.settle();
    assert_eq!(bench.convergence(&key()).state, ConvergenceState::Failed, "the other group has failed");
    assert_eq!(collect(&mut bench).0, 0);
}

#[test]
fn a_job_that_is_over_is_forgotten_with_all_it_has() {
    for code in [0, 1] {
        let mut bench = ended(code);
        assert_eq!(collect(&mut bench).0, 1);
        bench.settle();
        assert!(!bench.world.jobs.contains_key(&key()) && bench.world.allocs.iter().next().is_none());
    }
}

#[test]
fn an_allocation_that_is_collected_is_not_made_again() {
    let mut bench = ended(0);
    let id = bench.id();
    assert_eq!(collect_allocs(&mut bench), [id]);
    let asked = bench.settle();
    let removes = asked.iter().filter(|action| action.op.target == Target::Alloc(id, Part::Dir));
    assert_eq!(removes.map(|action| action.verb.clone()).collect::<Vec<_>>(), [Verb::Down]);
    assert!(bench.last_view().is_some_and(|view| view.collected && view.status.is_terminal()));
    assert_eq!(bench.convergence(&key()).state, ConvergenceState::Converged);
    assert_eq!(collect_allocs(&mut bench), [], "a collected allocation is not collected again");
    bench.restart(at(60));
    assert_eq!(bench.id(), id);
    assert!(!bench.settle().iter().any(|action| matches!(action.verb, Verb::Start { .. } | Verb::Up)));
}

#[test]
fn replaced_allocation_is_forgotten_when_collected() {
    let mut bench = running();
    let old = bench.id();
    bench.ask(Command::StopAlloc { alloc: old });
    bench.settle();
    assert_eq!(collect_allocs(&mut bench), [old]);
    bench.settle();
    assert!(bench.world.allocs.get(old).is_none());
    let left: Vec<Desired> = bench.world.allocs.iter().map(|(_, entry)| entry.spec.desired).collect();
    assert_eq!(left, [Desired::Run]);
}

#[test]
fn only_what_is_collected_is_a_change() {
    let mut bench = ended(0);
    let before = bench.world.meta.index;
    let index = |bench: &mut Bench, allocs| {
        let Reply::Collected { index, .. } = bench.ask(Command::Collect { jobs: Vec::new(), allocs }).0
        else {
            panic!("expected a collection");
        };
        index
    };
    assert_eq!(index(&mut bench, Vec::new()), before);
    let id = bench.id();
    assert_eq!(index(&mut bench, vec![id]), before + 1);
}

#[test]
fn quarantined_job_is_not_collected() {
    let mut bench = ended(0);
    let mut more = batch().remove(0);
    more.groups[0].count = 2;
    bench.world.jobs.get_mut(&key()).expect("the job").current = more.into();
    let has_finished = |bench: &Bench| bench.world.has_finished(bench.now, &key(), &bench.world.jobs[&key()]);
    assert!(!has_finished(&bench), "another allocation is pending");
    bench.world.jobs.get_mut(&key()).expect("the job").quarantine = Some("a defect".to_owned());
    assert!(has_finished(&bench));
    assert_eq!(collect(&mut bench).0, 0);
}
