//! Roots made on this machine, inspected from inside. All files are in temporary directories; these tests need root.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    fs,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
    thread,
};

use herdlet_rootfs::{
    builder::build,
    root::{Access, Bind, Built, Changes, Entry, LimitedEntry, Propagation, Root, RootError},
    seed::Seed,
};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

/// Runs a test on a thread with mounts of its own, with a machine's directories `usr` and `etc` below a temporary one.
fn on_machine(test: impl FnOnce(&Path) + Send) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("HERDLET_TEST_REQUIRE").is_none(), "this test needs root");
        return;
    }
    in_thread(|| {
        unshare(UnshareFlags::NEWNS);
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for sub in ["usr/bin", "etc/app", "alloc/web/local", "alloc/alloc"] {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        fs::write(dir.path().join("usr/bin/tool"), "of the machine").unwrap();
        fs::write(dir.path().join("etc/conf"), "of the machine").unwrap();
        test(dir.path());
    });
}

fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn unshare(flags: UnshareFlags) {
    #[expect(unsafe_code, reason = "the other threads keep their namespaces")]
    // SAFETY: descriptors stay shared, and only this thread changes.
    unsafe {
        unshare_unsafe(flags).unwrap();
    }
}

/// Runs something in a root.
fn inside<T: Send>(mounts: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    in_thread(|| {
        unshare(UnshareFlags::FS);
        move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount)).unwrap();
        work()
    })
}

fn root(machine: &Path, names: &[&str]) -> Root {
    let entry = |name: &&str| Entry { source: machine.join(name), target: PathBuf::from(name) };
    Root {
        alloc: machine.join("alloc"),
        task: "web".into(),
        work: ".work/web".into(),
        entries: names.iter().map(entry).collect(),
        ..Root::default()
    }
}

