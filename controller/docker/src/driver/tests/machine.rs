//! A machine with an engine, behind a proxy that can fail.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use herdlet_api_types::job::{LogMode, Logs, Resources};
use herdlet_base::test_env::leave_out;
use herdlet_driver::{AttemptId, Health, KillDefaults, TaskConfig, TaskDirs, TaskDriver};
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{UnixListener, UnixStream},
    sync::watch,
};

use super::{IMAGE, builtin::Ground};
use crate::{Containers, Mode, Setup, names::Owner};

/// Part of an image's name whose pull never ends.
pub(super) const SLOW: &str = "herdlet-test-slow";

/// What the proxy does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Works,
    /// New connections are refused, open ones closed.
    Down,
    /// Inspections of containers fail.
    FailsInspect,
    /// Requests to create a container are lost.
    LosesCreate,
    /// The first two containers are not created.
    FailsCreate,
    /// Requests to start a container are lost.
    LosesStart,
    /// The first inspection of a command fails.
    FailsExit,
    /// The first stream of events begins with one that can't be read, and the first of statistics with a sample without figures.
    Odd,
    /// Terminals get no size.
    FailsResize,
    /// Sizes of terminals are accepted, and lost.
    LosesResize,
    /// Archives of images are received and never answered.
    HangsLoad,
    /// Pulls fail: the disk is full.
    FullDisk,
    /// Pulls have fetched this many MiB of 4, and go on when it changes.
    Fetched(u64),
}

/// A machine with an engine.
pub(super) struct Machine {
    dir: tempfile::TempDir,
    pub(super) driver: &'static str,
    pub(super) instance: String,
    pub(super) link: watch::Sender<Link>,
    /// How many requests have failed, were lost or hang.
    pub(super) failed: Arc<AtomicU32>,
    /// How many lists of containers were asked for.
    pub(super) lists: Arc<AtomicU32>,
    pub(super) options: Json,
    /// Of the engine in the agent.
    builtin: Option<Ground>,
}

/// What tests ask all engines for. Tests of one kind of engine use [`machines`].
pub(super) fn every_machine() -> Vec<Machine> {
    machines().into_iter().chain(Machine::builtin()).collect()
}

/// The daemons that the tests may use.
pub(super) fn machines() -> Vec<Machine> {
    let engines = [("docker", "HERDLET_TEST_DOCKER"), ("podman", "HERDLET_TEST_PODMAN")];
    let found: Vec<Machine> = engines
        .into_iter()
        .filter_map(|(driver, variable)| Some(Machine::new(driver, Path::new(&env::var_os(variable)?))))
        .collect();
    if found.is_empty() {
        leave_out("an engine: HERDLET_TEST_DOCKER or HERDLET_TEST_PODMAN");
    }
    found
}

impl Machine {
    fn new(driver: &'static str, engine: &Path) -> Self {
        let dir = Self::dir();
        let (link, works) = watch::channel(Link::Works);
        let listener = UnixListener::bind(dir.path().join("e.sock")).unwrap();
        let (failed, lists) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let counts = Counts { failed: Arc::clone(&failed), lists: Arc::clone(&lists) };
        tokio::spawn(serve(listener, engine.to_owned(), works, counts));
        let instance = format!("test-{}", uuid::Uuid::new_v4());
        Self { dir, driver, instance, link, failed, lists, options: json!({}), builtin: None }
    }

