//! Restrictions that a task can request (no new privileges, fewer processes), and things that a task never
//! gets: the agent's memory, keys and capabilities.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::ExitStatusExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::{self, Running, User},
    environment, host, wait,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{is_root, job, shell, sleeper};

/// Returns a task of `nobody` that runs `script` in a shell; `keys` are added to the driver's config,
/// `fields` to the task.
fn task(script: &str, keys: &str, fields: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        "        - name: t\n          driver: raw_exec\n          user: nobody\n          config: {{command: /bin/sh, args: [-c, {script}]{keys}}}\n{fields}"
    )
}

/// Creates a directory that every user can reach.
fn public() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Creates a set-user-id program of root that prints the user it runs as.
fn set_user_id(dir: &Path) -> PathBuf {
    let program = dir.join("who");
    fs::copy("/usr/bin/id", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    program
}

#[test]
fn setuid_program_gains_no_rights_by_default() {
    if !is_root() {
        return;
    }
    let dir = public();
    let who = set_user_id(dir.path()).display().to_string();
    let mut agent = Agent::start();
    for (name, keys, uid) in [("free", "", "0"), ("bound", ", no_new_privs: true", "65534")] {
        // The check fails, so that its output is shown at once.
        let check = format!(
            "          services: [{{name: {name}, provider: nomad, checks: [{{name: who, type: script, command: /bin/sh, args: [-c, \"{who} -u > local/checked\"], interval: 1s, timeout: 5s}}]}}]\n"
        );
        let script = format!("echo runs as $({who} -u); exec sleep 100000");
        agent.apply(&job(name, "service", "", &[task(&script, keys, &check)]));
        let alloc = agent.single(&format!("{name}.g[0]"), "t").alloc;
        wait::until_true("the task has printed its user", || {
            agent.cli(&["logs", name]).stdout == format!("runs as {uid}\n")
        });
        let checked = agent.home.state().join("alloc").join(alloc).join("t/local/checked");
        wait::until_true("its script check runs as its user", || {
            fs::read_to_string(&checked).is_ok_and(|text| text.trim() == uid)
        });
        let session = agent.cli(&["exec", name, "--", &who, "-u"]).success();
        assert_eq!(session.stdout.trim(), uid, "a command executed in {name}");
    }
    agent.finish();
}

/// Returns whether this machine can limit the number of processes.
fn has_pids_controller() -> bool {
    let on_v2 = host::cgroup2()
        .and_then(|top| fs::read_to_string(top.join("cgroup.controllers")).ok())
        .is_some_and(|names| names.split_whitespace().any(|name| name == "pids"));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let on_v1 = mounts
        .lines()
        .any(|line| line.contains(" cgroup ") && line.split([' ', ',']).any(|word| word == "pids"));
    if !on_v1 && !on_v2 {
        environment::leave_out("this needs the cgroup controller pids");
    }
    on_v1 || on_v2
}

#[test]
fn fork_bomb_stops_at_its_limit() {
    if !is_root() || !has_pids_controller() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("calm", "service", "", &[sleeper("t", "")]));
    let calm = agent.single("calm.g[0]", "t");
    // The inner shell exits at the first refused fork.
    let script = "(while :; do sleep 100000 & done) 2>/dev/null; echo refused; exec sleep 100000";
    agent.apply(&job("bomb", "service", "", &[task(script, ", pids_limit: 20", "")]));
    wait::until_true("the task cannot create more processes", || {
        agent.cli(&["logs", "bomb"]).stdout == "refused\n"
    });
    let instance = agent.home.instance().unwrap();
    let bomb = agent.until_running("bomb.g[0]", "t").into_iter().next().unwrap();
    let processes = host::pids_below(&host::cgroup_of(&instance, &bomb)).len();
    // The exit of the inner shell has freed one process.
    assert!((18..=20).contains(&processes), "{processes} processes");
    assert_eq!(host::supervisors(&instance).len(), 2, "both supervisors are alive");
    assert_eq!(agent.single("calm.g[0]", "t"), calm);
    agent.apply_and_wait(&job("later", "service", "", &[sleeper("t", "")]));
    agent.cli(&["delete", "bomb", "--wait"]).success();
    agent.finish();
}

