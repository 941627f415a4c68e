//! The mock driver's scripted behaviour; and the driver contract, with ledgers of each kind.

mod contract;
mod ledgers;

use std::{
    path::Path,
    sync::atomic::{AtomicI64, Ordering},
};

use herdlet_api_types::{AllocId, alloc::CoreSet, job::LogMode, job::Logs, job::Resources, task::ExitResult};
use herdlet_driver::{
    Device, Earlier, ExecInput, ExecOutput, Handle, KillDefaults, Mount, Propagation, TaskDirs, TerminalSize,
};
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

use super::*;

struct Bench {
    dir: tempfile::TempDir,
    now: Arc<AtomicI64>,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), now: Arc::new(AtomicI64::new(1_000_000_000)) }
    }

    /// An agent, as after a restart.
    fn agent(&self) -> (Mock, BoxStream<'static, Exited>) {
        let mock = Mock::new(&self.dir.path().join("attempts/.mock"), self.clock()).unwrap();
        let exits = mock.exits();
        (mock, exits)
    }

    fn clock(&self) -> WallClock {
        let now = Arc::clone(&self.now);
        Arc::new(move || UnixNanos(now.load(Ordering::Relaxed)))
    }

    fn task(&self, config: serde_json::Value) -> TaskConfig {
        TaskConfig {
            id: id(),
            labels: BTreeMap::new(),
            env: Vec::new(),
            config,
            user: None,
            users: Vec::new(),
            resources: Resources::default(),
            cores: CoreSet::default(),
            dirs: TaskDirs {
                task: self.dir.path().to_owned(),
                shared: self.dir.path().to_owned(),
                logs: self.dir.path().to_owned(),
                log_name: "t".into(),
            },
            logs: Logs { max_files: 1, max_file_size_mib: 1, disabled: false, mode: LogMode::Drop },
            kill: KillDefaults::default(),
            mounts: Vec::new(),
            devices: Vec::new(),
            ports: BTreeMap::new(),
            own_ports: BTreeMap::new(),
            network: None,
        }
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(Path::new(self.dir.path()).join(name)).unwrap_or_default()
    }
}

fn id() -> AttemptId {
    AttemptId { alloc: AllocId::from_hash([4; 16]), task: "t".into(), attempt: 1 }
}

fn stop(grace_s: u64) -> StopRequest {
    StopRequest { signal: None, grace: Duration::from_secs(grace_s) }
}

fn recovery() -> Recovery {
    Recovery { id: id(), config: None, handle: None, network: None }
}

#[tokio::test]
async fn partial_entries_of_a_killed_agent_are_removed() {
    let bench = Bench::new();
    drop(bench.agent());
    let partial = bench.dir.path().join("attempts/.mock/.partial");
    std::fs::write(&partial, "{").unwrap();
    drop(bench.agent());
    assert!(!partial.exists());
}

