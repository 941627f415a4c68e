//! Mounting, inspecting and unmounting volumes.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    process::Command,
};

use herdlet_base::{
    mounts::table::{MountChange, MountWatch},
    test_env::TestEnv,
};

use super::*;

fn binding(source: &Path, destination: &str, access: Access) -> Binding {
    Binding { source: source.to_owned(), destination: Destination::parse(destination).unwrap(), access }
}

struct World {
    ground: TestEnv,
    task: PathBuf,
    volume: PathBuf,
    mounts: TaskMounts,
}

fn world(ground: TestEnv) -> World {
    let task = ground.path().join("task");
    let volume = ground.path().join("volume");
    fs::create_dir_all(task.join("local")).unwrap();
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("index.html"), "hello").unwrap();
    let mounts = TaskMounts::new(task.clone(), ground.privileges());
    World { ground, task, volume, mounts }
}

fn mount(arguments: &[&str]) {
    let status = Command::new("mount").args(arguments).status().unwrap();
    assert!(status.success());
}

fn is_foreign(sight: &Observation, part: &str) -> bool {
    matches!(sight, Observation::Foreign { why } if why.contains(part))
}

#[test]
fn destinations_are_checked_before_anything_is_made() {
    for good in ["local/site", "data", "./data/", "local/a/b c", "/srv/site"] {
        assert!(Destination::parse(good).is_ok(), "{good}");
    }
    for (bad, part) in [
        ("/", "empty or leaves"),
        ("/secrets/x", "reserved for secrets"),
        ("", "empty or leaves"),
        (".", "empty or leaves"),
        ("../x", "empty or leaves"),
        ("local/../../x", "empty or leaves"),
        ("secrets/x", "reserved for secrets"),
        ("private", "reserved for secrets"),
        ("local", "mount below it"),
        ("alloc/x", "shared directory"),
    ] {
        let error = Destination::parse(bad).unwrap_err();
        assert!(error.to_string().contains(part), "{bad}: {error}");
        assert_eq!(error.class(), Class::Fatal);
    }
    let world = world(TestEnv::plain());
    for inner in ["local/a", "local/a/b"] {
        let wanted = [
            binding(&world.volume, inner, Access::ReadWrite),
            binding(&world.volume, "local/a", Access::ReadWrite),
        ];
        assert!(matches!(world.mounts.up(&wanted), Err(MountError::Overlap { .. })));
    }
}

#[test]
fn bind_mount_is_made_inspected_and_removed() {
    let Some(ground) = TestEnv::mounting() else { return };
    let world = world(ground);
    let wanted = [
        binding(&world.volume, "local/a b/site", Access::ReadWrite),
        binding(&world.volume, "frozen", Access::ReadOnly),
    ];
    assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Absent);
    for _ in 0..2 {
        world.mounts.up(&wanted).unwrap();
        assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Present);
        assert_eq!(world.ground.mounted().len(), 2);
    }
    assert_eq!(fs::read_to_string(world.task.join("local/a b/site/index.html")).unwrap(), "hello");
    fs::write(world.task.join("local/a b/site/new"), "").unwrap();
    assert!(world.volume.join("new").exists());
    assert!(fs::write(world.task.join("frozen/new2"), "").is_err());
    // A read-only volume becomes writable.
    let changed = [wanted[0].clone(), binding(&world.volume, "frozen", Access::ReadWrite)];
    assert!(is_foreign(&world.mounts.inspect(&changed).unwrap(), "something else"));
    world.mounts.up(&changed).unwrap();
    fs::write(world.task.join("frozen/new2"), "").unwrap();
    for _ in 0..2 {
        world.mounts.down(&changed).unwrap();
        assert_eq!(world.mounts.inspect(&changed).unwrap(), Observation::Absent);
        assert!(world.ground.mounted().is_empty());
    }
    assert!(world.volume.join("new2").exists());
}

