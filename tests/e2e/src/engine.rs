//! Container engines of the test run: Docker and Podman, shared by all tests or a test's own.
//!
//! In: the variables that `tests/engines` exports, or a start of that script. Out: the engine's API, ways to disturb an
//! engine of one's own, and the lines of an agent's config that select it.
//!
//! Tests of shared engines run in the engines' network and mounts (`shared_machine`), those of their own engines in the
//! namespaces of the test's process, which the engines share then.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    process::Signal,
};
use serde_json::{Value, json};

use super::{
    agent::{Agent, Setup},
    environment, host,
    http::{self, Answer, Peer},
    ports,
    program::project,
    wait,
};

/// The image that all engines have: a static busybox and nothing else.
pub const IMAGE: &str = "herdlet-test/busybox:1";

/// An image that only the registry has, for [`USER`] and [`PASSWORD`].
pub const PRIVATE_IMAGE: &str = "registry.test:5000/herdlet-test/busybox:1";

/// The host and port of the registry, as the daemons know it.
pub const REGISTRY: &str = "registry.test:5000";

/// The same for the engine in the agent, which runs where that name is unknown.
pub const LOCAL_REGISTRY: &str = "127.0.0.1:5000";

pub const USER: &str = "herdlet";

pub const PASSWORD: &str = "not-a-real-password";

/// The variable with the folder of the shared engines.
const FOLDER: &str = "HERDLET_TEST_ENGINES_FOLDER";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Docker,
    Podman,
    /// The one in the agent. It has no API: tests see its containers as processes.
    Builtin,
}

impl Kind {
    /// Those with an API.
    pub const DAEMONS: [Self; 2] = [Self::Docker, Self::Podman];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Builtin => "builtin",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns a process in the namespaces of the shared engines, if this process runs beside them.
pub fn shared_machine() -> Option<u32> {
    let folder = env::var_os(FOLDER).map(PathBuf::from)?;
    fs::read_to_string(folder.join("machine.pid")).ok()?.trim().parse().ok()
}

/// The folder of running engines. An own one ends with its value.
#[derive(Debug)]
pub struct Engines {
    folder: PathBuf,
    guard: Option<Child>,
}

impl Engines {
    /// Returns the engines of the test run, or `None` if there are none.
    pub fn shared() -> Option<Self> {
        let folder = env::var_os(FOLDER).map(PathBuf::from).filter(|folder| folder.join("ready").exists());
        if folder.is_none() {
            environment::leave_out(
                "there are no container engines; use tests/setup and `cargo nextest run --config-file .ci/nextest.toml`",
            );
        }
        Some(Self { folder: folder?, guard: None })
    }

    /// Starts engines for this test alone, in the namespaces of its process: `docker`, `podman`, `registry`.
    ///
    /// # Panics
    /// If they do not start.
    pub fn own(kinds: &[&str]) -> Option<Self> {
        // Other tests in this process would use the same network.
        if env::var_os("NEXTEST").is_none() {
            environment::leave_out("own container engines need a process for each test (cargo nextest)");
            return None;
        }
        Self::of_this_process(kinds)
    }

    /// Like [`Engines::own`], for a program that runs nothing else and has namespaces of its own.
    ///
    /// # Panics
    /// If they do not start.
    pub fn of_this_process(kinds: &[&str]) -> Option<Self> {
        let mut engines = Self::folder_for_any()?;
        engines.serve(kinds);
        Some(engines)
    }

    /// Returns an empty folder for engines; files in it can be written before [`Engines::serve`].
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn prepare() -> Option<Self> {
        if env::var_os("NEXTEST").is_none() {
            environment::leave_out("container engines need a process for each test (cargo nextest)");
            return None;
        }
        Self::folder_for_any()
    }