#[tokio::test(start_paused = true)]
async fn mock_runs_and_exits_as_configured() {
    let bench = Bench::new();
    let (mock, mut seen) = bench.agent();
    let began = Instant::now();
    mock.start(
        bench.task(json!({"run_for": "10s", "exit_code": 3, "stdout_string": "a", "stdout_repeat": 2,
        "stdout_repeat_duration": "1s"})),
    )
    .await
    .unwrap();
    assert_eq!(mock.recover(recovery()).await.unwrap(), Recovered::Running(Started::default()));
    let exited = seen.next().await.unwrap();
    let exit = exited.result;
    assert_eq!((exited.id, exit.code, exit.signal, began.elapsed().as_secs()), (id(), 3, 0, 10));
    assert_eq!(bench.text("t.stdout.0"), "aaa");
    assert_eq!(mock.recover(recovery()).await.unwrap(), Recovered::Exited(exit));
    mock.destroy(&id(), Leftover::MainMustBeGone).await.unwrap();
    assert_eq!(mock.recover(recovery()).await.unwrap(), Recovered::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn mock_start_fails_as_configured() {
    let bench = Bench::new();
    let (mock, _seen) = bench.agent();
    let began = Instant::now();
    let fatal = json!({"start_error": "no", "start_block_for": "2s"});
    assert!(matches!(mock.start(bench.task(fatal)).await, Err(DriverError::Fatal(_))));
    assert_eq!(began.elapsed().as_secs(), 2);
    let error = mock
        .start(bench.task(json!({"start_error": "no", "start_error_recoverable": true})))
        .await
        .unwrap_err();
    assert!(matches!(error, DriverError::Recoverable(_)));
    assert_eq!(error.to_string(), "no");
    let error = mock.start(bench.task(json!({"run_four": "1s"}))).await.unwrap_err().to_string();
    assert!(error.contains("run_four"), "{error}");
    assert_eq!(mock.recover(recovery()).await.unwrap(), Recovered::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn mock_stop_ends_within_the_grace() {
    for (kill_after, grace, signal, after) in [("3s", 5, 2, 3), ("10s", 5, 9, 5), ("0", 5, 2, 0)] {
        let bench = Bench::new();
        let (mock, mut seen) = bench.agent();
        mock.start(bench.task(json!({"run_for": "1h", "kill_after": kill_after}))).await.unwrap();
        let began = Instant::now();
        mock.stop(&id(), stop(grace)).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), after);
        assert_eq!(seen.next().await.unwrap().result.signal, signal);
        mock.stop(&id(), stop(grace)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn mock_stop_before_a_start_fences_it() {
    let bench = Bench::new();
    let (mock, _seen) = bench.agent();
    mock.stop(&id(), stop(1)).await.unwrap();
    mock.start(bench.task(json!({}))).await.unwrap_err();
    assert!(matches!(mock.recover(recovery()).await.unwrap(), Recovered::Lost { .. }));
}

#[tokio::test(start_paused = true)]
async fn mock_task_survives_the_agent() {
    let bench = Bench::new();
    let (first, _seen) = bench.agent();
    first.start(bench.task(json!({"run_for": "10s", "exit_code": 7}))).await.unwrap();
    bench.now.fetch_add(4_000_000_000, Ordering::Relaxed);
    let (second, mut seen) = bench.agent();
    assert_eq!(second.list_attempts().await.unwrap(), [id()]);
    assert_eq!(second.recover(recovery()).await.unwrap(), Recovered::Running(Started::default()));
    let began = Instant::now();
    assert_eq!(seen.next().await.unwrap().result.code, 7);
    assert_eq!(began.elapsed().as_secs(), 6);
    let (third, _seen) = bench.agent();
    assert!(matches!(third.recover(recovery()).await.unwrap(), Recovered::Exited(exit) if exit.code == 7));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_goes_is_recovered_from() {
    let bench = Bench::new();
    let (mock, mut seen) = bench.agent();
    let (mut health, mut events) = (mock.fingerprint(), mock.events());
    assert_eq!(health.next().await.unwrap().health, Health::Healthy);
    mock.start(bench.task(json!({"run_for": "10s", "plugin_exit_after": "1s"}))).await.unwrap();
    assert_eq!(events.next().await, Some(TaskEvent::Drift { id: id() }));
    assert_eq!(health.next().await.unwrap().health, Health::Unhealthy);
    assert!(matches!(mock.signal(&id(), "SIGHUP").await, Err(DriverError::Retry(_))));
    assert_eq!(mock.recover(recovery()).await.unwrap(), Recovered::Running(Started::default()));
    assert_eq!(health.next().await.unwrap().health, Health::Healthy);
    assert!(seen.next().await.unwrap().result.is_success());
}

#[tokio::test(start_paused = true)]
async fn signals_network_and_commands() {
    let bench = Bench::new();
    let (mock, _seen) = bench.agent();
    let started = mock
        .start(bench.task(json!({"run_for": "1h", "signal_error": "deaf", "driver_ip": "10.0.0.1",
            "driver_port_map": {"http": 80}, "exec_command": {"exit_code": 4, "stderr_string": "e"}})))
        .await
        .unwrap();
    assert_eq!(started.network.unwrap().port_map["http"], 80);
    assert_eq!(mock.signal(&id(), "SIGHUP").await.unwrap_err().to_string(), "deaf");
    let done = mock.exec(&id(), &["x".to_owned()], Duration::from_secs(1)).await.unwrap();
    assert_eq!((done.exit.code, done.stderr.as_slice()), (4, b"e".as_slice()));
    let request = ExecRequest {
        command: vec!["showinput".into()],
        terminal: Some(TerminalSize { height: 1, width: 1 }),
    };
    let input = stream::iter([ExecInput::Stdin(b"hi".to_vec()), ExecInput::StdinEnd]).boxed();
    let (output, mut frames) = mpsc::channel(32);
    mock.exec_frames(&id(), request, input, output).await.unwrap();
    let mut text = Vec::new();
    while let Some(frame) = frames.recv().await {
        match frame {
            ExecOutput::Stdout(bytes) => text.extend(bytes),
            ExecOutput::Exited(exit) => assert_eq!(exit.code, 4),
            ExecOutput::Stderr(_) | ExecOutput::StdoutEnd | ExecOutput::StderrEnd => {}
        }
    }
    assert_eq!(text, b"TTY: true\nStdin:\nhi");
}

fn some_inputs() -> (Vec<Mount>, Vec<Device>) {
    let mount = Mount {
        host_path: "/srv/data".into(),
        task_path: "/data".into(),
        readonly: true,
        propagation: Propagation::HostToTask,
    };
    let device =
        Device { host_path: "/dev/null".into(), task_path: "/dev/zero".into(), permissions: "rw".into() };
    (vec![mount], vec![device])
}
