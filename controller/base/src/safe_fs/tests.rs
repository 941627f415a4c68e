//! File access that follows no links.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use rustix::thread::CapabilitySet;

use super::*;
use crate::{observation::Class, test_env::is_root};

const OPEN: Rights = Rights::Exact { mode: 0o777, owner: None };

fn temp() -> (tempfile::TempDir, Dir) {
    let temp = tempfile::tempdir().unwrap();
    let dir = Dir::open(temp.path()).unwrap();
    (temp, dir)
}

#[test]
fn directory_mode_ignores_the_umask() {
    let (temp, dir) = temp();
    for _ in 0..2 {
        dir.make(OsStr::new("a"), OPEN).unwrap();
        assert_eq!(temp.path().join("a").metadata().unwrap().mode() & 0o7777, 0o777);
    }
    dir.make(OsStr::new("a"), Rights::Exact { mode: 0o1777, owner: None }).unwrap();
    assert_eq!(
        temp.path().join("a").metadata().unwrap().mode() & 0o7777,
        0o777,
        "an existing directory gets no further rights"
    );
}

#[test]
fn links_are_named_and_not_followed() {
    let (temp, dir) = temp();
    let victim = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("a")).unwrap();
    symlink(victim.path(), temp.path().join("a/planted")).unwrap();
    for result in [
        dir.open_below(Path::new("a/planted"), Crossing::Mounts).map(drop),
        dir.open_below(Path::new("a/planted/below"), Crossing::Mounts).map(drop),
        dir.make_all(Path::new("a/planted/below"), OPEN).map(drop),
        dir.open_below(Path::new("a"), Crossing::Mounts).unwrap().make(OsStr::new("planted"), OPEN).map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(&error, FsError::Link { path } if path.ends_with("a/planted")), "{error}");
        assert_eq!(error.class(), Class::Fatal);
    }
    assert!(std::fs::read_dir(victim.path()).unwrap().next().is_none());
}

#[test]
fn paths_that_leave_are_refused() {
    let (_temp, dir) = temp();
    for path in ["..", "/etc", "a/../..", "a/./b/.."] {
        assert!(matches!(dir.make_all(Path::new(path), OPEN), Err(FsError::Escapes { .. })), "{path}");
        assert!(dir.open_below(Path::new(path), Crossing::Mounts).is_err(), "{path}");
    }
    for name in ["", ".", "..", "a/b", "/"] {
        assert!(matches!(dir.unlink(OsStr::new(name)), Err(FsError::Escapes { .. })), "{name}");
    }
}

