//! A damaged or lost database loses nothing that was accepted.

use std::{collections::BTreeMap, fs};

use herdlet_api_types::{AllocId, job::Job};
use herdlet_base::{mounts::kernel, paths::attempt_name, safe_fs::Dir, test_env::TestEnv};
use herdlet_plan::{
    event::Command,
    record::{Record, RecordKey, RecordValue},
    shared::volume::VolumeIntent,
    state::{Run, Stage},
};
use herdlet_runtime::{CommitIndex, Store};
use redb::Database;
use serde_json::json;

use super::fixture::*;
use crate::state_db::{
    code::{self, Table},
    load::Loaded,
};

/// Two jobs, one of them between two versions, another one being deleted, and volumes.
fn lived(dir: &std::path::Path) -> Life {
    let mut life = Life::begin(dir);
    life.apply(vec![job("a", 2, "x"), job("b", 1, "y"), job("gone", 1, "z")], vec![volume("v"), volume("w")]);
    life.apply(vec![job("a", 2, "new")], vec![]);
    life.delete("gone");
    life.delete_volume("w");
    life.make_alloc_dirs(dir);
    life
}

#[test]
fn a_lost_database_is_rebuilt_and_loses_no_accepted_job() {
    let dir = scratch();
    let mut life = lived(dir.path());
    let done = life.world.allocations().find(|(spec, _)| *spec.job_key.id == *"b").unwrap().0.id;
    let put = Record::Put(RecordKey::AllocState(done), RecordValue::AllocState(ended().into()));
    life.store.commit(&[put]).unwrap();
    let (instance, index) = (life.store.instance().clone(), life.store.index());
    drop(life);
    let before = open(dir.path());
    let (jobs_before, content_before) = (jobs(&before.records), content(&before.records));
    let running =
        allocs(&before.records).into_iter().find(|spec| *spec.job_key.id == *"a" && wants(spec)).unwrap();
    drop(before);
    // Attempt 4 of one task was begun.
    let attempts = paths(dir.path()).attempts();
    fs::create_dir_all(&attempts).unwrap();
    for attempt in [4, 3] {
        fs::write(attempts.join(attempt_name(&running.id, "main", attempt)), "").unwrap();
    }
    fs::remove_file(paths(dir.path()).database()).unwrap();

    let opened = open(dir.path());
    assert!(opened.rebuilt);
    assert!(opened.damaged.is_empty(), "{:?}", opened.damaged);
    assert_eq!(*opened.store.instance(), instance);
    assert!(opened.store.index() > index, "an index never decreases");
    assert_eq!(jobs(&opened.records), jobs_before);
    let content_after = content(&opened.records);
    for (place, bytes) in &content_before {
        if place.starts_with("spec/job") || place.contains("volume") {
            assert_eq!(content_after.get(place), Some(bytes), "{place}");
        } else {
            assert!(content_after.contains_key(place), "{place}");
        }
    }
    let states = states(&opened.records);
    assert_eq!(states[&done], ended(), "completed work is not repeated");
    let task = &states[&running.id].tasks[0];
    assert_eq!((task.attempt, &task.run), (4, &Run::Starting { attempt: 4, boot: NOW.boot }));
    // Not behind the barrier that waits until no task runs: the siblings of a running task would never start again.
    assert_eq!(states[&running.id].stage, Stage::UNTOLD);
    // An allocation that a newer one has replaced is not started again.
    let stale = allocs(&opened.records).iter().filter(|spec| *spec.job_key.id == *"a" && wants(spec)).count();
    assert!(stale <= 2, "{stale}");
    // The next start finds everything unchanged.
    drop(opened);
    let again = open(dir.path());
    assert!(!again.rebuilt);
    assert_eq!(content(&again.records), content_after);
    // New allocations do not get the ids of old ones.
    let known: Vec<_> = allocs(&again.records).iter().map(|spec| spec.id).collect();
    let mut life = Life::of(again);
    life.apply(vec![job("b", 3, "y")], vec![]);
    let made = life.world.allocations().filter(|(spec, _)| !known.contains(&spec.id)).count();
    assert_eq!(made, 2);
}

