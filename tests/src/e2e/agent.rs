//! A running `herdlet agent` in a [`Home`] of its own, its command line and its API.
//!
//! In: how it is to be started. Out: an agent that has said READY=1, which is asked, killed, restarted. What it leaves on
//! the machine is checked by [`Agent::finish`] and removed by the home.

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

/// How an agent is started.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Who runs it.
    pub user: User,
    /// The text of its config; none is given where empty.
    pub config: String,
    /// Further environment.
    pub env: Vec<(String, String)>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Where its home is made.
    pub ground: PathBuf,
}

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
    /// Started by `nobody`.
    pub fn nobody() -> Self {
        Self { user: User::Nobody, ..Self::default() }
    }

    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// With one more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// With this config.
    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = text.into();
        self
    }
}

/// An agent, running or not, and all that is its.
#[derive(Debug)]
pub struct Agent {
    /// Its directories.
    pub home: Home,
    setup: Setup,
    program: PathBuf,
    child: Option<Child>,
    written: u32,
    shell: Option<String>,
}

impl Agent {
    /// An agent with default settings, ready.
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// An agent, ready.
    pub fn start_with(setup: Setup) -> Self {
        let mut agent = Self::prepare(setup);
        agent.launch();
        agent
    }

    /// An agent that was not started yet.
    pub fn prepare(setup: Setup) -> Self {
        let home = Home::below(&setup.ground, setup.user);
        let program = match setup.user {
            User::Same => program().to_path_buf(),
            User::Nobody => command::reachable(&home, program()),
        };
        if !setup.config.is_empty() {
            home.write("config.yaml", &setup.config);
        }
        Self { home, setup, program, child: None, written: 0, shell: None }
    }

    /// Gives further arguments to the agent's next start.
    pub fn set_arguments(&mut self, arguments: Vec<String>) {
        self.setup.arguments = arguments;
    }

    /// Gives another program to the agent's next start.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Lets the agent's next starts happen in a shell that has done this before: `umask 000`, `ulimit -n 256`.
    pub fn set_shell(&mut self, commands: &str) {
        self.shell = Some(format!("{commands} && exec \"$0\" \"$@\""));
    }

    /// Starts the agent and waits until it is ready.
    ///
    /// # Panics
    /// When it ends before, or is not ready in time.
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

    /// Starts the agent; its notifications arrive at the socket.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn launch_unready(&mut self) -> UnixDatagram {
        use std::os::unix::fs::PermissionsExt;

        let notify = self.home.path().join("notify");
        let _ = std::fs::remove_file(&notify);
        let ready = UnixDatagram::bind(&notify).expect("a notification socket");
        std::fs::set_permissions(&notify, std::fs::Permissions::from_mode(0o666)).expect("its mode");
        ready.set_read_timeout(Some(Duration::from_millis(100))).expect("its timeout");
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the agent's log");
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

