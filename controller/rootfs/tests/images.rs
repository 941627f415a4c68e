//! Roots of images made on this machine, inspected from inside. All files are in temporary directories; these tests need root.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::Path,
    thread,
};

use herdlet_rootfs::{
    builder::build_image,
    root::{
        Access, Bind, Built, DeviceFile, ImageRoot, LAYERS_MAX, MemoryDir, Propagation, Rights, RootError,
    },
    seed::Seed,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Runs a test with two layers in a temporary directory.
fn with_layers(test: impl FnOnce(&Path)) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("HERDLET_TEST_REQUIRE").is_none(), "this test needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for sub in ["0/etc", "0/bin", "1/etc", "1/srv", "changes", "shared"] {
        fs::create_dir_all(dir.path().join(sub)).unwrap();
    }
    fs::write(dir.path().join("0/etc/os"), "low").unwrap();
    fs::write(dir.path().join("1/etc/os"), "high").unwrap();
    fs::write(dir.path().join("0/bin/tool"), "tool").unwrap();
    fs::set_permissions(dir.path().join("0/bin/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(dir.path().join("1"), fs::Permissions::from_mode(0o711)).unwrap();
    test(dir.path());
}

fn image(dir: &Path) -> ImageRoot {
    ImageRoot {
        layers: vec![dir.join("0"), dir.join("1")],
        changes: dir.join("changes"),
        access: Access::ReadWrite,
        rights: Rights::Confined,
        directories: vec!["data/here".into()],
        binds: Vec::new(),
        memory: Vec::new(),
        devices: Vec::new(),
        shm_bytes: Some(1 << 20),
        hidden: Vec::new(),
        masked: Vec::new(),
        network: None,
    }
}

fn made(root: &ImageRoot) -> Built {
    build_image(&Seed::new().unwrap(), root).unwrap()
}

/// Runs something in a root.
fn inside<T: Send>(mounts: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        #[expect(unsafe_code, reason = "the other threads keep their namespaces")]
        // SAFETY: descriptors stay shared, and only this thread changes.
        unsafe {
            unshare_unsafe(UnshareFlags::FS).unwrap();
        }
        move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount)).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

#[test]
fn layers_are_one_root_and_changes_are_in_their_directory() {
    with_layers(|dir| {
        let built = made(&image(dir));
        inside(&built.mounts, || {
            assert_eq!(fs::read_to_string("/etc/os").unwrap(), "high");
            assert_eq!(fs::metadata("/").unwrap().mode() & 0o7777, 0o711, "the mode of the highest layer");
            assert_eq!(fs::metadata("/bin/tool").unwrap().mode() & 0o7777, 0o4755);
            fs::write("/etc/new", "x").unwrap();
            fs::remove_file("/etc/os").unwrap();
            assert!(Path::new("/data/here").is_dir() && Path::new("/dev/null").exists());
            assert!(Path::new("/dev/shm").is_dir() && Path::new("/proc").is_dir());
            assert!(Path::new("/sys/kernel").exists(), "/sys is mounted");
            assert!(fs::write("/sys/kernel/x", "").is_err());
        });
        drop(built);
        assert_eq!(fs::read_to_string(dir.join("changes/upper/etc/new")).unwrap(), "x");
        assert_eq!(fs::read_to_string(dir.join("1/etc/os")).unwrap(), "high", "a layer never changes");
        assert!(!dir.join("1/etc/new").exists() && !dir.join("0/data").exists());
    });
}

/// A task with the right to make devices gains nothing: nowhere in its root can one be used.
#[test]
fn devices_that_a_task_makes_are_useless() {
    with_layers(|dir| {
        let memory = MemoryDir { target: "ram".into(), bytes: None, mode: 0o755, access: Access::ReadWrite };
        let built = made(&ImageRoot { memory: vec![memory], ..image(dir) });
        inside(&built.mounts, || {
            for place in ["/null", "/etc/null", "/ram/null", "/dev/own", "/dev/shm/null"] {
                let device = rustix::fs::makedev(1, 3);
                let kind = rustix::fs::FileType::CharacterDevice;
                let mode = rustix::fs::Mode::from(0o666);
                if rustix::fs::mknodat(rustix::fs::CWD, place, kind, mode, device).is_ok() {
                    let opened = fs::File::open(place).map_err(|error| error.kind());
                    assert_eq!(opened.err(), Some(io::ErrorKind::PermissionDenied), "{place}");
                }
            }
            assert!(fs::File::open("/dev/null").is_ok());
        });
    });
}

