//! Versions of a job: which are kept, and reverting to one.

use std_alloc::{format, string::ToString};

use herdlet_api_types::{Duration, alloc::ClientStatus};

use super::*;
use crate::job::Source;

/// The job in a number of versions with different work, one after the other.
fn versions(colors: &[&str]) -> Bench {
    let mut bench = running();
    let mut jobs = one_task();
    for color in colors {
        jobs[0].groups[0].tasks[0].env.insert("COLOR".to_owned(), (*color).to_owned());
        bench.apply(jobs.clone(), Vec::new());
        bench.settle();
    }
    bench
}

fn stored_versions(bench: &Bench) -> Vec<u64> {
    let version = |key: &RecordKey| match key {
        RecordKey::JobVersion(_, version) => Some(*version),
        RecordKey::Meta
        | RecordKey::Job(_)
        | RecordKey::Volume(_)
        | RecordKey::AllocSpec(_)
        | RecordKey::AllocState(_) => None,
    };
    bench.stored.keys().filter_map(version).collect()
}

fn revert(bench: &mut Bench, to: u64, prior: Option<u64>) -> Reply {
    let job = one_task()[0].key();
    let (reply, _) = bench.ask(Command::Revert { job, to, prior });
    bench.settle();
    reply
}

#[test]
fn the_newest_versions_are_kept() {
    let mut bench = versions(&["1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(stored_versions(&bench), [2, 3, 4, 5, 6, 7]);
    let shown: Vec<u64> = bench.job().past.iter().map(|past| past.version).collect();
    assert_eq!(shown, [2, 3, 4, 5, 6]);
    bench.restart(at(9));
    assert_eq!(bench.job().past.len(), 5);
    assert!(bench.job().past.iter().all(|past| past.index > 0 && past.submit_time.0 > 0));
}

#[test]
fn version_is_kept_while_an_allocation_uses_it() {
    let mut bench = running();
    let mut jobs = one_task();
    for color in 1..10 {
        jobs[0].groups[0].tasks[0].env.insert("COLOR".to_owned(), color.to_string());
        bench.apply(jobs.clone(), Vec::new());
    }
    assert_eq!(
        stored_versions(&bench),
        [0, 4, 5, 6, 7, 8, 9],
        "the first job's allocation is still stopping"
    );
}

/// An apply arrives, and nothing is planned yet.
fn apply(bench: &mut Bench, jobs: &[Job]) {
    let command = Command::Apply { jobs: jobs.to_vec(), volumes: Vec::new() };
    bench.world.apply(bench.now, Event::Command { request: 1, command }, &mut bench.dirty, &mut bench.turn);
}

#[test]
fn versions_of_one_turn_are_all_stored() {
    let mut bench = running();
    let mut jobs = one_task();
    for priority in [51, 52] {
        jobs[0].priority = priority;
        apply(&mut bench, &jobs);
    }
    bench.plan();
    assert_eq!(stored_versions(&bench), [0, 1, 2]);
}

#[test]
fn going_back_makes_a_new_version_of_an_old_text() {
    let mut bench = versions(&["red", "green"]);
    let color = |bench: &Bench| bench.job().job.groups[0].tasks[0].env["COLOR"].clone();
    assert!(matches!(revert(&mut bench, 1, Some(2)), Reply::Applied { .. }));
    assert_eq!((bench.job().version, color(&bench)), (3, "red".to_owned()));
    let made_from = bench.world.allocs.iter().map(|(_, entry)| entry.spec.job_version).max();
    assert_eq!(made_from, Some(3), "its allocation was replaced");
    // The specification is the current one: nothing changes.
    let unchanged = revert(&mut bench, 1, None);
    assert!(matches!(unchanged, Reply::Applied { .. }), "{unchanged:?}");
    assert_eq!(bench.job().version, 3);
}

#[test]
fn impossible_rollback_is_refused() {
    let mut bench = versions(&["red", "green"]);
    for (to, prior, why) in [
        (2, None, "job \"j\" is at version 2 already"),
        (7, None, "version 7 of job \"j\" is not kept; older versions kept: 0, 1"),
        (0, Some(1), "job \"j\" has changed: it is at version 2 now"),
    ] {
        let Reply::Refused(Refusal::Conflict(message) | Refusal::NotFound(message)) =
            revert(&mut bench, to, prior)
        else {
            panic!("reverting to {to} must fail")
        };
        assert_eq!(message, why);
    }
    assert_eq!((bench.job().version, stored_versions(&bench)), (2, [0, 1, 2].to_vec()));
    let job = one_task()[0].key();
    // A request that saw another version deletes nothing.
    let refused = bench.ask(Command::DeleteVersion { job: job.clone(), version: 99 });
    let has_changed =
        matches!(&refused.0, Reply::Refused(Refusal::Conflict(why)) if why.contains("has changed: it is at"));
    assert!(has_changed && refused.1 == 0, "{refused:?}");
    bench.ask(Command::Delete { job: job.clone() });
    let (reply, _) = bench.ask(Command::Revert { job, to: 0, prior: None });
    assert!(matches!(reply, Reply::Refused(Refusal::Conflict(_))), "{reply:?}");
}

#[test]
fn a_text_is_written_once() {
    let mut bench = running();
    let mut jobs = one_task();
    for priority in [51, 52] {
        jobs[0].priority = priority;
        apply(&mut bench, &jobs);
        while let Some(key) = bench.dirty.pop_first() {
            bench.world.reconcile(bench.now, &key, &mut bench.dirty, &mut bench.turn);
        }
    }
    let written = |record: &Record| match record {
        Record::Put(RecordKey::JobVersion(_, version), _) => Some(*version),
        Record::Put(..) | Record::Delete(_) => None,
    };
    let written: Vec<u64> = bench.turn.records.iter().filter_map(written).collect();
    assert_eq!(written, [1, 2]);
}

/// A folder is read with its only job painted in a colour, from a file with these bytes.
fn read_folder(bench: &mut Bench, color: &str, bytes: &str) -> u64 {
    let mut jobs = one_task();
    jobs[0].groups[0].tasks[0].env.insert("COLOR".to_owned(), color.to_owned());
    let source = Source {
        file: "jobs.d/j.yaml".to_owned(),
        file_hash: bytes.to_owned(),
        job_hash: format!("job {color}"),
    };
    let jobs = jobs.into_iter().map(|job| (job, source.clone())).collect();
    bench.ask(Command::ApplyFolder { jobs, volumes: Vec::new() });
    bench.settle();
    bench.job().version
}

/// `touch` and a restart of the agent used to bring the bad version back.
#[test]
fn rolled_back_job_is_held_until_its_file_changes() {
    let mut bench = Bench::new();
    assert_eq!(read_folder(&mut bench, "red", "1"), 0);
    assert_eq!(read_folder(&mut bench, "green", "2"), 1);
    assert_eq!(bench.job().held, None);
    revert(&mut bench, 0, None);
    assert_eq!((bench.job().version, bench.job().held.as_deref()), (2, Some("jobs.d/j.yaml")));
    assert_eq!(read_folder(&mut bench, "green", "2"), 2, "the same file");
    assert_eq!(read_folder(&mut bench, "green", "2 # comment"), 2, "the same job");
    assert_eq!(read_folder(&mut bench, "green in a newer release", "2"), 2, "the same bytes");
    bench.restart(at(9));
    bench.settle();
    assert_eq!(bench.job().held.as_deref(), Some("jobs.d/j.yaml"), "it is durable");
    assert_eq!(read_folder(&mut bench, "green", "2"), 2);
    assert_eq!(read_folder(&mut bench, "blue", "3"), 3, "a new definition");
    assert_eq!(bench.job().held, None);
}

#[test]
fn job_equal_to_its_file_is_not_held() {
    let mut bench = Bench::new();
    read_folder(&mut bench, "red", "1");
    read_folder(&mut bench, "green", "2");
    revert(&mut bench, 0, None);
    // Back again: the file is in force.
    revert(&mut bench, 1, None);
    assert_eq!((bench.job().version, bench.job().held), (3, None));
    // The file follows the rollback.
    revert(&mut bench, 0, None);
    assert_eq!(read_folder(&mut bench, "red", "3"), 4);
    assert_eq!((bench.job().version, bench.job().held), (4, None));
    // A job that no folder defines is never held.
    bench.apply(one_task(), Vec::new());
    bench.settle();
    revert(&mut bench, 4, None);
    assert_eq!(bench.job().held, None);
}

#[test]
fn a_batch_allocation_is_complete_after_its_maximum_run_time() {
    let mut bench = Bench::new();
    let mut wanted = job("a", JobType::Batch, vec![group("g", 1, vec![task("main")])]);
    wanted.groups[0].max_run_duration = Some(Duration::from_secs(60));
    let key = wanted.key();
    bench.apply(vec![wanted], Vec::new());
    for (now, expected) in [(60, ClientStatus::Running), (61, ClientStatus::Complete)] {
        bench.now = at(now);
        bench.dirty = bench.world.keys();
        bench.plan();
        bench.settle();
        let all: Vec<_> = bench.world.allocations().map(|(_, state)| state.durable.status).collect();
        assert_eq!(all, [expected], "after {now} s");
    }
    assert_eq!(bench.convergence(&key).state, ConvergenceState::Converged);
}

/// The new allocation takes over the data after the end of the old one, whose directory stays until then.
#[test]
fn new_version_takes_over_the_disk() {
    let mut bench = Bench::new();
    let mut wanted = job("a", JobType::Service, vec![group("g", 1, vec![task("main")])]);
    wanted.groups[0].kept_disk.sticky = true;
    bench.apply(vec![wanted.clone()], Vec::new());
    bench.settle();
    let first = bench.id();
    wanted.groups[0].tasks[0].env.insert("COLOR".to_owned(), "red".to_owned());
    bench.apply(vec![wanted], Vec::new());
    bench.settle();
    let successor =
        bench.world.allocations().find(|(spec, _)| spec.id != first).map(|(spec, _)| spec).unwrap();
    assert_eq!((successor.previous, successor.predecessor()), (Some(first), Some(first)));
    assert!(bench.world.ctx.successors.is_empty());
    let states: Vec<_> =
        bench.world.allocations().map(|(spec, state)| (spec.id == first, state.durable.status)).collect();
    assert!(
        states.contains(&(true, ClientStatus::Complete)) && states.contains(&(false, ClientStatus::Running))
    );
}
