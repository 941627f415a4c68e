//! A crash between any two steps of a commit.
//!
//! Each commit of a run fails at its first step, at its second, and so on. The directory is copied at that moment (as
//! a kill would leave it) and then opened twice: as it is, and with the database lost.

use std::{collections::BTreeSet, fs, path::Path};

use herdlet_api_types::job::Job;
use herdlet_base::{durable::Steps, paths::alloc_ids};
use herdlet_plan::{
    event::Command,
    record::{Record, RecordKey, RecordValue},
};
use herdlet_runtime::Store;

use super::fixture::*;
use crate::state_db::CommitError;

/// A step of a run.
#[derive(Clone)]
enum Deed {
    Apply(Vec<Job>),
    Delete(&'static str),
    Forget(&'static str, &'static [u64]),
    End(&'static str),
}

fn deeds() -> Vec<Deed> {
    vec![
        Deed::Apply(vec![job("a", 1, "x")]),
        Deed::Apply(vec![job("a", 1, "y"), job("b", 2, "z")]),
        Deed::End("b"),
        Deed::Delete("a"),
        Deed::Apply(vec![job("a", 1, "back to life")]),
        Deed::Delete("a"),
        Deed::Forget("a", &[0, 1, 2]),
        Deed::Apply(vec![job("a", 1, "again")]),
    ]
}

fn records(life: &mut Life, deed: &Deed) -> Vec<Record> {
    let of_job = |life: &Life, id: &str| {
        let found = life.world.allocations().filter(|(spec, _)| *spec.job_key.id == *id);
        found.map(|(spec, _)| spec.id).collect::<Vec<_>>()
    };
    match deed {
        Deed::Apply(jobs) => life.records(Command::Apply { jobs: jobs.clone(), volumes: vec![volume("v")] }),
        Deed::Delete(id) => life.records(Command::Delete { job: job_key(id) }),
        Deed::Forget(id, versions) => {
            let allocs = of_job(life, id);
            forget(id, versions, &allocs)
        }
        Deed::End(id) => {
            let put = |id| Record::Put(RecordKey::AllocState(id), RecordValue::AllocState(ended().into()));
            of_job(life, id).into_iter().map(put).collect()
        }
    }
}

/// Runs the first `done` deeds, then the next one up to its `step`th step. Returns whether that deed was accepted.
fn live(dir: &Path, done: usize, step: usize) -> bool {
    let mut life = Life::begin(dir);
    let deeds = deeds();
    for deed in &deeds[..done] {
        let records = records(&mut life, deed);
        life.store.commit(&records).unwrap();
        // Forgetting also ends in the world, which these records do not update.
        if matches!(deed, Deed::Forget(..)) {
            drop(life);
            life = Life::begin(dir);
        }
    }
    life.make_alloc_dirs(dir);
    let records = records(&mut life, &deeds[done]);
    let steps = Steps::failing_after(step);
    life.store.accepted.set_steps(steps.clone());
    life.store.steps = steps;
    let accepted = life.store.commit(&records).is_ok();
    let crashed = dir.join("crashed");
    copy(&paths(dir).state, &paths(&crashed).state);
    // A failed commit is offered again, and must then give the same result as if it had not failed.
    life.store.accepted.set_steps(Steps::default());
    life.store.steps = Steps::default();
    life.store.commit(&records).unwrap();
    accepted
}

#[test]
fn crash_at_any_step_keeps_accepted_and_deleted_state() {
    let mut crashes = 0;
    for done in 0..deeds().len() {
        let before = scratch();
        live_whole(before.path(), done);
        let before_jobs = jobs(&open(before.path()).records);
        for step in 0.. {
            let dir = scratch();
            let accepted = live(dir.path(), done, step);
            let after = open(dir.path());
            let (after_jobs, after_content) = (jobs(&after.records), content(&after.records));
            drop(after);

            let crashed = dir.path().join("crashed");
            let lost = dir.path().join("lost");
            copy(&crashed, &lost);
            let opened = open(&crashed);
            assert!(opened.damaged.is_empty(), "{done}/{step}: {:?}", opened.damaged);
            // An allocation with a directory is either known, or listed as one whose directory is a leak; never both.
            let known: BTreeSet<_> = allocs(&opened.records).iter().map(|spec| spec.id).collect();
            for id in alloc_ids(&paths(dir.path()).allocs()) {
                let (known, forgotten) = (known.contains(&id), opened.forgotten.contains(&id));
                assert!(known != forgotten, "{done}/{step}: {id} known: {known}, forgotten: {forgotten}");
            }
            let found = jobs(&opened.records);
            assert!(found == before_jobs || found == after_jobs, "{done}/{step}: {found:?}");
            assert!(
                !accepted || same(content(&opened.records), &after_content),
                "{done}/{step}: accepted and missing"
            );
            drop(opened);

            fs::remove_file(paths(&lost).database()).unwrap();
            copy(&paths(dir.path()).allocs(), &paths(&lost).allocs());
            let rebuilt = jobs(&open(&lost).records);
            // Any part of an unanswered request may have been stored.
            let parts = rebuilt.iter().all(|(key, state)| {
                before_jobs.get(key) == Some(state) || after_jobs.get(key) == Some(state)
            });
            let kept = before_jobs
                .keys()
                .filter(|key| after_jobs.contains_key(*key))
                .all(|key| rebuilt.contains_key(key));
            assert!(parts && kept, "{done}/{step}: {rebuilt:?}");
            assert!(!accepted || rebuilt == after_jobs, "{done}/{step}: accepted and lost: {rebuilt:?}");

            // The files follow the database: losing it later must not bring back something that never happened.
            fs::remove_file(paths(&crashed).database()).unwrap();
            assert_eq!(jobs(&open(&crashed).records), found, "{done}/{step}");
            crashes += 1;
            if accepted {
                break;
            }
        }
    }
    assert!(crashes > 60, "{crashes}");
}

/// Equal except for the number of the commit, which grew when the same records were committed again.
fn same(mut found: Content, expected: &Content) -> bool {
    found.extend(expected.get_key_value("meta/world").map(|(place, hash)| (place.clone(), *hash)));
    found == *expected
}

/// Runs the first `done` deeds, without a crash.
fn live_whole(dir: &Path, done: usize) {
    let mut life = Life::begin(dir);
    for deed in &deeds()[..done] {
        let records = records(&mut life, deed);
        life.store.commit(&records).unwrap();
        if matches!(deed, Deed::Forget(..)) {
            drop(life);
            life = Life::begin(dir);
        }
    }
}

/// No request was answered as accepted.
#[test]
fn files_without_a_commit_are_removed_after_a_kill() {
    let dir = scratch();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 1, "x")], vec![]);
    let records = life.records(Command::Apply { jobs: vec![job("b", 1, "y")], volumes: vec![volume("v")] });
    // Five steps for each of the two files; the database comes after them.
    let steps = Steps::failing_after(10);
    life.store.accepted.set_steps(steps.clone());
    life.store.steps = steps;
    assert!(matches!(life.store.commit(&records), Err(CommitError::Database { .. })));
    drop(life);
    assert!(paths(dir.path()).accepted().join("default.b.json").exists());
    let opened = open(dir.path());
    assert_eq!(jobs(&opened.records).len(), 1);
    assert!(!paths(dir.path()).accepted().join("default.b.json").exists());
    assert!(opened.damaged.is_empty() && !opened.incomplete, "{:?}", opened.damaged);
    assert!(!paths(dir.path()).state.join("damaged").exists());
}

