//! The store on a real directory: semantics, crashes at every step, lost keys, rotation, tampering.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use herdlet_base::durable::Steps;

use super::*;
use crate::error::KeyError;

mod damage;

pub(crate) fn key(path: &str) -> VariableKey {
    VariableKey { namespace: "default".to_owned(), path: path.to_owned() }
}

pub(crate) fn items(value: &str) -> VariableItems {
    VariableItems([("password".to_owned(), value.to_owned())].into_iter().collect())
}

fn source(state: &Path) -> KeySource {
    KeySource::choose(None, None, &state.join("keys"))
}

pub(crate) fn open(state: &Path) -> Store {
    Store::open(state, source(state)).unwrap()
}

fn value(store: &Store, path: &str) -> Option<String> {
    let found = store.get(&key(path)).unwrap()?;
    found.items.unwrap().0.remove("password")
}

fn put(store: &Store, path: &str, value: &str) -> u64 {
    store.put(&key(path), items(value), Check::Nothing, "").unwrap().metadata.modify_index
}

const LOCK: LockRequest<'_> =
    LockRequest { id: "holder", ttl: Duration::from_secs(15), delay: Duration::from_secs(15) };

#[test]
fn variables_survive_a_restart_encrypted() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    assert_eq!((store.index(), store.list().len(), value(&store, "a")), (1, 0, None));
    assert_eq!(
        (put(&store, "a", "hunter1"), put(&store, "b/c", "hunter2"), put(&store, "a", "hunter3")),
        (2, 3, 4)
    );
    let before = store.list();
    assert_eq!((before[0].create_index, before[0].modify_index), (2, 4));
    drop(store);
    let store = open(state.path());
    assert_eq!((store.list(), store.index()), (before, 4));
    assert_eq!(
        (value(&store, "a").unwrap(), value(&store, "b/c").unwrap()),
        ("hunter3".to_owned(), "hunter2".to_owned())
    );
    for file in fs::read_dir(state.path().join(DIR)).unwrap().map(|file| file.unwrap().path()) {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"hunter"), "{}", file.display());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_removal_counts_also_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "x");
    assert!(store.delete(&key("a"), Check::Nothing).unwrap());
    assert!(!store.delete(&key("a"), Check::Nothing).unwrap(), "there is none any more");
    assert_eq!(store.index(), 3);
    drop(store);
    let store = open(state.path());
    assert_eq!((store.index(), store.list().len()), (3, 0));
    assert_eq!(put(&store, "a", "y"), 4);
}

#[test]
fn checks_compare_the_index() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    let put = |check| store.put(&key("a"), items("new"), check, "");
    let present = |done: Result<Variable, VariableError>| match done {
        Err(VariableError::Conflict { present, .. }) => *present,
        other => panic!("{other:?}"),
    };
    let absent = present(put(Check::Index(7)));
    assert_eq!((absent.metadata.path.as_str(), absent.metadata.modify_index, absent.items), ("a", 0, None));
    assert_eq!(put(Check::Index(0)).unwrap().metadata.modify_index, 2);
    let present_now = present(put(Check::Index(0)));
    assert_eq!((present_now.metadata.modify_index, present_now.items), (2, Some(items("new"))));
    assert_eq!(present(put(Check::Index(1))).metadata.modify_index, 2);
    assert_eq!(put(Check::Index(2)).unwrap().metadata.modify_index, 3);
    let delete = |check| store.delete(&key("a"), check);
    assert!(matches!(delete(Check::Index(2)), Err(VariableError::Conflict { .. })));
    assert!(matches!(delete(Check::Index(0)), Err(VariableError::Conflict { .. })));
    assert!(delete(Check::Index(3)).unwrap());
    assert!(!delete(Check::Index(0)).unwrap());
    assert!(matches!(delete(Check::Index(3)), Err(VariableError::Conflict { .. })));
}

