//! Faults of the machine under a running agent: a disk that fails, turns read-only or hangs; exhausted file
//! descriptors, processes and memory. Tasks keep running, nothing is done twice, the cause is reported, and
//! the agent recovers after the fault. `disk.rs` tests a full disk.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    host::{self, Member},
    http, wait,
};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Resource, Rlimit, getrlimit, prlimit},
};

use crate::common::{is_root, job, shell, sleeper};

/// A file system on the agent's state directory, backed by a file that can be made to fail.
struct Device {
    file: PathBuf,
    node: String,
    at: PathBuf,
}

impl Device {
    fn below(agent: &Agent) -> Self {
        let (file, at) = (agent.home.path().join("device"), agent.home.state());
        fs::File::create(&file).unwrap().set_len(128 << 20).unwrap();
        // Without a journal, a failed write is reported to the caller and does not shut down the file system.
        tool("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", &text(&file)]);
        let node = tool("losetup", &["--find", "--show", &text(&file)]).trim().to_owned();
        fs::create_dir_all(&at).unwrap();
        tool("mount", &["-t", "ext4", "-o", "errors=remount-ro", &node, &text(&at)]);
        fs::remove_dir(at.join("lost+found")).unwrap();
        Self { file, node, at }
    }

    /// Makes every write fail with EIO from now on; reads of unwritable data stay correct.
    fn fail(&self) {
        rustix::fs::sync();
        tool("chattr", &["+i", &text(&self.file)]);
    }

    fn mend(&self) {
        tool("chattr", &["-i", &text(&self.file)]);
    }

    /// Makes the kernel find the file system damaged and remount it read-only for good.
    fn turn_read_only(&self) {
        let name = self.node.trim_start_matches("/dev/");
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "1").unwrap();
    }

    /// Makes every write wait.
    fn hang(&self) {
        tool("fsfreeze", &["--freeze", &text(&self.at)]);
    }

    fn go_on(&self) {
        tool("fsfreeze", &["--unfreeze", &text(&self.at)]);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let quiet = |name: &str, arguments: &[&str]| drop(Command::new(name).args(arguments).output());
        quiet("fsfreeze", &["--unfreeze", &text(&self.at)]);
        quiet("chattr", &["-i", &text(&self.file)]);
        let _ = unmount(&self.at, UnmountFlags::DETACH);
        quiet("losetup", &["--detach", &self.node]);
    }
}

/// Starts an agent whose state is on its own device, with a running task.
fn on_a_device() -> (Device, Agent, Member) {
    let mut agent = Agent::prepare(Setup::default());
    let device = Device::below(&agent);
    agent.launch();
    agent.apply_and_wait(&job("old", "service", "", &[sleeper("t", "")]));
    let member = agent.single("old.g[0]", "t");
    (device, agent, member)
}

/// Does the checks of [`Agent::finish`], without the device itself.
fn finish(device: Device, mut agent: Agent) {
    for job in agent.allocs().iter().map(|alloc| alloc.job()).collect::<std::collections::BTreeSet<_>>() {
        agent.cli(&["delete", "--wait", &job]).success();
    }
    agent.terminate();
    drop(device);
    agent.home.until_nothing_left();
}

#[test]
fn failing_disk_affects_no_task_and_recovers() {
    if !is_root() {
        return;
    }
    let (device, mut agent, member) = on_a_device();
    device.fail();
    let path = agent.manifest(&job("new", "service", "", &[sleeper("t", "")])).display().to_string();
    let refused = agent.cli(&["apply", "-f", &path]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stderr.contains("Input/output error"), "{refused:?}");
    until_cause_shown(&agent, "Input/output error");
    assert_eq!(
        agent.members(),
        std::slice::from_ref(&member),
        "running tasks keep running, and nothing new starts"
    );

    device.mend();
    agent.apply_and_wait(&fs::read_to_string(path).unwrap());
    wait::until_true("no longer degraded", || agent.metric("herdlet_state_degraded", "") == 0.0);
    // The new state is on the disk too.
    agent.crash();
    let again = agent.single("new.g[0]", "t");
    assert!(agent.members().contains(&member) && agent.members().contains(&again));
    assert_eq!(agent.members().len(), 2);
    finish(device, agent);
}

