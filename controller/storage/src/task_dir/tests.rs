//! Task directories: creation and inspection.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    process::Command,
};

use herdlet_base::{privileges::Ownership, test_env::TestEnv};

use super::*;

fn is_foreign(sight: &Observation, part: &str) -> bool {
    matches!(sight, Observation::Foreign { why } if why.contains(part))
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn it_is_made_seen_and_removed_with_secrets_in_memory() {
    let Some(ground) = TestEnv::mounting() else { return };
    let path = ground.path().join("task");
    let dir = TaskDir::new(path.clone(), ground.privileges());
    assert_eq!(dir.inspect().unwrap(), Observation::Absent);
    assert!(!path.exists());
    for _ in 0..2 {
        dir.up().unwrap();
        assert_eq!(dir.inspect().unwrap(), Observation::Present);
        assert_eq!(ground.mounted().len(), 2);
    }
    let modes = ["", "local", "tmp", "secrets", "private"].map(|name| mode(&path.join(name)));
    assert_eq!(modes, [0o1700, 0o700, 0o700, 0o700, 0o700]);
    if ground.privileges().ownership == Ownership::Anybody {
        assert_eq!(path.join("local").metadata().unwrap().uid(), rustix::process::geteuid().as_raw());
    }
    // 1 MiB is the limit.
    fs::write(path.join("secrets/big"), vec![0; 1024 * 1024 + 1]).unwrap_err();
    fs::remove_file(path.join("secrets/big")).unwrap();
    fs::write(path.join("secrets/token"), "x").unwrap();
    // Another `up` keeps existing files.
    dir.up().unwrap();
    assert!(path.join("secrets/token").exists());
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(path.join("secrets").to_str().unwrap())).unwrap();
    assert!(line.contains("noexec") && line.contains("nosuid") && line.contains("nodev"), "{line}");
    // A file in it is open, as after a task that left a process behind.
    let open = fs::File::open(path.join("secrets/token")).unwrap();
    for _ in 0..2 {
        dir.down().unwrap();
        assert_eq!(dir.inspect().unwrap(), Observation::Absent);
    }
    drop(open);
    assert!(ground.mounted().is_empty());
}

#[test]
fn unmounted_secrets_are_mounted_again() {
    let Some(ground) = TestEnv::mounting() else { return };
    let path = ground.path().join("task");
    let dir = TaskDir::new(path.clone(), ground.privileges());
    dir.up().unwrap();
    fs::write(path.join("local/keep"), "").unwrap();
    let secrets = path.join("secrets");
    assert!(Command::new("umount").arg(&secrets).status().unwrap().success());
    // Only we may enter it while it is not mounted.
    assert_eq!(mode(&secrets), 0o700);
    assert!(is_foreign(&dir.inspect().unwrap(), "not mounted"));
    dir.up().unwrap();
    assert_eq!(dir.inspect().unwrap(), Observation::Present);
    // Covered by another mount.
    assert!(Command::new("mount").args(["-t", "tmpfs", "cover"]).arg(&secrets).status().unwrap().success());
    assert!(is_foreign(&dir.inspect().unwrap(), "not ours"));
    dir.up().unwrap();
    assert_eq!(dir.inspect().unwrap(), Observation::Present);
    assert_eq!(ground.mounted().len(), 2);
    assert!(path.join("local/keep").exists());
}

#[test]
fn unprivileged_task_directory_is_plain() {
    let ground = TestEnv::plain();
    let path = ground.path().join("task");
    let dir = TaskDir::new(path.clone(), ground.privileges());
    for _ in 0..2 {
        dir.up().unwrap();
        assert_eq!(dir.inspect().unwrap(), Observation::Present);
    }
    assert_eq!(["secrets", "private"].map(|name| mode(&path.join(name))), [0o700, 0o700]);
    assert_eq!(["", "local", "tmp"].map(|name| mode(&path.join(name))), [0o1700, 0o700, 0o700]);
    fs::remove_dir(path.join("tmp")).unwrap();
    assert!(is_foreign(&dir.inspect().unwrap(), "tmp is missing"));
    for _ in 0..2 {
        dir.down().unwrap();
        assert!(!path.exists());
    }
}