#[test]
fn unmounted_covered_or_foreign_volume_is_repaired() {
    let Some(ground) = TestEnv::mounting() else { return };
    let world = world(ground);
    let wanted = [binding(&world.volume, "local/site", Access::ReadWrite)];
    let site = world.task.join("local/site");
    let text = site.to_str().unwrap();
    world.mounts.up(&wanted).unwrap();

    // Unmounted externally, while a file in it is open.
    let open = fs::File::open(site.join("index.html")).unwrap();
    assert!(Command::new("umount").args(["-l", text]).status().unwrap().success());
    assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Absent);
    world.mounts.up(&wanted).unwrap();
    assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Present);
    drop(open);

    // Covered: our mount appears again below, and is kept.
    let ours = world.ground.mounted();
    mount(&["-t", "tmpfs", "cover", text]);
    mount(&["-t", "tmpfs", "cover2", text]);
    assert!(is_foreign(&world.mounts.inspect(&wanted).unwrap(), "3 mounts are stacked at"));
    world.mounts.up(&wanted).unwrap();
    assert_eq!(world.ground.mounted(), ours);

    // Another directory in place of ours.
    world.mounts.down(&wanted).unwrap();
    let other = world.ground.path().join("other");
    fs::create_dir(&other).unwrap();
    mount(&["--bind", other.to_str().unwrap(), text]);
    assert!(is_foreign(&world.mounts.inspect(&wanted).unwrap(), "something else"));
    world.mounts.up(&wanted).unwrap();
    assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Present);

    // A mount over a parent directory is not at our place: it is reported but not removed.
    mount(&["-t", "tmpfs", "above", world.task.join("local").to_str().unwrap()]);
    assert!(is_foreign(&world.mounts.inspect(&wanted).unwrap(), "something is mounted there"));
    let error = world.mounts.up(&wanted).unwrap_err();
    assert!(
        matches!(&error, MountError::Fs(FsError::Mounted { path }) if path.ends_with("local")),
        "{error}"
    );
    assert_eq!(error.class(), Class::Retry);
}

// Each rename of a parent directory by a task's user added a mount.
#[test]
fn a_volume_that_is_moved_away_is_mounted_once() {
    let Some(ground) = TestEnv::mounting() else { return };
    let world = world(ground);
    let inner = world.volume.join("inner");
    fs::create_dir(&inner).unwrap();
    let shared = world.ground.path().join("alloc");
    fs::create_dir(&shared).unwrap();
    let wanted = [
        binding(&world.volume, "local/a/site", Access::ReadWrite),
        binding(&world.volume, "local/b/site", Access::ReadOnly),
        binding(&inner, "local/a/inner", Access::ReadWrite),
    ];
    world.mounts.up(&wanted).unwrap();
    let mut expected = world.ground.mounted();
    expected.sort();
    assert_eq!(expected.len(), 3);
    for (number, to) in
        [world.task.join("local/c"), shared.join("d"), world.task.join("local/e/f")].iter().enumerate()
    {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(world.task.join("local/a"), to).unwrap();
        assert_ne!(world.mounts.inspect(&wanted).unwrap(), Observation::Present, "{number}");
        world.mounts.up(&wanted).unwrap();
        assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Present, "{number}");
        let mut mounted = world.ground.mounted();
        mounted.sort();
        assert_eq!(mounted, expected, "{number}");
    }
    assert!(inner.exists());
}

#[test]
fn submounts_of_a_volume_are_mounted_and_removed() {
    let Some(ground) = TestEnv::mounting() else { return };
    let world = world(ground);
    let inner = world.volume.join("inner");
    fs::create_dir(&inner).unwrap();
    mount(&["-t", "tmpfs", "inner", inner.to_str().unwrap()]);
    fs::write(inner.join("file"), "").unwrap();
    let wanted = [binding(&world.volume, "local/site", Access::ReadOnly)];
    world.mounts.up(&wanted).unwrap();
    assert!(world.task.join("local/site/inner/file").exists());
    assert!(fs::write(world.task.join("local/site/inner/file"), "x").is_err());
    assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Present);
    world.mounts.down(&wanted).unwrap();
    assert!(inner.join("file").exists());
    assert_eq!(world.ground.mounted().len(), 1);
}