#[test]
fn read_only_disk_affects_no_task_and_stops_a_new_agent() {
    if !is_root() {
        return;
    }
    let (device, mut agent, member) = on_a_device();
    device.turn_read_only();
    let path = agent.manifest(&job("new", "service", "", &[sleeper("t", "")])).display().to_string();
    let refused = agent.cli(&["apply", "-f", &path]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stderr.contains("Read-only file system"), "{refused:?}");
    until_cause_shown(&agent, "Read-only file system");
    assert_eq!(agent.members(), std::slice::from_ref(&member));
    agent.kill();
    let arguments = agent.agent_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = agent.cli(&arguments);
    assert_ne!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("Read-only file system"), "{ended:?}");
    assert_eq!(agent.members(), [member]);
    drop(device);
}

#[test]
fn hanging_disk_blocks_no_stop() {
    if !is_root() {
        return;
    }
    let (device, mut agent, member) = on_a_device();
    agent.apply_and_wait(&job("stays", "service", "", &[sleeper("t", "")]));
    let stays = agent.single("stays.g[0]", "t");
    device.hang();
    let asked = agent.spawn(&["delete", "old"]);
    wait::until_true("the task is stopped nevertheless", || !host::is_alive(member.pid));
    let status = http::get(&agent.peer(), "/v1/herdlet/status").expect("queries are answered");
    assert_eq!(status.status, 200);
    until_cause_shown(&agent, "state");
    device.go_on();
    let _ = asked.finish();
    wait::until_true("forgotten", || agent.alloc("old.g[0]").is_none());
    wait::until_true("no longer degraded", || agent.metric("herdlet_state_degraded", "") == 0.0);
    assert_eq!(agent.members(), [stays]);
    finish(device, agent);
}

#[test]
fn agent_without_descriptors_starts_nothing_twice() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("old", "service", "", &[sleeper("t", "")]));
    let member = agent.single("old.g[0]", "t");
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap());
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count() as u64;
    // Its limits are inherited from this process. Enough for a request or two, but not for the starts of ten
    // tasks.
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(open + 6), maximum: before.maximum };
    prlimit(pid, Resource::Nofile, few).unwrap();
    let path = agent.manifest(&job("new", "service", "count: 10", &[sleeper("t", "")])).display().to_string();
    let asked = agent.spawn(&["apply", "-f", &path]);
    wait::until_true("the agent lacks descriptors", || agent.log().contains("Too many open files"));
    wait::pause(Duration::from_secs(1));
    assert!(agent.members().contains(&member), "running tasks keep running");
    assert!(host::is_alive(agent.pid()), "{}", agent.log_tail());
    prlimit(pid, Resource::Nofile, before).unwrap();
    let _ = asked.finish();
    agent.apply_and_wait(&fs::read_to_string(path).unwrap());
    assert_eq!(agent.members().len(), 11, "{:?}", agent.members());
    assert!(agent.members().contains(&member));
    agent.finish();
}