    /// With the engine in the agent, which has the tests' image.
    fn builtin() -> Option<Self> {
        let dir = Self::dir();
        let ground = Ground::new(dir.path())?;
        let machine = Self {
            driver: "docker",
            instance: format!("test-{}", uuid::Uuid::new_v4()),
            link: watch::Sender::new(Link::Works),
            failed: Arc::default(),
            lists: Arc::default(),
            options: json!({"engine": "builtin"}),
            builtin: Some(ground),
            dir,
        };
        let loading = machine.builtin.as_ref()?.load_image(machine.path());
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(loading));
        Some(machine)
    }

    /// With the directories of a task.
    fn dir() -> tempfile::TempDir {
        let dir = tempfile::Builder::new().prefix("hd").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for part in ["a/alloc/logs", "a/alloc/data", "a/t/local", "a/t/secrets"] {
            fs::create_dir_all(dir.path().join(part)).unwrap();
        }
        dir
    }

    pub(super) fn is_builtin(&self) -> bool {
        self.builtin.is_some()
    }

    /// With more options.
    pub(super) fn with(mut self, options: Json) -> Self {
        for (key, value) in options.as_object().unwrap() {
            self.options[key] = value.clone();
        }
        self
    }

    /// A driver of any engine.
    pub(super) fn any_driver(&self) -> Arc<dyn TaskDriver> {
        match &self.builtin {
            Some(ground) => Arc::new(ground.open(self.setup(self.driver, "records"))),
            None => Arc::new(self.driver()),
        }
    }

    /// A driver of any engine that is healthy.
    pub(super) async fn healthy(&self) -> Arc<dyn TaskDriver> {
        let driver = self.any_driver();
        reaches(&*driver, Health::Healthy).await;
        driver
    }

    /// An image whose pull never ends.
    pub(super) fn slow_image(&self) -> String {
        match &self.builtin {
            Some(ground) => ground.slow_image(),
            None => format!("registry.invalid/{SLOW}:1"),
        }
    }

    pub(super) fn driver(&self) -> Containers {
        self.driver_of(self.driver, "records")
    }

    /// A driver of this name, with its records in this directory.
    pub(super) fn driver_of(&self, name: &str, records: &str) -> Containers {
        Containers::open(self.setup(name, records)).unwrap()
    }

    fn setup(&self, name: &str, records: &str) -> Setup {
        let mut options = self.options.clone();
        options["endpoint"] = format!("unix://{}", self.dir.path().join("e.sock").display()).into();
        Setup {
            driver: name.to_owned(),
            dir: self.dir.path().join(records),
            instance: self.instance.clone(),
            options: serde_json::from_value(options).unwrap(),
            mode: Mode::Standalone,
            compute: (2_000, 2),
        }
    }

    /// A driver that is connected to its engine.
    pub(super) async fn connected(&self) -> Containers {
        let driver = self.driver();
        reaches(&driver, Health::Healthy).await;
        driver
    }

    pub(super) fn owner(&self) -> Owner {
        Owner { instance: self.instance.clone(), driver: self.driver.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn task_dir(&self) -> PathBuf {
        self.dir.path().join("a/t")
    }

    /// A task that runs this config, with the tests' image.
    pub(super) fn task(&self, id: AttemptId, mut config: Json) -> TaskConfig {
        if config.get("image").is_none() {
            config["image"] = IMAGE.into();
        }
        if self.is_builtin() && config.get("network_mode").is_none() {
            // Networks of containers are on the machine, and tested in one of their own.
            config["network_mode"] = "none".into();
        }
        if self.driver == "podman" {
            // The default limits of Podman can't be raised in a sandbox.
            config["ulimit"] = json!({"nofile": "1024:1024", "nproc": "1024:1024"});
        }
        TaskConfig {
            id,
            labels: [("job".to_owned(), "j".to_owned())].into(),
            env: vec![("GREETING".to_owned(), "hello".to_owned())],
            config,
            user: None,
            users: Vec::new(),
            resources: Resources { cpu_mhz: Some(100), memory_mib: Some(64), ..Resources::default() },
            cores: Default::default(),
            dirs: TaskDirs {
                task: self.task_dir(),
                shared: self.dir.path().join("a/alloc"),
                logs: self.dir.path().join("a/alloc/logs"),
                log_name: "t".to_owned(),
            },
            logs: Logs { max_files: 3, max_file_size_mib: 10, disabled: false, mode: LogMode::Drop },
            kill: KillDefaults { signal: None, timeout: Duration::from_secs(5) },
            mounts: Vec::new(),
            devices: Vec::new(),
            ports: Default::default(),
            own_ports: Default::default(),
            network: None,
        }
    }

    pub(super) fn script(&self, id: AttemptId, script: &str) -> TaskConfig {
        self.task(id, json!({"command": "/bin/sh", "args": ["-c", script]}))
    }

    pub(super) fn stdout(&self) -> String {
        fs::read_to_string(self.dir.path().join("a/alloc/logs/t.stdout.0")).unwrap_or_default()
    }
}

/// Waits until the driver reports this health.
pub(super) async fn reaches(driver: &dyn TaskDriver, health: Health) {
    let mut fingerprints = driver.fingerprint();
    while fingerprints.next().await.unwrap().health != health {}
}

#[derive(Clone)]
struct Counts {
    failed: Arc<AtomicU32>,
    lists: Arc<AtomicU32>,
}

async fn serve(listener: UnixListener, engine: PathBuf, link: watch::Receiver<Link>, counts: Counts) {
    while let Ok((client, _)) = listener.accept().await {
        if *link.borrow() != Link::Down {
            tokio::spawn(forward(client, engine.clone(), link.clone(), counts.clone()));
        }
    }
}

/// A client uses a new connection for each request, so the first line names what it wants.
async fn forward(
    mut client: UnixStream,
    engine: PathBuf,
    mut link: watch::Receiver<Link>,
    Counts { failed, lists }: Counts,
) {
    let mut head = vec![0; 4096];
    let Ok(len) = client.read(&mut head).await else { return };
    head.truncate(len);
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    let is_slow = line.contains(SLOW) && line.starts_with("POST");
    let path = line.split([' ', '?']).nth(1).unwrap_or_default();
    if path.ends_with("/containers/json") {
        lists.fetch_add(1, Ordering::SeqCst);
    }
    let is_inspection =
        path.ends_with("/json") && path.contains("/containers/") && !path.ends_with("/containers/json");
    const FAILED: &str = "HTTP/1.1 500 Failed\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{\"message\": \"fails\"}";
    let is_pull = path.ends_with("/images/create");
    const FULL: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{\"errorDetail\": {\"message\": \"write /layer: no space left on device\"}}\n";
    const ODD_EVENT: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{\"Type\": 7}\n";
    const SAMPLES: &str = concat!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n",
        "{\"memory_stats\": {}, \"cpu_stats\": {\"cpu_usage\": {\"total_usage\": 0}}}\n",
        "{\"memory_stats\": {\"usage\": 4096}, \"cpu_stats\": {\"cpu_usage\": {\"total_usage\": 5}, \"system_cpu_usage\": 10}}\n",
        "{\"memory_stats\": {\"usage\": 8192}, \"cpu_stats\": {\"cpu_usage\": {\"total_usage\": 6}, \"system_cpu_usage\": 20}}\n",
    );
    const DONE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let is_early = failed.load(Ordering::SeqCst) < 2;
    let is_first = failed.load(Ordering::SeqCst) == 0;
    let answer = match *link.borrow() {
        Link::LosesCreate if path.ends_with("/containers/create") => Some(""),
        Link::FailsExit if is_first && path.contains("/exec/") && path.ends_with("/json") => Some(FAILED),
        Link::Odd if is_first && path.ends_with("/events") => Some(ODD_EVENT),
        Link::Odd if path.ends_with("/stats") => Some(SAMPLES),
        Link::FailsCreate if is_early && path.ends_with("/containers/create") => Some(FAILED),
        Link::LosesStart if path.ends_with("/start") => Some(""),
        Link::FailsInspect if is_inspection => Some(FAILED),
        Link::FailsResize if path.ends_with("/resize") => Some(FAILED),
        Link::LosesResize if path.ends_with("/resize") => Some(DONE),
        Link::FullDisk if is_pull => Some(FULL),
        Link::FailsInspect
        | Link::LosesCreate
        | Link::FailsCreate
        | Link::FailsExit
        | Link::Odd
        | Link::LosesStart
        | Link::FailsResize
        | Link::LosesResize
        | Link::Works
        | Link::Down
        | Link::HangsLoad
        | Link::FullDisk
        | Link::Fetched(_) => None,
    };
    if let Some(answer) = answer {
        if answer == ODD_EVENT {
            // A connection that ends at once counts as one to an engine that is down.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        failed.fetch_add(1, Ordering::SeqCst);
        let _ = client.write_all(answer.as_bytes()).await;
        return;
    }
    if path.ends_with("/images/load") && *link.borrow() == Link::HangsLoad {
        failed.fetch_add(1, Ordering::SeqCst);
        let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
        return;
    }
    if is_pull && matches!(*link.borrow(), Link::Fetched(_)) {
        return pull(client, link).await;
    }
    let Ok(mut server) = UnixStream::connect(engine).await else { return };
    let forwarding = async {
        if is_slow {
            failed.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        if server.write_all(&head).await.is_ok() {
            let _ = copy_bidirectional(&mut client, &mut server).await;
        }
    };
    tokio::select! {
        () = forwarding => {}
        _ = link.wait_for(|link| *link == Link::Down) => {}
    }
}

/// Answers a pull with its progress, which changes with the link, until nobody waits for it.
async fn pull(mut client: UnixStream, mut link: watch::Receiver<Link>) {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
    if client.write_all(HEAD.as_bytes()).await.is_err() {
        return;
    }
    loop {
        let Link::Fetched(mib) = *link.borrow_and_update() else { return };
        let (current, total) = (mib << 20, 4 << 20);
        let line = json!({"id": "layer", "status": "Downloading", "progressDetail": {"current": current, "total": total}});
        let sent = client.write_all(format!("{line}\n").as_bytes()).await;
        if sent.is_err() || link.changed().await.is_err() {
            return;
        }
    }
}