    /// Arguments that start this agent.
    pub fn agent_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["agent".to_owned()];
        arguments.extend(["--state-dir".to_owned(), self.home.state().display().to_string()]);
        arguments.extend(["--socket".to_owned(), self.home.socket().display().to_string()]);
        if !self.setup.config.is_empty() {
            arguments
                .extend(["--config".to_owned(), self.home.path().join("config.yaml").display().to_string()]);
        }
        arguments.extend(self.setup.arguments.iter().cloned());
        arguments
    }

    /// The agent's pid.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the agent runs").id()
    }

    /// Whether it has ended, or was not started.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }

    /// Kills the agent as a crash would: nothing of it gets to say anything.
    ///
    /// # Panics
    /// When it doesn't run.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the agent runs");
        child.kill().expect("the agent can be killed");
        child.wait().expect("the agent can be waited for");
    }

    /// Asks the agent to end, and waits.
    ///
    /// # Panics
    /// When it doesn't end in time.
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
                panic!("the agent did not end after SIGTERM:\n{}", self.log_tail());
            }
            wait::pause(Duration::from_millis(5));
        }
    }

    /// `kill -9`, and a new agent.
    pub fn crash(&mut self) {
        self.kill();
        self.launch();
    }

    /// Runs a command of the command line to its end.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        self.spawn(arguments).finish()
    }

    /// Repeats a command until it prints what is `wanted` on standard output, and tells all of that. So are logs read: a task's words arrive
    /// a moment after it has begun, and its last ones after its end.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn until_printed(&self, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let output = self.cli(arguments);
            if output.code == 0 && wanted(&output.stdout) {
                return output.stdout;
            }
            assert!(Instant::now() < deadline, "waited in vain: {arguments:?} prints {output:?}");
            wait::pause(Duration::from_millis(25));
        }
    }

    /// Starts a command of the command line.
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments))
    }

    /// A command of the command line, to be changed before its start.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> std::process::Command {
        let mut command = command::prepare(&self.home, self.setup.user, &self.program, arguments);
        command.envs(self.setup.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Writes a manifest into the home and tells its path.
    pub fn manifest(&mut self, text: &str) -> PathBuf {
        self.written += 1;
        self.home.write(&format!("m{}.yaml", self.written), text)
    }

    /// `herdlet apply -f`, accepted.
    ///
    /// # Panics
    /// When it isn't.
    #[track_caller]
    pub fn apply(&mut self, text: &str) {
        let path = self.manifest(text);
        self.answered(&["apply", "-f", &path.display().to_string()]).success();
    }

    /// `herdlet apply --wait -f`, converged.
    ///
    /// # Panics
    /// When it isn't.
    #[track_caller]
    pub fn apply_and_wait(&mut self, text: &str) {
        let path = self.manifest(text);
        let output = self.answered(&["apply", "--wait", "-f", &path.display().to_string()]);
        assert_eq!(output.code, 0, "{}{}\n{}", output.stdout, output.stderr, self.log_tail());
    }

    /// A command that may be repeated, repeated as long as the agent is too busy, or its disk is, to answer within the ten seconds that
    /// commands wait.
    fn answered(&self, arguments: &[&str]) -> Output {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let output = self.cli(arguments);
            if !output.stderr.contains("the machine overloaded?") || Instant::now() > deadline {
                return output;
            }
        }
    }

    /// Where its API is.
    pub fn peer(&self) -> Peer {
        Peer::Socket(self.home.socket())
    }

    /// Its allocations; empty where it does not answer.
    pub fn allocs(&self) -> Vec<Alloc> {
        shown::allocs(&self.peer())
    }

    /// The newest allocation of this name (`job.group[index]`) that is wanted to run, else the newest at all.
    pub fn alloc(&self, name: &str) -> Option<Alloc> {
        let mut found: Vec<Alloc> = self.allocs().into_iter().filter(|alloc| alloc.name() == name).collect();
        found.sort_by_key(|alloc| {
            (alloc.desired() == "run", alloc.0["CreateIndex"].as_u64(), alloc.0["ModifyIndex"].as_u64())
        });
        let id = found.pop()?.id();
        // The list may be shortened; the single one is whole.
        let answer = http::get(&self.peer(), &format!("/v1/allocation/{id}"))?;
        (answer.status == 200).then(|| Alloc(answer.json()))
    }

    /// Waits until an allocation is as `probe` wants it.
    ///
    /// # Panics
    /// When that takes too long.
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
                "waited in vain: {name} {what}; it is {:#}\n{}",
                alloc.map(|alloc| alloc.0).unwrap_or_default(),
                self.log_tail()
            );
            wait::pause(Duration::from_millis(25));
        }
    }

    /// Waits until `task` of an allocation runs, and tells its processes.
    #[track_caller]
    pub fn until_running(&self, name: &str, task: &str) -> Vec<Member> {
        let alloc = self.until_alloc(name, "runs", |alloc| alloc.state(task) == "running");
        self.members()
            .into_iter()
            .filter(|member| member.alloc == alloc.id() && member.task == task)
            .collect()
    }

    /// The one process of a task whose only process is its main one. A shell that ends in `exec` may have others before.
    ///
    /// # Panics
    /// When there is not exactly one.
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

    /// All processes in cgroups of attempts of this agent.
    pub fn members(&self) -> Vec<Member> {
        self.home.instance().map(|instance| host::members(&instance)).unwrap_or_default()
    }

    /// The sum of a counter's samples whose labels contain `labels`.
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let page = http::get(&self.peer(), "/v1/metrics").map(|answer| answer.body).unwrap_or_default();
        let samples = page.lines().filter(|line| line.starts_with(name) && line.contains(labels));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// What the agent has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until a task's log file of one kind is as `wanted`, and tells what is in it.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn until_logged(&self, alloc: &str, task: &str, kind: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            let log = self.task_log(alloc, task, kind);
            if wanted(&log) {
                return log;
            }
            assert!(Instant::now() < deadline, "waited in vain: {kind} of {task} in {alloc} is {log:?}");
            wait::pause(Duration::from_millis(25));
        }
    }

    /// A task's log file of one kind (`stdout`, `stderr`), whole.
    pub fn task_log(&self, alloc: &str, task: &str, kind: &str) -> String {
        let dir = self.home.state().join("alloc").join(alloc).join("alloc/logs");
        std::fs::read_to_string(dir.join(format!("{task}.{kind}.0"))).unwrap_or_default()
    }

    /// Deletes every job, ends the agent and looks that nothing is left.
    ///
    /// # Panics
    /// When something is.
    #[track_caller]
    pub fn finish(mut self) {
        let jobs: std::collections::BTreeSet<String> = self.allocs().iter().map(Alloc::job).collect();
        for job in jobs {
            let output = self.cli(&["delete", &job]);
            assert!(output.code == 0 || output.stderr.contains("no job"), "{output:?}");
        }
        let deadline = Instant::now() + wait::PATIENCE;
        // An agent that ends earlier leaves the rest to the next one.
        let has_cgroups = || self.home.leftovers().iter().any(|left| left.starts_with("cgroup "));
        while has_cgroups()
            || !self.members().is_empty()
            || !host::mounts_below(&self.home.state()).is_empty()
        {
            assert!(
                Instant::now() < deadline,
                "left: {:?} {:?}\n{}",
                self.members(),
                host::mounts_below(&self.home.state()),
                self.log_tail()
            );
            wait::pause(Duration::from_millis(20));
        }
        self.terminate();
        self.home.until_nothing_left();
    }

    /// The last lines of the log, for a failing test.
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

/// Whether a directory is empty or missing.
pub fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}
