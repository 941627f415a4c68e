//! Which processes belong to a task: all of them are killed by their cgroup, and no others.

use std::process::{Child, Command, Stdio};

use herdlet_e2e::{agent::Agent, host, wait};

use crate::common::{is_root, job, shell, sleeper};

/// A process that is unrelated to any agent. It is killed when dropped.
struct Bystander(Child);

impl Bystander {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        Self(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn is_alive(&self) -> bool {
        host::is_alive(self.0.id())
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn forked_processes_end_with_their_task() {
    if !is_root() {
        return;
    }
    let stranger = Bystander::start("/bin/sleep", &["100000"]);
    let mut agent = Agent::start();
    // A daemon (forked twice, in its own session, ignoring all signals that can be ignored), a child, the
    // main process.
    let script = "setsid sh -c 'trap \"\" TERM INT HUP; setsid sleep 100000 & sleep 100000' & \
                  (trap '' TERM; sleep 100000) & echo up; exec sleep 100000";
    agent.apply_and_wait(&job(
        "family",
        "service",
        "",
        &[shell("t", script, "kill_timeout: 1s"), sleeper("other", "")],
    ));
    let family = wait::until("all processes of the task", || {
        let members: Vec<_> = agent.members().into_iter().filter(|member| member.task == "t").collect();
        (members.len() >= 5).then_some(members)
    });
    let other = agent.single("family.g[0]", "other");

    // Kill only the main process from outside; the others would survive without the cgroup.
    let supervisors = host::supervisors(&agent.home.instance().unwrap());
    let is_main = |pid: &u32| host::parent(*pid).is_some_and(|parent| supervisors.contains(&parent));
    // All others are its descendants.
    let main = family.iter().map(|member| member.pid).find(is_main).unwrap();
    host::signal(main, rustix::process::Signal::KILL);
    agent.until_alloc("family.g[0]", "was restarted", |alloc| alloc.restarts("t") == 1);
    for member in &family {
        wait::until_true("the old processes are gone", || !host::is_alive(member.pid));
    }
    assert_eq!(agent.single("family.g[0]", "other"), other);

    let family = wait::until("the new processes", || {
        let members: Vec<_> = agent.members().into_iter().filter(|member| member.task == "t").collect();
        (members.len() >= 5).then_some(members)
    });
    agent.cli(&["delete", "family", "--wait"]).success();
    for member in &family {
        assert!(!host::is_alive(member.pid), "{member:?}");
    }
    assert!(stranger.is_alive());
    agent.finish();
    assert!(stranger.is_alive());
}

#[test]
fn frozen_and_stopped_tasks_can_be_killed() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job(
        "still",
        "service",
        "",
        &[sleeper("frozen", "kill_timeout: 1s"), sleeper("stopped", "kill_timeout: 1s")]
            .map(|task| task.replacen("  kill_timeout: 5s\n        ", "", 1)),
    ));
    let (frozen, stopped) = (agent.single("still.g[0]", "frozen"), agent.single("still.g[0]", "stopped"));
    let cgroup = host::cgroup_of(&agent.home.instance().unwrap(), &frozen);
    std::fs::write(cgroup.join("cgroup.freeze"), "1").unwrap();
    host::signal(stopped.pid, rustix::process::Signal::STOP);
    agent.cli(&["delete", "still", "--wait"]).success();
    assert!(!host::is_alive(frozen.pid) && !host::is_alive(stopped.pid));
    agent.finish();
}

#[test]
fn reused_pid_is_never_signalled() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let policy = "restart: {attempts: 0, mode: fail}";
    agent.apply_and_wait(&job("gone", "service", policy, &[sleeper("t", "")]));
    let member = agent.single("gone.g[0]", "t");
    let instance = agent.home.instance().unwrap();
    let supervisors = host::supervisors(&instance);
    agent.kill();
    // Simulates a power loss: the end was not recorded. Both pids then go to unrelated processes.
    for pid in supervisors.iter().chain([&member.pid]) {
        host::signal(*pid, rustix::process::Signal::KILL);
        wait::until_true("it is gone", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
    let strangers: Vec<Bystander> =
        supervisors.iter().chain([&member.pid]).filter_map(|pid| born_as(*pid)).collect();
    if strangers.is_empty() {
        eprintln!("the pids could not be reused; the test only checks their absence");
    }
    agent.launch();
    agent.until_alloc("gone.g[0]", "failed", |alloc| alloc.failed("t"));
    assert!(strangers.iter().all(Bystander::is_alive));
    agent.cli(&["delete", "gone", "--wait"]).success();
    assert!(strangers.iter().all(Bystander::is_alive));
    agent.finish();
    assert!(strangers.iter().all(Bystander::is_alive));
}

/// Starts an unrelated process with this pid, if the kernel assigns it. Retries, because other processes take
/// pids too.
fn born_as(pid: u32) -> Option<Bystander> {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let last = std::fs::read_to_string(LAST).ok()?;
    let mut found = None;
    for _ in 0..20 {
        if std::path::Path::new(&format!("/proc/{pid}")).exists() || found.is_some() {
            break;
        }
        std::fs::write(LAST, (pid - 1).to_string()).ok()?;
        let stranger = Bystander::start("/bin/sleep", &["100000"]);
        found = (stranger.0.id() == pid).then_some(stranger);
    }
    // Pids of other processes continue as before.
    std::fs::write(LAST, last.trim()).ok()?;
    found
}

#[test]
fn killed_supervisor_ends_its_task_and_the_policy_restarts_it() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job(
        "orphaned",
        "service",
        "restart: {attempts: 5, interval: 1m, delay: 100ms, mode: fail}",
        &[sleeper("t", "")],
    ));
    let member = agent.single("orphaned.g[0]", "t");
    let instance = agent.home.instance().unwrap();
    let supervisors = host::supervisors(&instance);
    assert_eq!(supervisors.len(), 1);
    host::signal(supervisors[0], rustix::process::Signal::KILL);
    agent.until_alloc("orphaned.g[0]", "was restarted", |alloc| {
        alloc.restarts("t") == 1 && alloc.state("t") == "running"
    });
    assert!(!host::is_alive(member.pid), "two copies never run");
    agent.single("orphaned.g[0]", "t");
    agent.finish();
}

