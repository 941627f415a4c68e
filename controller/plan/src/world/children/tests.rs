//! Children by example: dispatched, found again, outliving their parent.

use std_alloc::{
    borrow::ToOwned,
    boxed::Box,
    collections::BTreeMap,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    alloc::Desired,
    fixture::{group, job, task},
    job::{Job, JobType, Parameterized},
    view::ConvergenceState,
};

use super::*;
use crate::{event::Command, world::tests::Bench};

fn import() -> Job {
    let block = Parameterized { meta_optional: vec!["table".to_owned()], ..Parameterized::default() };
    Job {
        parameterized: Some(block),
        ..job("import", JobType::Batch, vec![group("g", 2, vec![task("main")])])
    }
}

fn accepted() -> Bench {
    let mut bench = Bench::new();
    bench.apply(vec![import()], Vec::new());
    bench.settle();
    bench
}

fn dispatch(bench: &mut Bench, token: &str) -> Reply {
    let dispatch = Dispatch {
        meta: BTreeMap::from([("table".to_owned(), "users".to_owned())]),
        payload: "aGk=".to_owned(),
        idempotency_token: token.to_owned(),
        ..Dispatch::default()
    };
    let command = Command::Dispatch { job: import().key(), dispatch: Box::new(dispatch) };
    bench.ask(command).0
}

#[track_caller]
fn made(reply: Reply) -> JobKey {
    let Reply::Dispatched { job, .. } = reply else { panic!("{reply:?}") };
    job
}

fn names(bench: &Bench) -> Vec<String> {
    bench.world.allocations().map(|(spec, _)| spec.job_key.id.to_string()).collect()
}

#[test]
fn a_parameterized_job_runs_nothing_and_its_children_do() {
    let mut bench = accepted();
    let key = import().key();
    assert_eq!(names(&bench), Vec::<String>::new());
    assert_eq!(bench.convergence(&key).state, ConvergenceState::Converged);
    let (one, two) = (made(dispatch(&mut bench, "")), made(dispatch(&mut bench, "")));
    bench.settle();
    assert_ne!(one, two, "ids differ within a second");
    assert_eq!(names(&bench).len(), 4);
    assert_eq!(bench.world.children(&key).count(), 2);
    let child = &bench.world.jobs[&one].current;
    assert_eq!((child.meta["table"].as_str(), child.dispatched()), ("users", Some(("aGk=", ""))));
    assert!(matches!(
        bench.ask(Command::Dispatch { job: one, dispatch: Box::default() }).0,
        Reply::Refused(Refusal::Invalid(_))
    ));
}

#[test]
fn a_dispatch_that_was_answered_is_neither_lost_nor_doubled() {
    let mut bench = accepted();
    let first = made(dispatch(&mut bench, "once"));
    bench.restart(crate::fixture::at(100));
    assert_eq!(made(dispatch(&mut bench, "once")), first);
    assert_eq!(bench.world.children(&import().key()).count(), 1);
    assert_ne!(made(dispatch(&mut bench, "again")), first);
    assert!(!names(&bench).is_empty());
}

#[test]
fn a_child_that_is_being_deleted_answers_for_no_dispatch() {
    let mut bench = accepted();
    let first = made(dispatch(&mut bench, "once"));
    bench.ask(Command::Delete { job: first.clone() });
    let second = made(dispatch(&mut bench, "once"));
    assert_ne!(second, first);
    bench.settle();
    assert_eq!(bench.world.children(&import().key()).map(|(key, _)| key).collect::<Vec<_>>(), [&second]);
}

#[test]
fn children_go_on_without_their_parent() {
    let mut bench = accepted();
    let child = made(dispatch(&mut bench, ""));
    bench.settle();
    bench.ask(Command::Delete { job: import().key() });
    bench.settle();
    assert!(!bench.world.jobs.contains_key(&import().key()));
    assert!(bench.world.jobs.contains_key(&child) && !names(&bench).is_empty());
    assert!(matches!(dispatch(&mut bench, ""), Reply::Refused(Refusal::NotFound(_))));
}

#[test]
fn stopped_parent_refuses_dispatch_and_keeps_children() {
    let mut bench = accepted();
    let child = made(dispatch(&mut bench, ""));
    bench.settle();
    bench.ask(Command::Stop { job: import().key() });
    bench.settle();
    let Reply::Refused(Refusal::Conflict(why)) = dispatch(&mut bench, "") else {
        panic!("expected a refusal: the job is stopped")
    };
    assert_eq!(why, "job \"import\" is stopped; start it: herdlet start import");
    let runs = |(_, alloc): (_, &crate::world::allocs::AllocEntry)| alloc.spec.desired == Desired::Run;
    assert!(bench.world.allocs.of_job(&child).all(runs));
    bench.ask(Command::Start { job: import().key() });
    made(dispatch(&mut bench, ""));
}

#[test]
fn a_job_that_becomes_parameterized_stops_what_it_ran() {
    let mut bench = Bench::new();
    let plain = Job { parameterized: None, ..import() };
    bench.apply(vec![plain.clone()], Vec::new());
    bench.settle();
    assert!(matches!(dispatch(&mut bench, ""), Reply::Refused(Refusal::Invalid(_))));
    bench.apply(vec![import()], Vec::new());
    bench.settle();
    assert_eq!(names(&bench), Vec::<String>::new());
    bench.apply(vec![plain], Vec::new());
    bench.settle();
    assert_eq!(names(&bench), ["import", "import"]);
}

// Ids of children are valid ids of jobs; an applied job took the place of a child.
#[test]
fn a_child_is_not_replaced_by_a_job_with_its_name() {
    let mut bench = accepted();
    let child = made(dispatch(&mut bench, ""));
    bench.settle();
    let same_name = Job { parameterized: None, id: child.id.to_string(), ..import() };
    let (reply, _) = bench.ask(Command::Apply { jobs: vec![same_name], volumes: Vec::new() });
    let Reply::Refused(Refusal::Conflict(why)) = reply else { panic!("{reply:?}") };
    assert!(why.contains("is a child of job \"import\""), "{why}");
    assert_eq!(names(&bench).len(), 2);
}