#[test]
fn links_planted_by_a_task_are_named_and_not_followed() {
    let grounds = [Some(TestEnv::plain()), TestEnv::mounting()];
    for ground in grounds.into_iter().flatten() {
        let world = world(ground);
        let victim = world.ground.path().join("victim");
        fs::create_dir(&victim).unwrap();
        symlink(&victim, world.task.join("local/site")).unwrap();
        symlink(&victim, world.task.join("up")).unwrap();
        for destination in ["local/site", "up/below"] {
            let wanted = [binding(&world.volume, destination, Access::ReadWrite)];
            let error = world.mounts.up(&wanted).unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
            assert!(
                error.to_string().contains(
                    destination.split_once('/').map_or("", |(_, b)| if b == "below" { "up" } else { b })
                ),
                "{error}"
            );
            assert_eq!(error.class(), Class::Fatal);
            assert_ne!(world.mounts.inspect(&wanted).unwrap(), Observation::Present);
            world.mounts.down(&wanted).ok();
        }
        assert!(fs::read_dir(&victim).unwrap().next().is_none());
        assert!(world.ground.mounted().is_empty());
    }
}

#[test]
fn volume_is_a_link_if_mounting_is_impossible() {
    let world = world(TestEnv::plain());
    let wanted = [binding(&world.volume, "local/deep/site", Access::ReadWrite)];
    let site = world.task.join("local/deep/site");
    assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Absent);
    // An empty directory is replaced.
    fs::create_dir_all(&site).unwrap();
    for _ in 0..2 {
        world.mounts.up(&wanted).unwrap();
        assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Present);
    }
    assert_eq!(fs::read_to_string(site.join("index.html")).unwrap(), "hello");
    for _ in 0..2 {
        world.mounts.down(&wanted).unwrap();
        assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Absent);
    }
    // A non-empty one is not.
    fs::create_dir_all(site.join("mine")).unwrap();
    assert!(matches!(world.mounts.up(&wanted), Err(MountError::Obstacle { .. })));
    assert!(is_foreign(&world.mounts.inspect(&wanted).unwrap(), "not one of our links"));
    world.mounts.down(&wanted).unwrap();
    assert!(site.join("mine").exists());
    assert_eq!(world.volume.metadata().unwrap().mode() & 0o170_000, 0o040_000);
}

#[test]
fn missing_volume_or_task_directory_is_named() {
    let grounds = [Some(TestEnv::plain()), TestEnv::mounting()];
    for ground in grounds.into_iter().flatten() {
        let world = world(ground);
        let nowhere = world.ground.path().join("nowhere");
        let error = world.mounts.up(&[binding(&nowhere, "local/x", Access::ReadWrite)]).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
        assert_eq!(error.class(), Class::Retry);
        fs::remove_dir_all(&world.task).unwrap();
        let wanted = [binding(&world.volume, "local/x", Access::ReadWrite)];
        assert!(matches!(world.mounts.up(&wanted), Err(MountError::NoTaskDir { .. })));
        assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Absent);
        world.mounts.down(&wanted).unwrap();
        assert!(!world.task.exists());
    }
}

/// What was never mounted must not keep the allocation from being removed.
#[test]
fn a_destination_that_cannot_exist_is_down_already() {
    let grounds = [Some(TestEnv::plain()), TestEnv::mounting()];
    for ground in grounds.into_iter().flatten() {
        let world = world(ground);
        fs::create_dir_all(world.task.join("local")).unwrap();
        fs::write(world.task.join("local/file"), "").unwrap();
        std::os::unix::fs::symlink("/tmp", world.task.join("local/link")).unwrap();
        let long = format!("local/{}", "n".repeat(300));
        for destination in [&long, "local/file/below", "local/link/below"] {
            let wanted = [binding(&world.volume, destination, Access::ReadWrite)];
            world.mounts.up(&wanted).unwrap_err();
            world.mounts.down(&wanted).unwrap();
        }
    }
}