    /// Starts engines in a network of their own, until this process ends. Mounts of the agent do not reach them.
    ///
    /// # Panics
    /// If they do not start.
    pub fn apart(kinds: &[&str]) -> Option<Self> {
        let mut engines = Self::folder_for_any()?;
        engines.launch("0", &std::process::id().to_string(), kinds);
        Some(engines)
    }

    fn folder_for_any() -> Option<Self> {
        environment::component(environment::ENGINES)?;
        if !rustix::process::geteuid().is_root() {
            environment::leave_out("container engines need root");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("hde-").tempdir_in("/tmp").expect("a folder").keep();
        Some(Self { folder, guard: None })
    }

    /// Starts engines in the folder and waits until they answer.
    ///
    /// # Panics
    /// If they do not start.
    pub fn serve(&mut self, kinds: &[&str]) {
        self.serve_until(&std::process::id().to_string(), kinds);
    }

    /// Like [`Engines::serve`], until another process ends.
    ///
    /// # Panics
    /// If they do not start.
    pub fn serve_until(&mut self, owner: &str, kinds: &[&str]) {
        // Mounts of the agent reach the engines.
        mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC).expect("a shared root");
        self.launch("1", owner, kinds);
    }

    fn launch(&mut self, here: &str, owner: &str, kinds: &[&str]) {
        let mut command = script();
        command.arg("serve").arg(&self.folder).arg(owner).args(kinds);
        command.env("HERDLET_TEST_HERE", here).stdout(Stdio::null()).stderr(Stdio::null());
        self.guard = Some(command.spawn().expect("a started script"));
        let ready = self.folder.join("ready");
        wait::until_true("the engines are ready", || ready.exists() || !self.folder.exists());
        assert!(ready.exists(), "the engines did not start");
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn engine(&self, kind: Kind) -> Engine<'_> {
        Engine { engines: self, kind }
    }

    /// Runs a program in the engines' view of the machine and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn within(&self, arguments: &[&str]) -> String {
        let output =
            script().arg("within").arg(&self.folder).args(arguments).output().expect("a started script");
        assert!(
            output.status.success(),
            "{arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes Podman push an image of 64 MB that does not compress.
    pub fn large_image(&self, name: &str) {
        self.run(&["large", name]);
    }

    /// Removes what earlier runs whose guard was killed left behind.
    ///
    /// # Panics
    /// If the script fails.
    pub fn sweep() {
        let status = script().arg("sweep").status().expect("a started script");
        assert!(status.success(), "tests/engines sweep failed");
    }

    fn run(&self, arguments: &[&str]) {
        let mut command = script();
        let (verb, rest) = arguments.split_first().expect("a verb");
        let output = command.arg(verb).arg(&self.folder).args(rest).output().expect("a started script");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tests/engines {arguments:?} failed:\n{text}");
    }
}

fn script() -> Command {
    let mut command = Command::new(project().join("tests/engines"));
    command.stdin(Stdio::null()).env("HERDLET_TEST_HERE", "1");
    if let Some(programs) = environment::component(environment::ENGINES) {
        command.env(environment::ENGINES, programs);
    }
    command
}

impl Drop for Engines {
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        host::signal(guard.id(), Signal::TERM);
        // It removes the processes, cgroups and files.
        let _ = guard.wait();
    }
}

/// One engine.
#[derive(Debug, Clone, Copy)]
pub struct Engine<'e> {
    engines: &'e Engines,
    pub kind: Kind,
}

