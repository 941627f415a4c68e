//! The engines of the tests: nothing of them remains on the machine, also after a kill of the test run.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::PathBuf,
    process::Command,
};

use herdlet_e2e::{
    engine::{Engines, IMAGE, Kind, PRIVATE_IMAGE, REGISTRY},
    host, wait,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::is_root;

/// Returns the cgroups of engines in this folder.
fn cgroups(folder: &std::path::Path) -> Vec<PathBuf> {
    let name = format!("herdlet-test-engines-{}", folder.file_name().unwrap().to_string_lossy());
    let top = PathBuf::from("/sys/fs/cgroup");
    let tops = std::fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    tops.chain([top]).map(|top| top.join(&name)).filter(|path| path.is_dir()).collect()
}

#[test]
fn nothing_remains_of_engines_whose_test_run_was_killed() {
    let Some(mut engines) = Engines::prepare() else { return };
    let mut run = Command::new("sleep").arg("100000").spawn().unwrap();
    engines.serve_until(&run.id().to_string(), &["docker", "podman"]);
    for kind in Kind::DAEMONS {
        let engine = engines.engine(kind);
        assert!(engine.images().contains(&IMAGE.to_owned()), "{kind}: {:?}", engine.images());
        engine.stranger("left", &json!({}));
    }
    let folder = engines.folder().to_path_buf();
    assert!(!cgroups(&folder).is_empty());
    let processes = host::processes_naming(&folder);
    assert!(processes.values().any(|line| line.contains("dockerd")), "{processes:?}");
    host::signal(run.id(), Signal::KILL);
    run.wait().unwrap();
    wait::until_true("nothing remains", || {
        !folder.exists() && cgroups(&folder).is_empty() && host::processes_naming(&folder).is_empty()
    });
    let bridges = std::fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.file_name());
    // The network is this test's own, and so is the bridge.
    eprintln!("{:?}", bridges.collect::<Vec<_>>());
}

/// Folders in /tmp whose names begin like those of engines: the sweep removed those of other users, and unmounted what was below a link.
#[test]
fn a_sweep_removes_only_folders_of_earlier_runs() {
    if !is_root() {
        return;
    }
    let folder = |prefix: &str, text: &str| {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in("/tmp").unwrap();
        fs::write(folder.path().join("guard"), text).unwrap();
        folder
    };
    let mark = "folder of herdlet-test-engines\n";
    let [abandoned, of_another, open, served] = [(); 4].map(|()| folder("hde-", mark));
    let (unmarked, elsewhere) = (folder("hde-", ""), folder("not-hde-", mark));
    chown(of_another.path(), Some(65_534), None).unwrap();
    fs::set_permissions(open.path(), Permissions::from_mode(0o777)).unwrap();
    let lock = fs::File::open(served.path().join("guard")).unwrap();
    lock.lock().unwrap();
    let link = abandoned.path().with_extension("link");
    symlink(elsewhere.path(), &link).unwrap();
    Engines::sweep();
    assert!(!abandoned.path().exists());
    for kept in [of_another.path(), open.path(), served.path(), unmarked.path(), &link] {
        assert!(kept.join("guard").exists(), "{}", kept.display());
    }
    fs::remove_file(link).unwrap();
}

#[test]
fn the_registry_requires_a_user_and_its_certificate_is_trusted() {
    let Some(engines) = Engines::own(&["docker", "registry"]) else { return };
    let engine = engines.engine(Kind::Docker);
    let path = format!("/images/create?fromImage={}&tag=1", PRIVATE_IMAGE.trim_end_matches(":1"));
    let refused = engine.request("POST", &path, &Value::Null);
    assert!(!refused.body.contains("Downloaded newer image"), "{}", refused.body);
    assert!(!engine.images().iter().any(|name| name.contains(REGISTRY)));
}

#[test]
fn an_own_engine_is_stopped_frozen_and_started() {
    let Some(engines) = Engines::own(&["docker"]) else { return };
    let engine = engines.engine(Kind::Docker);
    let id = engine.stranger("kept", &json!({}));
    let pid = engine.inspect(&id).unwrap()["State"]["Pid"].as_u64().unwrap();
    engine.kill();
    engine.start(&["--live-restore"]);
    assert_eq!(engine.inspect(&id).unwrap()["State"]["Pid"].as_u64(), Some(pid));
    engine.terminate();
    engine.start(&["--live-restore"]);
    assert_eq!(engine.inspect(&id).unwrap()["State"]["Pid"].as_u64(), Some(pid));
    // As without the option: the daemon ends what it finds.
    engine.kill();
    engine.start(&[]);
    assert_eq!(engine.inspect(&id).unwrap()["State"]["Running"], false);
}