#[tokio::test]
async fn mount_watch_reports_only_its_directory() {
    let Some(ground) = TestEnv::mounting() else { return };
    let world = world(ground);
    // Reached through a link, and not yet existing.
    let link = world.ground.path().join("link");
    symlink(&world.task, &link).unwrap();
    let mut watch = MountWatch::open(&link.join("local/site")).unwrap();
    let quiet = std::time::Duration::from_millis(200);
    // Another change of the table is not reported.
    mount(&["-t", "tmpfs", "elsewhere", world.volume.to_str().unwrap()]);
    assert!(tokio::time::timeout(quiet, watch.changed()).await.is_err());

    let wanted = [binding(&world.volume, "local/site", Access::ReadWrite)];
    let site = link.join("local/site");
    let patience = std::time::Duration::from_secs(180);
    for _ in 0..3 {
        world.mounts.up(&wanted).unwrap();
        let changes = tokio::time::timeout(patience, watch.changed()).await.unwrap().unwrap();
        assert_eq!(changes, [MountChange::Mounted(site.clone())]);
        world.mounts.down(&wanted).unwrap();
        let changes = tokio::time::timeout(patience, watch.changed()).await.unwrap().unwrap();
        assert_eq!(changes, [MountChange::Unmounted(site.clone())]);
    }
    // Until then each change of the table reports it again.
    watch.forget(&site);
    assert!(tokio::time::timeout(quiet, watch.changed()).await.is_err());
}

#[tokio::test]
async fn mounts_before_the_first_read_are_reported() {
    let Some(ground) = TestEnv::mounting() else { return };
    let world = world(ground);
    let mut watch = MountWatch::open(&world.task).unwrap();
    let wanted = [binding(&world.volume, "local/site", Access::ReadWrite)];
    let site = world.task.join("local/site");
    for _ in 0..3 {
        world.mounts.up(&wanted).unwrap();
        // By another process.
        rustix::mount::unmount(&site, rustix::mount::UnmountFlags::empty()).unwrap();
        let changes = tokio::time::timeout(std::time::Duration::from_secs(180), watch.changed()).await;
        assert_eq!(changes.unwrap().unwrap(), [MountChange::Unmounted(site.clone())]);
    }
}

// The task kept writing into a directory that nobody would ever see again.
#[test]
fn replaced_volume_directory_is_remounted_and_missing_one_kept() {
    let Some(ground) = TestEnv::mounting() else { return };
    let world = world(ground);
    let wanted = [binding(&world.volume, "local/site", Access::ReadWrite)];
    let shown = world.task.join("local/site");
    world.mounts.up(&wanted).unwrap();
    fs::remove_dir_all(&world.volume).unwrap();
    assert!(is_foreign(&world.mounts.inspect(&wanted).unwrap(), "volume is gone"));
    let error = world.mounts.up(&wanted).unwrap_err();
    assert!(matches!(error, MountError::NoSource { .. }) && error.class() == Class::Retry, "{error}");
    assert_eq!(world.ground.mounted().len(), 1, "the existing mount is kept for the task");
    fs::create_dir(&world.volume).unwrap();
    fs::write(world.volume.join("index.html"), "new").unwrap();
    assert!(is_foreign(&world.mounts.inspect(&wanted).unwrap(), "something else"));
    world.mounts.up(&wanted).unwrap();
    assert_eq!(world.mounts.inspect(&wanted).unwrap(), Observation::Present);
    assert_eq!(fs::read_to_string(shown.join("index.html")).unwrap(), "new");
    assert_eq!(world.ground.mounted().len(), 1);
}