// As an older agent has created it; a task may run in it.
#[test]
fn one_that_was_open_to_everybody_is_seen_and_closed() {
    let Some(ground) = TestEnv::mounting() else { return };
    let path = ground.path().join("task");
    let users = || TaskUsers::find(["nobody"]).unwrap().of_task(Some("nobody")).unwrap();
    let dir = TaskDir::new(path.clone(), ground.privileges()).used_by(users());
    dir.up().unwrap();
    fs::write(path.join("secrets/token"), "x").unwrap();
    for name in ["", "local", "tmp", "secrets"] {
        let opened = path.join(name);
        fs::set_permissions(&opened, fs::Permissions::from_mode(0o1777)).unwrap();
        std::os::unix::fs::chown(&opened, Some(0), Some(0)).unwrap();
        assert!(matches!(dir.inspect().unwrap(), Observation::Foreign { .. }), "{name}");
        dir.up().unwrap();
        assert_eq!(dir.inspect().unwrap(), Observation::Present);
        assert_eq!(mode(&opened) & 0o007, 0);
    }
    assert!(path.join("secrets/token").exists() && ground.mounted().len() == 2);
    // Another task with another user.
    let more = TaskUsers::find(["nobody", "daemon"]).unwrap().of_task(Some("nobody")).unwrap();
    assert!(matches!(dir.clone().used_by(more).inspect().unwrap(), Observation::Foreign { .. }));
    assert_eq!(dir.used_by(TaskUsers::unknown()).inspect().unwrap(), Observation::Present);
}

#[test]
fn a_deleted_directory_is_absent_and_not_made_by_looking() {
    let ground = TestEnv::plain();
    let dir = TaskDir::new(ground.path().join("alloc/task"), ground.privileges());
    assert!(matches!(dir.up(), Err(TaskDirError::NoAllocDir { .. })));
    assert_eq!(dir.inspect().unwrap(), Observation::Absent);
    fs::create_dir(ground.path().join("alloc")).unwrap();
    dir.up().unwrap();
    // Partly deleted, including the task's files.
    fs::remove_dir_all(ground.path().join("alloc/task/local")).unwrap();
    assert!(
        matches!(dir.inspect().unwrap(), Observation::Lost { why } if why.ends_with("task/local is gone"))
    );
    fs::remove_dir_all(ground.path().join("alloc/task")).unwrap();
    assert_eq!(dir.inspect().unwrap(), Observation::Absent);
    assert!(!ground.path().join("alloc/task").exists());
}

#[test]
fn links_in_place_of_its_directories_are_named_and_not_followed() {
    for ground in [Some(TestEnv::plain()), TestEnv::mounting()].into_iter().flatten() {
        let victim = ground.path().join("victim");
        fs::create_dir(&victim).unwrap();
        let path = ground.path().join("task");
        let dir = TaskDir::new(path.clone(), ground.privileges());
        fs::create_dir(&path).unwrap();
        symlink(&victim, path.join("secrets")).unwrap();
        let error = dir.up().unwrap_err();
        assert!(error.to_string().contains("task/secrets: a symbolic link"), "{error}");
        assert!(is_foreign(&dir.inspect().unwrap(), "symbolic link"));
        dir.down().unwrap();
        assert!(!path.exists() && victim.exists());
        symlink(&victim, &path).unwrap();
        assert!(dir.up().is_err());
        assert!(is_foreign(&dir.inspect().unwrap(), "symbolic link"));
        dir.down().unwrap();
        assert!(victim.exists() && ground.mounted().is_empty());
        assert!(fs::read_dir(&victim).unwrap().next().is_none());
    }
}
