//! The surroundings of a task: signals, descriptors, environment, limits, session, ids, cgroups.

use std::{
    fs,
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use herdlet_network::namespace::{Namespace, Pins};
use herdlet_process::supervisor::*;

use super::bench::*;

/// Field of `/proc/self/status`, as a hexadecimal mask.
fn mask(text: &str, field: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

#[test]
fn task_has_default_signals_and_only_its_streams() {
    let bench = Bench::new();
    // As a shell's `&` sets them for its children, and the Rust runtime for itself.
    let script =
        "trap '' INT HUP TERM; exec 7</dev/null; exec \"$0\" --exact surroundings::inner_launch --nocapture";
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("HERDLET_TEST_DIR", bench.dir.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    bench.wait_for("inner", has_exited);
    eventually("all output", || {
        bench.log_names() == ["t.stdout.0"] && bench.log("t.stdout.0").contains("end")
    });
    let text = bench.log("t.stdout.0");
    for field in ["SigIgn", "SigBlk", "SigCgt"] {
        assert_eq!(mask(&text, field), 0, "{field}");
    }
    let (_, fds) = text.split_once("fds\n").unwrap();
    // 3 is the directory that `ls` reads.
    assert_eq!(fds.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3", "end"]);
}

/// Not a test of its own: runs in a process with hostile dispositions and a leaked descriptor, see above.
#[test]
fn inner_launch() {
    let Some(dir) = std::env::var_os("HERDLET_TEST_DIR") else { return };
    let bench = Bench::at(PathBuf::from(dir));
    let invocation = shell("cat /proc/self/status; echo fds; ls /proc/self/fd; echo end");
    launch(&bench.bare_launch("inner", &invocation, &log_files(3, 1 << 20))).unwrap();
}

#[test]
fn task_environment_directory_and_limits_are_exact() {
    let bench = Bench::new();
    let mut invocation =
        shell("env | grep -v -e ^PWD -e ^_ -e ^SHLVL -e ^OLDPWD; pwd; umask; ulimit -n; ulimit -Hn");
    invocation.environment.push(("EMPTY".into(), "".into()));
    invocation.directory = Some("/usr".into());
    invocation.umask = Some(0o027);
    invocation.open_files = Some(99);
    invocation.oom_score_adj = Some(0);
    bench.run("a", &invocation);
    assert_eq!(bench.log("t.stdout.0"), "PATH=/usr/bin:/bin\nEMPTY=\n/usr\n0027\n99\n99\n");
    let mut greedy = shell("ulimit -n");
    greedy.open_files = Some(1 << 40);
    assert!(matches!(bench.run("b", &greedy), State::Exited(_)) || is_root());
}

#[test]
fn a_session_leader_runs_outside_the_agents_session() {
    let bench = Bench::new();
    let child = bench.launch("a", &shell("cut -d' ' -f1,5,6,7 /proc/$$/stat"));
    let shim = child.pid();
    end_of(child);
    let text = bench.log("t.stdout.0");
    let fields: Vec<i64> = text.split_whitespace().map(|field| field.parse().unwrap()).collect();
    let [pid, group, session, terminal] = fields[..] else { panic!("{text}") };
    assert_eq!((group, session, terminal), (pid, pid, 0));
    assert_ne!(pid, i64::from(shim));
}

#[test]
fn ids_groups_and_no_new_privs_are_set() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let mut invocation = shell("id -u; id -g; id -G; grep -e NoNewPrivs -e CapEff /proc/self/status");
    invocation.user = Some(User { uid: 65_534, gid: 65_533, groups: vec![7, 8] });
    invocation.new_privileges = NewPrivileges::Refused;
    assert_eq!(code_of(bench.run("a", &invocation)), (0, 0));
    let text = bench.log("t.stdout.0");
    assert_eq!(text, "65534\n65533\n65533 7 8\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
    invocation.user = Some(User { uid: 65_534, gid: 65_534, groups: vec![] });
    invocation.arguments = vec!["sh".into(), "-c".into(), "id -G >&2".into()];
    bench.run("b", &invocation);
    assert_eq!(bench.log("t.stderr.0"), "65534\n");
}

/// Also without the rights to enter it by itself.
#[test]
fn network_namespace_is_entered_before_ids_are_dropped() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let pins = Pins::in_dir(bench.dir.path().join("netns"));
    let namespace = Namespace::new().unwrap();
    pins.keep("a", &namespace).unwrap();
    let inode = fs::metadata(pins.path("a")).unwrap().ino();
    let mut invocation = shell("readlink /proc/self/ns/net; readlink /proc/$PPID/ns/net >&2");
    invocation.network = Some(pins.path("a"));
    assert_eq!(code_of(bench.run("a", &invocation)), (0, 0));
    assert_eq!(bench.log("t.stdout.0"), format!("net:[{inode}]\n"));
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    assert_eq!(bench.log("t.stderr.0").trim(), own.to_str().unwrap(), "the supervisor stays outside");
    invocation.user = Some(User { uid: 65_534, gid: 65_534, groups: vec![] });
    invocation.arguments = vec!["sh".into(), "-c".into(), "readlink /proc/self/ns/net >&2".into()];
    bench.run("b", &invocation);
    assert!(bench.log("t.stderr.0").ends_with(&format!("net:[{inode}]\n")));
    pins.remove("a").unwrap();
    let gone = bench.run("c", &invocation);
    assert!(
        matches!(gone, State::StartFailed { step: Step::Network, errno, .. } if i32::from(errno) == libc::ENOENT),
        "{gone:?}"
    );
    fs::write(pins.path("a"), "").unwrap();
    let empty = bench.run("d", &invocation);
    assert!(
        matches!(empty, State::StartFailed { step: Step::Network, errno, .. } if i32::from(errno) == libc::EINVAL),
        "{empty:?}"
    );
}

#[test]
fn a_v2_cgroup_is_entered_at_birth() {
    let bench = Bench::new();
    let Some(group) = bench.cgroup() else { return };
    let mut invocation = shell("cat /proc/self/cgroup");
    invocation.cgroup = Some(group.clone());
    let state = bench.run("a", &invocation);
    invocation.cgroup = Some(group.join("cgroup.procs"));
    let not_a_group = bench.run("c", &invocation);
    let shims = open_dir(&group);
    let shown = shell("cat /proc/$PPID/cgroup >&2");
    let logs = log_files(3, 1 << 20);
    let what = Launch { shims_cgroup: Some(shims.as_fd()), ..bench.bare_launch("b", &shown, &logs) };
    end_of(launch(&what).unwrap());
    // Some kernels kill processes that start in a cgroup where cgroup.kill was written before.
    fs::write(group.join("cgroup.kill"), "1").unwrap();
    invocation.cgroup = Some(group.clone());
    let killed = bench.run("d", &invocation);
    fs::remove_dir(&group).unwrap();
    assert!(matches!(not_a_group, State::StartFailed { step: Step::Cgroup, .. }), "{not_a_group:?}");
    let is_told = matches!(killed, State::StartFailed { step: Step::Cgroup, .. });
    assert!(is_told || code_of(killed) == (0, 0), "{killed:?}");
    assert_eq!(code_of(state), (0, 0));
    let name = group.file_name().unwrap().to_str().unwrap().to_owned();
    let wanted = format!("0::/{name}\n");
    assert!(bench.log("t.stdout.0").contains(&wanted));
    assert!(bench.log("t.stderr.0").contains(&wanted));
}

#[test]
fn v1_cgroups_are_entered_by_the_task_itself() {
    let bench = Bench::new();
    let name = format!("herdlet-test-{}", bench.dir.path().file_name().unwrap().display());
    let groups: Vec<PathBuf> = ["pids", "freezer"]
        .iter()
        .map(|kind| PathBuf::from("/sys/fs/cgroup").join(kind).join(&name))
        .collect();
    let is_v1 =
        Path::new("/sys/fs/cgroup/pids/tasks").exists() && Path::new("/sys/fs/cgroup/freezer/tasks").exists();
    if !is_v1 || groups.iter().any(|group| fs::create_dir(group).is_err()) {
        return;
    }
    let mut invocation = shell("cat /proc/self/cgroup; grep '' /proc/$PPID/cgroup >&2");
    invocation.tasks_files = groups.iter().map(|group| group.join("tasks")).collect();
    let state = bench.run("a", &invocation);
    for group in &groups {
        fs::remove_dir(group).unwrap();
    }
    assert_eq!(code_of(state), (0, 0));
    for kind in ["pids", "freezer"] {
        let line = format!("{kind}:/{name}\n");
        assert!(
            bench.log("t.stdout.0").contains(&line) && !bench.log("t.stderr.0").contains(&line),
            "{kind}"
        );
    }
}
