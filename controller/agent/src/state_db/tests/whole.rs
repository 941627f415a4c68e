//! Committed records are read back unchanged.

use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

use herdlet_plan::{
    record::{Meta, Record, RecordKey, RecordValue},
    shared::volume::{Origin, VolumeState},
};
use herdlet_runtime::{CommitIndex, Store};

use super::fixture::*;
use crate::state_db::StateDb;

#[test]
fn all_record_kinds_are_restored() {
    let dir = tempfile::tempdir().unwrap();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 3, "x"), job("b", 1, "y")], vec![volume("v"), volume("näme/..")]);
    life.apply(vec![job("a", 3, "z")], vec![]);
    let index = life.store.index();
    drop(life);

    let opened = open(dir.path());
    assert!(opened.damaged.is_empty() && !opened.rebuilt);
    assert_eq!(opened.store.index(), index, "opening changes nothing");
    let kinds: std::collections::HashSet<_> =
        opened.records.iter().map(|(_, value)| std::mem::discriminant(value)).collect();
    assert_eq!(kinds.len(), 6);
    let specs = allocs(&opened.records);
    let of_a: Vec<_> =
        specs.iter().filter(|spec| spec.job_key == job_key("a") && spec.job_version == 0).collect();
    assert_eq!(of_a[0].group().unwrap().tasks[0].driver, "mock");
    assert!(of_a.len() > 1 && Arc::ptr_eq(&of_a[0].job, &of_a[1].job));
    let before = content(&opened.records);
    drop(opened);
    assert_eq!(content(&open(dir.path()).records), before);
}

#[test]
fn commit_number_grows_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).store;
    assert_eq!(store.index(), CommitIndex(0));
    let meta = |index| Record::Put(RecordKey::Meta, RecordValue::Meta(Meta { index, ..Meta::default() }));
    assert_eq!(store.commit(&[meta(10)]).unwrap(), CommitIndex(10));
    assert_eq!(store.commit(&[]).unwrap(), CommitIndex(11));
    assert_eq!(store.commit(&[meta(11)]).unwrap(), CommitIndex(12));
    drop(store);
    let opened = open(dir.path());
    assert_eq!(opened.store.index(), CommitIndex(12));
    assert!(
        opened.records.iter().any(|(_, value)| matches!(value, RecordValue::Meta(Meta { index: 12, .. }))),
        "the next number is newer than everything published"
    );
}

#[test]
fn commit_is_idempotent_and_the_last_write_wins() {
    let dir = tempfile::tempdir().unwrap();
    let mut life = Life::begin(dir.path());
    let mut records = life.records(herdlet_plan::event::Command::Apply {
        jobs: vec![job("a", 1, "x")],
        volumes: vec![volume("v")],
    });
    records.push(Record::Delete(RecordKey::Volume("v".to_owned())));
    life.store.commit(&records).unwrap();
    let accepted = files(&paths(dir.path()).accepted());
    life.store.commit(&records).unwrap();
    assert_eq!(files(&paths(dir.path()).accepted()), accepted);
    drop(life);
    let once = content(&open(dir.path()).records);
    assert!(once.keys().any(|place| place == "state/job/default/a"));
    assert!(!once.keys().any(|place| place.contains("volume")));

    let mut compacted = records.iter().cloned().chain(records.iter().cloned()).collect::<Vec<_>>();
    <StateDb as Store>::compact(&mut compacted);
    let keys: Vec<String> =
        compacted.iter().map(|record| format!("{:?}", crate::state_db::key_of(record))).collect();
    let distinct: std::collections::BTreeSet<&String> = keys.iter().collect();
    assert_eq!(keys.len(), distinct.len());
    assert!(matches!(compacted.last(), Some(Record::Delete(RecordKey::Volume(_)))));
}

#[test]
fn accepted_files_follow_versions_deletion_and_purging() {
    let dir = tempfile::tempdir().unwrap();
    let accepted = paths(dir.path()).accepted();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("web", 2, "x")], vec![volume("v")]);
    let file = accepted.join("default.web.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let field = |what: &str| {
        serde_json::from_slice::<serde_json::Value>(&fs::read(&file).unwrap()).unwrap()[what].clone()
    };
    assert_eq!((field("version"), field("deleting"), field("format")), (0.into(), false.into(), 1.into()));
    life.apply(vec![job("web", 2, "y")], vec![]);
    assert_eq!(field("version"), 1);
    assert_eq!(field("older")[0]["version"], 0, "allocations still use it");
    life.delete("web");
    assert_eq!(field("deleting"), true);
    life.delete_volume("v");
    let volume_file = accepted.join("volumes/v.json");
    assert!(fs::read_to_string(&volume_file).unwrap().contains("dropped"));
    life.store.commit(&[Record::Delete(RecordKey::Volume("v".to_owned()))]).unwrap();
    assert!(!volume_file.exists());
    life.store.commit(&forget("web", &[0, 1], &[])).unwrap();
    assert!(!file.exists());
    // Volumes of the config are read again at each start.
    let config = VolumeState {
        spec: volume("c"),
        origin: Origin::Config,
        fate: herdlet_plan::shared::volume::VolumeIntent::Desired,
        path: None,
    };
    let put = Record::Put(RecordKey::Volume("c".to_owned()), RecordValue::Volume(config.into()));
    life.store.commit(&[put]).unwrap();
    assert!(!accepted.join("volumes/c.json").exists());
}

#[test]
fn a_job_that_did_not_change_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 1, "x")], vec![]);
    let file = paths(dir.path()).accepted().join("default.a.json");
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    let records =
        life.records(herdlet_plan::event::Command::Apply { jobs: vec![job("a", 1, "x")], volumes: vec![] });
    life.store.commit(&records).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
}
