//! A running `herdlet agent` in its own [`Home`], its command line and its API.
//!
//! In: a setup. Out: an agent that has sent READY=1, which tests query, kill and restart. [`Agent::finish`]
//! checks that nothing remains on the machine; the home removes any rest.

use std::{
    fs::File,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{
    command::{self, Output, Running, User},
    home::Home,
    host::{self, Member},
    http::{self, Peer},
    program::program,
    shown::{self, Alloc},
    wait,
};

/// How to start an agent.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The user who runs it.
    pub user: User,
    /// The text of its config; no config if empty.
    pub config: String,
    /// Additional environment variables.
    pub env: Vec<(String, String)>,
    /// Additional arguments.
    pub arguments: Vec<String>,
    /// The parent directory of its home.
    pub ground: PathBuf,
}

/// The config of all agents of tests: how full this machine's disk is must not decide what they keep.
const MACHINE: &str = "machine.yaml";

impl Default for Setup {
    fn default() -> Self {
        Self {
            user: User::Same,
            config: String::new(),
            env: Vec::new(),
            arguments: Vec::new(),
            ground: PathBuf::from("/tmp"),
        }
    }
}

impl Setup {
    /// Runs the agent as `nobody`.
    pub fn nobody() -> Self {
        Self { user: User::Nobody, ..Self::default() }
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets the config.
    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = text.into();
        self
    }
}

/// An agent, running or not, with its directories.
#[derive(Debug)]
pub struct Agent {
    pub home: Home,
    setup: Setup,
    program: PathBuf,
    child: Option<Child>,
    written: u32,
    shell: Option<String>,
}

impl Agent {
    /// Starts an agent with the default setup and waits until it is ready.
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// Starts an agent and waits until it is ready.
    pub fn start_with(setup: Setup) -> Self {
        let mut agent = Self::prepare(setup);
        agent.launch();
        agent
    }

    /// Returns an agent that is not started yet.
    pub fn prepare(setup: Setup) -> Self {
        let home = Home::below(&setup.ground, setup.user);
        let program = match setup.user {
            User::Same => program().to_path_buf(),
            User::Nobody => command::reachable(&home, program()),
        };
        home.write(MACHINE, "gc_disk_usage_threshold: 100\ngc_inode_usage_threshold: 100\n");
        if !setup.config.is_empty() {
            home.write("config.yaml", &setup.config);
        }
        Self { home, setup, program, child: None, written: 0, shell: None }
    }

    /// Sets the additional arguments for the agent's next start.
    pub fn set_arguments(&mut self, arguments: Vec<String>) {
        self.setup.arguments = arguments;
    }

    /// Sets the config for the agent's next start.
    pub fn set_config(&mut self, text: &str) {
        self.home.write("config.yaml", text);
        text.clone_into(&mut self.setup.config);
    }

    /// Sets the program for the agent's next start.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Makes the agent's next starts run in a shell after these commands, e.g. `umask 000` or `ulimit -n
    /// 256`.
    pub fn set_shell(&mut self, commands: &str) {
        self.shell = Some(format!("{commands} && exec \"$0\" \"$@\""));
    }

