//! A full state disk: tasks keep running, requests are answered with the cause, and the agent recovers once
//! there is space again. The disk is a tmpfs of a few MiB on the agent's state directory.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    host, http, wait,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{is_root, job, shell, sleeper};

/// Space for the database, the supervisor's program and little more.
const DISK: &std::ffi::CStr = c"size=24m,mode=0711";

/// A tmpfs mounted on a directory.
pub(crate) struct Disk {
    at: PathBuf,
}

impl Disk {
    fn over(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        mount("disk", dir, "tmpfs", MountFlags::empty(), DISK).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
        Self { at: dir.to_owned() }
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }

    /// Leaves not one byte free, and removes the reserve.
    fn exhaust(&self) {
        let _ = fs::remove_file(self.at.join("reserve"));
        self.fill();
    }

    /// Leaves not one byte free.
    fn fill(&self) {
        use std::io::Write as _;
        let mut file = fs::File::create(self.ballast()).unwrap();
        for size in [65_536, 4_096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Leaves this many bytes free.
    pub(crate) fn fill_except(&self, bytes: u64) {
        self.fill();
        let file = fs::OpenOptions::new().write(true).open(self.ballast()).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len.checked_sub(bytes).unwrap()).unwrap();
    }

    pub(crate) fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// Returns an agent that is not started yet, on its own disk.
pub(crate) fn on_a_small_disk(setup: Setup) -> (Disk, Agent) {
    let agent = Agent::prepare(setup);
    (Disk::over(&agent.home.state()), agent)
}

/// Does the checks of [`Agent::finish`], without the disk itself.
pub(crate) fn finish(disk: Disk, mut agent: Agent) {
    for job in agent.allocs().iter().map(|alloc| alloc.job()).collect::<std::collections::BTreeSet<_>>() {
        // A job of a folder may be gone after its file was removed.
        let output = agent.cli(&["delete", "--wait", &job]);
        assert!(output.code == 0 || output.stderr.contains("no job"), "{output:?}");
    }
    agent.terminate();
    drop(disk);
    agent.home.until_nothing_left();
}

#[test]
fn full_disk_keeps_tasks_and_refuses_new_jobs() {
    if !is_root() {
        return;
    }
    let (disk, mut agent) = on_a_small_disk(Setup::default());
    agent.launch();
    agent.apply_and_wait(&job("old", "service", "", &[sleeper("t", "")]));
    let member = agent.single("old.g[0]", "t");
    disk.exhaust();
    let path = agent.manifest(&job("new", "service", "", &[sleeper("t", "")])).display().to_string();

    // The agent accepts the first request before it detects that the disk is full, so its outcome is open.
    let first = agent.cli(&["apply", "-f", &path]);
    assert_eq!(first.code, 3, "{first:?}");
    assert!(
        first.stderr.contains("accepted, but not stored yet") && first.stderr.contains("No space left"),
        "{first:?}"
    );

    // Further requests are withheld.
    let second = agent.cli(&["delete", "old"]);
    assert_eq!(second.code, 1, "{second:?}");
    for part in ["nothing was changed", "No space left", "has room", &*agent.home.state().to_string_lossy()] {
        assert!(second.stderr.contains(part), "{second:?}");
    }
    let status = http::get(&agent.peer(), "/v1/herdlet/status").unwrap();
    assert!(status.body.contains("No space left"), "{}", status.body);

    // `--wait --timeout` limits the whole command: it ends before the refusal, which would name the cause.
    let third = agent.cli(&["apply", "--wait", "--timeout", "1s", "-f", &path]);
    assert_eq!(third.code, 3, "{third:?}");
    assert!(third.stderr.contains("within 1s") && !third.stderr.contains("No space left"), "{third:?}");

    let ready = http::get(&agent.peer(), "/readyz").unwrap();
    assert!(ready.status == 503 && ready.body.contains("No space left"), "{}", ready.body);

    // A query is still answered.
    let explained = agent.cli(&["explain", "old"]);
    assert_eq!(explained.code, 0, "{explained:?}");
    assert_eq!(
        agent.members(),
        std::slice::from_ref(&member),
        "running tasks keep running, and nothing new starts"
    );

    disk.free();
    // The open request took effect by itself.
    agent.until_alloc("new.g[0]", "runs after all", |alloc| alloc.state("t") == "running");
    assert!(agent.members().contains(&member));
    wait::until_true("no longer degraded", || agent.metric("herdlet_state_degraded", "") == 0.0);
    finish(disk, agent);
}

// Regression: every stop was refused, so nothing could end the task that filled the disk.
#[test]
fn on_a_full_disk_a_stop_ends_the_tasks_of_a_job() {
    if !is_root() {
        return;
    }
    let (disk, mut agent) = on_a_small_disk(Setup::default());
    agent.launch();
    agent.apply_and_wait(&job("fills", "service", "", &[sleeper("t", "")]));
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    let kept = agent.single("kept.g[0]", "t");
    disk.exhaust();
    let path = agent.manifest(&job("new", "service", "", &[sleeper("t", "")])).display().to_string();
    assert_eq!(agent.cli(&["apply", "-f", &path]).code, 3);
    wait::until_true("degraded", || agent.metric("herdlet_state_degraded", "") > 0.0);
    let stopped = agent.cli(&["stop", "fills"]);
    assert!(stopped.code == 3 && stopped.stderr.contains("accepted, but not stored yet"), "{stopped:?}");
    wait::until_true("the task has ended", || agent.members() == std::slice::from_ref(&kept));
    disk.free();
    wait::until_true("no longer degraded", || agent.metric("herdlet_state_degraded", "") == 0.0);
    agent.until_printed(&["get", "jobs"], |text| {
        text.lines().any(|line| line.starts_with("fills") && line.contains("stopped"))
    });
    agent.until_alloc("new.g[0]", "runs after all", |alloc| alloc.state("t") == "running");
    assert_eq!(agent.single("kept.g[0]", "t"), kept);
    finish(disk, agent);
}

#[test]
fn agent_starts_on_a_full_disk_and_recovers() {
    if !is_root() {
        return;
    }
    let (disk, mut agent) = on_a_small_disk(Setup::default());
    let folder = agent.home.manifests();
    agent.set_arguments(vec!["--manifests".to_owned(), folder.display().to_string()]);
    fs::write(folder.join("a.yaml"), job("a", "service", "", &[sleeper("t", "")])).unwrap();
    agent.launch();
    let member = agent.single("a.g[0]", "t");
    agent.apply_and_wait(&job("c", "service", "", &[sleeper("t", "")]));
    let ends = agent.single("c.g[0]", "t");
    agent.kill();
    disk.exhaust();
    // Gives the next agent something to store as soon as it inspects the task.
    host::signal(ends.pid, rustix::process::Signal::KILL);
    fs::write(folder.join("b.yaml"), job("b", "service", "", &[sleeper("t", "")])).unwrap();

    // Returns with READY=1, long before the service manager's timeout.
    agent.launch();
    let status = wait::until("the status names the cause", || {
        http::get(&agent.peer(), "/v1/herdlet/status").filter(|answer| answer.body.contains("No space left"))
    });
    assert_eq!(status.status, 200);
    assert_eq!(agent.members(), std::slice::from_ref(&member));

    disk.free();
    wait::until("ready", || http::get(&agent.peer(), "/readyz").filter(|answer| answer.status == 200));
    agent.until_alloc("b.g[0]", "runs after all", |alloc| alloc.state("t") == "running");
    assert!(agent.members().contains(&member));
    for name in ["a.yaml", "b.yaml"] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    finish(disk, agent);
}

#[test]
fn agent_on_a_full_disk_terminates() {
    if !is_root() {
        return;
    }
    let (disk, mut agent) = on_a_small_disk(Setup::default());
    agent.launch();
    agent.apply_and_wait(&job("a", "service", "", &[sleeper("t", "")]));
    let member = agent.single("a.g[0]", "t");
    disk.exhaust();
    let path = agent.manifest(&job("b", "service", "", &[sleeper("t", "")])).display().to_string();
    let asked = agent.spawn(&["apply", "-f", &path]);
    wait::until_true("degraded", || agent.metric("herdlet_state_degraded", "") > 0.0);
    // Nothing can be stored before it exits, so nothing may wait for that.
    let status = agent.terminate();
    assert!(status.success(), "{status:?}");
    assert_ne!(asked.finish().code, 0, "the change was not accepted");
    assert_eq!(agent.members(), [member]);
    disk.free();
    agent.launch();
    agent.apply_and_wait(&job("b", "service", "", &[sleeper("t", "")]));
    finish(disk, agent);
}

#[test]
fn ends_are_stored_on_a_full_disk() {
    if !is_root() {
        return;
    }
    let setup = Setup::default().config("gc_interval: 1s\ngc_disk_usage_threshold: 95\n");
    let (disk, mut agent) = on_a_small_disk(setup);
    agent.launch();
    agent.apply_and_wait(&job("web", "service", "", &[sleeper("t", "")]));
    let full = agent.home.path().join("full");
    let fills = format!(
        "dd if=/dev/zero of=local/much bs=1M count=4; until test -e {}; do sleep 0.1; done",
        full.display()
    );
    agent.apply(&job("dump", "batch", "", &[shell("t", &fills, "")]));
    let dump = agent.until_alloc("dump.g[0]", "running", |alloc| alloc.state("t") == "running");
    let dir = agent.home.state().join("alloc").join(dump.id());
    wait::until_true("the task has written", || {
        fs::metadata(dir.join("t/local/much")).is_ok_and(|file| file.len() == 4 << 20)
    });
    disk.fill();
    fs::write(&full, "").unwrap();
    // Its end is committed, then its directory is removed.
    wait::until_true("there is space", || !dir.exists());
    assert!(agent.metric("herdlet_collected_total", "") >= 1.0);
    assert_eq!(agent.metric("herdlet_state_degraded", ""), 0.0);
    agent.apply_and_wait(&job("new", "service", "", &[sleeper("t", "")]));
    agent.crash();
    assert_eq!(agent.alloc("dump.g[0]").unwrap().status(), "complete");
    disk.free();
    finish(disk, agent);
}

// Only the head of `status` reported it.
#[test]
fn a_reserve_in_use_is_reported() {
    if !is_root() {
        return;
    }
    let (disk, mut agent) = on_a_small_disk(Setup::default());
    agent.launch();
    agent.apply_and_wait(&job("a", "service", "", &[sleeper("t", "")]));
    assert_eq!(agent.cli(&["status", "--check"]).code, 0);
    assert_eq!(agent.metric("herdlet_state_reserve_in_use", ""), 0.0);
    agent.kill();
    fs::remove_file(agent.home.state().join("reserve")).unwrap();
    // Too little for the next agent to take a reserve.
    disk.fill_except(4 << 20);
    agent.launch();
    wait::until_true("in use", || agent.metric("herdlet_state_reserve_in_use", "") == 1.0);
    let check = agent.cli(&["status", "--check"]);
    assert!(check.code == 2 && check.stdout.contains("is full"), "{check:?}");
    disk.free();
    // The next commit takes it again.
    agent.apply_and_wait(&job("b", "service", "", &[sleeper("t", "")]));
    wait::until_true("not in use", || agent.metric("herdlet_state_reserve_in_use", "") == 0.0);
    wait::until_true("converged", || agent.cli(&["status", "--check"]).code == 0);
    finish(disk, agent);
}

// Regression: the agent exited before it had closed anything.
#[test]
fn agent_on_a_full_disk_closes_open_directories() {
    if !is_root() {
        return;
    }
    let (disk, mut agent) = on_a_small_disk(Setup::default());
    agent.launch();
    agent.apply_and_wait(&job("a", "service", "", &[sleeper("t", "user: nobody")]));
    let member = agent.single("a.g[0]", "t");
    let alloc = agent.home.state().join("alloc").join(&member.alloc);
    agent.kill();
    fs::set_permissions(&alloc, fs::Permissions::from_mode(0o755)).unwrap();
    // An agent of another version writes its own supervisor before anything else.
    for program in fs::read_dir(agent.home.state().join("bin")).unwrap().flatten() {
        fs::remove_file(program.path()).unwrap();
    }
    disk.exhaust();
    drop(agent.launch_unready());
    wait::until_true("it can't start", || agent.has_ended());
    let enters = |user: &str| {
        let mut shell = std::process::Command::new("setpriv");
        shell.args([&format!("--reuid={user}"), "--regid=nogroup", "--clear-groups", "ls"]).arg(&alloc);
        shell.output().unwrap().status.success()
    };
    assert!(!enters("bin") && enters("nobody"), "{}", agent.log_tail());
    disk.free();
    agent.launch();
    assert_eq!(agent.members(), [member]);
    finish(disk, agent);
}
