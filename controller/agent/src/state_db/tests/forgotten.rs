//! Which objects a database lists as forgotten, and which it must never list.

use std::{collections::BTreeSet, fs};

use herdlet_api_types::AllocId;
use herdlet_plan::record::{Record, RecordKey};
use herdlet_runtime::Store;

use super::fixture::*;

fn ids(life: &Life, job: &str) -> Vec<AllocId> {
    let of_job = life.world.allocations().filter(|(spec, _)| *spec.job_key.id == *job);
    of_job.map(|(spec, _)| spec.id).collect()
}

#[test]
fn forgotten_allocation_is_listed_until_it_is_known_again() {
    let dir = scratch();
    let mut life = Life::begin(dir.path());
    let applied = life.records(herdlet_plan::event::Command::Apply {
        jobs: vec![job("a", 2, "x"), job("b", 1, "x")],
        volumes: vec![],
    });
    life.store.commit(&applied).unwrap();
    let forgotten = ids(&life, "a");
    life.store.commit(&forget("a", &[0], &forgotten)).unwrap();
    drop(life);
    for _ in 0..2 {
        let opened = open(dir.path());
        assert_eq!(opened.forgotten, forgotten.iter().copied().collect::<BTreeSet<_>>());
        assert!(opened.damaged.is_empty() && !opened.incomplete);
    }
    // No planner does this.
    let mut store = open(dir.path()).store;
    store.commit(&applied).unwrap();
    drop(store);
    assert!(open(dir.path()).forgotten.is_empty());
}

/// The older copy knows nothing of later objects: neither that they were wanted nor that they were forgotten.
#[test]
fn older_copy_lists_only_earlier_forgotten_allocations() {
    for mark_too in [false, true] {
        let dir = scratch();
        let (database, mark) = (paths(dir.path()).database(), paths(dir.path()).state.join("committed"));
        let mut life = Life::begin(dir.path());
        life.apply(vec![job("a", 1, "x"), job("b", 1, "x")], vec![]);
        let (a, b) = (ids(&life, "a"), ids(&life, "b"));
        life.store.commit(&forget("a", &[0], &a)).unwrap();
        drop(life);
        let older = [&database, &mark].map(|path| fs::read(path).unwrap());
        let mut life = Life::begin(dir.path());
        life.store.commit(&forget("b", &[0], &b)).unwrap();
        life.apply(vec![job("c", 1, "x")], vec![]);
        drop(life);

        fs::write(&database, &older[0]).unwrap();
        if mark_too {
            fs::write(&mark, &older[1]).unwrap();
        }
        let opened = open(dir.path());
        assert_eq!(opened.incomplete, !mark_too);
        assert_eq!(opened.forgotten.iter().copied().collect::<Vec<_>>(), a, "b is known, c is not listed");
        assert!(allocs(&opened.records).iter().any(|spec| b.contains(&spec.id)));
    }
}

/// A job may be created again under its name.
#[test]
fn a_file_that_is_newer_than_what_was_forgotten_is_kept_aside() {
    let dir = scratch();
    let database = paths(dir.path()).database();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 1, "x")], vec![]);
    let a = ids(&life, "a");
    life.store.commit(&forget("a", &[0], &a)).unwrap();
    drop(life);
    let older = fs::read(&database).unwrap();
    Life::begin(dir.path()).apply(vec![job("a", 1, "again")], vec![]);
    fs::write(&database, older).unwrap();
    fs::remove_file(paths(dir.path()).state.join("committed")).unwrap();
    let opened = open(dir.path());
    assert_eq!(opened.damaged.len(), 1, "{:?}", opened.damaged);
    assert!(fs::read_to_string(&opened.damaged[0].path).unwrap().contains("again"));
}

#[test]
fn recreated_database_lists_nothing_as_forgotten() {
    let dir = scratch();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 1, "x"), job("b", 1, "x")], vec![]);
    let a = ids(&life, "a");
    life.store.commit(&forget("a", &[0], &a)).unwrap();
    drop(life);
    fs::remove_file(paths(dir.path()).database()).unwrap();
    for incomplete in [true, false] {
        let opened = open(dir.path());
        assert_eq!(opened.incomplete, incomplete);
        assert!(opened.forgotten.is_empty());
    }
}

#[test]
fn list_of_forgotten_allocations_is_bounded() {
    let dir = scratch();
    let mut life = Life::begin(dir.path());
    fs::create_dir_all(paths(dir.path()).allocs()).unwrap();
    let id = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let mut hash = [0; 16];
        hash[..2].copy_from_slice(&[high, low]);
        AllocId::from_hash(hash)
    };
    for n in 0..1000 {
        life.store.commit(&[Record::Delete(RecordKey::AllocSpec(id(n)))]).unwrap();
    }
    drop(life);
    let opened = open(dir.path());
    assert!(opened.forgotten.len() <= 256, "{}", opened.forgotten.len());
    assert!(opened.forgotten.contains(&id(999)));
}
