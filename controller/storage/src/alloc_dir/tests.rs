//! Allocation directories, made and removed on a real file system.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    process::Command,
};

use herdlet_base::{mounts::kernel::Access, safe_fs::open_logs, test_env::TestEnv};

use super::*;
use crate::{
    mounts::{Binding, Destination, TaskMounts},
    task_dir::TaskDir,
};

fn paths(ground: &TestEnv) -> Paths {
    Paths { state: ground.path().join("state"), runtime: ground.path().join("run") }
}

fn id(n: u8) -> AllocId {
    AllocId::from_hash([n; 16])
}

fn is_foreign(sight: &Observation, part: &str) -> bool {
    matches!(sight, Observation::Foreign { why } if why.contains(part))
}

#[test]
fn open_directory_of_an_older_agent_is_closed_if_unused() {
    let ground = TestEnv::plain();
    let paths = paths(&ground);
    close_unused(&paths, id(1)).unwrap();
    let dir = AllocDir::new(&paths, id(1));
    dir.up(b"{}").unwrap();
    let mode = || paths.alloc(&id(1)).metadata().unwrap().mode() & 0o7777;
    for (before, after) in [(0o755, 0o700), (0o711, 0o700), (0o750, 0o750), (0o700, 0o700)] {
        fs::set_permissions(paths.alloc(&id(1)), fs::Permissions::from_mode(before)).unwrap();
        close_unused(&paths, id(1)).unwrap();
        assert_eq!(mode(), after, "{before:o}");
    }
    close_unused(&paths, id(2)).unwrap();
    symlink(paths.alloc(&id(1)), paths.alloc(&id(2))).unwrap();
    close_unused(&paths, id(2)).unwrap_err();
}

#[test]
fn it_is_made_seen_kept_and_removed() {
    for ground in [Some(TestEnv::plain()), TestEnv::mounting()].into_iter().flatten() {
        let paths = paths(&ground);
        let dir = AllocDir::new(&paths, id(1));
        assert_eq!(dir.inspect().unwrap(), Observation::Absent);
        for _ in 0..2 {
            dir.up(b"{}").unwrap();
            assert_eq!(dir.inspect().unwrap(), Observation::Present);
        }
        let alloc = paths.alloc(&id(1));
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode(&alloc.join("alloc.json")), mode(&paths.allocs())), (0o600, 0o711));
        let us = rustix::process::geteuid().as_raw();
        for (name, expected) in [
            ("", 0o700),
            ("alloc", 0o1700),
            ("alloc/logs", 0o1700),
            ("alloc/tmp", 0o1700),
            ("alloc/data", 0o700),
        ] {
            let path = alloc.join(name);
            assert_eq!((mode(&path), path.metadata().unwrap().uid()), (expected, us), "{name}");
            // Another process opens it, or an older agent has created it like this.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).unwrap();
            assert!(is_foreign(&dir.inspect().unwrap(), "the wrong permissions"), "{name}");
            dir.up(b"{}").unwrap();
            assert_eq!((mode(&path), dir.inspect().unwrap()), (expected, Observation::Present), "{name}");
        }
        dir.up(b"{\"new\":1}").unwrap();
        assert_eq!(fs::read(alloc.join("alloc.json")).unwrap(), b"{\"new\":1}");

        // Incomplete is neither present nor absent.
        fs::remove_dir(alloc.join("alloc/tmp")).unwrap();
        assert!(is_foreign(&dir.inspect().unwrap(), "alloc/tmp is missing"));
        fs::remove_file(alloc.join("alloc.json")).unwrap();
        assert!(is_foreign(&dir.inspect().unwrap(), "alloc/tmp is missing"));
        dir.up(b"{}").unwrap();
        assert_eq!(dir.inspect().unwrap(), Observation::Present);
        for gone in ["alloc/data", "alloc"] {
            fs::remove_dir_all(alloc.join(gone)).unwrap();
            assert!(matches!(dir.inspect().unwrap(), Observation::Lost { why } if why.ends_with("is gone")));
        }
        for _ in 0..2 {
            dir.down().unwrap();
            assert_eq!(dir.inspect().unwrap(), Observation::Absent);
        }
        assert!(fs::read_dir(paths.allocs()).unwrap().next().is_none());
    }
}

#[test]
fn forgotten_directory_is_removed_unless_foreign_mounts_remain() {
    let Some(ground) = TestEnv::mounting() else { return };
    let paths = paths(&ground);
    let dir = AllocDir::new(&paths, id(1));
    dir.up(b"{}").unwrap();
    TaskDir::new(paths.task(&id(1), "t"), ground.privileges()).up().unwrap();
    let theirs = paths.task(&id(1), "t").join("local");
    let status = Command::new("mount").args(["-t", "tmpfs", "theirs"]).arg(&theirs).status().unwrap();
    assert!(status.success());
    fs::write(theirs.join("precious"), "").unwrap();
    let error = dir.down_without_others_mounts().unwrap_err().to_string();
    assert!(error.ends_with("something is mounted there"), "{error}");
    assert!(theirs.join("precious").exists() && paths.alloc(&id(1)).join("alloc.json").exists());
    assert!(Command::new("umount").arg(&theirs).status().unwrap().success());
    dir.down_without_others_mounts().unwrap();
    assert!(fs::read_dir(paths.allocs()).unwrap().next().is_none());
    dir.down_without_others_mounts().unwrap();
}