    /// Starts the agent and waits until it is ready.
    ///
    /// # Panics
    /// If it exits before, or is not ready in time.
    pub fn launch(&mut self) {
        let ready = self.launch_unready();
        let deadline = Instant::now() + wait::PATIENCE;
        let mut message = [0; 512];
        loop {
            if let Ok(len) = ready.recv(&mut message)
                && String::from_utf8_lossy(message.get(..len).unwrap_or_default()).contains("READY=1")
            {
                return;
            }
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                panic!("the agent ended ({status}) before it was ready:\n{}", self.log_tail());
            }
            assert!(Instant::now() < deadline, "the agent is not ready:\n{}", self.log_tail());
        }
    }

    /// Starts the agent. Its notifications arrive at the returned socket.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn launch_unready(&mut self) -> UnixDatagram {
        use std::os::unix::fs::PermissionsExt;

        let notify = self.home.path().join("notify");
        let _ = std::fs::remove_file(&notify);
        let ready = UnixDatagram::bind(&notify).expect("a notification socket");
        std::fs::set_permissions(&notify, std::fs::Permissions::from_mode(0o666)).expect("its mode");
        ready.set_read_timeout(Some(Duration::from_millis(100))).expect("a read timeout");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("a readable log of the agent");
        let mut command = match &self.shell {
            None => self.command(&self.agent_arguments()),
            Some(script) => {
                let mut arguments = vec!["-c".to_owned(), script.clone(), self.program.display().to_string()];
                arguments.extend(self.agent_arguments());
                let shell = Path::new("/bin/sh");
                let mut command = command::prepare(&self.home, self.setup.user, shell, &arguments);
                command.envs(self.setup.env.iter().map(|(name, value)| (name, value)));
                command
            }
        };
        command.env("NOTIFY_SOCKET", &notify);
        command.stdout(log.try_clone().expect("the log, twice")).stderr(log).stdin(Stdio::null());
        self.child = Some(command.spawn().expect("the agent can be started"));
        ready
    }

    /// Returns the arguments that start this agent.
    pub fn agent_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["agent".to_owned()];
        arguments.extend(["--state-dir".to_owned(), self.home.state().display().to_string()]);
        arguments.extend(["--socket".to_owned(), self.home.socket().display().to_string()]);
        let own = (!self.setup.config.is_empty()).then_some("config.yaml");
        for file in [MACHINE].into_iter().chain(own) {
            arguments.extend(["--config".to_owned(), self.home.path().join(file).display().to_string()]);
        }
        arguments.extend(self.setup.arguments.iter().cloned());
        arguments
    }

    /// Returns the agent's pid.
    ///
    /// # Panics
    /// If it isn't running.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the agent runs").id()
    }

    /// Returns whether it has exited, or was not started.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }

    /// Kills the agent with SIGKILL, like a crash.
    ///
    /// # Panics
    /// If it isn't running.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the agent runs");
        child.kill().expect("the agent can be killed");
        child.wait().expect("the agent can be waited for");
    }

    /// Terminates the agent, and waits.
    ///
    /// # Panics
    /// If it doesn't exit in time.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the agent runs");
        host::signal(child.id(), Signal::TERM);
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("the agent can be waited for") {
                return status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the agent did not exit after SIGTERM:\n{}", self.log_tail());
            }
            wait::pause(Duration::from_millis(5));
        }
    }

    /// Kills the agent with SIGKILL, and starts a new one.
    pub fn crash(&mut self) {
        self.kill();
        self.launch();
    }

    /// Runs a command of the command line to its end.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        self.spawn(arguments).finish()
    }

    /// Repeats a command until its standard output satisfies `wanted`, and returns that output. Logs are read
    /// this way: a task's output arrives shortly after its start, and the last lines after its end.
    ///
    /// # Panics
    /// If that takes too long.
    #[track_caller]
    pub fn until_printed(&self, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let output = self.cli(arguments);
            if output.code == 0 && wanted(&output.stdout) {
                return output.stdout;
            }
            assert!(Instant::now() < deadline, "timed out: the output of {arguments:?} is {output:?}");
            wait::pause(Duration::from_millis(25));
        }
    }

    /// Starts a command of the command line.
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments))
    }

    /// Returns a command of the command line, which the caller may change before its start.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> std::process::Command {
        let mut command = command::prepare(&self.home, self.setup.user, &self.program, arguments);
        command.envs(self.setup.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Writes a manifest into the home and returns its path.
    pub fn manifest(&mut self, text: &str) -> PathBuf {
        self.written += 1;
        self.home.write(&format!("m{}.yaml", self.written), text)
    }

    /// Runs `herdlet apply -f`.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn apply(&mut self, text: &str) {
        let path = self.manifest(text);
        self.retry_while_busy(&["apply", "-f", &path.display().to_string()]).success();
    }

    /// Runs `herdlet apply --wait -f`.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn apply_and_wait(&mut self, text: &str) {
        let path = self.manifest(text);
        let output = self.retry_while_busy(&["apply", "--wait", "-f", &path.display().to_string()]);
        assert_eq!(output.code, 0, "{}{}\n{}", output.stdout, output.stderr, self.log_tail());
    }

    /// Runs an idempotent command, and repeats it as long as the agent or its disk is too busy to answer
    /// within the ten seconds that commands wait.
    fn retry_while_busy(&self, arguments: &[&str]) -> Output {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let output = self.cli(arguments);
            if !output.stderr.contains("the machine overloaded?") || Instant::now() > deadline {
                return output;
            }
        }
    }

    /// Returns the address of its API.
    pub fn peer(&self) -> Peer {
        Peer::Socket(self.home.socket())
    }

    /// Returns its allocations; empty if it does not answer.
    pub fn allocs(&self) -> Vec<Alloc> {
        shown::allocs(&self.peer())
    }

    /// Returns the newest allocation of this name (`job.group[index]`) that is wanted to run, otherwise the
    /// newest one.
    pub fn alloc(&self, name: &str) -> Option<Alloc> {
        let mut found: Vec<Alloc> = self.allocs().into_iter().filter(|alloc| alloc.name() == name).collect();
        found.sort_by_key(|alloc| {
            (alloc.desired() == "run", alloc.0["CreateIndex"].as_u64(), alloc.0["ModifyIndex"].as_u64())
        });
        shown::alloc(&self.peer(), &found.pop()?.id())
    }

    /// Waits until an allocation satisfies `probe`.
    ///
    /// # Panics
    /// If that takes too long.
    #[track_caller]
    pub fn until_alloc(&self, name: &str, what: &str, probe: impl Fn(&Alloc) -> bool) -> Alloc {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let alloc = self.alloc(name);
            if let Some(alloc) = alloc.clone().filter(&probe) {
                return alloc;
            }
            assert!(
                Instant::now() < deadline,
                "timed out: expected that {name} {what}; found {:#}\n{}",
                alloc.map(|alloc| alloc.0).unwrap_or_default(),
                self.log_tail()
            );
            wait::pause(Duration::from_millis(25));
        }
    }

    /// Waits until `task` of an allocation runs, and returns its processes.
    #[track_caller]
    pub fn until_running(&self, name: &str, task: &str) -> Vec<Member> {
        let alloc = self.until_alloc(name, "runs", |alloc| alloc.state(task) == "running");
        self.members()
            .into_iter()
            .filter(|member| member.alloc == alloc.id() && member.task == task)
            .collect()
    }

    /// Returns the only process of a task. A shell that ends in `exec` may briefly have others.
    ///
    /// # Panics
    /// If there is not exactly one in time.
    #[track_caller]
    pub fn single(&self, name: &str, task: &str) -> Member {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let members = self.until_running(name, task);
            if let [only] = members.as_slice() {
                return only.clone();
            }
            assert!(Instant::now() < deadline, "{members:?}\n{}", self.log_tail());
            wait::pause(Duration::from_millis(25));
        }
    }

    /// Returns all processes in cgroups of this agent's attempts.
    pub fn members(&self) -> Vec<Member> {
        self.home.instance().map(|instance| host::members(&instance)).unwrap_or_default()
    }

    /// Returns the sum of a metric's samples whose labels contain `labels`; NaN if the agent does not answer.
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let page = http::get(&self.peer(), "/v1/metrics?format=prometheus").filter(|page| page.status == 200);
        let Some(page) = page else { return f64::NAN };
        let samples = page.body.lines().filter(|line| line.starts_with(name) && line.contains(labels));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until a task's log file satisfies `wanted`, and returns its content.
    ///
    /// # Panics
    /// If that takes too long.
    #[track_caller]
    pub fn until_logged(&self, alloc: &str, task: &str, kind: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let log = self.task_log(alloc, task, kind);
            if wanted(&log) {
                return log;
            }
            assert!(Instant::now() < deadline, "timed out: {kind} of {task} in {alloc} is {log:?}");
            wait::pause(Duration::from_millis(25));
        }
    }

    /// Returns the content of a task's log file (`stdout` or `stderr`).
    pub fn task_log(&self, alloc: &str, task: &str, kind: &str) -> String {
        let dir = self.home.state().join("alloc").join(alloc).join("alloc/logs");
        std::fs::read_to_string(dir.join(format!("{task}.{kind}.0"))).unwrap_or_default()
    }

    /// Deletes every job, terminates the agent and checks that nothing remains.
    ///
    /// # Panics
    /// If something remains.
    #[track_caller]
    pub fn finish(mut self) {
        let jobs: std::collections::BTreeSet<String> = self.allocs().iter().map(Alloc::job).collect();
        for job in jobs {
            let output = self.cli(&["delete", &job]);
            assert!(output.code == 0 || output.stderr.contains("no job"), "{output:?}");
        }
        let deadline = Instant::now() + wait::PATIENCE;
        // An agent that exits earlier leaves the rest to the next one.
        let has_cgroups = || self.home.leftovers().iter().any(|left| left.starts_with("cgroup "));
        while has_cgroups()
            || !self.members().is_empty()
            || !host::mounts_below(&self.home.state()).is_empty()
        {
            assert!(
                Instant::now() < deadline,
                "directories remain: {:?} {:?}\n{}",
                self.members(),
                host::mounts_below(&self.home.state()),
                self.log_tail()
            );
            wait::pause(Duration::from_millis(20));
        }
        self.terminate();
        self.home.until_nothing_left();
    }

    /// Returns the last lines of the log, for a failing test.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(40)..).unwrap_or_default().join("\n")
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("agent.log")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}\n---", self.log_tail());
        }
    }
}

/// Returns whether a directory is empty or missing.
pub fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}