#[test]
fn only_the_holder_changes_a_locked_variable() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "old");
    let locked = store.acquire(&key("a"), None, LOCK).unwrap();
    assert_eq!((locked.metadata.lock.unwrap().id.as_str(), locked.items), ("holder", Some(items("old"))));
    let is_conflict = |error: VariableError| matches!(error, VariableError::Conflict { .. });
    assert!(is_conflict(store.put(&key("a"), items("x"), Check::Nothing, "").unwrap_err()));
    assert!(is_conflict(store.put(&key("a"), items("x"), Check::Nothing, "other").unwrap_err()));
    assert!(is_conflict(store.delete(&key("a"), Check::Nothing).unwrap_err()));
    assert!(is_conflict(store.acquire(&key("a"), None, LOCK).unwrap_err()));
    assert!(is_conflict(store.release(&key("a"), "other").unwrap_err()));
    assert!(is_conflict(store.release(&key("a"), "").unwrap_err()));
    let shown = store.get(&key("a")).unwrap().unwrap().metadata.lock.unwrap();
    assert_eq!((shown.id.as_str(), shown.ttl_ns), ("", 15_000_000_000), "readers don't see the id");
    let written = store.put(&key("a"), items("mine"), Check::Nothing, "holder").unwrap();
    assert!(written.metadata.lock.is_some(), "it stays locked");
    drop(store);
    let store = open(state.path());
    assert_eq!(store.locked().len(), 1, "also over a restart");
    let released = store.release(&key("a"), "holder").unwrap();
    assert_eq!((released.lock, value(&store, "a").unwrap()), (None, "mine".to_owned()));
    assert!(is_conflict(store.release(&key("a"), "holder").unwrap_err()));
    assert!(matches!(store.release(&key("b"), "holder"), Err(VariableError::NotFound)));
    // A lock may have no items, and new ones replace the present ones.
    assert_eq!(store.acquire(&key("b"), None, LOCK).unwrap().items, Some(VariableItems::default()));
    assert_eq!(store.acquire(&key("a"), Some(items("newer")), LOCK).unwrap().items, Some(items("newer")));
}

#[test]
fn bad_requests_change_nothing() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    for (path, new) in [("a b", items("x")), ("nomad", items("x")), ("a", VariableItems::default())] {
        let refused = store.put(&key(path), new, Check::Nothing, "").unwrap_err();
        assert!(matches!(refused, VariableError::Invalid(_)), "{refused}");
    }
    assert!(!state.path().join("keys").exists() && store.index() == 1);
}

/// A change, whose result counts only if it was acknowledged.
type Change = fn(&Store) -> bool;

#[test]
fn a_crash_at_any_step_loses_nothing_acknowledged() {
    let changes: [(&str, Change, Option<&str>); 6] = [
        ("create", |store| store.put(&key("new"), items("1"), Check::Nothing, "").is_ok(), Some("new")),
        ("update", |store| store.put(&key("old"), items("2"), Check::Nothing, "").is_ok(), Some("old")),
        ("remove", |store| store.delete(&key("old"), Check::Nothing).is_ok(), Some("old")),
        ("lock", |store| store.acquire(&key("old"), None, LOCK).is_ok(), None),
        ("release", |store| store.release(&key("locked"), "holder").is_ok(), None),
        (
            "encrypt again",
            |store| {
                store.rotate().is_ok()
                    && ["locked", "old", "other"].iter().all(|path| store.encrypt_again(&key(path)).is_ok())
            },
            None,
        ),
    ];
    for (name, change, changed) in changes {
        let mut was_done = false;
        for steps in 0..60 {
            let state = tempfile::tempdir().unwrap();
            let store = open(state.path());
            put(&store, "old", "1");
            put(&store, "other", "1");
            store.acquire(&key("locked"), Some(items("1")), LOCK).unwrap();
            let (acknowledged, index) = (store.list(), store.index());
            drop(store);
            let store = Store::open_in_steps(state.path(), source(state.path()), Steps::failing_after(steps))
                .unwrap();
            let is_done = change(&store);
            let (after, index_after) = (store.list(), store.index());
            drop(store);

            let store = open(state.path());
            let place = format!("{name}, after {steps} steps");
            if is_done {
                assert_eq!((store.list(), store.index()), (after, index_after), "{place}");
                was_done = true;
            }
            assert!(store.index() >= index, "{place}");
            for metadata in &acknowledged {
                let found = store.get(&metadata.key()).unwrap();
                if changed == Some(metadata.path.as_str()) {
                    let value = found.map(|found| found.items.unwrap());
                    let (old, new) = (Some(items("1")), (name == "update").then(|| items("2")));
                    assert!(value == old || value == new, "{place}: {value:?}");
                    assert!(!is_done || value == new, "{place}");
                } else {
                    assert_eq!(found.unwrap().items, Some(items("1")), "{place}: {}", metadata.path);
                }
            }
            if name == "create" {
                assert!(value(&store, "new") == is_done.then(|| "1".to_owned()) || !is_done, "{place}");
            }
            let names = fs::read_dir(state.path().join(DIR)).unwrap();
            assert!(
                names.flatten().all(|name| !name.file_name().to_string_lossy().ends_with(".tmp")),
                "{place}"
            );
            put(&store, "later", "1");
            assert!(!state.path().join("damaged").exists(), "{place}");
            if is_done {
                break;
            }
        }
        assert!(was_done, "{name} has more steps than the test");
    }
}

