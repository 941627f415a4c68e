//! Where an instance may start while parts of it run. This process plays the supervisor.

use herdlet_process::{
    process_tree,
    supervisor::{Process, Record, RuntimeDir, State},
};

use super::*;

/// A claimed state directory, and a runtime directory with the record of a task.
struct Bench {
    dir: tempfile::TempDir,
    state: StateDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::claim(&dir.path().join("state")).unwrap();
        let bench = Self { dir, state };
        for runtime in ["run", "other"] {
            fs::create_dir_all(bench.path(runtime).join("attempts")).unwrap();
        }
        bench.state.keep_location(&bench.path("run"), None);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Adds the record of a task; its supervisor is this process, or one that has ended.
    fn put(&self, runtime: &str, start_ticks: u64) {
        let records = RuntimeDir::open(&self.path(runtime).join("attempts")).unwrap();
        let shim = Process { pid: std::process::id(), start_ticks };
        records.put("a.t.1", &Record { state: State::Running, shim, ..Record::claimed() }).unwrap();
    }

    fn put_living(&self) {
        self.put("run", process_tree::read_stat(std::process::id()).unwrap().unwrap().start_ticks);
    }

    fn change(&self, change: impl FnOnce(&mut Location)) {
        let file = self.path("state").join(FILE);
        let mut location = Location::read(&file).unwrap();
        change(&mut location);
        fs::write(file, serde_json::to_vec(&location).unwrap()).unwrap();
    }

    #[track_caller]
    fn starts(&self, runtime: &str) {
        self.state.check_location(&self.path(runtime)).unwrap();
    }

    fn refusal(&self, runtime: &str) -> String {
        self.state.check_location(&self.path(runtime)).unwrap_err().to_string()
    }
}

#[test]
fn runtime_directory_changes_only_without_tasks() {
    let bench = Bench::new();
    bench.starts("other");
    bench.put_living();
    bench.starts("run");
    let refused = bench.refusal("other");
    assert!(refused.contains("1 task still runs whose records are in the runtime directory"), "{refused}");
    assert!(refused.contains(&*bench.path("run").to_string_lossy()), "{refused}");
    // The same directory under another name.
    std::os::unix::fs::symlink("run", bench.path("link")).unwrap();
    bench.starts("link");
    bench.put("run", 1);
    bench.starts("other");
}

#[test]
fn records_before_a_reboot_do_not_prevent_a_start() {
    let bench = Bench::new();
    bench.put_living();
    bench.refusal("other");
    bench.change(|location| location.boot ^= 1);
    bench.starts("other");
    bench.state.keep_location(&bench.path("run"), None);
    bench.refusal("other");
    bench.change(|location| location.instance = InstanceId("0".repeat(16)));
    bench.starts("other");
    // A damaged file, and a missing one, as after an upgrade.
    fs::write(bench.path("state").join(FILE), "{").unwrap();
    bench.starts("other");
    fs::remove_file(bench.path("state").join(FILE)).unwrap();
    bench.starts("other");
}

#[test]
fn copy_does_not_start_beside_tasks_of_its_original() {
    let bench = Bench::new();
    let original = bench.path("original");
    fs::create_dir(&original).unwrap();
    bench.change(|location| location.state = Directory::of(&original).unwrap());
    bench.starts("run");
    bench.starts("other");
    bench.put_living();
    for runtime in ["run", "other"] {
        let refused = bench.refusal(runtime);
        assert!(refused.contains(&format!("it is a copy of {}", original.display())), "{refused}");
        assert!(
            refused.contains("for an instance of its own start the agent with a new, empty"),
            "{refused}"
        );
        // Host volumes are mounted in both while tasks run.
        assert!(!refused.contains("remove"), "{refused}");
    }
    // As after a move to another file system.
    fs::remove_dir(&original).unwrap();
    bench.starts("run");
    assert!(bench.refusal("other").contains("1 task still runs"));
}

