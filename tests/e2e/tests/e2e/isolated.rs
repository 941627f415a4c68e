//! Tasks of the driver `exec` with real agents: their roots, users, sessions, checks, volumes, and restarts of agent and task.

use std::{fs, num::NonZero, thread};

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment, host, wait,
};

use crate::common::{is_root, job, sleeper, volume};

/// Returns a task of the driver `exec` that runs `script` in a shell; `more` are additional fields, one per line.
pub(crate) fn isolated(name: &str, script: &str, more: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    let more: String = more.lines().map(|line| format!("          {line}\n")).collect();
    format!(
        "        - name: {name}\n          driver: exec\n          config: {{command: sh, args: [-c, {script}]}}\n          kill_signal: SIGKILL\n{more}"
    )
}

/// A script that runs on after `first`, as one process.
pub(crate) fn runs_on(first: &str) -> String {
    format!("{first}; exec sleep 100000")
}

#[test]
fn everything_of_a_task_happens_in_its_root() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let first =
        "echo $NOMAD_ALLOC_DIR $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR $(pwd) $(id -un) $$; echo v > /srv/inbox/v";
    let check = "{name: c, type: script, command: sh, args: [-c, \"ls /srv/inbox > /alloc/data/checked\"], interval: 1s, timeout: 2m}";
    let more = format!(
        "volume_mounts: [{{volume: inbox, destination: /srv/inbox}}]\n\
         templates: [{{destination: etc/app/conf, data: \"for ${{NOMAD_TASK_DIR}}\"}}]\n\
         services: [{{name: web, provider: nomad, checks: [{check}]}}]\n\
         prestop: {{command: sh, args: [-c, \"ls -d /srv/inbox > /alloc/data/before\"]}}"
    );
    let group = "volumes: {inbox: {type: host, source: inbox}}\n";
    let text = volume("inbox") + &job("all", "service", group, &[isolated("t", &runs_on(first), &more)]);
    agent.apply(&text);
    let member = agent.single("all.g[0]", "t");
    let dir = agent.home.state().join("alloc").join(&member.alloc);
    agent.until_printed(&["logs", "all"], |text| text == "/alloc /local /secrets / nobody 1\n");
    wait::until_true("the check has run", || {
        fs::read_to_string(dir.join("alloc/data/checked")).is_ok_and(|text| text == "v\n")
    });
    assert_eq!(fs::read_to_string(agent.home.state().join("volumes/inbox/v")).unwrap(), "v\n");
    let seen = agent.cli(&["exec", "all", "--", "cat", "/etc/app/conf"]).success();
    assert_eq!(seen.stdout, "for ${NOMAD_TASK_DIR}");
    agent.cli(&["restart", "all"]).success();
    let line = "/alloc /local /secrets / nobody 1\n";
    agent.until_printed(&["logs", "all"], |text| text == line.repeat(2));
    agent.cli(&["stop", "all"]).success();
    wait::until_true("the hook has run", || dir.join("alloc/data/before").exists());
    agent.cli(&["delete", "job/all", "--purge"]);
    agent.finish();
    assert!(!dir.exists(), "its directory is gone, with the kernel's own in it");
}

#[test]
fn tasks_outlive_a_killed_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("kept", "service", "", &[isolated("t", &runs_on("echo up"), "")]));
    let before = agent.single("kept.g[0]", "t");
    agent.kill();
    agent.launch();
    let after = agent.single("kept.g[0]", "t");
    assert_eq!(after.pid, before.pid, "it is the same process");
    let inside = agent.cli(&["exec", "kept", "--", "readlink", "/proc/1/ns/mnt"]).success().stdout;
    let outside = fs::read_link(format!("/proc/{}/ns/mnt", after.pid)).unwrap();
    assert_eq!(inside.trim(), outside.display().to_string());
    // The next attempt has the same root.
    host::signal(after.pid, rustix::process::Signal::KILL);
    let next = agent.until_alloc("kept.g[0]", "its next attempt", |_| {
        agent.members().iter().any(|member| member.pid != after.pid && member.task == "t")
    });
    assert_eq!(next.id(), after.alloc);
    agent.finish();
}

/// The cores on which a process may run, in the kernel's notation.
fn allowed_cores(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or_default().trim().to_owned()
}