#[test]
fn agent_without_forks_reports_and_recovers() {
    if !is_root() {
        return;
    }
    let Some(group) = Pids::new("fork") else {
        herdlet_e2e::environment::leave_out("there is no pids controller that tests may use");
        return;
    };
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("old", "service", "", &[sleeper("t", "")]));
    let member = agent.single("old.g[0]", "t");
    group.take(agent.pid());
    // Below the current number, because one of its threads may exit meanwhile.
    group.limit("0");
    let path = agent.manifest(&job("new", "service", "count: 3", &[sleeper("t", "")])).display().to_string();
    agent.cli(&["apply", "-f", &path]).success();
    let why = wait::until("the reason why nothing starts", || {
        let explanation = agent.cli(&["explain", "new"]).stdout;
        explanation.contains("Resource temporarily unavailable").then_some(explanation)
    });
    assert!(agent.members() == [member.clone()], "{why}");
    assert!(host::is_alive(agent.pid()), "{}", agent.log_tail());
    group.limit("max");
    agent.cli(&["wait", "new"]).success();
    assert_eq!(agent.members().len(), 4);
    assert!(agent.members().contains(&member));
    agent.finish();
}

#[test]
fn idle_agent_without_threads_does_not_panic() {
    if !is_root() {
        return;
    }
    let Some(group) = Pids::new("thread") else {
        herdlet_e2e::environment::leave_out("there is no pids controller that tests may use");
        return;
    };
    let mut agent = Agent::start();
    let pid = agent.pid();
    // Without a job it has nothing to watch; idle threads exit after ten seconds.
    wait::pause(Duration::from_secs(12));
    group.take(pid);
    group.limit("0");
    let path = agent.manifest(&job("new", "service", "", &[sleeper("t", "")])).display().to_string();
    let asked = agent.spawn(&["apply", "-f", &path]);
    wait::pause(Duration::from_secs(2));
    assert!(host::is_alive(pid));
    assert!(!agent.log().contains("panicked"), "{}", agent.log_tail());
    group.limit("max");
    asked.finish().success();
    agent.cli(&["wait", "new"]).success();
    assert_eq!((agent.pid(), agent.members().len()), (pid, 1));
    agent.finish();
}

#[test]
fn out_of_memory_task_is_reported_and_affects_no_other() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let greedy = shell("greedy", "exec tail /dev/zero", "resources: {memory: 24}");
    let policy = "restart: {attempts: 0, mode: fail}";
    agent.apply(&job("hungry", "service", policy, &[greedy]));
    agent.apply_and_wait(&job("old", "service", "", &[sleeper("t", "")]));
    let member = agent.single("old.g[0]", "t");
    let hungry = agent.until_alloc("hungry.g[0]", "failed", |alloc| alloc.failed("greedy"));
    wait::until_true("the log names the allocation that failed", || {
        let is_it = |line: &str| {
            ["WARN", "task is dead: it failed", hungry.id().as_str()].iter().all(|part| line.contains(part))
        };
        agent.log().lines().any(is_it)
    });
    let status = agent.cli(&["status"]);
    let output = format!("{}{}{}", status.stdout, status.stderr, agent.cli(&["explain", "hungry"]).stdout);
    assert!(output.contains("out of memory (limit 24 MiB)"), "{output}");
    assert!(agent.metric("herdlet_task_oom_total", "hungry") >= 1.0);
    assert_eq!(agent.members(), [member]);
    agent.finish();
}

/// A cgroup of the pids controller, v1 or v2.
pub(crate) struct Pids(PathBuf);

impl Pids {
    pub(crate) fn new(name: &str) -> Option<Self> {
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].iter().find_map(|top| {
            let dir = Path::new(top).join(format!("hd-test-{name}-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            let found = Self(dir);
            found.0.join("pids.max").exists().then_some(found)
        })
    }

    pub(crate) fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    pub(crate) fn limit(&self, to: &str) {
        fs::write(self.0.join("pids.max"), to).unwrap();
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        let top = self.0.parent().unwrap().join("cgroup.procs");
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(&top, pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// Waits until the status names the cause.
fn until_cause_shown(agent: &Agent, cause: &str) {
    wait::until("the status names the cause", || {
        let answer = http::get(&agent.peer(), "/v1/herdlet/status").filter(|answer| answer.status == 200)?;
        answer.json()["degraded"].as_str()?.contains(cause).then_some(())
    });
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(name).args(arguments).output().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