#[test]
fn a_file_is_replaced_whole_even_where_a_link_was_planted() {
    let (temp, dir) = temp();
    let victim = temp.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    let name = OsStr::new("token");
    symlink(&victim, temp.path().join("token")).unwrap();
    symlink(&victim, temp.path().join(".token.new")).unwrap();
    assert!(matches!(dir.read_file(name, 100), Err(FsError::Link { .. })));
    for text in ["one", "two"] {
        let rights = Rights::Exact { mode: 0o600, owner: None };
        dir.write_file(name, text.as_bytes(), rights, Outlives::PowerCuts).unwrap();
        assert_eq!(dir.read_file(name, 3).unwrap().unwrap(), text.as_bytes());
    }
    assert!(matches!(dir.read_file(name, 2), Err(FsError::TooLarge { .. })));
    assert_eq!(temp.path().join("token").metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    assert_eq!(dir.names().unwrap().len(), 2);
}

#[test]
fn a_fifo_in_place_of_a_file_does_not_hold_us_up() {
    let (temp, dir) = temp();
    let path = temp.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(matches!(dir.read_file(OsStr::new("fifo"), 10), Err(FsError::NotAFile { .. })));
}

#[test]
fn deep_closed_tree_is_removed_without_following_links() {
    let (temp, dir) = temp();
    let victim = tempfile::tempdir().unwrap();
    std::fs::write(victim.path().join("file"), "").unwrap();
    let tree = temp.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    symlink(victim.path(), tree.join("link")).unwrap();
    for i in 0..60 {
        std::fs::create_dir_all(tree.join(format!("d{i}/e"))).unwrap();
        std::fs::write(tree.join(format!("d{i}/e/f")), "").unwrap();
    }
    // Deeper than the maximum path length, and than the limit of open directories.
    let mut deep = Dir::open(&tree).unwrap();
    let name = "deeper".repeat(30);
    for _ in 0..100 {
        deep = deep.make(OsStr::new(&name), OPEN).unwrap();
    }
    deep.link(OsStr::new("link"), victim.path()).unwrap();
    drop(deep);
    std::fs::set_permissions(tree.join("d7/e"), std::fs::Permissions::from_mode(0o500)).unwrap();
    std::fs::set_permissions(tree.join("d8"), std::fs::Permissions::from_mode(0o000)).unwrap();
    for _ in 0..2 {
        dir.remove_tree(OsStr::new("tree")).unwrap();
        assert!(!tree.exists());
    }
    assert!(victim.path().join("file").exists());
    // A link in place of the tree itself.
    symlink(victim.path(), temp.path().join("tree")).unwrap();
    dir.remove_tree(OsStr::new("tree")).unwrap();
    assert!(victim.path().join("file").exists());
    assert!(dir.names().unwrap().is_empty());
}

#[test]
fn tree_filled_during_removal_is_removed_or_an_error() {
    let (temp, dir) = temp();
    let tree = temp.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = std::fs::create_dir_all(tree.join(format!("{}/x", n % 7)));
                let _ = std::fs::write(tree.join(format!("{}/x/f", n % 5)), "");
                n += 1;
            }
        });
        let removed = dir.remove_tree(OsStr::new("tree"));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Err(error) = removed {
            assert!(matches!(error, FsError::Busy { .. }), "{error}");
        }
    });
    dir.remove_tree(OsStr::new("tree")).unwrap();
    assert!(!tree.exists());
}