#[test]
fn a_prestop_hook_runs_inside_the_task_before_its_kill_signal() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "trap 'echo asked >> $NOMAD_ALLOC_DIR/data/order; exit 0' INT; while :; do sleep 0.02; done";
    let hook = "prestop: {command: /bin/sh, args: [-c, 'echo hook >> $NOMAD_ALLOC_DIR/data/order; cat /proc/self/cgroup >> $NOMAD_ALLOC_DIR/data/group'], timeout: 5s}";
    agent.apply_and_wait(&job("hooked", "service", "", &[shell("t", script, hook)]));
    let alloc = agent.alloc("hooked.g[0]").unwrap().id();
    let data = agent.home.state().join("alloc").join(&alloc).join("alloc/data");
    agent.cli(&["restart", "hooked"]).success();
    wait::until_true("both have happened", || {
        std::fs::read_to_string(data.join("order")).is_ok_and(|text| text == "hook\nasked\n")
    });
    let group = std::fs::read_to_string(data.join("group")).unwrap();
    assert!(group.contains(&format!("{alloc}.t.1")), "{group}");
    agent.finish();
}

#[test]
fn task_gets_its_cgroup_path() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("told", "service", "", &[sleeper("t", "")]));
    let pid = agent.single("told.g[0]", "t").pid;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let parent = environment.split('\0').find_map(|variable| variable.strip_prefix("NOMAD_PARENT_CGROUP="));
    let parent = parent.unwrap_or_else(|| panic!("{environment}"));
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(parent.starts_with('/') && cgroups.contains(&format!("{parent}/")), "{parent}: {cgroups}");
    agent.finish();
}

#[test]
fn a_task_with_a_user_has_the_login_of_that_user() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script =
        "echo $HOME $USER $LOGNAME $SHELL mail=$MAIL > $NOMAD_ALLOC_DIR/data/login; exec sleep 100000";
    let tasks = [shell("t", script, "user: nobody\nenv: {SHELL: /bin/own}")];
    agent.apply_and_wait(&job("login", "service", "", &tasks));
    let alloc = agent.alloc("login.g[0]").unwrap().id();
    let login = agent.home.state().join("alloc").join(&alloc).join("alloc/data/login");
    let written = || std::fs::read_to_string(&login).unwrap_or_default();
    wait::until_true("the task has written", || written().ends_with('\n'));
    assert_eq!(written(), "/nonexistent nobody nobody /bin/own mail=\n");
    agent.finish();
}

#[test]
fn a_prestop_hook_that_fails_says_why() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let hook = |name: &str, script: &str| {
        let prestop = format!("prestop: {{command: /bin/sh, args: [-c, '{script}'], timeout: 1s}}");
        job(name, "service", "", &[sleeper("t", &prestop)])
    };
    for (name, script, expected) in [
        (
            "fails",
            "echo draining; echo cannot drain >&2; echo no host >&2; exit 3",
            "it ended with code 3: cannot drain; no host",
        ),
        (
            "hangs",
            "echo draining; exec sleep 100000",
            "prestop: complete the command within 1s: timed out; it wrote: draining",
        ),
    ] {
        agent.apply_and_wait(&hook(name, script));
        agent.cli(&["stop", name, "--wait"]).success();
        let shown = agent.cli(&["describe", &format!("{name}.g[0]")]).success().stdout;
        assert!(shown.contains(expected), "{shown}");
    }
    agent.finish();
}