#[test]
fn a_failed_write_changes_nothing_that_is_read() {
    let state = tempfile::tempdir().unwrap();
    put(&open(state.path()), "a", "old");
    for steps in 0..8 {
        let store =
            Store::open_in_steps(state.path(), source(state.path()), Steps::failing_after(steps)).unwrap();
        let before = store.index();
        let done = store.put(&key("a"), items("new"), Check::Nothing, "");
        let now = value(&store, "a").unwrap();
        match done {
            Ok(_) => return,
            Err(VariableError::Write { .. }) if now == "old" => assert_eq!(store.index(), before),
            // The last step failed: the file is the new one, and readers learn it.
            Err(VariableError::Write { .. }) => assert!(now == "new" && store.index() > before),
            Err(other) => panic!("{other}"),
        }
        drop(store);
        put(&open(state.path()), "a", "old");
    }
    panic!("a write has more steps than the test");
}

#[test]
fn a_lost_key_destroys_nothing_and_is_named() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "1");
    put(&store, "b", "2");
    drop(store);
    let (keys, away) = (state.path().join("keys/variables"), state.path().join("away"));
    fs::rename(&keys, &away).unwrap();
    let store = open(state.path());
    assert_eq!(store.list().len(), 2, "metadata needs no key");
    let refused = store.get(&key("a")).unwrap_err().to_string();
    assert!(refused.contains(&format!("the key file {} is missing", keys.display())), "{refused}");
    for refused in [
        store.put(&key("a"), items("x"), Check::Nothing, "").unwrap_err(),
        store.put(&key("new"), items("x"), Check::Nothing, "").unwrap_err(),
        store.rotate().unwrap_err(),
        store.acquire(&key("a"), None, LOCK).unwrap_err(),
    ] {
        assert!(matches!(refused, VariableError::Key(KeyError::Missing { .. })), "{refused}");
    }
    assert!(!keys.exists(), "no other key is generated");
    // The file comes back: no restart is needed.
    fs::rename(&away, &keys).unwrap();
    assert_eq!(value(&store, "a").unwrap(), "1");
    assert_eq!(value(&store, "b").unwrap(), "2");
}

#[test]
fn a_wrong_key_writes_nothing() {
    let (state, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(state.path());
    put(&store, "a", "1");
    put(&open(other.path()), "a", "1");
    let (keys, right) = (state.path().join("keys/variables"), state.path().join("right"));
    drop(store);
    fs::rename(&keys, &right).unwrap();
    fs::copy(other.path().join("keys/variables"), &keys).unwrap();
    let store = open(state.path());
    let refused = store.put(&key("new"), items("x"), Check::Nothing, "").unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, VariableError::Key(KeyError::Unknown { count: 1, .. })), "{text}");
    assert!(text.contains(&keys.display().to_string()), "{text}");
    let examined = examine(state.path(), &source(state.path())).unwrap();
    assert!(examined.variables == 1 && matches!(examined.problem, Some(KeyError::Unknown { .. })));
    // A variable whose key is gone for good can be removed, and then the others can be written.
    assert!(store.delete(&key("a"), Check::Nothing).unwrap());
    put(&store, "new", "x");
    assert!(examine(state.path(), &source(state.path())).unwrap().problem.is_none());
}