#[test]
fn a_core_of_a_task_is_kept_from_other_tasks() {
    if !is_root() {
        return;
    }
    let count = thread::available_parallelism().map_or(1, NonZero::get);
    if count == 1 {
        return environment::leave_out("the machine has one core, which is never kept from all other tasks");
    }
    let mut agent = Agent::start();
    let all = allowed_cores(std::process::id());
    agent.apply_and_wait(&job("rest", "service", "", &[sleeper("t", "")]));
    let rest = agent.single("rest.g[0]", "t");
    assert_eq!(allowed_cores(rest.pid), all);
    let own = isolated("t", &runs_on("echo core $NOMAD_CPU_CORES"), "resources: {cores: 1}");
    agent.apply_and_wait(&job("own", "service", "", &[own]));
    let own = agent.single("own.g[0]", "t");
    let core = allowed_cores(own.pid);
    assert!(core.parse::<u16>().is_ok(), "it has one core: {core}");
    agent.until_printed(&["logs", "own"], |text| text == format!("core {core}\n"));
    agent.until_printed(&["describe", "own"], |text| text.contains(&format!("t={core}")));
    let of_rest = allowed_cores(rest.pid);
    assert!(of_rest != all && of_rest != core, "the task that ran before has left the core: {of_rest}");
    // Too many cores are a reason to wait, and a new agent knows the old cores.
    agent.kill();
    agent.launch();
    let many = isolated("t", "true", &format!("resources: {{cores: {count}}}"));
    agent.apply(&job("many", "service", "", &[many]));
    agent.until_printed(&["explain", "many"], |text| text.contains("of its own"));
    agent.apply_and_wait(&job("late", "service", "", &[sleeper("t", "")]));
    assert_eq!(allowed_cores(agent.single("late.g[0]", "t").pid), of_rest);
    assert_eq!(allowed_cores(own.pid), core);
    agent.cli(&["delete", "job/many"]).success();
    agent.cli(&["delete", "job/own"]).success();
    wait::until_true("the others have the core", || allowed_cores(rest.pid) == all);
    agent.finish();
}

#[test]
fn an_agent_without_root_says_why_it_isolates_nothing() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::nobody());
    agent.apply(&job("none", "service", "", &[isolated("t", "true", "")]));
    let text = agent.until_printed(&["explain", "none"], |text| text.contains("Driver must run as root"));
    assert!(text.contains("run the agent as root"), "{text}");
    agent.finish();
}

#[test]
fn a_wrong_user_or_capability_is_named() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let unknown =
        isolated("t", "true", "").replace("command: sh,", "command: sh, cap_add: [net_raw, net_foo],");
    let file =
        agent.home.write("unknown.yaml", &job("unknown", "batch", "", &[unknown])).display().to_string();
    let refused = agent.cli(&["validate", &file]).ended(1);
    let text = refused.stdout + &refused.stderr;
    assert!(text.contains("config.cap_add[1]: there is no capability \"net_foo\""), "{text}");
    let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    agent.apply(&job("nobody", "batch", group, &[isolated("t", "true", "user: no-such-user")]));
    let failed = agent.until_alloc("nobody.g[0]", "it fails", |alloc| alloc.status() == "failed");
    let events = failed.0["TaskStates"].to_string();
    assert!(events.contains("find user \\\"no-such-user\\\": it does not exist"), "{events}");
    agent.finish();
}

/// A volume on a shared mount, in mounts of the agent's own.
#[test]
fn mounts_below_a_volume_appear_as_its_mount_says() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    let volume = agent.home.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let shared = format!(
        "exec unshare --mount --propagation private sh -c 'mount -t tmpfs volume {0} && mount --make-shared {0} && mkdir {0}/later && chmod 777 {0} && exec \"$0\" \"$@\"' \"$0\" \"$@\"; true",
        volume.display()
    );
    agent.set_shell(&shared);
    agent.launch();
    let group = "volumes: {data: {type: host, source: data}}\n";
    let modes = ["private", "host-to-task", "bidirectional"];
    let mut text = format!(
        "apiVersion: herdlet/v1\nkind: Volume\nmetadata: {{name: data}}\nspec: {{type: host, host_path: {}}}\n",
        volume.display()
    );
    for mode in modes {
        let more = format!("volume_mounts: [{{volume: data, destination: /srv, propagation_mode: {mode}}}]");
        text +=
            &format!("---\n{}", job(mode, "service", group, &[isolated("t", &runs_on("echo up"), &more)]));
    }
    agent.apply_and_wait(&text);
    let mount = format!("mount -t tmpfs later {0}/later && touch {0}/later/file", volume.display());
    let pid = agent.pid().to_string();
    let entered = ["-t", &pid, "-m", "sh", "-c", &mount];
    assert!(std::process::Command::new("nsenter").args(entered).status().unwrap().success());
    for mode in modes {
        let seen = agent.cli(&["exec", mode, "--", "ls", "/srv/later"]).success().stdout;
        assert_eq!(seen.is_empty(), mode == "private", "{mode}: {seen}");
    }
    agent.finish();
}
