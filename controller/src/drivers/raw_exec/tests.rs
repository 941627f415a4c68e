//! With real processes, real supervisors and, where the machine has them, real cgroups; and the same without cgroups.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use futures_util::StreamExt;
use herdlet_api_types::{
    AllocId,
    job::{LogMode, Logs, Resources},
};
use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::drivers::{
    attempts::Notice,
    cgroup, process_tree,
    supervisor::Process,
    task::{KillDefaults, RunState, TaskDirs, TerminalSize},
};

/// How long anything may take before a test fails.
const DEADLINE: Duration = Duration::from_secs(30);

struct Bench {
    dir: tempfile::TempDir,
    setup: Option<cgroup::Setup>,
}

struct Agent {
    driver: RawExec,
    seen: mpsc::Receiver<Notice>,
}

impl Bench {
    /// With cgroups where there are any, and without.
    fn both() -> Vec<Self> {
        Self::with_cgroups().into_iter().chain([Self::without_cgroups()]).collect()
    }

    fn with_cgroups() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let instance = format!("raw-exec-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let parent = format!("herdlet-test-{}", std::process::id());
        let bench = Self::without_cgroups();
        let setup = cgroup::Setup { parent, instance, runtime: bench.path("run") };
        Isolation::detect(&setup).cgroups()?;
        Some(Self { setup: Some(setup), ..bench })
    }

    fn without_cgroups() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["task/local", "logs", "run"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        // The task may be somebody else.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self { dir, setup: None }
    }

    /// As after a start of the agent.
    fn agent(&self) -> Agent {
        self.agent_on(None)
    }