/// The warning of an agent with an unusable key file named it missing.
#[test]
fn the_trouble_of_a_store_is_that_of_its_key_file() {
    let state = tempfile::tempdir().unwrap();
    put(&open(state.path()), "a", "1");
    let keys = state.path().join("keys/variables");
    let text = fs::read_to_string(&keys).unwrap();
    fs::write(&keys, "damaged").unwrap();
    let store = open(state.path());
    let trouble = store.trouble().unwrap();
    assert!(trouble.contains("is not valid in line 1"), "{trouble}");
    fs::remove_file(&keys).unwrap();
    let trouble = store.trouble().unwrap();
    assert!(trouble.contains("is missing; restore it"), "{trouble}");
    fs::write(&keys, text).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(store.trouble(), None, "a repaired file needs no restart");
    assert_eq!(value(&store, "a").unwrap(), "1");
}

#[test]
fn a_running_agent_keeps_its_keys_when_the_file_becomes_wrong() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "1");
    let keys = state.path().join("keys/variables");
    let text = fs::read_to_string(&keys).unwrap();
    fs::write(&keys, crate::keyring::new_line(0).unwrap().as_str()).unwrap();
    assert!(matches!(store.load_keys(), Err(KeyError::Unknown { .. })));
    assert_eq!(value(&store, "a").unwrap(), "1");
    fs::write(&keys, "damaged").unwrap();
    assert!(matches!(store.load_keys(), Err(KeyError::Invalid { line: 1, .. })));
    assert_eq!(value(&store, "a").unwrap(), "1");
    fs::write(&keys, text).unwrap();
    store.load_keys().unwrap();
}

#[test]
fn rotation_encrypts_again_and_frees_the_old_key() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "1");
    put(&store, "b", "2");
    let old = store.key_infos()[0].id;
    let (before, index) = (store.list(), store.index());
    let new = store.rotate().unwrap().id;
    let uses = |store: &Store| {
        store.key_infos().iter().map(|key| (key.id, key.is_active, key.variables)).collect::<Vec<_>>()
    };
    assert_eq!(uses(&store), [(new, true, 0), (old, false, 2)]);
    assert!(matches!(store.remove_key(old), Err(VariableError::KeyRequest(KeyError::InUse { .. }))));
    assert!(matches!(store.remove_key(new), Err(VariableError::KeyRequest(KeyError::InUse { .. }))));
    // As after a crash in the middle: both keys are there, and the rest goes on.
    store.encrypt_again(&store.next_outdated(None).unwrap()).unwrap();
    drop(store);
    let store = open(state.path());
    assert_eq!(uses(&store), [(new, true, 1), (old, false, 1)]);
    while let Some(next) = store.next_outdated(None) {
        store.encrypt_again(&next).unwrap();
    }
    assert_eq!((store.list(), store.index()), (before, index), "readers are not woken");
    store.remove_key(old).unwrap();
    drop(store);
    let store = open(state.path());
    assert_eq!(uses(&store), [(new, true, 2)]);
    assert_eq!((value(&store, "a").unwrap(), value(&store, "b").unwrap()), ("1".to_owned(), "2".to_owned()));
}

#[test]
fn long_paths_and_namespaces_have_files_of_their_own() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    let keys = [("default", "a"), ("a", "default"), ("n", &"/".repeat(128)), ("n", &"~".repeat(128))]
        .map(|(namespace, path)| VariableKey { namespace: namespace.to_owned(), path: path.to_owned() });
    for (number, key) in keys.iter().enumerate() {
        store.put(key, items(&number.to_string()), Check::Nothing, "").unwrap();
    }
    drop(store);
    let store = open(state.path());
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(store.get(key).unwrap().unwrap().items, Some(items(&number.to_string())), "{key}");
    }
}