#[test]
fn agent_memory_is_unreadable_to_its_own_user() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::nobody());
    agent.apply_and_wait(&job("own", "service", "", &[shell("t", "echo $$; exec sleep 100000", "")]));
    let own = wait::until("the task has printed its pid", || {
        agent.cli(&["logs", "own"]).stdout.trim().parse().ok()
    });
    let readable = |pid: u32| {
        let script = format!(
            "for file in environ maps auxv; do cat /proc/{pid}/$file >/dev/null 2>&1 && echo $file; done; \
             ls /proc/{pid}/fd/ >/dev/null 2>&1 && echo fd; (: < /proc/{pid}/mem) 2>/dev/null && echo mem; true"
        );
        let command = command::prepare(&agent.home, User::Nobody, Path::new("/bin/sh"), &["-c", &script]);
        Running::start(command).finish().success().stdout
    };
    assert_eq!(readable(agent.pid()), "");
    // Whether memory is writable depends on the machine (yama).
    assert!(
        readable(own).starts_with("environ\nmaps\nauxv\nfd\n"),
        "the user of a task can inspect it like any own process"
    );
    // The agent still uses its own descriptors, and commands still work.
    agent.cli(&["status", "own"]).success();
    let state = agent.home.state().display().to_string();
    assert!(agent.cli(&["doctor", "--state-dir", &state]).stdout.contains("unpacking"));
    agent.cli(&["exec", "own", "--", "true"]).success();
    agent.finish();
}

#[test]
fn the_agent_leaves_no_core_and_tasks_leave_theirs() {
    if !is_root() {
        return;
    }
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let mut agent = Agent::prepare(Setup::default());
    agent.set_shell("ulimit -c unlimited");
    agent.launch();
    let script = "ulimit -c; exec sleep 100000";
    agent.apply_and_wait(&job("own", "service", "", &[task(script, "", "")]));
    let own = agent.single("own.g[0]", "t");
    wait::until_true("a task has the agent's limit", || agent.cli(&["logs", "own"]).stdout == "unlimited\n");
    let owner = |pid: u32| fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
    assert_eq!(owner(own.pid), 65534, "the memory of a task belongs to its user");
    if pattern.trim() == "core" {
        agent.apply(&job(
            "faulty",
            "batch",
            "",
            &[shell("t", "kill -SEGV $$", "restart: {attempts: 0, mode: fail}")],
        ));
        let failed = agent.until_alloc("faulty.g[0]", "its end", |alloc| alloc.failed("t"));
        let dir = agent.home.state().join("alloc").join(failed.id()).join("t");
        let has_core = fs::read_dir(dir)
            .unwrap()
            .any(|entry| entry.unwrap().file_name().as_encoded_bytes().starts_with(b"core"));
        assert!(has_core, "tasks may dump core");
    }
    let cwd = fs::read_link(format!("/proc/{}/cwd", agent.pid())).unwrap();
    // Checks first that this machine writes core files at all, whatever the pattern.
    let ground = tempfile::tempdir().unwrap();
    let control = Command::new("sh")
        .args(["-c", "ulimit -c unlimited; kill -ABRT $$"])
        .current_dir(ground.path())
        .status()
        .unwrap();
    if !control.core_dumped() {
        environment::leave_out(&format!("no process can dump core here: kernel.core_pattern is {pattern:?}"));
    }
    // Not SEGV, which the Rust runtime catches once.
    host::signal(agent.pid(), Signal::ABORT);
    let ended = agent.terminate();
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(Signal::ABORT.as_raw()), false));
    let names: Vec<_> = fs::read_dir(&cwd).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.as_encoded_bytes().starts_with(b"core")), "{names:?}");
    agent.launch();
    assert_eq!(agent.single("own.g[0]", "t"), own, "the task keeps running");
    agent.finish();
}

#[test]
fn agent_capabilities_are_not_passed_to_other_users() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    agent.set_shell("set -- --inh-caps=+net_raw,+setuid \"$0\" \"$@\"; exec setpriv \"$@\"; true");
    agent.launch();
    agent.apply_and_wait(&job("plain", "service", "", &[task("exec sleep 100000", "", "")]));
    let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let set = |pid: u32, name: &str| {
        let text = status(pid);
        let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(value.trim(), 16).unwrap()
    };
    assert_ne!(set(agent.pid(), "CapInh:"), 0, "the agent has capabilities that it could pass on");
    let pid = agent.single("plain.g[0]", "t").pid;
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(set(pid, name), 0, "{name}");
    }
    agent.finish();
}