fn made(root: &Root) -> Built {
    let built = build(&Seed::new().unwrap(), root).unwrap();
    assert_eq!(built.limited, []);
    built
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn names(dir: &str) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_task_writes_to_its_directory_and_not_to_the_machine() {
    on_machine(|machine| {
        let task = machine.join("alloc/web");
        fs::create_dir(task.join("etc")).unwrap();
        fs::write(task.join("etc/artifact"), "there before").unwrap();
        fs::set_permissions(task.join("etc"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(machine.join("usr"), fs::Permissions::from_mode(0o1751)).unwrap();
        let built = made(&root(machine, &["usr", "etc"]));
        inside(&built.mounts, || {
            assert_eq!(names("/"), ["dev", "etc", "local", "proc", "sys", "usr"]);
            assert_eq!(read("/etc/artifact"), "there before");
            assert_eq!(read("/etc/conf"), "of the machine");
            assert_eq!(fs::metadata("/usr").unwrap().mode() & 0o7777, 0o1751);
            assert_eq!(fs::metadata("/etc").unwrap().mode() & 0o7777, 0o755, "as on the machine");
            fs::set_permissions("/etc", fs::Permissions::from_mode(0o711)).unwrap();
            fs::write("/usr/bin/tool", "changed").unwrap();
            fs::write("/local/own", "new").unwrap();
            fs::remove_file("/etc/conf").unwrap();
        });
        assert_eq!(read(machine.join("usr/bin/tool")), "of the machine");
        assert!(machine.join("etc/conf").exists());
        assert_eq!(read(task.join("usr/bin/tool")), "changed");
        assert_eq!(read(task.join("local/own")), "new");
        drop(built);
        let again = made(&root(machine, &["usr", "etc"]));
        inside(&again.mounts, || {
            assert_eq!(read("/usr/bin/tool"), "changed");
            assert_eq!(fs::metadata("/etc").unwrap().mode() & 0o7777, 0o711, "as the task has set it");
            assert!(!Path::new("/etc/conf").exists());
        });
    });
}

#[test]
fn nothing_else_of_the_machine_is_seen() {
    on_machine(|machine| {
        let before = read("/proc/self/mountinfo").lines().count();
        let built = made(&root(machine, &["usr"]));
        inside(&built.mounts, || {
            assert!(!Path::new("/root").exists() && !Path::new("/alloc").exists());
            assert!(!Path::new("/proc/self").exists(), "the machine's /proc");
            assert_eq!(fs::read_dir("/proc").unwrap().count(), 0);
            // All ways up end here.
            assert_eq!(fs::metadata("/../..").unwrap().ino(), fs::metadata("/").unwrap().ino());
        });
        assert_eq!(read("/proc/self/mountinfo").lines().count(), before, "nothing is mounted on the machine");
    });
}

#[test]
fn links_files_and_missing_entries_are_as_on_the_machine() {
    on_machine(|machine| {
        symlink("usr/bin", machine.join("bin")).unwrap();
        let mut root = root(machine, &["usr", "bin", "missing"]);
        root.entries.push(Entry { source: machine.join("etc/conf"), target: "etc/app/conf".into() });
        let built = made(&root);
        inside(&built.mounts, || {
            assert_eq!(fs::read_link("/bin").unwrap(), Path::new("usr/bin"));
            assert_eq!(read("/bin/tool"), "of the machine");
            assert_eq!(read("/etc/app/conf"), "of the machine");
            let refused = fs::write("/etc/app/conf", "changed").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            assert!(!Path::new("/missing").exists());
        });
        drop(built);
        made(&root);
    });
}

#[test]
fn mounts_below_an_entry_are_seen_and_can_be_written() {
    on_machine(|machine| {
        mount("tmpfs", machine.join("usr/bin"), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::create_dir(machine.join("usr/bin/deep")).unwrap();
        mount("tmpfs", machine.join("usr/bin/deep"), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(machine.join("usr/bin/deep/file"), "mounted").unwrap();
        fs::write(machine.join("usr/bin/tool"), "mounted").unwrap();
        let built = made(&root(machine, &["usr"]));
        inside(&built.mounts, || {
            assert_eq!(
                (read("/usr/bin/tool"), read("/usr/bin/deep/file")),
                ("mounted".into(), "mounted".into())
            );
            fs::write("/usr/bin/deep/file", "changed").unwrap();
        });
        assert_eq!(read(machine.join("usr/bin/deep/file")), "mounted");
        assert_eq!(read(machine.join("alloc/web/usr/bin/deep/file")), "changed");
    });
}

/// An agent in a container: its directories are on an overlay themselves.
#[test]
fn changes_are_in_memory_where_the_task_directory_can_be_no_upper_one() {
    on_machine(|machine| {
        let base = machine.join("base");
        for sub in ["low", "up", "work", "alloc"] {
            fs::create_dir_all(base.join(sub)).unwrap();
        }
        fs::create_dir_all(base.join("low/web/etc")).unwrap();
        fs::write(base.join("low/web/etc/artifact"), "there before").unwrap();
        let path = |sub| base.join(sub).display().to_string();
        let options = format!("lowerdir={},upperdir={},workdir={}", path("low"), path("up"), path("work"));
        let options = std::ffi::CString::new(options).unwrap();
        mount("overlay", base.join("alloc"), "overlay", MountFlags::empty(), Some(&*options)).unwrap();
        let root = Root { alloc: base.join("alloc"), ..root(machine, &["usr", "etc"]) };
        let built = build(&Seed::new().unwrap(), &root).unwrap();
        let targets: Vec<&Path> = built.limited.iter().map(|entry| &*entry.target).collect();
        assert_eq!(targets, [Path::new("etc"), Path::new("usr")]);
        let is_temporary =
            |entry: &LimitedEntry| entry.changes == Changes::Temporary && !entry.reason.is_empty();
        assert!(built.limited.iter().all(is_temporary));
        inside(&built.mounts, || {
            assert_eq!(read("/usr/bin/tool"), "of the machine");
            assert_eq!(
                (read("/etc/conf"), read("/etc/artifact")),
                ("of the machine".into(), "there before".into())
            );
            fs::write("/usr/bin/tool", "changed").unwrap();
            assert_eq!(read("/usr/bin/tool"), "changed");
            let large = fs::write("/etc/large", vec![1; 100 << 20]).unwrap_err();
            assert_eq!(large.kind(), std::io::ErrorKind::StorageFull);
            fs::write("/own", "").unwrap();
        });
        assert_eq!(read(machine.join("usr/bin/tool")), "of the machine");
    });
}

/// The kernel would only log the second use of an upper directory, and what is written there then is undefined.
#[test]
fn a_root_waits_for_the_end_of_the_last_one() {
    on_machine(|machine| {
        let root = root(machine, &["usr"]);
        let seed = Seed::new().unwrap();
        let first = build(&seed, &root).unwrap();
        let second = build(&seed, &root);
        assert!(
            matches!(&second, Err(RootError::Busy { target }) if target == Path::new("usr")),
            "{second:?}"
        );
        inside(&first.mounts, || fs::write("/usr/bin/tool", "changed").unwrap());
        drop(first);
        let third = build(&seed, &root).unwrap();
        assert_eq!(inside(&third.mounts, || read("/usr/bin/tool")), "changed");
    });
}

#[test]
fn an_entry_may_be_replaced_on_the_machine() {
    on_machine(|machine| {
        let root = root(machine, &["usr"]);
        let built = made(&root);
        inside(&built.mounts, || {
            fs::write("/usr/bin/own", "of the task").unwrap();
            fs::hard_link("/usr/bin/tool", "/usr/bin/other").unwrap();
        });
        drop(built);
        fs::rename(machine.join("usr"), machine.join("old")).unwrap();
        fs::create_dir_all(machine.join("usr/bin")).unwrap();
        fs::write(machine.join("usr/bin/newer"), "of the machine").unwrap();
        let built = made(&root);
        inside(&built.mounts, || {
            assert_eq!(read("/usr/bin/own"), "of the task");
            assert_eq!(read("/usr/bin/newer"), "of the machine");
        });
    });
}

#[test]
fn hidden_paths_are_empty() {
    on_machine(|machine| {
        for sub in ["etc/herdlet", "etc/herdlet/state", "etc/deep/state"] {
            fs::create_dir_all(machine.join(sub)).unwrap();
        }
        fs::write(machine.join("etc/herdlet/token"), "secret").unwrap();
        fs::write(machine.join("etc/key"), "secret").unwrap();
        symlink("deep", machine.join("etc/alias")).unwrap();
        fs::write(machine.join("etc/deep/state/token"), "secret").unwrap();
        mount("tmpfs", machine.join("etc/herdlet/state"), "tmpfs", MountFlags::empty(), None).unwrap();
        let hidden = ["etc/herdlet", "etc/key", "etc/alias/state", "etc/no-such"];
        let mut root = root(machine, &["etc", "etc/deep/state"]);
        root.hidden = hidden.iter().map(|path| machine.join(path)).collect();
        let built = made(&root);
        inside(&built.mounts, || {
            assert_eq!(names("/etc/herdlet"), Vec::<String>::new());
            assert_eq!(read("/etc/key"), "");
            assert_eq!(names("/etc/deep/state"), Vec::<String>::new());
            let refused = fs::write("/etc/herdlet/token", "").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            assert_eq!(read("/etc/conf"), "of the machine");
        });
        assert!(!machine.join("alloc/web/etc/herdlet").exists(), "nothing of it is in the task's directory");
    });
}

#[test]
fn hidden_paths_are_empty_in_volumes_and_stay_on_the_machine() {
    on_machine(|machine| {
        let volume = machine.join("volume");
        fs::create_dir_all(volume.join("state/keys")).unwrap();
        mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
        mount_change(&volume, MountPropagationFlags::SHARED).unwrap();
        fs::create_dir_all(volume.join("state")).unwrap();
        fs::write(volume.join("state/key"), "secret").unwrap();
        fs::write(volume.join("token"), "secret").unwrap();
        fs::write(volume.join("data"), "shown").unwrap();
        let mut root = root(machine, &[]);
        root.hidden = ["state", "token"].map(|path| volume.join(path)).into();
        for (propagation, access) in
            [(Propagation::Private, Access::ReadWrite), (Propagation::FromMachine, Access::ReadOnly)]
        {
            root.binds = vec![Bind { propagation, ..bind(volume.clone(), "srv", access) }];
            let built = made(&root);
            inside(&built.mounts, || {
                assert_eq!((read("/srv/data").as_str(), read("/srv/token").as_str()), ("shown", ""));
                assert_eq!(names("/srv/state"), Vec::<String>::new());
            });
            assert_eq!(read(volume.join("token")), "secret", "{propagation:?}");
            assert_eq!(read(volume.join("state/key")), "secret", "{propagation:?}");
        }
        root.binds =
            vec![Bind { propagation: Propagation::Shared, ..bind(volume.clone(), "srv", Access::ReadWrite) }];
        let refused = build(&Seed::new().unwrap(), &root).map(drop);
        assert!(matches!(refused, Err(RootError::Exposed { .. })), "{refused:?}");
        assert_eq!(read(volume.join("token")), "secret");
    });
}

/// The last attempt of the task could write to all of these.
#[test]
fn links_of_the_task_lead_nowhere() {
    on_machine(|machine| {
        let alloc = machine.join("alloc");
        fs::create_dir(alloc.join("other")).unwrap();
        for name in ["usr", "dev", "proc", "sys"] {
            symlink("../other", alloc.join("web").join(name)).unwrap();
        }
        symlink(machine.join("etc"), alloc.join("web/data")).unwrap();
        let mut root = root(machine, &["usr"]);
        root.binds.push(bind(machine.join("etc"), "data/inner", Access::ReadWrite));
        let built = made(&root);
        inside(&built.mounts, || {
            fs::write("/usr/bin/tool", "changed").unwrap();
            assert!(fs::symlink_metadata("/dev").unwrap().is_dir());
            assert_eq!(read("/data/inner/conf"), "of the machine");
        });
        assert_eq!(fs::read_dir(alloc.join("other")).unwrap().count(), 0);
        assert!(!machine.join("etc/inner").exists());
    });
}

fn bind(source: PathBuf, target: &str, access: Access) -> Bind {
    Bind { source, target: target.into(), access, propagation: Propagation::Private }
}

#[test]
fn binds_are_shared_with_the_machine() {
    on_machine(|machine| {
        let volume = machine.join("volume");
        fs::create_dir_all(volume.join("below")).unwrap();
        mount("tmpfs", volume.join("below"), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(volume.join("below/file"), "old").unwrap();
        let mut root = root(machine, &["etc"]);
        root.binds = vec![
            bind(machine.join("alloc/alloc"), "alloc", Access::ReadWrite),
            bind(volume.clone(), "srv/data", Access::ReadOnly),
            bind(volume.join("below/file"), "etc/resolv.conf", Access::ReadWrite),
        ];
        let built = made(&root);
        inside(&built.mounts, || {
            fs::write("/alloc/shared", "new").unwrap();
            assert_eq!(read("/srv/data/below/file"), "old");
            let refused = fs::write("/srv/data/below/file", "").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            fs::write("/etc/resolv.conf", "new").unwrap();
        });
        assert_eq!(read(machine.join("alloc/alloc/shared")), "new");
        assert_eq!(read(volume.join("below/file")), "new");
        root.binds = vec![bind(machine.join("no-such"), "x", Access::ReadOnly)];
        let failed = build(&Seed::new().unwrap(), &root).unwrap_err();
        assert!(failed.to_string().contains("no-such"), "{failed}");
    });
}

#[test]
fn devices_are_few_and_work() {
    on_machine(|machine| {
        let built = made(&root(machine, &[]));
        inside(&built.mounts, || {
            let found = names("/dev");
            for name in ["fd", "mqueue", "null", "ptmx", "pts", "shm", "stdin", "stdout", "urandom", "zero"] {
                assert!(found.iter().any(|found| found == name), "{name} in {found:?}");
            }
            fs::write("/dev/null", "lost").unwrap();
            assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
            assert_eq!(names("/dev/pts"), ["ptmx"], "no terminals of the machine");
            assert_eq!(fs::metadata("/dev/shm").unwrap().mode() & 0o7777, 0o1777);
            fs::write("/dev/shm/x", "").unwrap();
            assert!(Path::new("/sys/kernel").exists() && !found.iter().any(|name| name == "mem"));
            let refused = fs::write("/sys/kernel/profiling", "").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        });
        assert!(!Path::new("/dev/shm/x").exists());
    });
}

/// A task may make device files, as many programs that unpack archives do. They are of no use.
#[test]
fn device_files_of_the_task_cannot_be_opened() {
    on_machine(|machine| {
        let volume = machine.join("volume");
        fs::create_dir(&volume).unwrap();
        fs::create_dir(machine.join("alloc/web/secrets")).unwrap();
        mount("tmpfs", machine.join("alloc/web/secrets"), "tmpfs", MountFlags::empty(), None).unwrap();
        let mut root = root(machine, &["usr"]);
        root.binds = vec![bind(volume, "srv", Access::ReadWrite)];
        let built = made(&root);
        inside(&built.mounts, || {
            for dir in ["/", "/usr", "/srv", "/secrets", "/local"] {
                let path = Path::new(dir).join("null");
                // That of /dev/null.
                let number = rustix::fs::makedev(1, 3);
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    &path,
                    rustix::fs::FileType::CharacterDevice,
                    rustix::fs::Mode::from(0o666),
                    number,
                )
                .unwrap();
                let refused = fs::File::open(&path).unwrap_err();
                assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{dir}");
            }
        });
    });
}

#[test]
fn masked_paths_are_empty() {
    on_machine(|machine| {
        fs::create_dir(machine.join("alloc/web/private")).unwrap();
        fs::write(machine.join("alloc/web/private/key"), "secret").unwrap();
        let built = made(&Root { masked: vec!["private".into(), "no-such".into()], ..root(machine, &[]) });
        inside(&built.mounts, || assert_eq!(names("/private"), Vec::<String>::new()));
    });
}

#[test]
fn devices_in_sys_are_those_of_the_network() {
    on_machine(|machine| {
        let network = thread::spawn(|| {
            unshare(UnshareFlags::NEWNET);
            OwnedFd::from(fs::File::open("/proc/thread-self/ns/net").unwrap())
        });
        let network = network.join().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&network));
        let built = made(&Root { network: Some(path.into()), ..root(machine, &[]) });
        inside(&built.mounts, || assert_eq!(names("/sys/class/net"), ["lo"]));
        let built = made(&root(machine, &[]));
        let all = inside(&built.mounts, || names("/sys/class/net"));
        assert_eq!(all, names("/sys/class/net"), "without a network, the machine's");
        let missing =
            build(&Seed::new().unwrap(), &Root { network: Some("/no/such".into()), ..root(machine, &[]) });
        assert!(missing.unwrap_err().to_string().contains("/no/such"));
    });
}

#[test]
fn later_mounts_appear_as_the_volume_says() {
    on_machine(|machine| {
        let shared = machine.join("shared");
        fs::create_dir(&shared).unwrap();
        mount("tmpfs", &shared, "tmpfs", MountFlags::empty(), None).unwrap();
        mount_change(&shared, MountPropagationFlags::SHARED).unwrap();
        for name in ["from", "to"] {
            fs::create_dir(shared.join(name)).unwrap();
        }
        for (propagation, from, to) in [
            (Propagation::Private, false, false),
            (Propagation::FromMachine, true, false),
            (Propagation::Shared, true, true),
        ] {
            let mut root = root(machine, &[]);
            root.binds = vec![Bind { propagation, ..bind(shared.clone(), "srv", Access::ReadWrite) }];
            let built = made(&root);
            mount("tmpfs", shared.join("from"), "tmpfs", MountFlags::empty(), None).unwrap();
            fs::write(shared.join("from/file"), "").unwrap();
            inside(&built.mounts, || {
                assert_eq!(Path::new("/srv/from/file").exists(), from, "{propagation:?}");
                mount("tmpfs", "/srv/to", "tmpfs", MountFlags::empty(), None).unwrap();
                fs::write("/srv/to/file", "").unwrap();
            });
            assert_eq!(shared.join("to/file").exists(), to, "{propagation:?}");
            for name in ["from", "to"] {
                while rustix::mount::unmount(shared.join(name), rustix::mount::UnmountFlags::DETACH).is_ok() {
                }
                let _ = fs::remove_file(shared.join(name).join("file"));
            }
        }
    });
}