    fn agent_on(&self, leash: Option<OwnedFd>) -> Agent {
        let (notices, seen) = mpsc::channel(16);
        let isolation = match &self.setup {
            Some(setup) => Isolation::detect(setup),
            None => Isolation::None { why: "a test".into() },
        };
        let setup = Setup {
            attempts: Attempts::open(&self.path("run/attempts"), notices).unwrap(),
            program: Program::install(&self.path("run")).unwrap(),
            isolation,
            leash,
        };
        Agent { driver: RawExec::new(setup), seen }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn shell(&self, script: &str) -> TaskConfig {
        self.task(json!({"command": "sh", "args": ["-c", script]}))
    }

    fn task(&self, config: serde_json::Value) -> TaskConfig {
        TaskConfig {
            id: id(1),
            labels: BTreeMap::new(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("SECRET".into(), "s3cret".into())],
            config,
            user: None,
            resources: Resources::default(),
            dirs: TaskDirs {
                task: self.path("task"),
                shared: self.path("task"),
                logs: self.path("logs"),
                log_name: "t".into(),
            },
            logs: Logs { max_files: 2, max_file_size_mib: 1, disabled: false, mode: LogMode::Drop },
            kill: KillDefaults::default(),
            mounts: Vec::new(),
            devices: Vec::new(),
            network: None,
            dns: None,
        }
    }

    fn log(&self, stream: &str) -> String {
        fs::read_to_string(self.path(&format!("logs/t.{stream}.0"))).unwrap_or_default()
    }

    /// Waits until a script has written a whole line into a file of its directory.
    async fn line(&self, name: &str) -> String {
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(self.path("task").join(name)).unwrap_or_default();
            if text.ends_with('\n') {
                return text.trim().to_owned();
            }
            assert!(began.elapsed() < DEADLINE, "{name} is not written");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn pid(&self, name: &str) -> u32 {
        self.line(name).await.parse().unwrap()
    }

    async fn close(self, agent: Agent) {
        for id in agent.driver.found().await.unwrap() {
            agent.driver.destroy(&id, Leftover::Kill).await.unwrap();
        }
        if let Some(cgroups) = agent.driver.shared.setup.isolation.cgroups() {
            cgroups.remove().await.unwrap();
        }
    }
}

impl Agent {
    async fn run(&self, config: TaskConfig) -> ExitResult {
        self.driver.start(config).await.unwrap();
        self.wait().await
    }

    async fn wait(&self) -> ExitResult {
        tokio::time::timeout(DEADLINE, self.driver.wait(&id(1))).await.unwrap().unwrap()
    }

    async fn notice(&mut self) -> ExitResult {
        match tokio::time::timeout(DEADLINE, self.seen.recv()).await.unwrap() {
            Some(Notice::Exited { id: exited, result }) if exited == id(1) => result,
            other => panic!("{other:?}"),
        }
    }

    async fn recover(&self, config: Option<TaskConfig>) -> Recovered {
        self.driver.recover(Recovery { id: id(1), config, handle: None }).await.unwrap()
    }

    fn record(&self) -> Record {
        self.driver.shared.attempts().record(&id(1)).unwrap().unwrap()
    }
}

fn id(attempt: u32) -> AttemptId {
    AttemptId { alloc: AllocId::from_hash([9; 16]), task: "t/ä".into(), attempt }
}

fn stop(signal: &str, grace_ms: u64) -> StopRequest {
    StopRequest { signal: Some(signal.into()), grace: Duration::from_millis(grace_ms) }
}

async fn gone(pid: u32) {
    let began = Instant::now();
    while process_tree::stat(pid).is_some_and(|stat| !stat.is_zombie) {
        assert!(began.elapsed() < DEADLINE, "{pid} still lives");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn lives(pid: u32) -> bool {
    process_tree::stat(pid).is_some_and(|stat| !stat.is_zombie)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn codes_signals_and_output_arrive() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        let exit = agent.run(bench.shell("echo out; echo err >&2; pwd; exit 3")).await;
        assert_eq!((exit.code, exit.signal, exit.oom_killed, exit.error.as_str()), (3, 0, false, ""));
        assert!(exit.at.0 > 0);
        assert_eq!(agent.notice().await, exit);
        let info = agent.driver.inspect(&id(1)).await.unwrap();
        assert_eq!((info.state, info.exit), (RunState::Exited, Some(exit)));
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        assert!(agent.driver.found().await.unwrap().is_empty());
        // The record comes first, the last output a moment later; with the attempt's removal all of it is there.
        assert_eq!(bench.log("stdout"), format!("out\n{}\n", bench.path("task").display()));
        assert_eq!(bench.log("stderr"), "err\n");
        let mut next = bench.shell("kill -TERM $$");
        next.id = id(2);
        agent.driver.start(next).await.unwrap();
        let exit = agent.driver.wait(&id(2)).await.unwrap();
        assert_eq!((exit.code, exit.signal), (128 + 15, 15));
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn what_ignores_the_signal_is_killed_after_the_grace() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        agent
            .driver
            .start(bench.shell("trap '' INT; echo > ready; while :; do sleep 1; done"))
            .await
            .unwrap();
        bench.line("ready").await;
        let began = Instant::now();
        agent.driver.stop(&id(1), stop("SIGINT", 200)).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(200));
        assert_eq!(agent.wait().await.signal, 9);
        assert_eq!(agent.notice().await.code, 137);
        agent.driver.stop(&id(1), stop("SIGINT", 200)).await.unwrap();
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn what_hears_the_signal_ends_by_itself() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let script = "trap 'exit 4' TERM; echo > ready; while :; do sleep 0.01; done";
        agent.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        agent.driver.stop(&id(1), stop("SIGTERM", 20_000)).await.unwrap();
        assert_eq!(agent.wait().await.code, 4);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn all_of_a_task_dies_and_nothing_else() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // A child, one in a session of its own, one whose parent is gone.
        let script = "sleep 1000 & echo $! > a
            setsid sh -c 'echo $$ > b; exec sleep 1000' &
            (setsid sh -c '(sleep 1000 & echo $! > c)' &)
            wait";
        agent.driver.start(bench.shell(script)).await.unwrap();
        let pids = [bench.pid("a").await, bench.pid("b").await, bench.pid("c").await];
        assert!(pids.iter().all(|pid| lives(*pid)));
        agent.driver.stop(&id(1), stop("SIGTERM", 5000)).await.unwrap();
        for pid in pids {
            gone(pid).await;
        }
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn what_a_task_left_behind_goes_when_it_is_destroyed() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let exit = agent.run(bench.shell("(setsid sleep 1000 & echo $! > a); exit 0")).await;
        assert!(exit.is_success());
        let pid = bench.pid("a").await;
        assert!(lives(pid));
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        gone(pid).await;
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_running_attempt_is_not_destroyed_by_mistake() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("sleep 1000")).await.unwrap();
        let error = agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap_err();
        assert!(error.to_string().ends_with("it still runs"), "{error}");
        assert!(lives(agent.record().task.pid));
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_stop_before_the_start_fences_it() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.stop(&id(1), stop("SIGTERM", 1000)).await.unwrap();
        let error = agent.driver.start(bench.shell("echo > ran")).await.unwrap_err();
        assert!(matches!(error, DriverError::Fatal(_)), "{error}");
        assert!(matches!(agent.recover(None).await, Recovered::Lost { .. }));
        assert!(!bench.path("task/ran").exists());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn starting_twice_runs_it_once() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let script = "echo $$ >> pids; echo > ready; exec sleep 1000";
        let (first, second) =
            tokio::join!(agent.driver.start(bench.shell(script)), agent.driver.start(bench.shell(script)));
        first.unwrap();
        second.unwrap();
        agent.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        assert_eq!(fs::read_to_string(bench.path("task/pids")).unwrap().lines().count(), 1);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_task_outlives_the_agent_and_its_end_is_found_later() {
    for bench in Bench::both() {
        let first = bench.agent();
        let script = "echo > ready; while [ ! -e go ]; do sleep 0.01; done; exit 6";
        first.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        drop(first);
        let mut second = bench.agent();
        assert_eq!(second.driver.found().await.unwrap(), [id(1)]);
        assert_eq!(second.recover(None).await, Recovered::Running);
        fs::write(bench.path("task/go"), "").unwrap();
        assert_eq!(second.notice().await.code, 6);
        drop(second);
        let third = bench.agent();
        assert!(matches!(third.recover(None).await, Recovered::Exited(exit) if exit.code == 6));
        bench.close(third).await;
    }
}

#[tokio::test]
async fn an_end_while_no_agent_looks_is_found() {
    for bench in Bench::both() {
        let first = bench.agent();
        first
            .driver
            .start(bench.shell("while [ ! -e go ]; do sleep 0.01; done; echo > done; exit 8"))
            .await
            .unwrap();
        let record = first.record();
        drop(first);
        fs::write(bench.path("task/go"), "").unwrap();
        bench.line("done").await;
        gone(record.shim.pid).await;
        let second = bench.agent();
        assert!(matches!(second.recover(None).await, Recovered::Exited(exit) if exit.code == 8));
        bench.close(second).await;
    }
}

#[tokio::test]
async fn a_dead_supervisor_ends_the_attempt() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        agent.driver.start(bench.shell("sleep 1000 & echo $! > a; wait")).await.unwrap();
        let (child, record) = (bench.pid("a").await, agent.record());
        supervisor::PidFd::open(record.shim).unwrap().unwrap().send(rustix::process::Signal::KILL).unwrap();
        let exit = agent.notice().await;
        assert_eq!(exit.error, "supervisor died");
        assert!(!exit.is_success());
        gone(record.task.pid).await;
        gone(child).await;
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_supervisor_that_died_unseen_ends_the_attempt() {
    for bench in Bench::both() {
        let first = bench.agent();
        first.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let record = first.record();
        drop(first);
        supervisor::PidFd::open(record.shim).unwrap().unwrap().send(rustix::process::Signal::KILL).unwrap();
        gone(record.shim.pid).await;
        let second = bench.agent();
        match second.recover(None).await {
            Recovered::Exited(exit) => assert_eq!(exit.error, "supervisor died"),
            // The end is noticed after the answer was given.
            Recovered::Running => assert_eq!(second.wait().await.error, "supervisor died"),
            other @ (Recovered::NotStarted | Recovered::Lost { .. }) => panic!("{other:?}"),
        }
        gone(record.task.pid).await;
        bench.close(second).await;
    }
}

#[tokio::test]
async fn what_a_dead_supervisor_left_is_stopped_too() {
    for bench in Bench::both() {
        let first = bench.agent();
        first.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let record = first.record();
        drop(first);
        supervisor::PidFd::open(record.shim).unwrap().unwrap().send(rustix::process::Signal::KILL).unwrap();
        gone(record.shim.pid).await;
        let second = bench.agent();
        second.driver.stop(&id(1), stop("SIGCONT", 0)).await.unwrap();
        gone(record.task.pid).await;
        bench.close(second).await;
    }
}

#[tokio::test]
async fn a_running_attempt_that_is_destroyed_ends_as_killed() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        agent.driver.destroy(&id(1), Leftover::Kill).await.unwrap();
        let exit = agent.notice().await;
        assert_eq!((exit.signal, exit.error.as_str()), (9, ""));
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_pid_that_is_somebody_elses_now_is_not_touched() {
    let bench = Bench::without_cgroups();
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let agent = bench.agent();
    let process = Process { pid: stranger.id(), start_ticks: 1 };
    let record = Record { state: State::Running, shim: process, task: process, dropped_bytes: 0 };
    fs::write(bench.path("run/attempts").join(id(1).name()), record.to_bytes()).unwrap();
    agent.driver.stop(&id(1), stop("SIGKILL", 0)).await.unwrap();
    let _ = agent.recover(None).await;
    agent.driver.destroy(&id(1), Leftover::Kill).await.unwrap();
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    bench.close(agent).await;
}

#[tokio::test]
async fn a_leash_ends_everything_when_the_agent_is_gone() {
    for bench in Bench::both() {
        let (held, leash) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let agent = bench.agent_on(Some(held));
        agent.driver.start(bench.shell("setsid sleep 1000 & echo $! > a; wait")).await.unwrap();
        let (child, record) = (bench.pid("a").await, agent.record());
        drop(leash);
        for pid in [child, record.task.pid, record.shim.pid] {
            gone(pid).await;
        }
        assert_eq!(agent.wait().await.signal, 9);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_damaged_record_is_a_lost_attempt() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let agent = bench.agent();
    agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
    let record = agent.record();
    drop(agent);
    fs::write(bench.path("run/attempts").join(id(1).name()), "rubbish").unwrap();
    let agent = bench.agent();
    assert!(matches!(agent.recover(None).await, Recovered::Lost { .. }));
    gone(record.task.pid).await;
    agent.driver.stop(&id(1), stop("SIGTERM", 0)).await.unwrap();
    agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
    assert!(agent.driver.found().await.unwrap().is_empty());
    bench.close(agent).await;
}

#[tokio::test]
async fn a_task_whose_record_is_taken_away_is_ended() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let record = agent.record();
        fs::remove_file(bench.path("run/attempts").join(id(1).name())).unwrap();
        assert_eq!(agent.notice().await.error, "its record was removed or damaged");
        gone(record.task.pid).await;
        bench.close(agent).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_attempts_at_once() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let began = Instant::now();
        let driver = &agent.driver;
        futures_util::future::join_all((1..=100).map(|attempt| {
            let mut task = bench.task(json!({"command": "sleep", "args": ["1000"]}));
            task.id = id(attempt);
            async move { driver.start(task).await.unwrap() }
        }))
        .await;
        let started = began.elapsed();
        let files = fs::read_dir("/proc/self/fd").unwrap().count();
        futures_util::future::join_all((1..=100).map(|attempt| async move {
            driver.stop(&id(attempt), stop("SIGTERM", 20_000)).await.unwrap();
            assert_eq!(driver.wait(&id(attempt)).await.unwrap().signal, 15);
            driver.destroy(&id(attempt), Leftover::MainMustBeGone).await.unwrap();
        }))
        .await;
        println!("100 started in {started:?} with {files} files, gone after {:?}", began.elapsed());
        assert!(driver.found().await.unwrap().is_empty());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn processes_without_a_record_are_ended() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let agent = bench.agent();
    agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
    let record = agent.record();
    fs::remove_file(bench.path("run/attempts").join(id(1).name())).unwrap();
    drop(agent);
    let agent = bench.agent();
    assert_eq!(agent.driver.found().await.unwrap(), [id(1)]);
    assert!(matches!(agent.recover(None).await, Recovered::Lost { .. }));
    gone(record.task.pid).await;
    bench.close(agent).await;
}

#[tokio::test]
async fn failed_starts_say_why() {
    for bench in Bench::both() {
        let agent = bench.agent();
        fs::write(bench.path("task/local/rubbish"), "\u{7f}rubbish").unwrap();
        let start = async |attempt, config| {
            let mut task = bench.task(config);
            task.id = id(attempt);
            let error = agent.driver.start(task).await.unwrap_err();
            (error.class(), error.why())
        };
        let fatal = task::Class::Fatal;
        let (class, why) = start(1, json!({"command": "no-such-tool"})).await;
        assert!(class == fatal && why.starts_with("exec \"no-such-tool\": not found in /"), "{why}");
        let (class, why) = start(2, json!({"command": "rubbish"})).await;
        assert!(class == fatal && why.starts_with("execute the program: not a program"), "{why}");
        let (class, why) = start(3, json!({"command": "sh", "work_dir": "nowhere"})).await;
        assert!(class == fatal && why.starts_with("change to the working directory: No such file"), "{why}");
        let (class, why) = start(4, json!({"command": "sh", "argz": []})).await;
        assert!(class == fatal && why.contains("argz"), "{why}");
        let mut task = bench.shell("true");
        task.id = id(5);
        task.user = Some("no such user".into());
        let why = agent.driver.start(task).await.unwrap_err().why();
        assert_eq!(why, "find user \"no such user\": there is none on this machine");
        let mut task = bench.shell("true");
        task.id.task = "ä".repeat(64);
        let error = agent.driver.start(task).await.unwrap_err();
        assert!(error.class() == fatal && error.why().ends_with("the task's name is too long"), "{error}");
        // What came as far as a record is known as ended; the rest never was.
        for (attempt, is_known) in [(1, false), (2, true), (3, true), (4, false), (5, false)] {
            let recovery = Recovery { id: id(attempt), config: None, handle: None };
            let recovered = agent.driver.recover(recovery).await.unwrap();
            assert_eq!(matches!(recovered, Recovered::Exited(_)), is_known, "{attempt}: {recovered:?}");
            agent.driver.destroy(&id(attempt), Leftover::MainMustBeGone).await.unwrap();
        }
        assert!(agent.driver.found().await.unwrap().is_empty());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn signals_reach_the_main_process() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let script = "trap 'exit 5' USR1; echo > ready; while :; do sleep 0.01; done";
        agent.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        let info = agent.driver.inspect(&id(1)).await.unwrap();
        assert_eq!(info.state, RunState::Running);
        assert_eq!(info.attributes["pid"], agent.record().task.pid.to_string());
        let age_ns = supervise::now().0 - info.started_at.0;
        assert!((0..30_000_000_000).contains(&age_ns), "{age_ns}");
        agent.driver.signal(&id(1), "SIGNONE").await.unwrap_err();
        agent.driver.signal(&id(1), "SIGUSR1").await.unwrap();
        assert_eq!(agent.wait().await.code, 5);
        assert!(agent.driver.signal(&id(1), "SIGUSR1").await.is_err());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn another_user_has_its_own_groups_only() {
    if !is_root() {
        return;
    }
    for bench in Bench::both() {
        let agent = bench.agent();
        let mut task = bench.shell("grep -E '^(Uid|Gid|Groups):' /proc/self/status");
        task.user = Some("nobody".into());
        assert!(agent.run(task).await.is_success());
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        let status = bench.log("stdout");
        let nobody = crate::drivers::user::find("nobody").unwrap();
        let numbers: Vec<Vec<u32>> = status
            .lines()
            .map(|line| line.split_whitespace().skip(1).map(|number| number.parse().unwrap()).collect())
            .collect();
        assert_eq!(numbers, [vec![nobody.uid; 4], vec![nobody.gid; 4], vec![nobody.gid]]);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn commands_run_in_the_task() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let command = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let script = "echo $SECRET; pwd; head -c 5000 /dev/zero | tr '\\0' x >&2; exit 7";
        let done = agent.driver.exec(&id(1), &command(script), DEADLINE).await.unwrap();
        assert_eq!(done.exit.code, 7);
        assert_eq!(done.stdout, format!("s3cret\n{}\n", bench.path("task").display()).into_bytes());
        assert_eq!(done.stderr, [b'x'; 4096]);
        let error = agent.driver.exec(&id(1), &["no-such".to_owned()], DEADLINE).await.unwrap_err().why();
        assert!(error.starts_with("exec \"no-such\": not found"), "{error}");
        let slow = command("echo $$ > slow; sleep 1000");
        assert!(agent.driver.exec(&id(1), &slow, Duration::from_millis(300)).await.is_err());
        gone(bench.pid("slow").await).await;
        assert!(lives(agent.record().task.pid));
        if let Some(cgroup) = agent.driver.shared.cgroup(&id(1)) {
            let done = agent.driver.exec(&id(1), &command("cat /proc/self/cgroup"), DEADLINE).await.unwrap();
            let name = cgroup.dir().file_name().unwrap().to_str().unwrap().to_owned();
            assert!(String::from_utf8(done.stdout).unwrap().contains(&name));
        }
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_session_has_input_or_a_terminal() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let request = ExecRequest { command: vec!["cat".into()], terminal: None };
        let mut session = agent.driver.exec_streaming(&id(1), request).await.unwrap();
        session.stdin.send(b"hello".to_vec()).await.unwrap();
        assert_eq!(session.stdout.recv().await.unwrap(), b"hello");
        drop(session.stdin);
        assert_eq!(session.exit.await.unwrap().code, 0);
        assert_eq!(session.stdout.recv().await, None);

        let script = "stty size; read x; stty size; tty -s && echo $TERM; exit 3";
        let request = ExecRequest {
            command: vec!["sh".into(), "-c".into(), script.into()],
            terminal: Some(TerminalSize { height: 10, width: 20 }),
        };
        let mut session = agent.driver.exec_streaming(&id(1), request).await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"10 20\r\n") {
            text.extend(session.stdout.recv().await.unwrap());
        }
        session.resize.send(TerminalSize { height: 30, width: 40 }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        session.stdin.send(b"\n".to_vec()).await.unwrap();
        while let Some(bytes) = session.stdout.recv().await {
            text.extend(bytes);
        }
        assert_eq!(String::from_utf8(text).unwrap(), "10 20\r\n\r\n30 40\r\nxterm\r\n");
        assert_eq!(session.exit.await.unwrap().code, 3);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_dropped_session_ends_its_command() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let request = ExecRequest {
            command: vec!["sh".into(), "-c".into(), "echo $$ > a; sleep 1000".into()],
            terminal: Some(TerminalSize::default()),
        };
        let session = agent.driver.exec_streaming(&id(1), request).await.unwrap();
        let pid = bench.pid("a").await;
        drop(session);
        gone(pid).await;
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn usage_is_measured_until_the_end() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("while :; do :; done")).await.unwrap();
        let mut samples = agent.driver.stats(&id(1), Duration::from_millis(100)).await.unwrap();
        let first = samples.next().await.unwrap().unwrap();
        assert!(first.memory.usage.unwrap() > 0);
        assert_eq!(first.pids, [agent.record().task.pid]);
        let mut percent = 0.0_f64;
        for _ in 0..20 {
            percent = percent.max(samples.next().await.unwrap().unwrap().cpu.percent);
            if percent > 5.0 {
                break;
            }
        }
        assert!(percent > 5.0 && percent < 400.0, "{percent}");
        agent.driver.stop(&id(1), stop("SIGKILL", 0)).await.unwrap();
        while samples.next().await.is_some() {}
        assert!(agent.driver.stats(&id(1), Duration::from_secs(1)).await.is_err());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_task_beyond_its_memory_is_killed_and_that_is_told() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let agent = bench.agent();
    let can_limit =
        agent.driver.shared.setup.isolation.cgroups().is_some_and(|all| all.unlimited().is_empty());
    if can_limit {
        let mut task = bench.shell("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}");
        task.resources.memory_mib = Some(32);
        let exit = agent.run(task).await;
        assert!(exit.oom_killed && !exit.is_success(), "{exit:?}");
    }
    bench.close(agent).await;
}

#[tokio::test]
async fn a_task_that_left_its_cgroup_is_brought_back() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let mut agent = bench.agent();
    agent.driver.start(bench.shell("sleep 1000 & echo > ready; wait")).await.unwrap();
    bench.line("ready").await;
    assert_eq!(agent.driver.look(&id(1)).await.unwrap(), Look::Present);
    let cgroup = agent.driver.shared.cgroup(&id(1)).unwrap();
    let elsewhere = agent.driver.shared.setup.isolation.cgroups().unwrap().of(&id(2));
    let pids = cgroup.pids();
    assert_eq!(pids.len(), 2);
    elsewhere.make(&cgroup::Limits::default()).unwrap();
    elsewhere.take_in(&pids).unwrap();
    assert!(matches!(agent.driver.look(&id(1)).await.unwrap(), Look::Repaired { .. }));
    assert_eq!(cgroup.pids(), pids);
    assert!(matches!(agent.seen.recv().await, Some(Notice::Repaired { .. })));
    elsewhere.take_in(&pids).unwrap();
    fs::remove_dir(cgroup.dir()).unwrap();
    assert_eq!(agent.seen.recv().await, Some(Notice::Drift { id: id(1) }));
    assert_eq!(agent.recover(None).await, Recovered::Running);
    let repaired = Notice::Repaired { id: id(1), what: "its cgroup was gone".into() };
    assert_eq!(agent.seen.recv().await, Some(repaired));
    assert_eq!(cgroup.pids(), pids);
    assert_eq!(agent.driver.look(&id(1)).await.unwrap(), Look::Present);
    agent.driver.stop(&id(1), stop("SIGKILL", 0)).await.unwrap();
    assert_eq!(agent.driver.look(&id(1)).await.unwrap(), Look::Absent);
    for pid in pids {
        gone(pid).await;
    }
    bench.close(agent).await;
}

#[tokio::test]
async fn secrets_are_not_in_debug_output() {
    let bench = Bench::without_cgroups();
    let task = bench.task(json!({"command": "s3cret"}));
    assert!(!format!("{task:?}").contains("s3cret"));
}

/// The same on machines that are laid out differently: plain v2 (without controllers, which the machine may have in v1), a
/// cgroup2 of our own where none is mounted, and without the right to any.
#[test]
fn all_of_this_works_on_other_machines() {
    const MARK: &str = "HERDLET_TEST_OTHER_MACHINE";
    if !is_root() || std::env::var_os(MARK).is_some() {
        return;
    }
    let exe = std::env::current_exe().unwrap();
    for layout in [
        "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup",
        "umount -R /sys/fs/cgroup",
        "mount -o remount,bind,ro /sys/fs/cgroup && for m in /sys/fs/cgroup/*; do
            mountpoint -q $m && { mount --bind $m $m && mount -o remount,bind,ro $m || exit; }; done; true",
    ] {
        let script = format!("{layout} && exec \"$0\" drivers::raw_exec drivers::cgroup drivers::attempts");
        let output = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .arg(&exe)
            .env(MARK, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{layout}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
