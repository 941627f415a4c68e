//! The messages for an instance whose tasks run elsewhere. They continue "use the state directory X: ".
//!
//! No message advises removing a directory: host volumes are mounted below `alloc` while tasks run, and a removal
//! would empty them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use herdlet_api_types::InstanceId;
use herdlet_base::ownership::{self, escape_path};

use super::living::{ATTEMPTS, Tasks};

/// Tasks of the instance run elsewhere. The message continues "use the state directory X: ".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    pub(super) instance: InstanceId,
    pub(super) running: Running,
    /// The runtime directory with their records.
    pub(super) runtime: PathBuf,
    pub(super) why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// One of this state directory and the given one is a copy of the other.
    Copy(PathBuf),
    /// This start uses the given runtime directory, which is another one.
    Runtime(PathBuf),
    /// The tasks are not visible from here. The file contains the location of the last start.
    Unseen { file: PathBuf, cause: Cause },
}

/// Why the tasks of the last start are not visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The state directory is not the recorded one, and the tasks have no record here.
    Moved,
    /// Pids have another meaning here.
    Namespace,
    /// This start uses other cgroups, and no record names a running supervisor.
    Cgroups,
}

/// The parts of an instance that still run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Running {
    Tasks(Tasks),
    /// Processes in this cgroup.
    Cgroups(PathBuf),
    /// This many supervisors, whose pids are not known here.
    Records(usize),
    /// It cannot be determined.
    Unknown,
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tasks(Tasks { count: 1, .. }) | Self::Records(1) => f.write_str("1 task still runs"),
            Self::Tasks(Tasks { count, .. }) | Self::Records(count) => write!(f, "{count} tasks still run"),
            Self::Cgroups(tree) => write!(f, "processes still run in the cgroup {}", escape_path(tree)),
            Self::Unknown => f.write_str("tasks may still run"),
        }
    }
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, running, runtime, why } = self;
        let (flag, first) = (self.flag(), first_step(runtime));
        let recorded = escape_path(runtime);
        let pid = self.pid().map(|pid| format!(", supervisor pid {pid}")).unwrap_or_default();
        match why {
            Why::Copy(original) => {
                let original = escape_path(original);
                write!(
                    f,
                    "it is a copy of {original}, or the original of it; tasks there belong to the same instance, \
                     {}: {running} (records in {recorded}{pid}), and this agent would start all of them a second \
                     time. Start the agent with --state-dir {original}{flag}{first}; to use this directory in its \
                     place, stop its jobs there first; {}",
                    instance.0,
                    super::super::OWN_INSTANCE
                )
            }
            Why::Runtime(runtime) => write!(
                f,
                "for its instance {}, {running} whose records are in the runtime directory {recorded}{pid}; with \
                 {} this agent would start all of them a second time. Start the agent with{flag} as before{first}; \
                 to change the runtime directory, stop all jobs first",
                instance.0,
                escape_path(runtime)
            ),
            Why::Unseen { file, cause: Cause::Moved } => write!(
                f,
                "for its instance {}, {running}, but the directory was moved or copied, and {recorded} has no \
                 record of them here: this agent would end them or start them a second time. Start the agent where \
                 the originals of this directory and of {recorded} are visible (for example, outside of a \
                 container); if this is the only agent of that instance, remove the file {} and start again",
                instance.0,
                escape_path(file)
            ),
            Why::Unseen { file, cause: Cause::Namespace } => write!(
                f,
                "for its instance {}, {running}, but its last start was in another PID namespace, whose processes \
                 cannot be identified here: this agent would end them or start them a second time. Start the agent \
                 in that namespace (for example, outside of a container), or stop all jobs there first; if that \
                 namespace is gone, remove the file {} and start again",
                instance.0,
                escape_path(file)
            ),
            Why::Unseen { file, cause: Cause::Cgroups } => write!(
                f,
                "for its instance {}, {running}, which its last start used; no record in {recorded} names a \
                 running supervisor of them, and with other cgroups this agent would start them a second time. \
                 Start the agent with its cgroup parent as before, which ends them; if they do not belong to that \
                 instance, remove the file {} and start again",
                instance.0,
                escape_path(file)
            ),
        }
    }
}

impl Elsewhere {
    /// A supervisor, for an operator who wants to inspect it.
    fn pid(&self) -> Option<u32> {
        match &self.running {
            Running::Tasks(tasks) => Some(tasks.pid),
            Running::Cgroups(_) | Running::Records(_) | Running::Unknown => None,
        }
    }

    /// The runtime directory as a command line flag.
    fn flag(&self) -> String {
        match self.runtime.parent() {
            Some(parent) if self.runtime.ends_with(&self.instance.0) => {
                format!(" --runtime-dir {}", escape_path(parent))
            }
            Some(_) | None => String::new(),
        }
    }
}

/// What to do before an agent accepts the runtime directory again.
fn first_step(runtime: &Path) -> String {
    let error = match ownership::check(&runtime.join(ATTEMPTS)) {
        Err(error) if !error.is_absent() => error,
        Ok(()) | Err(_) => return String::new(),
    };
    match error.restoring() {
        Some(command) => format!(" (first run `{command}`, because other users can now change its path)"),
        // That a process has its files in a directory is no reason to trust the directory's owner.
        None => {
            format!(" (once this is repaired: {})", herdlet_base::error::in_full(&error.without_trust()))
        }
    }
}