#[test]
fn a_read_only_root_has_places_for_everything() {
    with_layers(|dir| {
        let bind = |target: &str, access| Bind {
            source: dir.join("shared"),
            target: target.into(),
            access,
            propagation: Propagation::Private,
        };
        let root = ImageRoot {
            access: Access::ReadOnly,
            binds: vec![bind("a/b", Access::ReadWrite), bind("a", Access::ReadOnly)],
            memory: vec![MemoryDir {
                target: "a/b/ram".into(),
                bytes: Some(4096),
                mode: 0o700,
                access: Access::ReadWrite,
            }],
            devices: vec![DeviceFile { source: "/dev/zero".into(), target: "dev/nothing".into() }],
            ..image(dir)
        };
        fs::create_dir_all(dir.join("shared/b")).unwrap();
        let built = made(&root);
        inside(&built.mounts, || {
            for place in ["/x", "/etc/x", "/a/x", "/srv/x"] {
                let error = fs::write(place, "").unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{place}");
            }
            fs::write("/a/b/x", "").unwrap();
            fs::write("/a/b/ram/x", "").unwrap();
            assert_eq!(fs::metadata("/a/b/ram").unwrap().mode() & 0o7777, 0o700);
            assert!(fs::write("/a/b/ram/full", vec![0; 1 << 20]).is_err(), "its size is limited");
            let mut byte = [1];
            io::Read::read_exact(&mut fs::File::open("/dev/nothing").unwrap(), &mut byte).unwrap();
            assert_eq!(byte, [0]);
        });
        assert!(dir.join("shared/x").exists());
    });
}

/// The paths of a place for a mount are the image's: they must not lead a mount out of the root.
#[test]
fn links_of_an_image_stay_in_the_root() {
    with_layers(|dir| {
        fs::create_dir(dir.join("outside")).unwrap();
        symlink(dir.join("outside"), dir.join("1/alloc")).unwrap();
        symlink("../../../../../../../../etc", dir.join("1/up")).unwrap();
        symlink("/nowhere", dir.join("1/proc")).unwrap();
        symlink("/srv", dir.join("1/dev")).unwrap();
        let bind = |target: &str| Bind {
            source: dir.join("shared"),
            target: target.into(),
            access: Access::ReadWrite,
            propagation: Propagation::Private,
        };
        let built = made(&ImageRoot { binds: vec![bind("alloc"), bind("up/x")], ..image(dir) });
        inside(&built.mounts, || {
            fs::write("/alloc/file", "x").unwrap();
            assert!(Path::new("/etc/x/file").exists(), "the link leads to /etc of the image");
            assert!(fs::symlink_metadata("/proc").unwrap().is_dir());
            assert!(fs::symlink_metadata("/dev").unwrap().is_dir());
        });
        assert_eq!(fs::read_dir(dir.join("outside")).unwrap().count(), 0);
        assert!(dir.join("shared/file").exists());
    });
}

/// Images of old builders have the same empty layer many times.
#[test]
fn as_many_layers_as_the_kernel_mounts() {
    with_layers(|dir| {
        let mut root = image(dir);
        let [low, high] = [0, 1].map(|at| root.layers[at].clone());
        root.layers = vec![low.clone(), high.clone(), low.clone(), low, high];
        for number in 0..LAYERS_MAX - 1 {
            let layer = dir.join(format!("more-{number}"));
            fs::create_dir(&layer).unwrap();
            fs::write(layer.join("number"), number.to_string()).unwrap();
            root.layers.push(layer);
        }
        let refused = build_image(&Seed::new().unwrap(), &root).unwrap_err();
        assert!(matches!(refused, RootError::Layers { layers } if layers == LAYERS_MAX + 1), "{refused}");
        root.layers.pop();
        let built = made(&root);
        inside(&built.mounts, || {
            assert_eq!(fs::read_to_string("/number").unwrap(), (LAYERS_MAX - 3).to_string());
            assert_eq!(fs::read_to_string("/etc/os").unwrap(), "high");
        });
        root.layers.clear();
        assert!(matches!(build_image(&Seed::new().unwrap(), &root), Err(RootError::Layers { .. })));
    });
}

#[test]
fn a_directory_of_changes_has_one_root_at_a_time() {
    with_layers(|dir| {
        let first = made(&image(dir));
        let refused = build_image(&Seed::new().unwrap(), &image(dir)).unwrap_err();
        assert!(matches!(refused, RootError::Busy { .. }), "{refused}");
        drop(first);
        // The kernel unmounts it soon after its last user.
        let again = (0..1000).find_map(|_| {
            thread::yield_now();
            build_image(&Seed::new().unwrap(), &image(dir)).ok()
        });
        assert!(again.is_some());
    });
}