#[test]
fn allocation_of_an_unknown_job_is_reported() {
    let dir = scratch();
    drop(lived(dir.path()));
    fs::remove_file(paths(dir.path()).database()).unwrap();
    fs::remove_file(paths(dir.path()).accepted().join("default.b.json")).unwrap();
    let opened = open(dir.path());
    assert_eq!(opened.damaged.len(), 1);
    assert!(opened.damaged[0].why.contains("its job b is not accepted"), "{:?}", opened.damaged);
    assert!(opened.damaged[0].path.exists());
}

#[test]
fn a_damaged_file_is_moved_aside_and_kept() {
    let dir = scratch();
    drop(lived(dir.path()));
    for (damage, expected) in [(&b""[..], 0), (b"rubbish", 7), (&[0; 8192], 8192)] {
        fs::write(paths(dir.path()).database(), damage).unwrap();
        let opened = open(dir.path());
        assert!(opened.rebuilt);
        let aside = &opened.damaged[0];
        assert_eq!((aside.what.as_str(), fs::read(&aside.path).unwrap().len()), ("database", expected));
        assert!(
            aside
                .path
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("state.db.damaged-20231114T221320Z")
        );
    }
}

/// Every record in turn is overwritten; the others must load unchanged, and the damaged one must be rebuilt if
/// possible.
#[test]
fn damaged_record_is_set_aside_and_others_load() {
    let origin = scratch();
    drop(lived(origin.path()));
    let whole = content(&open(origin.path()).records);
    for place in whole.keys().filter(|place| !place.starts_with("meta/")) {
        let dir = scratch();
        copy(origin.path(), dir.path());
        let (table, key) = place.split_once('/').unwrap();
        {
            let db = Database::open(paths(dir.path()).database()).unwrap();
            let transaction = db.begin_write().unwrap();
            let table = Table::ALL.into_iter().find(|known| known.name() == table).unwrap();
            transaction.open_table(table.definition()).unwrap().insert(key, &b"\x01\xc1rubbish"[..]).unwrap();
            transaction.commit().unwrap();
        }
        let opened = open(dir.path());
        assert!(!opened.rebuilt);
        assert_eq!(opened.damaged.len(), 1, "{place}: {:?}", opened.damaged);
        assert_eq!(opened.damaged[0].what, *place);
        assert_eq!(fs::read(&opened.damaged[0].path).unwrap(), b"\x01\xc1rubbish");
        let after = content(&opened.records);
        let different: Vec<&String> = whole
            .iter()
            .filter(|(at, bytes)| after.get(*at) != Some(bytes) && !at.starts_with("meta/"))
            .map(|(at, _)| at)
            .collect();
        let small = place.starts_with("state/alloc") || place.starts_with("state/job");
        assert!(different.is_empty() || small && different == [place], "{place}: {different:?}");
        assert_eq!(after.len(), whole.len(), "{place}");
        let index = opened.store.index();
        drop(opened);
        let again = open(dir.path());
        assert!(again.damaged.is_empty(), "reported once");
        assert_eq!(again.store.index(), index);
        assert_eq!(content(&again.records), after);
    }
}

// When one bit of an allocation's id changed in its specification, its state belonged to no allocation and it was
// started again.
#[test]
fn record_at_a_wrong_key_is_set_aside() {
    let dir = scratch();
    drop(lived(dir.path()));
    let mut tried = 0;
    for (key, value) in &open(dir.path()).records {
        let elsewhere = match key {
            RecordKey::Meta | RecordKey::AllocState(_) => continue,
            RecordKey::Job(_) => RecordKey::Job(job_key("other")),
            RecordKey::JobVersion(_, version) => RecordKey::JobVersion(job_key("other"), *version),
            RecordKey::Volume(_) => RecordKey::Volume("other".to_owned()),
            RecordKey::AllocSpec(_) => RecordKey::AllocSpec(AllocId::from_hash([9; 16])),
        };
        let (table, place) = code::place(&elsewhere);
        let mut loaded = Loaded::default();
        assert!(loaded.take(table, &place, code::encode_value(value).unwrap()).is_ok());
        assert_eq!(loaded.aside.len(), 1, "{elsewhere:?}");
        tried += 1;
    }
    assert!(tried > 4, "{tried}");
}