// Another user who kept adding directories through an open one kept a removal from ending.
#[test]
fn directory_is_closed_before_it_is_emptied() {
    if !is_root() {
        return;
    }
    let (temp, dir) = temp();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    dir.make(OsStr::new("tree"), Rights::Exact { mode: 0o1777, owner: None }).unwrap();
    // The script ends once it can't add anything.
    let script =
        "i=0; mkdir x; cd x; while mkdir $i ../$i; do i=$((i+1)); done; while mkdir $i; do i=$((i+1)); done";
    let mut stranger = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script])
        .current_dir(temp.path().join("tree"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !temp.path().join("tree/x/20").exists() {
        assert_eq!(stranger.try_wait().unwrap(), None, "the other user could add nothing");
        std::thread::yield_now();
    }
    dir.remove_tree(OsStr::new("tree")).unwrap();
    assert!(!temp.path().join("tree").exists());
    stranger.wait().unwrap();
}

#[test]
fn removal_stops_at_its_time_limit_and_continues_later() {
    let (temp, dir) = temp();
    for i in 0..100 {
        std::fs::create_dir_all(temp.path().join(format!("tree/{i}"))).unwrap();
        std::fs::write(temp.path().join(format!("tree/{i}/f")), "").unwrap();
    }
    let mut tries = 1;
    while let Err(error) = remove::tree_within(&dir, OsStr::new("tree"), std::time::Duration::ZERO) {
        assert!(matches!(error, FsError::Busy { .. }), "{error}");
        assert_eq!(error.class(), Class::Retry);
        tries += 1;
    }
    assert_eq!(tries, 4, "200 names below the directory, 64 at a time");
    assert!(!temp.path().join("tree").exists());
}

// A refused change of the owner left the mode open too.
#[test]
fn directory_is_closed_by_mode_without_chown() {
    if !is_root() {
        return;
    }
    let (temp, dir) = temp();
    let path = temp.path().join("tree");
    for dropped in [CapabilitySet::CHOWN, CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE] {
        let top = dir.make(OsStr::new("tree"), Rights::Exact { mode: 0o1777, owner: Some((1, 1)) }).unwrap();
        top.write_file(OsStr::new("f"), b"", OPEN, Outlives::Processes).unwrap();
        std::thread::scope(|scope| {
            // Capabilities belong to the thread.
            let removing = scope.spawn(|| {
                let mut sets = rustix::thread::capabilities(None).unwrap();
                sets.effective -= dropped;
                rustix::thread::set_capabilities(None, sets).unwrap();
                remove::close_to_others(&top.fd).unwrap();
                let mode = path.metadata().unwrap().mode() & 0o7777;
                assert_eq!(mode, if dropped == CapabilitySet::CHOWN { 0o700 } else { 0o1777 });
                top.unlink(OsStr::new("f")).unwrap();
            });
            removing.join().unwrap();
        });
        dir.remove_tree(OsStr::new("tree")).unwrap();
    }
}

// A task's user may rename another user's directory to the name that the agent is about to create.
#[test]
fn existing_directory_keeps_owner_and_mode() {
    let (ground, dir) = temp();
    let mode = |name: &str| ground.path().join(name).metadata().unwrap().mode() & 0o7777;
    std::fs::create_dir(ground.path().join("kept")).unwrap();
    std::fs::write(ground.path().join("kept/file"), "secret").unwrap();
    std::fs::set_permissions(ground.path().join("kept"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    dir.make("kept".as_ref(), Rights::Exact { mode: 0o755, owner: Some(us) }).unwrap();
    assert_eq!(mode("kept"), 0o700);
    std::fs::set_permissions(ground.path().join("kept"), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir.make("kept".as_ref(), Rights::Exact { mode: 0o700, owner: None }).unwrap();
    assert_eq!(mode("kept"), 0o700, "closing is always right");
    // A directory that a crash left incomplete gets its rights.
    std::fs::create_dir(ground.path().join("begun")).unwrap();
    std::fs::set_permissions(ground.path().join("begun"), std::fs::Permissions::from_mode(0o700)).unwrap();
    dir.make("begun".as_ref(), Rights::Exact { mode: 0o755, owner: None }).unwrap();
    assert_eq!(mode("begun"), 0o755);
    // A directory with a draft's name is not removed either.
    std::fs::create_dir(ground.path().join(".token.new")).unwrap();
    let rights = Rights::Exact { mode: 0o600, owner: None };
    dir.write_file("token".as_ref(), b"x", rights, Outlives::Processes).unwrap_err();
    assert!(ground.path().join(".token.new").is_dir());
}

// As root, the agent put a payload or an artifact into a directory that a task had swapped for another user's.
#[test]
fn directory_is_filled_only_with_the_users_rights() {
    use crate::acl::{Acl, Perm};
    if !is_root() {
        return;
    }
    const USER: (u32, u32) = (5_001, 5_001);
    let (_temp, top) = temp();
    let (here, below) = (top.make("a".as_ref(), OPEN).unwrap(), Path::new("b"));
    let there = here.make(below.as_ref(), OPEN).unwrap();
    let rights = |mode, owner| Rights::Exact { mode, owner: Some(owner) };
    let named = Acl::of_users(Perm::ALL, [(USER.0, Perm::ALL)]);
    for (of_here, of_there, is_trusted) in [
        // Any user who may write to the directory above can have put it there.
        (rights(0o777, (0, 0)), rights(0o755, (0, 0)), false),
        (rights(0o770, (0, USER.1)), rights(0o755, (0, 0)), false),
        (rights(0o755, USER), rights(0o755, (0, 0)), false),
        (rights(0o1755, USER), rights(0o700, (2, 2)), false),
        // Users other than its owner can have put it there, or its owner did not own the directory above.
        (rights(0o777, (0, 0)), rights(0o755, (2, 2)), false),
        (rights(0o775, (2, 2)), rights(0o755, (2, 2)), false),
        (rights(0o755, (2, 2)), rights(0o755, (0, 0)), false),
        (rights(0o755, (2, 2)), rights(0o755, (3, 3)), false),
        // Only its owner can have put it there.
        (rights(0o755, (2, 2)), rights(0o755, (2, 2)), true),
        // The user may write to it.
        (rights(0o777, (0, 0)), rights(0o755, USER), true),
        (rights(0o777, (0, 0)), rights(0o775, (2, USER.1)), true),
        (rights(0o755, USER), rights(0o777, (2, 2)), true),
        // Nobody can have put it there.
        (rights(0o755, (0, 0)), rights(0o700, (0, 0)), true),
        (rights(0o1777, (0, 0)), rights(0o755, (2, 2)), true),
    ] {
        here.set_rights(of_here).unwrap();
        there.set_rights(of_there).unwrap();
        let entered = here.make_all_for(below, rights(0o755, USER), Some(&USER.into()));
        let is_refused =
            matches!(&entered, Err(error @ FsError::Untrusted { .. }) if error.class() == Class::Retry);
        assert!(
            entered.is_ok() == is_trusted && is_refused != is_trusted,
            "{of_here:?} {of_there:?} {entered:?}"
        );
        // Root's files go where the job says.
        here.make_all_for(below, rights(0o755, (0, 0)), Some(&(0, 0).into())).unwrap();
    }
    // Any of its groups counts.
    here.set_rights(rights(0o777, (0, 0))).unwrap();
    there.set_rights(rights(0o775, (2, 7))).unwrap();
    for (groups, is_trusted) in [(vec![USER.1], false), (vec![USER.1, 7], true)] {
        let owner = FileOwner { uid: USER.0, gid: USER.1, groups };
        assert_eq!(here.make_all_for(below, rights(0o755, USER), Some(&owner)).is_ok(), is_trusted);
    }
    here.set_rights(rights(0o700, (0, 0))).unwrap();
    there.set_rights(rights(0o700, (0, 0))).unwrap();
    named.write(&here).unwrap();
    here.make_all_for(below, rights(0o755, USER), Some(&USER.into())).unwrap_err();
    named.write(&there).unwrap();
    here.make_all_for(below, rights(0o755, USER), Some(&USER.into())).unwrap();
    here.make_all_for(Path::new("new/er"), rights(0o755, USER), Some(&USER.into())).unwrap();
}

/// Each file's draft removed a previously moved file with the same name.
#[test]
fn file_named_like_a_draft_is_moved() {
    let (temp, from) = temp();
    let Ok(shared) = tempfile::tempdir_in("/dev/shm") else {
        return crate::test_env::leave_out("/dev/shm");
    };
    let to = Dir::open(shared.path()).unwrap();
    if from.stat().unwrap().st_dev == to.stat().unwrap().st_dev {
        return crate::test_env::leave_out("two file systems");
    }
    // A draft left by a crash is replaced.
    std::fs::write(shared.path().join(".herdlet.new.1"), "half").unwrap();
    let unfinished = std::fs::Permissions::from_mode(0o1600);
    std::fs::set_permissions(shared.path().join(".herdlet.new.1"), unfinished).unwrap();
    let names = [".herdlet.new", ".herdlet.new.2", "a", "b"];
    for name in names {
        std::fs::write(temp.path().join(name), name).unwrap();
        from.move_file(OsStr::new(name), &to, OsStr::new(name)).unwrap();
    }
    symlink("a", temp.path().join("link")).unwrap();
    from.move_file(OsStr::new("link"), &to, OsStr::new("link")).unwrap();
    for name in names {
        assert_eq!(std::fs::read_to_string(shared.path().join(name)).unwrap(), name);
        assert_eq!(shared.path().join(name).metadata().unwrap().mode() & 0o7777, 0o644);
    }
    let mut moved = to.names().unwrap();
    moved.sort();
    assert_eq!(moved, [".herdlet.new", ".herdlet.new.2", "a", "b", "link"]);
    assert!(from.names().unwrap().is_empty());
}

/// A process that was killed while it wrote left a file that kept the directory from being removed.
#[test]
fn a_removed_file_leaves_no_draft() {
    let (temp, dir) = temp();
    let name = OsStr::new("record");
    for left in [&["record", ".record.new"][..], &[".record.new"], &[]] {
        for file in left {
            std::fs::write(temp.path().join(file), "half").unwrap();
        }
        dir.remove_file(name).unwrap();
        assert!(dir.names().unwrap().is_empty(), "{left:?}");
    }
    assert!(matches!(dir.remove_file(OsStr::new("../record")), Err(FsError::Escapes { .. })));
}