/// Without the number of the last commit the file may have been accepted.
#[test]
fn a_file_that_may_have_been_accepted_is_kept_aside() {
    let dir = scratch();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 1, "x")], vec![]);
    let older = fs::read(paths(dir.path()).database()).unwrap();
    life.apply(vec![job("b", 1, "y")], vec![volume("v")]);
    drop(life);
    fs::write(paths(dir.path()).database(), older).unwrap();
    fs::remove_file(paths(dir.path()).state.join("committed")).unwrap();
    let opened = open(dir.path());
    assert!(opened.damaged.iter().all(|aside| aside.path.exists() && aside.why.contains("does not know")));
    assert_eq!(opened.damaged.len(), 2);
}

/// Only the database waits for the disk: the removal of a file may be undone, and a written file may be empty.
#[test]
fn power_loss_keeps_the_database_and_repairs_files() {
    let dir = scratch();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 1, "x"), job("b", 1, "x")], vec![]);
    let accepted = paths(dir.path()).accepted();
    let removed = fs::read(accepted.join("default.b.json")).unwrap();
    let allocs: Vec<_> = life
        .world
        .allocations()
        .filter(|(spec, _)| *spec.job_key.id == *"b")
        .map(|(spec, _)| spec.id)
        .collect();
    life.delete("b");
    life.store.commit(&forget("b", &[0], &allocs)).unwrap();
    drop(life);
    let expected = jobs(&open(dir.path()).records);
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["a"]);

    fs::write(accepted.join("default.b.json"), removed).unwrap();
    fs::write(accepted.join("default.a.json"), "").unwrap();
    // The number of the last commit did not wait either.
    fs::write(paths(dir.path()).state.join("committed"), "").unwrap();
    let opened = open(dir.path());
    assert_eq!(jobs(&opened.records), expected);
    assert!(!opened.incomplete && !opened.rebuilt);
    assert!(opened.damaged.is_empty(), "the job is listed as forgotten: {:?}", opened.damaged);
    drop(opened);
    assert!(!accepted.join("default.b.json").exists());
    fs::remove_file(paths(dir.path()).database()).unwrap();
    assert_eq!(jobs(&open(dir.path()).records), expected, "the file of a was written again");
}
