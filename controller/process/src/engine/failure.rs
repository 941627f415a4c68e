//! Classifies failed starts: a fault of the machine, or of the task's spec.
//!
//! In: the step a supervisor reached, the errno, its exit. Out: errors with their class, exit codes, messages for users.

use std::path::{Path, PathBuf};

use herdlet_driver::{DriverError, lacks};

use crate::supervisor::{Record, ShimEnd, State, Step};

/// Whether a start failed because the machine lacks or refuses a resource: nothing of the task has started, and the task is not
/// at fault. Pipes, cgroups, networks, the clone and limits of namespaces are the machine's; the other steps depend on the task's spec.
pub(super) fn is_shortage(step: Step, errno: i32) -> bool {
    match step {
        Step::Prepare | Step::Cgroup | Step::Clone | Step::TasksFile | Step::Network => true,
        // ENOSPC: a limit of namespaces (namespaces(7)).
        Step::Namespaces => lacks(errno) || errno == libc::ENOSPC,
        Step::Spec
        | Step::Session
        | Step::OomScore
        | Step::OpenFiles
        | Step::Stdio
        | Step::Terminal
        | Step::Groups
        | Step::Gid
        | Step::Uid
        | Step::NoNewPrivs
        | Step::Directory
        | Step::Exec
        | Step::MountNamespace
        | Step::Proc
        | Step::MessageQueues
        | Step::Hostname
        | Step::Capabilities
        | Step::Join
        | Step::CallFilter
        | Step::Limit
        | Step::Setting
        | Step::Cgroups => lacks(errno),
    }
}

/// What a start is about.
pub(super) struct Place {
    pub(super) program: PathBuf,
    pub(super) directory: Option<PathBuf>,
    /// For people.
    pub(super) user: String,
}

impl Place {
    /// What a failed step was about, for people: the directory or the program, and the user. Empty for other steps.
    pub(super) fn of_step(&self, step: Step) -> String {
        let Self { program, directory, user } = self;
        match (step, directory) {
            (Step::Directory, Some(dir)) => format!("the directory is {}, for {user}", dir.display()),
            (Step::Exec, _) => format!("the program is {}, for {user}", program.display()),
            (
                Step::Prepare
                | Step::Cgroup
                | Step::Clone
                | Step::TasksFile
                | Step::Network
                | Step::Spec
                | Step::Session
                | Step::OomScore
                | Step::OpenFiles
                | Step::Stdio
                | Step::Terminal
                | Step::Groups
                | Step::Gid
                | Step::Uid
                | Step::NoNewPrivs
                | Step::Directory
                | Step::Namespaces
                | Step::MountNamespace
                | Step::Proc
                | Step::MessageQueues
                | Step::Hostname
                | Step::Capabilities
                | Step::Join
                | Step::CallFilter
                | Step::Limit
                | Step::Setting
                | Step::Cgroups,
                _,
            ) => String::new(),
        }
    }
}

/// The error of a supervisor that failed in `step`, at `place`. A resource that the machine lacks now may be available at the next try.
pub(super) fn start_error(step: Step, errno: i32, place: &str) -> DriverError {
    let why = start_failure(step, errno);
    let why = if place.is_empty() { why } else { format!("{why}; {place}") };
    match errno {
        libc::ENOENT if step == Step::Exec => DriverError::no_program(why),
        errno if is_shortage(step, errno) => DriverError::retry(why),
        libc::EBUSY | libc::ETXTBSY | libc::EIO => DriverError::recoverable(why),
        _ => DriverError::fatal(why),
    }
}

/// The exit code of a task that a supervisor could not start, by the conventions of shells.
pub(super) fn failure_code(step: Step, errno: i32) -> i32 {
    match (step, errno) {
        (Step::Exec, libc::ENOENT) => 127,
        _ => 126,
    }
}

/// Why a supervisor could not start the task, for people.
pub(super) fn start_failure(step: Step, errno: i32) -> String {
    let why = match (step, errno) {
        (_, 0) => "the launch spec is invalid".to_owned(),
        (Step::Exec, libc::ENOENT) => "no such file, or its interpreter is missing".to_owned(),
        (Step::Exec, libc::ENOEXEC) => "not a program for this machine, and no #! line".to_owned(),
        _ => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    format!("{step}: {why}")
}

/// Explains the exit of a supervisor that left no record, and suggests what to do.
pub(super) fn without_record(end: ShimEnd, dir: &Path) -> String {
    let dir = dir.display();
    match end {
        ShimEnd::Code(EXIT_LOST) => {
            format!("its record existed and has vanished; check whether something deletes files in {dir}")
        }
        ShimEnd::Code(EXIT_NO_RECORD) => format!(
            "it could not write its record in {dir}; check that the directory exists, is writable for the agent, and that its \
             file system has free space and is not read-only"
        ),
        ShimEnd::Code(code) => {
            format!("it exited with the unexpected code {code} before it wrote its record in {dir}")
        }
        ShimEnd::Signal(libc::SIGKILL) => {
            "it was killed before it wrote its record; check the kernel's log for an out-of-memory kill"
                .to_owned()
        }
        ShimEnd::Signal(libc::SIGSYS) => {
            "it was killed for a forbidden system call; check the seccomp filter that the agent runs under"
                .to_owned()
        }
        ShimEnd::Signal(signal) => format!("it was ended by signal {signal} before it wrote its record"),
    }
}

const EXIT_LOST: i32 = herdlet_shim::EXIT_LOST as i32;

const EXIT_NO_RECORD: i32 = herdlet_shim::EXIT_NO_RECORD as i32;

/// Whether the attempt of a record has run.
pub(super) fn has_run(record: &Record) -> bool {
    match record.state {
        State::Running | State::Exited(_) => true,
        State::Created | State::StartFailed { .. } | State::Tombstone => false,
    }
}
