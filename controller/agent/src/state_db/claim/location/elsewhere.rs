//! What is said where tasks of an instance run elsewhere. Reads after "use the state directory X: ".
//!
//! No message advises to remove a directory: host volumes are mounted below `alloc` while tasks run, and a removal would empty them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use herdlet_api_types::InstanceId;
use herdlet_base::ownership;

use super::living::ATTEMPTS;

/// Tasks of the instance run elsewhere. Reads after "use the state directory X: ".
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
    /// The state directory is a copy of this one, or this one is a copy of it.
    Copy(PathBuf),
    /// The runtime directory is another one.
    Runtime(PathBuf),
    /// The state directory is not the recorded one, and the tasks have no record here.
    Unseen { file: PathBuf },
}

/// What of an instance still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Running {
    /// So many supervisors.
    Tasks(usize),
    /// Processes in this cgroup.
    Cgroups(PathBuf),
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tasks(1) => f.write_str("1 task still runs"),
            Self::Tasks(count) => write!(f, "{count} tasks still run"),
            Self::Cgroups(tree) => write!(f, "processes still run in the cgroup {}", tree.display()),
        }
    }
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, running, runtime, why } = self;
        let (flag, first) = (self.flag(), first_step(runtime));
        let recorded = runtime.display();
        match why {
            Why::Copy(original) => {
                let original = original.display();
                write!(
                    f,
                    "it is a copy of {original}, or the original of it; tasks there belong to the same instance, {}: {running} (records in \
                     {recorded}), and this agent would start all of them a second time. Start the agent with --state-dir \
                     {original}{flag}{first}; to use this directory in its place, stop its jobs there first; {}",
                    instance.0,
                    super::super::OWN_INSTANCE
                )
            }
            Why::Runtime(runtime) => write!(
                f,
                "of its instance, {}, {running} whose records are in the runtime directory {recorded}; with {} this agent would \
                 start all of them a second time. Start the agent with{flag} as before{first}; to change the runtime directory, stop all \
                 jobs first",
                instance.0,
                runtime.display()
            ),
            Why::Unseen { file } => write!(
                f,
                "of its instance, {}, {running}, but the directory was moved or copied, and {recorded} has no record of them here: this \
                 agent would end them or start them a second time. Start the agent where the original of this directory and of {recorded} \
                 can be seen (outside of a container, for instance); if this is the only agent of that instance, remove the file {} and \
                 start again",
                instance.0,
                file.display()
            ),
        }
    }
}

impl Elsewhere {
    /// As the command line takes it.
    fn flag(&self) -> String {
        match self.runtime.parent() {
            Some(parent) if self.runtime.ends_with(&self.instance.0) => {
                format!(" --runtime-dir {}", parent.display())
            }
            Some(_) | None => String::new(),
        }
    }
}

/// What has to be done before an agent takes the runtime directory again.
fn first_step(runtime: &Path) -> String {
    let error = match ownership::check(&runtime.join(ATTEMPTS)) {
        Err(error) if !error.is_absent() => error,
        Ok(()) | Err(_) => return String::new(),
    };
    match error.restoring() {
        Some(command) => format!(" (first run `{command}`: others can change the way to it by now)"),
        None => format!(" (once this is repaired: {})", herdlet_base::error::in_full(&error)),
    }
}