impl Engine<'_> {
    /// Another engine of the same run.
    #[must_use]
    pub fn beside(&self, kind: Kind) -> Self {
        Self { kind, ..*self }
    }

    pub fn socket(&self) -> PathBuf {
        self.engines.folder.join(format!("{}.sock", self.kind))
    }

    /// Returns the config of an agent whose driver `docker` uses this engine, with these additional options
    /// (`NAME: VALUE`, comma-separated) and dynamic ports of its own.
    pub fn config(&self, options: &str) -> String {
        let endpoint = match self.kind {
            Kind::Docker | Kind::Podman => format!(", endpoint: \"unix://{}\"", self.socket().display()),
            Kind::Builtin => self.registries(),
        };
        // No agent of a test removes the image that all tests use.
        let collection = if options.contains("gc:") { "" } else { ", gc: {image: false}" };
        let options = if options.is_empty() { String::new() } else { format!(", {options}") };
        format!(
            "drivers: {{docker: {{engine: {}{endpoint}{collection}{options}}}}}\nhost_ip: 127.0.0.1\nnetwork: {{subnet: {}}}\n{}",
            self.kind,
            subnet(),
            ports::for_tasks()
        )
    }

    /// The option that makes the registry trusted, also as the mirror of itself under its other name.
    fn registries(&self) -> String {
        let authority = self.engines.folder.join("registry.crt");
        format!(
            ", registries: {{\"{LOCAL_REGISTRY}\": {{ca: \"{}\"}}, \"{REGISTRY}\": {{mirrors: [\"https://{LOCAL_REGISTRY}\"]}}}}",
            authority.display()
        )
    }

    /// The host and port of the registry for this engine.
    pub fn registry(&self) -> &'static str {
        match self.kind {
            Kind::Docker | Kind::Podman => REGISTRY,
            Kind::Builtin => LOCAL_REGISTRY,
        }
    }

    /// Starts an agent with this engine.
    pub fn agent(&self, options: &str) -> Agent {
        self.agent_with(&self.config(options))
    }

    /// Starts an agent with this config, which has the image of all tests.
    pub fn agent_with(&self, config: &str) -> Agent {
        let agent = Agent::start_with(Setup::default().config(config));
        self.give_image(&agent);
        agent
    }

    /// Loads the image of all tests into an agent that keeps its images itself.
    pub fn give_image(&self, agent: &Agent) {
        match self.kind {
            Kind::Docker | Kind::Podman => {}
            Kind::Builtin => {
                let archive = self.engines.folder.join("image.tar").display().to_string();
                agent.cli(&["images", "load", &archive]).success();
            }
        }
    }

    /// Sends a request to the engine's API.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn request(&self, method: &str, path: &str, body: &Value) -> Answer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("Content-Type", "application/json")];
        let answer = http::request(&Peer::Socket(self.socket()), method, path, &headers, &text);
        answer.unwrap_or_else(|| panic!("{} does not answer {method} {path}", self.kind))
    }

    /// Returns the containers whose labels or names contain `text`, for example an allocation id.
    pub fn containers(&self, text: &str) -> Vec<Value> {
        let list = self.request("GET", "/containers/json?all=true", &Value::Null).json();
        let list = list.as_array().cloned().unwrap_or_default();
        list.into_iter()
            .filter(|found| {
                found["Labels"].to_string().contains(text) || found["Names"].to_string().contains(text)
            })
            .collect()
    }

    /// Returns the description of the only container of this allocation and task.
    ///
    /// # Panics
    /// If there is not exactly one.
    pub fn container(&self, alloc: &str, task: &str) -> Value {
        let found = self.containers(alloc);
        let ids: Vec<&str> = found.iter().filter_map(|found| found["Id"].as_str()).collect();
        let all: Vec<Value> = ids.iter().filter_map(|id| self.inspect(id)).collect();
        let of_task = |found: &&Value| {
            found["Name"].as_str().is_some_and(|name| name.contains(task))
                || found["Config"]["Labels"].to_string().contains(&format!("\"{task}\""))
        };
        let found: Vec<&Value> = all.iter().filter(of_task).collect();
        match found.as_slice() {
            [only] => (*only).clone(),
            _ => panic!("{} containers of {task} in {alloc}: {all:#?}", found.len()),
        }
    }

    /// Returns the description of a container, by id or name.
    pub fn inspect(&self, id: &str) -> Option<Value> {
        let answer = self.request("GET", &format!("/containers/{id}/json"), &Value::Null);
        (answer.status == 200).then(|| answer.json())
    }

    /// Creates and starts a container that belongs to nobody, with these labels.
    ///
    /// # Panics
    /// If the engine refuses.
    pub fn stranger(&self, name: &str, labels: &Value) -> String {
        let body = json!({
            "Image": IMAGE, "Cmd": ["sleep", "100000"], "Labels": labels, "HostConfig": { "NetworkMode": "none" },
        });
        self.start_as(name, &body)
    }

    /// Creates and starts a container by this request.
    ///
    /// # Panics
    /// If the engine refuses.
    pub fn start_as(&self, name: &str, body: &Value) -> String {
        let made = self.request("POST", &format!("/containers/create?name={name}"), body);
        assert_eq!(made.status, 201, "{}", made.body);
        let id = made.json()["Id"].as_str().expect("an id").to_owned();
        let started = self.request("POST", &format!("/containers/{id}/start"), &Value::Null);
        assert_eq!(started.status, 204, "{}", started.body);
        id
    }

    /// Removes a container with its volumes.
    pub fn remove(&self, id: &str) {
        self.request("DELETE", &format!("/containers/{id}?force=true&v=true"), &Value::Null);
    }

    /// Returns the names of all images.
    pub fn images(&self) -> Vec<String> {
        let list = self.request("GET", "/images/json", &Value::Null).json();
        let images = list.as_array().cloned().unwrap_or_default();
        let names = images.iter().filter_map(|image| image["RepoTags"].as_array()).flatten();
        names.filter_map(|name| Some(name.as_str()?.trim_start_matches("docker.io/").to_owned())).collect()
    }

    /// Gives the test image another name.
    ///
    /// # Panics
    /// If the engine refuses.
    pub fn tag(&self, repository: &str, tag: &str) {
        let path = format!("/images/{IMAGE}/tag?repo={repository}&tag={tag}");
        let answer = self.request("POST", &path, &Value::Null);
        assert_eq!(answer.status, 201, "{}", answer.body);
    }

    /// Writes an image into an archive.
    ///
    /// # Panics
    /// If the engine's program fails.
    pub fn save(&self, image: &str, archive: &Path) {
        let (socket, archive) =
            (format!("unix://{}", self.socket().display()), archive.display().to_string());
        let program: &[&str] = match self.kind {
            Kind::Docker => &["docker", "-H", &socket],
            Kind::Podman => &["podman", "--remote", "--url", &socket],
            Kind::Builtin => panic!("the engine in the agent writes no archives"),
        };
        self.engines.within(&[program, &["save", "-o", &archive, image]].concat());
    }

    /// Removes a name of an image, and the image with its last one.
    pub fn untag(&self, name: &str) {
        self.request("DELETE", &format!("/images/{name}?force=true"), &Value::Null);
    }

    /// Ends an engine of the test's own with SIGKILL.
    pub fn kill(&self) {
        self.engines.run(&["kill", self.kind.name(), "KILL"]);
    }

    /// Ends an engine of the test's own with SIGTERM, as a service manager does.
    pub fn terminate(&self) {
        self.engines.run(&["kill", self.kind.name(), "TERM"]);
    }

    /// Freezes an engine of the test's own: it accepts connections and does not answer.
    pub fn freeze(&self) {
        self.engines.run(&["kill", self.kind.name(), "STOP"]);
    }

    /// Continues it after [`Engine::freeze`].
    pub fn thaw(&self) {
        self.engines.run(&["kill", self.kind.name(), "CONT"]);
    }

    /// Starts it again with these options, and waits until it answers.
    pub fn start(&self, options: &[&str]) {
        let mut arguments = vec!["start", self.kind.name()];
        arguments.extend(options);
        self.engines.run(&arguments);
    }
}

/// A network for the bridge of this process's agent: bridges of earlier tests stay in the engines' network namespace.
fn subnet() -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("10.{}.{low}.0/24", 96 + high % 128)
}
