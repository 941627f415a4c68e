//! Files that are damaged, exchanged, cannot be read, or are from a newer release.

use std::fs;

use super::*;

#[test]
fn exchanged_old_and_changed_files_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "1");
    put(&store, "b", "2");
    let (a, b) = (store.path(&key("a")), store.path(&key("b")));
    let old = fs::read(&a).unwrap();
    put(&store, "a", "3");
    let why = |store: &Store| match store.get(&key("a")) {
        Err(VariableError::Damaged { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let new = fs::read(&a).unwrap();
    fs::copy(&b, &a).unwrap();
    assert_eq!(why(&store), "is of another variable");
    fs::write(&a, &old).unwrap();
    assert_eq!(why(&store), "is older than the agent left it");
    let mut changed = new.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&a, &changed).unwrap();
    assert_eq!(why(&store), "was changed, or exchanged with another file");
    fs::remove_file(&a).unwrap();
    assert_eq!(why(&store), "is missing");
    fs::write(&a, &new).unwrap();
    assert_eq!(value(&store, "a").unwrap(), "3");
    // Found at the start, a misplaced file is moved away, not removed.
    drop(store);
    fs::copy(&b, &a).unwrap();
    let store = open(state.path());
    assert_eq!((value(&store, "a"), value(&store, "b").unwrap()), (None, "2".to_owned()));
    assert_eq!(fs::read_dir(state.path().join("damaged")).unwrap().count(), 1);
}

/// One file that could not be read prevented the start of the agent, and a FIFO blocked it forever.
#[test]
fn a_file_that_cannot_be_read_does_not_hide_the_others() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "1");
    let dir = state.path().join(DIR);
    drop(store);
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("default%2Ffifo"), 0o600.into()).unwrap();
    fs::create_dir(dir.join("default%2Fdir")).unwrap();
    std::os::unix::fs::symlink("loop", dir.join("loop")).unwrap();
    assert_eq!(examine(state.path(), &source(state.path())).unwrap().unreadable, 3);
    let store = open(state.path());
    assert_eq!(value(&store, "a").unwrap(), "1");
    assert_eq!(store.get(&key("fifo")).unwrap(), None);
    put(&store, "b", "2");
    let mut moved: Vec<_> = fs::read_dir(state.path().join("damaged"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    moved.sort();
    assert_eq!(moved, ["variables.default%2Fdir.0", "variables.default%2Ffifo.0", "variables.loop.0"]);
    let examined = examine(state.path(), &source(state.path())).unwrap();
    assert_eq!((examined.variables, examined.unreadable, examined.set_aside), (2, 0, 3));
}

/// The index was that of the remaining files, so that clients with a higher one missed changes.
#[test]
fn the_index_does_not_decrease_when_a_damaged_file_is_moved() {
    for damage in ["default%2Flast", INDEX] {
        let state = tempfile::tempdir().unwrap();
        let store = open(state.path());
        put(&store, "a", "1");
        put(&store, "last", "1");
        if damage == INDEX {
            store.delete(&key("last"), Check::Nothing).unwrap();
        }
        let before = store.index();
        drop(store);
        let dir = state.path().join(DIR);
        fs::write(dir.join(damage), "damaged").unwrap();
        let store = open(state.path());
        let after = store.index();
        assert!(after >= before, "{damage}: {after} < {before}");
        assert!(put(&store, "a", "2") > after);
        drop(store);
        // The file is gone now, and nothing is added to the index again.
        let store = open(state.path());
        assert_eq!((store.index(), value(&store, "a").unwrap().as_str()), (after + 1, "2"), "{damage}");
        assert_eq!(examine(state.path(), &source(state.path())).unwrap().unreadable, 0);
    }
}

/// The index grew by 2^32 with each damaged file, so that some thousands of them used up all numbers of JSON.
#[test]
fn a_damaged_file_raises_the_index_by_little() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    // More changes than one reservation has.
    let mut last = 0;
    for _ in 0..INDEX_STEP + 3 {
        last = put(&store, "last", "1");
    }
    put(&store, "other", "1");
    let path = store.path(&key("last"));
    drop(store);
    for round in 1..=20 {
        fs::write(&path, "damaged").unwrap();
        let store = open(state.path());
        let after = store.index();
        assert!(after > last && after <= last + round * (INDEX_STEP + 1), "{round}: {after}");
        assert!(put(&store, "last", "2") > after);
    }
    // The reservation itself is damaged: only removals could have had a higher index than the files.
    let store = open(state.path());
    let before = store.index();
    fs::write(state.path().join(DIR).join(INDEX), "1 x").unwrap();
    drop(store);
    let after = open(state.path()).index();
    assert!(after > before && after <= before + INDEX_GAP, "{after}");
    assert_eq!(open(state.path()).index(), after, "once");
}

/// An index of a damaged header could end the agent at the next change.
#[test]
fn an_index_out_of_range_is_damage() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "1");
    let (path, keys) = (store.path(&key("b")), store.known().keys.clone());
    drop(store);
    let VariableKey { namespace, path: name } = key("b");
    let metadata =
        VariableMetadata { namespace, path: name, modify_index: u64::MAX, ..VariableMetadata::default() };
    let (_, bytes) = record::encode(&metadata, &items("x"), &keys).unwrap();
    fs::write(path, bytes).unwrap();
    let store = open(state.path());
    assert_eq!((store.list().len(), value(&store, "b")), (1, None));
    put(&store, "b", "2");
}

#[test]
fn a_file_of_a_newer_release_stays_and_stops_changes() {
    let state = tempfile::tempdir().unwrap();
    let store = open(state.path());
    put(&store, "a", "1");
    put(&store, "b", "1");
    let path = store.path(&key("a"));
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] = 9;
    fs::write(&path, &bytes).unwrap();
    drop(store);
    let store = open(state.path());
    assert!(matches!(store.get(&key("a")), Err(VariableError::Newer { .. })));
    assert!(matches!(store.put(&key("a"), items("x"), Check::Nothing, ""), Err(VariableError::Newer { .. })));
    assert!(matches!(store.delete(&key("a"), Check::Nothing), Err(VariableError::Newer { .. })));
    assert_eq!((value(&store, "b").unwrap(), fs::read(&path).unwrap()), ("1".to_owned(), bytes));
}