/// Earlier releases stored the ports of single tasks with the servers' data.
#[test]
fn old_record_keeps_the_ports_of_its_tasks() {
    let dir = scratch();
    let life = lived(dir.path());
    let (spec, _) = life.world.allocations().find(|(spec, _)| *spec.job_key.id == *"b").unwrap();
    let ports = json!({ "main": { "db": { "host_ip": "127.0.0.1", "value": 6379, "to": 0 } } });
    let mut old = json!(**spec);
    old["server"] = json!(herdlet_api_types::fixture::server_side(&spec.job));
    old["server"]["task_ports"] = ports.clone();
    let mut loaded = Loaded::default();
    loaded.specs.insert(spec.id, serde_json::from_value(old).unwrap());
    assert!(loaded.put_in_order().is_empty());
    let read = &loaded.specs[&spec.id];
    assert_eq!((json!(read.task_ports), read.host_ports().count()), (ports, 2));
    assert_eq!(json!(read)["server"].get("task_ports"), None, "it is written at its present place only");
}

#[test]
fn allocation_without_its_job_version_is_set_aside() {
    let dir = scratch();
    let life = lived(dir.path());
    let (spec, _) = life.world.allocations().find(|(spec, _)| *spec.job_key.id == *"b").unwrap();
    let (id, key) = (spec.id, spec.job_key.clone());
    drop(life);
    {
        let db = Database::open(paths(dir.path()).database()).unwrap();
        let transaction = db.begin_write().unwrap();
        transaction.open_table(Table::Spec.definition()).unwrap().remove("job/default/b/0").unwrap();
        transaction.commit().unwrap();
    }
    fs::remove_file(paths(dir.path()).accepted().join("default.b.json")).unwrap();
    let opened = open(dir.path());
    let what: Vec<&str> = opened.damaged.iter().map(|aside| aside.what.as_str()).collect();
    assert_eq!(
        what,
        ["state/job/default/b".to_owned(), format!("spec/alloc/{id}"), format!("state/alloc/{id}")]
    );
    assert!(opened.damaged.iter().all(|aside| fs::metadata(&aside.path).unwrap().len() > 10));
    assert!(!jobs(&opened.records).contains_key(&*key.id));
    assert!(jobs(&opened.records).contains_key("a"));
}

/// The copy was made before the last two requests. Both were answered, so both must hold.
#[test]
fn older_database_copy_reverts_no_request() {
    let dir = scratch();
    let mut life = lived(dir.path());
    let older = fs::read(paths(dir.path()).database()).unwrap();
    life.apply(vec![job("a", 2, "newest"), job("late", 1, "x")], vec![volume("late")]);
    life.delete("b");
    life.delete_volume("v");
    let allocs: Vec<_> = life
        .world
        .allocations()
        .filter(|(spec, _)| *spec.job_key.id == *"gone")
        .map(|(spec, _)| spec.id)
        .collect();
    life.store.commit(&forget("gone", &[0], &allocs)).unwrap();
    let index = life.store.index();
    drop(life);
    let mut expected = jobs(&open(dir.path()).records);
    assert!(expected["b"].1 && !expected.contains_key("gone"));
    fs::write(paths(dir.path()).database(), older).unwrap();

    let opened = open(dir.path());
    assert!(opened.damaged.is_empty() && !opened.rebuilt, "{:?}", opened.damaged);
    assert!(opened.incomplete, "allocations of the lost commits may be running");
    assert!(opened.store.index() > index);
    // It may own things, so it is stopped and forgotten again.
    expected.insert("gone".to_owned(), (0, true));
    assert_eq!(jobs(&opened.records), expected);
    let after = content(&opened.records);
    assert_eq!(fates(&opened.records)["v"], VolumeIntent::Dropped);
    assert_eq!(fates(&opened.records)["late"], VolumeIntent::Desired);
    drop(opened);
    let again = open(dir.path());
    assert_eq!(content(&again.records), after);
    assert!(!again.incomplete);
}

