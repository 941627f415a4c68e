//! The program that a supervisor runs, and where its output goes.
//!
//! In: decisions made elsewhere. Out: the fields of a launch spec. It starts nothing.

use super::process::PidFd;
use super::terminal::TaskTerminal;
use herdlet_shim::isolation::{Capabilities, Namespaces};
use herdlet_shim::spec::Field;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// One program and its surroundings. The environment is secret: `Debug` does not print it.
#[derive(Clone, Default)]
pub struct Invocation {
    /// Path of the program, already resolved: the supervisor does not search.
    pub program: PathBuf,
    /// Directory in which the program was found and inspected; `None` executes the target of the path.
    pub entry: Option<Entry>,
    /// Arguments, starting with `argv[0]`; at least one.
    pub arguments: Vec<OsString>,
    /// The whole environment; the task inherits nothing.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory; `None` keeps the agent's.
    pub directory: Option<PathBuf>,
    /// User to switch to; `None` keeps ids and groups.
    pub user: Option<User>,
    /// File mode creation mask; `None` means 0o022.
    pub umask: Option<u32>,
    /// Limit of open files, soft and hard. A limit that cannot be raised stays as it is.
    pub open_files: Option<u64>,
    /// OOM score adjustment. `None` inherits the agent's, which may be protected; a task should always set its own.
    pub oom_score_adj: Option<i16>,
    /// Whether executing a file can give more rights.
    pub new_privileges: NewPrivileges,
    /// Directory of the v2 cgroup that the task starts in, new for each attempt.
    pub cgroup: Option<PathBuf>,
    /// The `tasks` files of v1 cgroups to enter.
    pub tasks_files: Vec<PathBuf>,
    /// File that keeps the network namespace to enter; `None` keeps the agent's.
    pub network: Option<PathBuf>,
    /// Other namespaces; `None` keeps the agent's.
    pub isolation: Option<Isolation>,
    /// Capability sets. With `None`, root keeps those of the agent, and other users have none.
    pub capabilities: Option<Capabilities>,
    /// Limits of resources.
    pub limits: Vec<ResourceLimit>,
    /// Filters of system calls; the last one is asked first.
    pub call_filters: Vec<CallFilter>,
    /// The standard input of a task. An exec session has its own.
    pub input: StandardInput,
}

/// The standard input of a task.
#[derive(Clone, Debug, Default)]
pub enum StandardInput {
    /// It has ended: /dev/null.
    #[default]
    Ended,
    /// It does not end, and nothing arrives.
    Open,
    /// A terminal, which is the output, too.
    Terminal(Arc<TaskTerminal>),
}

/// A limit of a resource (getrlimit(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// `RLIMIT_…`.
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// A seccomp filter: its instructions as the kernel takes them.
pub type CallFilter = Arc<[u8]>;

/// The namespaces of a task or an exec session.
#[derive(Clone, Debug)]
pub enum Isolation {
    /// Namespaces of the task's own.
    Own(OwnNamespaces),
    /// Namespaces of a running task, for an exec session.
    Joined(JoinedNamespaces),
}

/// Namespaces that a task is the first to be in.
#[derive(Clone, Debug, Default)]
pub struct OwnNamespaces {
    /// Those to make: pid, ipc, uts, cgroup.
    pub created: Namespaces,
    /// Mount namespace, with the task's root as its root. Paths of the invocation are within it.
    pub mounts: Option<Arc<OwnMounts>>,
    /// /proc of the new pid namespace; requires `mounts`.
    pub proc: Option<Proc>,
    /// Whether the message queues of the new ipc namespace are mounted; requires `mounts`.
    pub message_queues: MessageQueues,
    /// Whether the cgroups below the new cgroup namespace are shown; requires `mounts`.
    pub cgroups: ShownCgroups,
    /// Name of the new uts namespace.
    pub hostname: Option<String>,
    /// Which process is the first one.
    pub first: FirstProcess,
}

/// A mount namespace of a task's own.
#[derive(Debug)]
pub struct OwnMounts {
    pub namespace: OwnedFd,
    /// A /dev/null that is mounted in it: the standard input of the task, which could change owner and mode of the machine's.
    pub null: OwnedFd,
}

/// How /proc is mounted. The paths are relative to it; those that the kernel does not have are skipped.
#[derive(Clone, Debug, Default)]
pub struct Proc {
    pub read_only: Vec<PathBuf>,
    pub masked: Vec<PathBuf>,
    /// Settings of the new namespaces as `PATH=VALUE`, the path below `/proc/sys`.
    pub settings: Vec<String>,
}

/// Files below /proc with which a task could change the machine.
const READ_ONLY_PROC: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// Files below /proc that expose the machine's memory and other processes.
const MASKED_PROC: [&str; 12] = [
    "acpi",
    "asound",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
];

impl Proc {
    /// What every task with a root of its own has.
    pub fn of_task() -> Self {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        Self { read_only: paths(&READ_ONLY_PROC), masked: paths(&MASKED_PROC), settings: Vec::new() }
    }
}

/// Whether the cgroups of a task are mounted at /sys/fs/cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownCgroups {
    #[default]
    None,
    /// Read-only.
    Own,
    /// The task may change them.
    OwnWritable,
}

/// Whether message queues are mounted at /dev/mqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageQueues {
    #[default]
    Absent,
    Mounted,
}

