//! When a state directory must not be used.

use std::{fs, os::unix::fs::PermissionsExt};

use redb::Database;

use super::fixture::*;
use crate::state_db::{ClaimError, OpenError, StateDir, code::Table, file};

#[test]
fn second_agent_is_refused_with_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let error = StateDir::claim(&paths(dir.path()).state).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ClaimError::InUse { .. }));
    assert!(text.contains(&format!("another agent (pid {}) is using it", std::process::id())), "{text}");
    drop(first);
    open(dir.path());
}

#[test]
fn a_path_of_any_length_and_any_bytes_can_be_locked() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("ü %".repeat(40)).join("x".repeat(200)).join("y".repeat(200));
    open(&deep);
    assert_eq!(fs::metadata(paths(&deep).state).unwrap().permissions().mode() & 0o777, 0o711);
    assert_eq!(fs::metadata(paths(&deep).database()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_instance_is_drawn_once_and_outlives_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = paths(dir.path()).state.join("instance");
    let mut life = Life::begin(dir.path());
    let instance = life.store.instance().clone();
    assert_eq!(instance.0.len(), 16);
    life.apply(vec![job("a", 1, "x")], vec![]);
    drop(life);
    for damage in [None, Some("not hexadecimal\n")] {
        match damage {
            None => fs::remove_file(&file).unwrap(),
            Some(text) => fs::write(&file, text).unwrap(),
        }
        assert_eq!(*open(dir.path()).store.instance(), instance);
    }
    fs::remove_file(&file).unwrap();
    fs::remove_file(paths(dir.path()).database()).unwrap();
    let error = StateDir::claim(&paths(dir.path()).state).unwrap_err();
    assert!(matches!(error, ClaimError::NoInstance { .. }), "{error}");
    assert!(!file.exists(), "a new id would leave all running tasks without an owner");
}

fn set_format(path: &std::path::Path, format: u64) {
    let db = Database::open(path).unwrap();
    let transaction = db.begin_write().unwrap();
    let bytes = format.to_le_bytes();
    transaction.open_table(Table::Meta.definition()).unwrap().insert(file::META_FORMAT, &bytes[..]).unwrap();
    transaction.commit().unwrap();
}

/// Everything except the lock file, whose process id changes.
fn untouched(dir: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = files(dir);
    found.remove("state/lock");
    found
}

#[test]
fn a_newer_format_is_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let mut life = Life::begin(dir.path());
    life.apply(vec![job("a", 1, "x")], vec![volume("v")]);
    // As after a kill: the database was not closed.
    let crashed = tempfile::tempdir().unwrap();
    copy(dir.path(), crashed.path());
    drop(life);

    let in_the_database = tempfile::tempdir().unwrap();
    copy(dir.path(), in_the_database.path());
    set_format(&paths(in_the_database.path()).database(), 2);

    let in_a_record = tempfile::tempdir().unwrap();
    copy(dir.path(), in_a_record.path());
    {
        let db = Database::open(paths(in_a_record.path()).database()).unwrap();
        let transaction = db.begin_write().unwrap();
        let value = [2, 0xc0];
        transaction
            .open_table(Table::State.definition())
            .unwrap()
            .insert("job/default/b", &value[..])
            .unwrap();
        transaction.commit().unwrap();
    }

    let in_a_file = tempfile::tempdir().unwrap();
    copy(crashed.path(), in_a_file.path());
    fs::write(paths(in_a_file.path()).accepted().join("default.b.json"), "{\"format\": 2, \"what\": []}")
        .unwrap();

    for dir in [in_the_database.path(), in_a_record.path(), in_a_file.path()] {
        let before = untouched(dir);
        let error = try_open(dir).unwrap_err();
        assert!(matches!(error, OpenError::Newer { found: 2, .. }), "{error}");
        assert!(error.to_string().contains("it has format 2, this release knows 1 at most"), "{error}");
        assert!(before == untouched(dir), "touched");
    }

    fs::write(paths(crashed.path()).state.join("format"), "2\n").unwrap();
    let before = files(crashed.path());
    let error = StateDir::claim(&paths(crashed.path()).state).unwrap_err();
    assert!(matches!(error, ClaimError::Newer { found: 2, .. }), "{error}");
    assert!(before == files(crashed.path()), "touched");
}

#[test]
fn the_database_of_another_instance_is_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [one.path(), other.path()] {
        Life::begin(dir).apply(vec![job("a", 1, "x")], vec![]);
    }
    fs::copy(paths(one.path()).database(), paths(other.path()).database()).unwrap();
    assert!(matches!(try_open(other.path()).unwrap_err(), OpenError::OtherInstance { .. }));
}

/// A user copied a state directory and started a second agent on the copy, which ended the tasks of the first.
#[tokio::test]
async fn a_copy_of_a_state_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (state, copy, runtime) = (dir.path().join("state"), dir.path().join("copy"), dir.path().join("run"));
    let first = StateDir::claim(&state).unwrap();
    let alone = first.claim_runtime(&runtime).unwrap();
    fs::create_dir(&copy).unwrap();
    for name in ["instance", "format"] {
        fs::copy(state.join(name), copy.join(name)).unwrap();
    }
    let second = StateDir::claim(&copy).unwrap();
    assert_eq!(second.instance(), first.instance());
    // Also with a runtime directory of its own.
    for runtime in [&runtime, &dir.path().join("other")] {
        let refused = second.claim_runtime(runtime).unwrap_err().to_string();
        let holder =
            format!("another agent (pid {}, state directory {}", std::process::id(), state.display());
        assert!(refused.contains(&holder), "{refused}");
    }
    drop(alone);
    // The task that answers ends once it is polled.
    tokio::task::yield_now().await;
    second.claim_runtime(&runtime).unwrap();
}

/// Bytes that are not text used to prevent the start, while any other garbage was repaired from the database.
#[test]
fn an_instance_file_of_any_bytes_is_healed_from_the_database() {
    let dir = tempfile::tempdir().unwrap();
    Life::begin(dir.path()).apply(vec![job("a", 1, "x")], vec![]);
    let state = paths(dir.path()).state;
    let file = state.join("instance");
    let whose = fs::read_to_string(&file).unwrap();
    for rubbish in [&b"\xff\xfe\x00"[..], b"", b"0123456789abcde\xe9\n", b"x"] {
        fs::write(&file, rubbish).unwrap();
        assert_eq!(StateDir::claim(&state).unwrap().instance().0, whose.trim());
        assert_eq!(fs::read_to_string(&file).unwrap(), whose);
    }
}

/// Another user prepared the directory and then gave it away: root wrote through its links.
#[test]
fn planted_links_in_a_state_directory_are_not_followed() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (state, victim) = (dir.path().join("state"), dir.path().join("victim"));
    fs::create_dir(&state).unwrap();
    fs::write(&victim, "precious").unwrap();
    for name in [".format.tmp", ".instance.tmp"] {
        symlink(&victim, state.join(name)).unwrap();
    }
    drop(StateDir::claim(&state).unwrap());
    fs::remove_file(state.join("lock")).unwrap();
    symlink(&victim, state.join("lock")).unwrap();
    StateDir::claim(&state).unwrap_err();
    fs::remove_file(state.join("lock")).unwrap();
    symlink(&victim, state.join("committed")).unwrap();
    try_open(dir.path()).unwrap_err();
    // A backup may share files with the directory: they are not modified either, and do not prevent a start.
    for name in ["lock", "committed"] {
        let _ = fs::remove_file(state.join(name));
        fs::hard_link(&victim, state.join(name)).unwrap();
    }
    try_open(dir.path()).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}
