//! Test environment of the supervisor: a runtime directory, a log directory, the program.

use std::{
    ffi::OsString,
    fs,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use herdlet_process::supervisor::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

/// Longer waits are failures: on a quiet machine everything takes milliseconds.
pub(super) const DEADLINE: Duration = Duration::from_secs(180);

pub(super) struct Bench {
    pub(super) dir: BenchDir,
    pub(super) program: Program,
    pub(super) records: RuntimeDir,
    pub(super) logs: OwnedFd,
}

/// The directory of a bench; a bench's own one is removed with it.
pub(super) enum BenchDir {
    Own(TempDir),
    Lent(PathBuf),
}

impl BenchDir {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Own(dir) => dir.path(),
            Self::Lent(path) => path,
        }
    }
}

impl Bench {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        Self::of(BenchDir::Own(dir))
    }

    /// A bench in a directory that another process made.
    pub(super) fn at(path: PathBuf) -> Self {
        Self::of(BenchDir::Lent(path))
    }

    pub(super) fn of(place: BenchDir) -> Self {
        let program = Program::install(place.path()).unwrap();
        let records = RuntimeDir::open(&place.path().join("run")).unwrap();
        let logs = open_dir(&place.path().join("logs"));
        Self { dir: place, program, records, logs }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new cgroup (v2) with a name of its own, which the test removes; `None` if this user can't make any.
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
        let root = roots.into_iter().find(|path| path.join("cgroup.procs").exists())?;
        let group = root.join(format!("herdlet-test-{}", self.dir.path().file_name()?.display()));
        fs::create_dir(&group).ok()?;
        Some(group)
    }

    pub(super) fn launch(&self, record: &str, invocation: &Invocation) -> Child {
        self.launch_with(record, invocation, &log_files(10, 1 << 20), None)
    }

    pub(super) fn launch_with(
        &self,
        record: &str,
        invocation: &Invocation,
        logs: &Logs,
        leash: Option<&OwnedFd>,
    ) -> Child {
        let what = self.bare_launch(record, invocation, logs);
        launch(&Launch { leash: leash.map(AsFd::as_fd), ..what }).unwrap()
    }

    /// A launch without shims cgroup and leash.
    pub(super) fn bare_launch<'a>(
        &'a self,
        record: &'a str,
        invocation: &'a Invocation,
        logs: &'a Logs,
    ) -> Launch<'a> {
        Launch {
            driver: 0,
            program: &self.program,
            record,
            runtime_dir: self.records.as_fd(),
            logs_dir: self.logs.as_fd(),
            invocation,
            logs,
            shims_cgroup: None,
            leash: None,
        }
    }

    /// Runs to the end; returns how the task ended.
    pub(super) fn run(&self, record: &str, invocation: &Invocation) -> State {
        let end = end_of(self.launch(record, invocation));
        assert_eq!(end, ShimEnd::Code(0));
        self.record(record).state
    }

    pub(super) fn record(&self, name: &str) -> Record {
        self.records.read(name).unwrap().expect("a record")
    }

    /// Waits until the record exists and matches.
    pub(super) fn wait_for(&self, name: &str, wanted: impl Fn(&Record) -> bool) -> Record {
        let mut found = None;
        eventually(name, || {
            found = self.records.read(name).unwrap().filter(|record| wanted(record));
            found.is_some()
        });
        found.unwrap()
    }

    pub(super) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path("logs").join(name)).unwrap()
    }

    /// Log file names without their `.times` files.
    pub(super) fn log_names(&self) -> Vec<String> {
        let (logs, _) = self.names_in_logs();
        logs
    }

    pub(super) fn times_names(&self) -> Vec<String> {
        let (_, times) = self.names_in_logs();
        times
    }

    pub(super) fn log_bytes(&self) -> u64 {
        let len = |name: String| fs::metadata(self.path("logs").join(name)).unwrap().len();
        self.log_names().into_iter().map(len).sum()
    }

    fn names_in_logs(&self) -> (Vec<String>, Vec<String>) {
        let mut names: Vec<String> = fs::read_dir(self.path("logs"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names.into_iter().partition(|name| !name.ends_with(".times"))
    }
}

pub(super) fn open_dir(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

pub(super) fn log_files(files_max: u32, file_size_max: u64) -> Logs {
    Logs::Files(LogFiles { name: "t".to_owned(), files_max, file_size_max, when_full: WhenFull::Drop })
}

pub(super) fn program(path: &str, arguments: &[&str]) -> Invocation {
    Invocation {
        program: path.into(),
        arguments: arguments.iter().map(OsString::from).collect(),
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        ..Invocation::default()
    }
}

pub(super) fn shell(script: &str) -> Invocation {
    program("/bin/sh", &["sh", "-c", script])
}

/// Waits until a shim ends, up to the deadline.
pub(super) fn end_of(child: Child) -> ShimEnd {
    assert!(has_ended(&child, DEADLINE), "shim {} didn't end in time", child.pid());
    child.wait_blocking().unwrap()
}

pub(super) fn has_ended(child: &Child, within: Duration) -> bool {
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    poll(&mut [PollFd::new(child, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

/// Polls: another process's end sends no event to this one.
#[expect(clippy::disallowed_methods, reason = "a test thread of its own")]
pub(super) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "{what}: it didn't happen in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn is_running(record: &Record) -> bool {
    record.state == State::Running
}

pub(super) fn has_exited(record: &Record) -> bool {
    matches!(record.state, State::Exited(_))
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(super) fn is_alive(process: Process) -> bool {
    PidFd::open(process).unwrap().is_some()
}

pub(super) fn code_of(state: State) -> (u8, u8) {
    match state {
        State::Exited(exit) => (exit.code, exit.signal),
        State::Created | State::Running | State::StartFailed { .. } | State::Tombstone => {
            panic!("not an exit: {state:?}")
        }
    }
}