/// The job ran when the copy was made. It was deleted and forgotten since, so nothing of it may start again, and
/// nothing of the others may be stopped.
#[test]
fn forgotten_job_is_not_restored_from_an_older_copy() {
    let dir = scratch();
    let mut life = lived(dir.path());
    let older = fs::read(paths(dir.path()).database()).unwrap();
    let allocs_of = |life: &Life, id: &str| -> Vec<herdlet_api_types::AllocId> {
        let of_job = life.world.allocations().filter(|(spec, _)| *spec.job_key.id == *id);
        of_job.map(|(spec, _)| spec.id).collect()
    };
    let (forgotten, kept) = (allocs_of(&life, "b"), allocs_of(&life, "a"));
    life.delete("b");
    life.store.commit(&forget("b", &[0], &forgotten)).unwrap();
    drop(life);
    fs::write(paths(dir.path()).database(), older).unwrap();
    for _ in 0..2 {
        let opened = open(dir.path());
        let wanted: Vec<_> =
            allocs(&opened.records).iter().filter(|spec| wants(spec)).map(|spec| spec.id).collect();
        assert!(!forgotten.iter().any(|id| wanted.contains(id)));
        assert!(kept.iter().any(|id| wanted.contains(id)));
        assert!(jobs(&opened.records)["b"].1 && !jobs(&opened.records)["a"].1);
    }
}

/// Replaces a file with something unreadable or with garbage.
fn hurt(file: &std::path::Path, damage: &str) {
    fs::remove_file(file).unwrap();
    match damage {
        // Not even root can read a directory as a file.
        "unreadable" => fs::create_dir(file).unwrap(),
        // Opening it would wait for a writer.
        "fifo" => rustix::fs::mkfifoat(rustix::fs::CWD, file, rustix::fs::Mode::RUSR).unwrap(),
        _ => fs::write(file, damage).unwrap(),
    }
}

#[test]
fn unreadable_accepted_file_is_set_aside_and_rewritten() {
    for damage in ["unreadable", "fifo", "{\"rubbish"] {
        let dir = scratch();
        drop(lived(dir.path()));
        let expected = content(&open(dir.path()).records);
        let accepted = paths(dir.path()).accepted();
        for name in ["default.a.json", "volumes/v.json"] {
            hurt(&accepted.join(name), damage);
        }
        let opened = open(dir.path());
        assert_eq!(content(&opened.records), expected, "{damage}");
        assert!(!opened.rebuilt && !opened.incomplete);
        let aside: Vec<String> =
            opened.damaged.iter().map(|aside| aside.path.display().to_string()).collect();
        assert_eq!(aside.len(), 2, "{:?}", opened.damaged);
        assert!(aside[0].ends_with("damaged/default.a.json.20231114T221320Z"), "{aside:?}");
        drop(opened);
        fs::remove_file(paths(dir.path()).database()).unwrap();
        assert_eq!(jobs(&open(dir.path()).records).len(), 3, "the files are written again");
    }
}

/// The file is unreadable, but its existence shows that nobody has deleted the job.
#[test]
fn unreadable_job_file_does_not_delete_its_job() {
    let dir = scratch();
    let mut life = lived(dir.path());
    let older = fs::read(paths(dir.path()).database()).unwrap();
    life.apply(vec![job("late", 1, "x")], vec![]);
    drop(life);
    fs::write(paths(dir.path()).database(), older).unwrap();
    let accepted = paths(dir.path()).accepted();
    for name in ["default.a.json", "volumes/v.json"] {
        hurt(&accepted.join(name), "unreadable");
    }
    let opened = open(dir.path());
    let found = jobs(&opened.records);
    assert!(!found["a"].1 && !found["late"].1 && found["gone"].1, "{found:?}");
    assert_eq!(fates(&opened.records)["v"], VolumeIntent::Desired);
}

/// Names that are too long for a file name, or would be other paths.
#[test]
fn jobs_and_volumes_with_any_names_survive_a_lost_database() {
    let dir = scratch();
    let mut life = Life::begin(dir.path());
    let odd = |id: &str, namespace: &str| Job { namespace: namespace.to_owned(), ..job(id, 1, "x") };
    let long = "é".repeat(127);
    let written = vec![
        odd("Team_A/web.1", "default"),
        odd(&long, "default"),
        odd(&format!("{long}/"), &"N".repeat(128)),
        odd("%41", "default"),
        odd("~a", "default"),
    ];
    let volumes = ["Data_1", &".".repeat(128), "data[0]"];
    life.apply(written.clone(), volumes.map(volume).to_vec());
    drop(life);
    let before = jobs(&open(dir.path()).records);
    assert_eq!(before.len(), written.len());
    fs::remove_file(paths(dir.path()).database()).unwrap();
    let rebuilt = open(dir.path());
    assert!(rebuilt.rebuilt && rebuilt.damaged.is_empty(), "{:?}", rebuilt.damaged);
    assert_eq!(jobs(&rebuilt.records), before);
    assert_eq!(fates(&rebuilt.records).len(), volumes.len());
    drop(rebuilt);

    // An unreadable file shows which job it is of, also with a hashed name.
    let accepted = paths(dir.path()).accepted();
    let hashed =
        fs::read_dir(&accepted).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let hashed: Vec<String> = hashed.filter(|name| name.starts_with('~')).collect();
    assert_eq!(hashed.len(), 2, "{hashed:?}");
    hurt(&accepted.join(&hashed[0]), "unreadable");
    let opened = open(dir.path());
    assert!(jobs(&opened.records).values().all(|(_, deleting)| !deleting), "{:?}", jobs(&opened.records));
}

