//! Scaled groups: a new version, stored events, and refusals.

use crate::event::Counts;
use herdlet_api_types::scaling::ScalingNote;
use std_alloc::{format, string::ToString};

use super::*;

fn scale(bench: &mut Bench, count: Option<u32>) -> Reply {
    let note = ScalingNote { message: "noon".to_owned(), ..ScalingNote::default() };
    let (job, group) = (one_task()[0].key(), "g".to_owned());
    let (reply, grown) = bench.ask(Command::Scale { job, group, count, note });
    let is_refused = matches!(reply, Reply::Refused(_));
    assert_eq!(grown > 0, !is_refused, "a recorded event is a change too");
    bench.settle();
    reply
}

fn events(bench: &Bench) -> Vec<(Option<u32>, u32)> {
    let job = bench.job();
    job.scaled.newest_first("g").map(|event| (event.count, event.previous_count)).collect()
}

#[test]
fn scaled_count_survives_a_restart() {
    let mut bench = running();
    let first = bench.id();
    let Reply::Applied { jobs, .. } = scale(&mut bench, Some(3)) else { panic!("expected success") };
    assert_eq!(jobs[0].version, 1);
    assert_eq!(bench.world.allocs.iter().count(), 3);
    assert!(bench.world.allocation(first).is_some_and(|(spec, _)| spec.desired == Desired::Run));
    scale(&mut bench, None);
    bench.restart(at(9));
    assert_eq!((bench.job().version, bench.job().job.groups[0].count), (1, 3));
    assert_eq!(events(&bench), [(None, 3), (Some(3), 1)]);
    // The manifest wins: its count is back.
    bench.apply(one_task(), Vec::new());
    assert_eq!((bench.job().version, bench.job().job.groups[0].count), (2, 1));
}

#[test]
fn registration_keeps_counts_on_request() {
    let mut bench = running();
    scale(&mut bench, Some(3));
    let mut job = one_task().remove(0);
    job.groups[0].tasks[0].env.insert("A".to_owned(), "1".to_owned());
    bench.ask(register(job, Counts::Keep, None));
    assert_eq!((bench.job().version, bench.job().job.groups[0].count), (2, 3));
    let other = job_of("new");
    let (reply, _) = bench.ask(register(other, Counts::Keep, None));
    assert!(matches!(reply, Reply::Applied { .. }), "a new job has its own count: {reply:?}");
}

fn register(job: Job, counts: Counts, enforced_index: Option<u64>) -> Command {
    Command::Register { job: job.into(), counts, enforced_index }
}

#[test]
fn registration_requires_the_given_index() {
    let mut bench = running();
    let changed = || {
        let mut job = one_task().remove(0);
        job.groups[0].tasks[0].env.insert("A".to_owned(), "1".to_owned());
        job
    };
    let index = bench.job().modify_index;
    for (job, enforced, why) in [
        (changed(), index + 1, "job exists with conflicting job modify index"),
        (changed(), 0, "Enforcing job modify index 0: job already exists"),
        (job_of("new"), 7, "Enforcing job modify index 7: job does not exist"),
    ] {
        let (reply, grown) = bench.ask(register(job, Counts::Replace, Some(enforced)));
        let Reply::Refused(Refusal::Conflict(message)) = reply else { panic!("{reply:?}") };
        assert!(message.contains(why), "{message}");
        assert_eq!((grown, bench.job().version), (0, 0));
    }
    for (job, enforced) in [(changed(), index), (job_of("new"), 0)] {
        let (reply, _) = bench.ask(register(job, Counts::Replace, Some(enforced)));
        assert!(matches!(reply, Reply::Applied { .. }), "{reply:?}");
    }
    assert_eq!(bench.job().version, 1);
}

fn job_of(id: &str) -> Job {
    job(id, JobType::Service, vec![group("g", 1, vec![task("main")])])
}

#[test]
fn scaling_history_is_bounded() {
    let mut bench = running();
    for count in 0..30 {
        scale(&mut bench, Some(count % 2));
    }
    assert_eq!(events(&bench).len(), crate::limits::SCALING_EVENTS_KEPT);
}

#[test]
fn a_group_that_is_rolled_out_is_not_scaled() {
    let mut bench = Bench::new();
    let mut jobs = one_task();
    jobs[0].groups[0].update = Some(fixture::update());
    bench.apply(jobs, Vec::new());
    let Reply::Refused(Refusal::Invalid(why)) = scale(&mut bench, Some(3)) else {
        panic!("expected a refusal during a roll-out")
    };
    assert!(
        why.contains("can't be scaled while its deployment") && why.to_string().contains("deployment fail j"),
        "{why}"
    );
    assert!(events(&bench).is_empty() && bench.job().version == 0);
    assert!(matches!(scale(&mut bench, Some(1)), Reply::Applied { .. }), "the count does not change");
}

/// The child of a dispatched job could be scaled, and then ran its work twice.
#[test]
fn a_child_is_not_scaled() {
    let mut bench = Bench::new();
    let group = group("g", 1, vec![task("main")]);
    let parent = Job { parameterized: Some(Default::default()), ..job("j", JobType::Batch, vec![group]) };
    bench.apply(vec![parent.clone()], Vec::new());
    let dispatch = Command::Dispatch { job: parent.key(), dispatch: Default::default() };
    let Reply::Dispatched { job: child, .. } = bench.ask(dispatch).0 else { panic!("expected success") };
    let scale = |bench: &mut Bench, job: &JobKey, count| {
        let (job, group, note) = (job.clone(), "g".to_owned(), ScalingNote::default());
        bench.ask(Command::Scale { job, group, count, note }).0
    };
    let Reply::Refused(Refusal::Invalid(why)) = scale(&mut bench, &child, Some(2)) else { panic!("no") };
    let expected =
        "is a child of \"j\" and can't be scaled; scale \"j\" instead: its next children get the new count";
    assert_eq!(why, format!("job \"{child}\" {expected}"));
    assert_eq!(bench.world.jobs[&child].current.groups[0].count, 1);
    assert!(matches!(scale(&mut bench, &child, None), Reply::Applied { .. }), "a message alone is recorded");
    assert!(matches!(scale(&mut bench, &parent.key(), Some(2)), Reply::Applied { .. }));
    let dispatch = Command::Dispatch { job: parent.key(), dispatch: Default::default() };
    let Reply::Dispatched { job: child, .. } = bench.ask(dispatch).0 else { panic!("expected success") };
    assert_eq!(bench.world.jobs[&child].current.groups[0].count, 2);
}