#[test]
fn removal_unmounts_without_touching_volumes() {
    let Some(ground) = TestEnv::mounting() else { return };
    let paths = paths(&ground);
    let dir = AllocDir::new(&paths, id(1));
    dir.up(b"{}").unwrap();
    let task = paths.task(&id(1), "web.1");
    TaskDir::new(task.clone(), ground.privileges()).up().unwrap();
    let volume = ground.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("data"), "precious").unwrap();
    let binding = Binding {
        source: volume.clone(),
        destination: Destination::parse("local/site").unwrap(),
        access: Access::ReadWrite,
    };
    TaskMounts::new(task.clone(), ground.privileges()).up(&[binding]).unwrap();
    // Foreign mounts: over ours, over the whole directory, and one with a name that needs escaping.
    let odd = task.join("local/odd \\ name");
    fs::create_dir(&odd).unwrap();
    symlink(&volume, task.join("local/link")).unwrap();
    for point in [&task.join("local/site"), &odd, &paths.alloc(&id(1))] {
        assert!(
            Command::new("mount").args(["-t", "tmpfs", "foreign"]).arg(point).status().unwrap().success()
        );
    }
    assert_eq!(ground.mounted().len(), 6);
    // A process still has it open.
    let open = fs::File::open(paths.alloc(&id(1))).unwrap();
    dir.down().unwrap();
    drop(open);
    assert!(ground.mounted().is_empty(), "{:?}", ground.mounted());
    assert_eq!(fs::read_to_string(volume.join("data")).unwrap(), "precious");
    assert_eq!(dir.inspect().unwrap(), Observation::Absent);
}

#[test]
fn interrupted_removal_is_completed() {
    let ground = TestEnv::plain();
    let paths = paths(&ground);
    let dir = AllocDir::new(&paths, id(1));
    dir.up(b"{}").unwrap();
    let gone = paths.allocs().join(gone_name(id(1)));
    fs::rename(paths.alloc(&id(1)), &gone).unwrap();
    assert!(is_foreign(&dir.inspect().unwrap(), "partly removed"));
    dir.down().unwrap();
    assert_eq!(dir.inspect().unwrap(), Observation::Absent);

    dir.up(b"{}").unwrap();
    fs::rename(paths.alloc(&id(1)), &gone).unwrap();
    // Created again in the meantime: both are removed.
    dir.up(b"{}").unwrap();
    assert_eq!(dir.inspect().unwrap(), Observation::Present);
    assert_eq!(sweep(&paths).unwrap(), 1);
    assert!(!gone.exists());
    assert_eq!(dir.inspect().unwrap(), Observation::Present);
}

#[test]
fn planted_links_are_not_followed() {
    let ground = TestEnv::plain();
    let paths = paths(&ground);
    let dir = AllocDir::new(&paths, id(1));
    dir.up(b"{}").unwrap();
    let victim = ground.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "").unwrap();
    let logs = paths.logs(&id(1));
    fs::remove_dir(&logs).unwrap();
    symlink(&victim, &logs).unwrap();
    assert!(is_foreign(&dir.inspect().unwrap(), "symbolic link"));
    // Its supervisor would write there as root.
    assert!(open_logs(&logs).is_err());
    assert_eq!(dir.up(b"{}").unwrap_err().class(), Class::Fatal);
    dir.down().unwrap();
    assert!(victim.join("file").exists());
}

#[test]
fn directory_staged_by_a_killed_agent_is_removed() {
    let ground = TestEnv::plain();
    let paths = paths(&ground);
    AllocDir::new(&paths, id(1)).up(b"{}").unwrap();
    let staged = paths.alloc(&id(1)).join(staging::NAME).join("t/0123/tree");
    fs::create_dir_all(&staged).unwrap();
    assert_eq!(sweep(&paths).unwrap(), 0);
    assert!(!paths.alloc(&id(1)).join(staging::NAME).exists());
    assert_eq!(AllocDir::new(&paths, id(1)).inspect().unwrap(), Observation::Present);
}

#[test]
fn one_that_an_older_agent_left_open_is_closed_around_its_users() {
    let ground = TestEnv::plain();
    let paths = paths(&ground);
    assert!(left_open(&paths, id(1)).unwrap().is_none());
    let users = TaskUsers::find(["daemon"]).unwrap();
    let dir = AllocDir::new(&paths, id(1)).used_by(users.clone());
    dir.up(b"{\"a\":1}").unwrap();
    assert!(left_open(&paths, id(1)).unwrap().is_none());
    fs::set_permissions(paths.alloc(&id(1)), fs::Permissions::from_mode(0o1777)).unwrap();
    let open = left_open(&paths, id(1)).unwrap().unwrap();
    assert_eq!(open.spec().unwrap(), b"{\"a\":1}");
    open.close_around(&users).unwrap();
    assert!(left_open(&paths, id(1)).unwrap().is_none());
    assert_eq!(dir.inspect().unwrap(), Observation::Present);
}