#[test]
fn visible_processes_stop_a_copy_in_another_mount_namespace() {
    let bench = Bench::new();
    // Like cgroup.events of a cgroup with a process.
    let tree = bench.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    bench.change(|location| location.cgroups = Some(tree.clone()));
    // The runtime directory was lost and is created again.
    bench.starts("run");
    assert!(bench.refusal("other").contains("processes still run in the cgroup"));
    bench.change(|location| location.state.inode ^= 1);
    let refused = bench.refusal("run");
    assert!(
        refused.contains("the directory was moved or copied") && refused.contains("/location"),
        "{refused}"
    );
    fs::write(tree.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
    bench.starts("run");
    bench.starts("other");
}

#[test]
fn untrusted_records_do_not_prove_that_nothing_runs() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    bench.put_living();
    let set_mode = |mode| fs::set_permissions(bench.path("run"), fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o777);
    let refused = bench.refusal("other");
    let repair = format!("to use it again run `chmod o-w {}`", bench.path("run").display());
    for part in
        ["it is not known whether tasks of its instance run elsewhere", "everybody could change it", &repair]
    {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    set_mode(0o755);
    assert!(bench.refusal("other").contains("1 task still runs"));
    fs::remove_dir_all(bench.path("run")).unwrap();
    bench.starts("other");
}

#[test]
fn a_path_whose_end_is_gone_is_the_one_that_the_kernel_shows() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("run", bench.path("link")).unwrap();
    let real = fs::canonicalize(bench.path("run")).unwrap();
    assert_eq!(without_links(&bench.path("link")), real);
    assert_eq!(without_links(&bench.path("link/a/b")), real.join("a/b"));
}

#[test]
fn other_pid_namespace_is_inspected_by_cgroups_and_records() {
    let bench = Bench::new();
    bench.change(|location| location.pid_namespace = location.pid_namespace.map(|inode| inode ^ 1));
    bench.starts("run");
    // The record of a process of that namespace, which a supervisor keeps open until it ends.
    bench.put("run", 1);
    bench.starts("run");
    let record = bench.path("run/attempts/a.t.1");
    let held = fs::OpenOptions::new().write(true).open(&record).unwrap();
    let refused = bench.refusal("run");
    for part in
        ["1 task still runs", "its last start was in another PID namespace", "/location and start again"]
    {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    // An older release did not store the namespace.
    bench.change(|location| location.pid_namespace = None);
    bench.starts("run");
    bench.change(|location| location.pid_namespace = Some(1));
    bench.refusal("run");
    drop(held);
    bench.starts("run");
    // If the cgroups are visible, nothing else is checked.
    let tree = bench.path("tree");
    fs::create_dir(&tree).unwrap();
    bench.change(|location| location.cgroups = Some(tree.clone()));
    bench.starts("run");
    fs::write(tree.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    assert!(bench.refusal("run").contains("processes still run in the cgroup"));
    // After a reboot the namespace may have another inode.
    bench.change(|location| location.boot ^= 1);
    bench.starts("run");
    bench.change(|location| location.boot ^= 1);
    fs::write(tree.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
    let held = fs::OpenOptions::new().write(true).open(&record).unwrap();
    bench.starts("run");
    drop(held);
    fs::remove_dir_all(bench.path("run")).unwrap();
    bench.starts("run");
    // With neither there is nothing to check.
    bench.change(|location| location.cgroups = None);
    assert!(bench.refusal("run").contains("tasks may still run"));
}

#[test]
fn cgroups_with_processes_are_not_abandoned() {
    let bench = Bench::new();
    let [tree, other] = ["tree", "other-tree"].map(|name| bench.path(name));
    for tree in [&tree, &other] {
        fs::create_dir(tree).unwrap();
        fs::write(tree.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    }
    bench.change(|location| location.cgroups = Some(tree.clone()));
    let run = bench.path("run");
    let check = |tree: Option<&Path>| bench.state.check_cgroups(&run, tree);
    check(Some(&tree)).unwrap();
    for tree in [Some(&*other), None] {
        let refused = check(tree).unwrap_err().to_string();
        assert!(refused.contains("with its cgroup parent as before"), "{refused}");
    }
    bench.put_living();
    check(Some(&other)).unwrap();
    bench.put("run", 1);
    check(Some(&other)).unwrap_err();
    fs::write(tree.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
    check(Some(&other)).unwrap();
}
