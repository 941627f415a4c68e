//! `raw_exec`, `exec`, `java` and `qemu` with real processes, real supervisors and, if the machine has them, real cgroups; and the same without cgroups.

mod commands;
mod contract;
mod ends;
mod isolated;
mod java;
mod life;
mod lost;
mod machine;
mod network;
mod qemu;
mod shared;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use futures_util::StreamExt;
use herdlet_api_types::{
    AllocId,
    alloc::CoreSet,
    job::{LogMode, Logs, Resources},
};
use herdlet_api_types::{driver::RawExecOptions, task::ExitResult};
use herdlet_driver::{Health, KillDefaults, TaskDirs, TerminalSize};
use serde_json::json;

use super::*;
use crate::{cgroup, process_tree, raw_exec};

/// A generous limit: on an idle machine everything takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(180);

struct Bench {
    dir: tempfile::TempDir,
    setup: Option<cgroup::Setup>,
}

struct Agent {
    driver: Engine,
    exits: BoxStream<'static, Exited>,
    events: BoxStream<'static, TaskEvent>,
}

impl Bench {
    /// With cgroups if available, and without.
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
        // The task may run as another user.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self { dir, setup: None }
    }

    /// An agent, as after a restart.
    fn agent(&self) -> Agent {
        self.agent_on(None)
    }

    fn agent_on(&self, leash: Option<OwnedFd>) -> Agent {
        let attempts = Attempts::open(&self.path("run/attempts")).unwrap();
        let driver =
            raw_exec::driver(Setup { leash, ..self.setup(attempts) }, &RawExecOptions::default()).unwrap();
        Agent { exits: driver.exits(), events: driver.events(), driver }
    }

    fn setup(&self, attempts: Arc<Attempts>) -> Setup {
        let isolation = match &self.setup {
            Some(setup) => Isolation::detect(setup),
            None => Isolation::None { why: "a test".into() },
        };
        Setup {
            attempts,
            program: Arc::new(Program::install(&self.path("run")).unwrap()),
            isolation,
            leash: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The record of the first attempt.
    fn record(&self) -> PathBuf {
        self.path("run/attempts").join(id(1).name())
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
            users: Vec::new(),
            resources: Resources::default(),
            cores: CoreSet::default(),
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
            ports: BTreeMap::new(),
            own_ports: BTreeMap::new(),
            network: None,
        }
    }

    fn log(&self, stream: &str) -> String {
        fs::read_to_string(self.path(&format!("logs/t.{stream}.0"))).unwrap_or_default()
    }

    /// Waits until the task has printed this.
    async fn until_printed(&self, wanted: &str) {
        let began = Instant::now();
        while !self.log("stdout").contains(wanted) {
            assert!(began.elapsed() < DEADLINE, "{}\n{}", self.log("stdout"), self.log("stderr"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Writes a program that is a script.
    fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Renamed: a program that is still open for writing can't be executed.
        fs::write(path.with_extension("new"), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path.with_extension("new"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        path
    }

    /// Waits until a script has written a complete line to a file in its directory.
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
        for id in agent.driver.list_attempts().await.unwrap() {
            agent.driver.destroy(&id, Leftover::Kill).await.unwrap();
        }
        if let Some(cgroups) = agent.driver.shared.setup.isolation.cgroups() {
            cgroups.remove().await.unwrap();
        }
    }
}

impl Agent {
    /// Starts the attempt and returns its record.
    async fn begin(&self, config: TaskConfig) -> Record {
        self.driver.start(config).await.unwrap();
        self.record()
    }

    async fn run(&self, config: TaskConfig) -> ExitResult {
        self.driver.start(config).await.unwrap();
        self.wait().await
    }

    async fn wait(&self) -> ExitResult {
        self.end_of(1).await
    }

    /// The exit of an attempt that this agent supervises.
    async fn end_of(&self, attempt: u32) -> ExitResult {
        let live = self.driver.shared.find(&id(attempt)).unwrap();
        tokio::time::timeout(DEADLINE, live.ended()).await.unwrap().unwrap()
    }

    async fn event(&mut self) -> TaskEvent {
        tokio::time::timeout(DEADLINE, self.events.next()).await.unwrap().unwrap()
    }

    async fn notice(&mut self) -> ExitResult {
        let exited = tokio::time::timeout(DEADLINE, self.exits.next()).await.unwrap().unwrap();
        assert_eq!(exited.id, id(1));
        exited.result
    }

    async fn recover(&self, config: Option<TaskConfig>) -> Recovered {
        self.driver.recover(Recovery { id: id(1), config, handle: None, network: None }).await.unwrap()
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

/// Kills an attempt's supervisor and nothing else.
fn kill_supervisor(record: &Record) {
    let supervisor = supervisor::PidFd::open(record.shim).unwrap().unwrap();
    supervisor.send(rustix::process::Signal::KILL).unwrap();
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

/// Where a program of this machine is; none on a machine that need not have it.
fn installed(name: &str) -> Option<PathBuf> {
    let found = crate::installed::locate(name, &std::env::var_os("PATH").unwrap_or_default());
    let is_required = std::env::var_os("HERDLET_TEST_REQUIRE").is_some();
    assert!(found.is_some() || !is_required, "this test needs {name}, which tests/setup installs");
    if found.is_none() {
        eprintln!("left out: there is no {name}");
    }
    found
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