/// The first process of a pid namespace. The kernel ends all others with it, and ignores signals that it does not handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstProcess {
    /// The task, which must reap orphans.
    #[default]
    Task,
    /// An init, which passes signals on to the task, reaps orphans, and ends with the task.
    Init,
}

/// Namespaces of a running task.
#[derive(Clone, Debug)]
pub struct JoinedNamespaces {
    /// Which of them.
    pub kinds: Namespaces,
    /// A process in them.
    pub of: Arc<PidFd>,
}

/// A program, identified by its name in an open directory.
#[derive(Clone, Debug)]
pub struct Entry {
    pub dir: Arc<OwnedFd>,
    /// The name in `dir`, which must not be a symbolic link.
    pub name: OsString,
}

/// Ids of a user, with the exact list of supplementary groups (an empty list means none).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Whether executing a set-user-id file can give more rights (no_new_privs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewPrivileges {
    #[default]
    Allowed,
    Refused,
}

/// Where a task's output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Logs {
    /// Both streams go to /dev/null.
    Disabled,
    /// Both streams are kept in rotated files.
    Files(LogFiles),
}

/// Rotated log files `NAME.stdout.N` and `NAME.stderr.N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFiles {
    /// Prefix of the file names: the task's name, as a file name.
    pub name: String,
    /// Number of files kept for each stream, at least 1.
    pub files_max: u32,
    /// Size in bytes at which a file is full, at least 1.
    pub file_size_max: u64,
    /// What to do when the disk is slower than the task.
    pub when_full: WhenFull,
}

/// What to do with output when the disk is stalled or full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Drop the output and count the bytes.
    Drop,
    /// Make the task wait.
    Block,
}

impl Invocation {
    pub(super) fn fields(&self) -> Vec<Field<'_>> {
        let mut fields = vec![Field::Program(self.program.as_os_str().as_bytes())];
        fields.extend(self.entry.iter().map(|entry| Field::Entry(entry.name.as_bytes())));
        fields.extend(self.arguments.iter().map(|argument| Field::Argument(argument.as_bytes())));
        fields.extend(self.directory.iter().map(|path| Field::Directory(path.as_os_str().as_bytes())));
        if let Some(user) = &self.user {
            fields.push(Field::User { uid: user.uid, gid: user.gid });
            fields.extend(user.groups.iter().map(|group| Field::Group(*group)));
        }
        fields.extend(self.umask.map(Field::Umask));
        fields.extend(self.open_files.map(Field::OpenFiles));
        fields.extend(self.oom_score_adj.map(Field::OomScoreAdj));
        if self.new_privileges == NewPrivileges::Refused {
            fields.push(Field::NoNewPrivs);
        }
        fields.extend(self.cgroup.iter().map(|path| Field::Cgroup(path.as_os_str().as_bytes())));
        fields.extend(self.network.iter().map(|path| Field::Network(path.as_os_str().as_bytes())));
        fields.extend(self.tasks_files.iter().map(|path| Field::TasksFile(path.as_os_str().as_bytes())));
        fields.extend(self.capabilities.map(Field::Capabilities));
        fields.extend(self.limits.iter().map(|limit| Field::Limit {
            resource: limit.resource,
            soft: limit.soft,
            hard: limit.hard,
        }));
        fields.extend(self.call_filters.iter().map(|filter| Field::CallFilter(filter)));
        match &self.isolation {
            Some(Isolation::Own(own)) => fields.extend(own.fields()),
            Some(Isolation::Joined(joined)) => fields.push(Field::Join(joined.kinds)),
            None => {}
        }
        fields
    }

    /// The task's own mount namespace.
    pub(super) fn mounts(&self) -> Option<&OwnMounts> {
        match &self.isolation {
            Some(Isolation::Own(own)) => own.mounts.as_deref(),
            Some(Isolation::Joined(_)) | None => None,
        }
    }
}

impl OwnNamespaces {
    fn fields(&self) -> Vec<Field<'_>> {
        let mut fields = vec![Field::Namespaces(self.created)];
        fields.extend(self.mounts.iter().map(|_| Field::MountNamespace));
        if let Some(proc) = &self.proc {
            fields.push(Field::Proc);
            fields.extend(proc.read_only.iter().map(|path| Field::ReadOnlyProc(path.as_os_str().as_bytes())));
            fields.extend(proc.settings.iter().map(|setting| Field::Setting(setting.as_bytes())));
            fields.extend(proc.masked.iter().map(|path| Field::MaskedProc(path.as_os_str().as_bytes())));
        }
        if self.message_queues == MessageQueues::Mounted {
            fields.push(Field::MessageQueues);
        }
        match self.cgroups {
            ShownCgroups::None => {}
            ShownCgroups::Own => fields.push(Field::Cgroups),
            ShownCgroups::OwnWritable => fields.extend([Field::Cgroups, Field::WritableCgroups]),
        }
        fields.extend(self.hostname.iter().map(|name| Field::Hostname(name.as_bytes())));
        if self.first == FirstProcess::Init {
            fields.push(Field::Init);
        }
        fields
    }
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation")
            .field("program", &self.program)
            .field("arguments", &self.arguments.len())
            .field("environment", &self.environment.len())
            .field("directory", &self.directory)
            .field("user", &self.user)
            .field("cgroup", &self.cgroup)
            .field("network", &self.network)
            .field("isolation", &self.isolation)
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}
