//! Host volumes: creation and removal.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
};

use herdlet_base::test_env::TestEnv;

use super::*;

fn volumes(ground: &TestEnv) -> HostVolumes {
    let paths = Paths { state: ground.path().join("state"), runtime: ground.path().join("run") };
    HostVolumes::new(paths, ground.privileges())
}

fn mkdir(name: &str, mode: u32, uid: Option<u32>) -> Volume {
    Volume { name: name.to_owned(), kind: VolumeKind::Mkdir { mode, uid, gid: uid }, read_only: false }
}

fn host_path(path: &Path) -> Volume {
    let path = path.to_str().unwrap().to_owned();
    Volume { name: "h".to_owned(), kind: VolumeKind::HostPath { path }, read_only: false }
}

#[test]
fn a_host_path_must_be_an_existing_directory() {
    let ground = TestEnv::plain();
    let volumes = volumes(&ground);
    let place = ground.path().join("data");
    let volume = host_path(&place);
    assert!(
        volumes
            .up(&volume)
            .unwrap_err()
            .to_string()
            .contains("data for volume h: the directory does not exist")
    );
    assert_eq!(volumes.inspect(&volume).unwrap(), Observation::Absent);
    fs::write(&place, "").unwrap();
    let error = volumes.up(&volume).unwrap_err();
    assert!(error.to_string().ends_with("it is not a directory"), "{error}");
    assert!(matches!(volumes.inspect(&volume).unwrap(), Observation::Foreign { .. }));
    fs::remove_file(&place).unwrap();
    fs::create_dir(&place).unwrap();
    assert_eq!(volumes.up(&volume).unwrap(), place);
    assert_eq!(volumes.inspect(&volume).unwrap(), Observation::Present);
    // An operator's link is followed.
    symlink(&place, ground.path().join("link")).unwrap();
    volumes.up(&host_path(&ground.path().join("link"))).unwrap();
    volumes.purge(&volume).unwrap();
    assert!(place.exists());
    assert!(matches!(volumes.up(&host_path(Path::new("data"))), Err(VolumeError::Relative { .. })));
}

#[test]
fn volume_directory_is_made_once_and_purged() {
    let ground = TestEnv::plain();
    let volumes = volumes(&ground);
    for name in ["site", "data[0]", "../../evil", "x".repeat(60).as_str()] {
        let volume = mkdir(name, 0o2775, None);
        assert_eq!(volumes.inspect(&volume).unwrap(), Observation::Absent);
        let path = volumes.up(&volume).unwrap();
        assert_eq!(path.parent().unwrap(), ground.path().join("state/volumes"), "{name}");
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o2775);
        assert_eq!(volumes.inspect(&volume).unwrap(), Observation::Present);
        fs::write(path.join("data"), "precious").unwrap();
        // The mode applies at creation; a task's later change stays.
        assert_eq!(volumes.up(&mkdir(name, 0o700, None)).unwrap(), path);
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o2775);
        assert!(path.join("data").exists());
        for _ in 0..2 {
            volumes.purge(&volume).unwrap();
            assert_eq!(volumes.inspect(&volume).unwrap(), Observation::Absent);
        }
    }
    assert!(fs::read_dir(ground.path().join("state/volumes")).unwrap().next().is_none());
}

#[test]
fn volume_owner_is_set_by_root_only() {
    let ground = TestEnv::plain();
    let error = volumes(&ground).up(&mkdir("v", 0o700, Some(4242))).unwrap_err();
    assert!(matches!(error, VolumeError::Owner { uid: 4242, .. }));
    assert!(!ground.path().join("state/volumes/v").exists());
    let Some(ground) = TestEnv::mounting() else { return };
    if ground.privileges().ownership == Ownership::OwnOnly {
        return;
    }
    let path = volumes(&ground).up(&mkdir("v", 0o750, Some(4242))).unwrap();
    let stat = path.metadata().unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (4242, 4242, 0o750));
}

#[test]
fn volume_left_by_a_crash_is_completed() {
    let ground = TestEnv::plain();
    let volumes = volumes(&ground);
    let volume = mkdir("v", 0o700, None);
    let root = ground.path().join("state/volumes");
    volumes.sweep().unwrap();
    fs::create_dir_all(root.join(".new-v")).unwrap();
    fs::create_dir_all(root.join(".gone-v/data")).unwrap();
    // Partly removed is neither present nor absent.
    assert!(matches!(volumes.inspect(&volume).unwrap(), Observation::Foreign { .. }));
    let path = volumes.up(&volume).unwrap();
    volumes.sweep().unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
    volumes.purge(&volume).unwrap();
    assert!(!path.exists());
    symlink("/", root.join("v")).unwrap();
    assert!(matches!(volumes.inspect(&volume).unwrap(), Observation::Foreign { .. }));
    volumes.purge(&volume).unwrap();
    assert!(fs::read_dir(&root).unwrap().next().is_none());
}