/// The job is unknown, so nothing of it is touched.
#[test]
fn allocations_of_an_unreadable_job_are_left_alone() {
    let dir = scratch();
    drop(lived(dir.path()));
    fs::remove_file(paths(dir.path()).database()).unwrap();
    hurt(&paths(dir.path()).accepted().join("default.b.json"), "unreadable");
    let opened = open(dir.path());
    assert!(opened.incomplete && !jobs(&opened.records).contains_key("b"));
    assert!(jobs(&opened.records).contains_key("a"));
    assert!(opened.damaged.iter().any(|aside| aside.why.contains("its job b is not accepted")));
}

/// Nothing is accepted while there is no space, nothing accepted is lost, and commits succeed again once there is
/// space.
#[test]
fn full_disk_is_reported_and_survived() {
    let Some(ground) = TestEnv::mounting() else { return };
    fs::create_dir(ground.path().join("disk")).unwrap();
    kernel::mount_tmpfs(&Dir::open(&ground.path().join("disk")).unwrap(), 3 << 20, 0o700).unwrap();
    let dir = ground.path().join("disk");
    let mut life = Life::begin(&dir);
    life.apply(vec![job("a", 1, "x")], vec![]);
    let filler = dir.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let records =
        life.records(Command::Apply { jobs: vec![job("b", 200, &"y".repeat(4096))], volumes: vec![] });
    for _ in 0..3 {
        let error = life.store.commit(&records).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
    drop(file);
    fs::remove_file(&filler).unwrap();
    life.store.commit(&records).unwrap();
    drop(life);
    let opened = open(&dir);
    assert!(opened.damaged.is_empty());
    assert_eq!(jobs(&opened.records).len(), 2);
}

/// A random number generator with the same sequence in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn random_damage_never_panics_or_loses_a_job() {
    let origin = scratch();
    let mut life = lived(origin.path());
    for n in 0..12 {
        life.apply(vec![job(&format!("more-{n}"), 2, "x")], vec![]);
    }
    life.make_alloc_dirs(origin.path());
    // As after a kill.
    let crashed = scratch();
    copy(origin.path(), crashed.path());
    drop(life);
    let expected = jobs(&open(origin.path()).records);
    let intact = fs::read(paths(origin.path()).database()).unwrap();
    let unclean = fs::read(paths(crashed.path()).database()).unwrap();
    let mut dice = Rng(42);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for run in 0..120 {
        let dir = scratch();
        copy(crashed.path(), dir.path());
        let mut bytes = if run % 2 == 0 { intact.clone() } else { unclean.clone() };
        // Half of the changes are near the header, where a file of mostly empty pages is most easily damaged.
        let end = if run % 4 < 2 { bytes.len() } else { 8192 };
        for _ in 0..16 {
            let at = dice.below(end);
            bytes[at] = dice.below(256) as u8;
        }
        fs::write(paths(dir.path()).database(), bytes).unwrap();
        let opened = open(dir.path());
        *seen.entry(if opened.rebuilt { "rebuilt" } else { "intact" }).or_default() += 1;
        assert_eq!(jobs(&opened.records), expected, "run {run}");
        let mut life = Life::of(opened);
        life.apply(vec![job("after", 1, "x")], vec![]);
        assert!(life.store.index() > CommitIndex(0));
    }
    assert!(seen["rebuilt"] > 20, "{seen:?}");
}
