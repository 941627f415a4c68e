//! Where an instance lives on this machine. Claims end with the agent, but its tasks run on: a copy of the state directory, or another
//! runtime directory, would start each of them a second time.
//!
//! In: the runtime directory and cgroups of this start, and the file `location`, which the last start wrote. Out: nothing, or why this agent
//! must not start. Only what still runs counts: after a reboot, or once all tasks have ended, an instance may live anywhere.
//!
//! ```text
//! runtime directory, state directory            refused while tasks run that are recorded
//! same             , the recorded one           never
//! same             , moved (the old one is gone) nowhere to be seen, but have processes in the recorded cgroups
//! another          , any                        there, or in the recorded cgroups and not in the new runtime directory
//! any              , a copy (the old one is there) there, or in the recorded cgroups
//! ```

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use herdlet_api_types::InstanceId;
use serde::{Deserialize, Serialize};

use super::{ClaimError, StateDir, io_error};
use crate::{
    drivers::supervisor::{PidFd, RuntimeDir},
    durable,
    instance::boot_id,
    ownership,
};

/// The file, in the state directory.
const FILE: &str = "location";

/// As it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Location {
    instance: InstanceId,
    boot: u64,
    state: Directory,
    runtime: PathBuf,
    /// None where tasks are held by their process tree.
    cgroups: Option<PathBuf>,
}

/// A directory, told from its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Directory {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Tasks of the instance run elsewhere. Reads after "use the state directory X: ".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    instance: InstanceId,
    running: Running,
    recorded: PathBuf,
    why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    /// The state directory is a copy of this one.
    Copy(PathBuf),
    /// The runtime directory is another one.
    Runtime(PathBuf),
    /// The state directory is not the recorded one, and the tasks have no record here.
    Unseen { file: PathBuf },
}

/// What of an instance still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Running {
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
        let Self { instance, running, recorded, why } = self;
        // As the flag takes it.
        let flag = match recorded.parent() {
            Some(parent) if recorded.ends_with(&instance.0) => format!(" --runtime-dir {}", parent.display()),
            Some(_) | None => String::new(),
        };
        let recorded = recorded.display();
        match why {
            Why::Copy(original) => {
                let original = original.display();
                write!(
                    f,
                    "it is a copy of {original}, of whose instance, {}, {running} (records in {recorded}): this agent would start all of \
                     them a second time. Start the agent with --state-dir {original}{flag}; to use the copy in its place, stop \
                     its jobs there first, or remove {original} if it is not needed any more; {}",
                    instance.0,
                    super::OWN_INSTANCE
                )
            }
            Why::Runtime(runtime) => write!(
                f,
                "of its instance, {}, {running} whose records are in the runtime directory {recorded}; with {} this agent would \
                 start all of them a second time. Start the agent with{flag} as before; to change the runtime directory, stop all \
                 jobs first",
                instance.0,
                runtime.display()
            ),
            Why::Unseen { file } => write!(
                f,
                "of its instance, {}, {running}, but the directory was moved or copied, and {recorded} has no record of them here: this \
                 agent would end them or start them a second time. Start the agent where the original of this directory and of {recorded} \
                 can be seen (outside of a container, for instance); if this is the only agent of that instance, remove {} and start again",
                instance.0,
                file.display()
            ),
        }
    }
}

impl StateDir {
    /// Makes sure that no tasks of the instance run elsewhere. To be called once the claims are made, before anything is adopted.
    ///
    /// # Errors
    /// [`ClaimError::Elsewhere`].
    pub(super) fn check_location(&self, runtime: &Path) -> Result<(), ClaimError> {
        let file = self.path.join(FILE);
        let Some(recorded) = Location::read(&file) else { return Ok(()) };
        // What ran before a reboot runs no more.
        if recorded.instance != self.instance || recorded.boot != boot_id().0 {
            return Ok(());
        }
        let state = Directory::of(&self.path).map_err(io_error("inspect", &self.path))?;
        let is_moved = !recorded.state.is(&state);
        let is_copy =
            is_moved && Directory::of(&recorded.state.path).is_ok_and(|found| recorded.state.is(&found));
        let there = living(&recorded.runtime);
        let tasks = (there > 0).then_some(Running::Tasks(there));
        let in_cgroups = || recorded.cgroups.clone().filter(|tree| is_populated(tree)).map(Running::Cgroups);
        let found = if is_copy {
            let running = tasks.or_else(in_cgroups);
            running.map(|running| (running, Why::Copy(recorded.state.path.clone())))
        } else if !is_same(&recorded.runtime, runtime) {
            let running = tasks.or_else(|| in_cgroups().filter(|_| living(runtime) == 0));
            running.map(|running| (running, Why::Runtime(runtime.to_owned())))
        } else if is_moved && there == 0 {
            in_cgroups().map(|running| (running, Why::Unseen { file }))
        } else {
            None
        };
        match found {
            None => Ok(()),
            Some((running, why)) => {
                // An agent that runs, in another network namespace, is named rather than its tasks.
                if let Some(tree) = &recorded.cgroups {
                    self.lock_cgroups(tree)?;
                }
                let elsewhere =
                    Elsewhere { instance: self.instance.clone(), running, recorded: recorded.runtime, why };
                Err(ClaimError::Elsewhere { path: self.path.clone(), elsewhere: Box::new(elsewhere) })
            }
        }
    }

    /// Stores where the instance lives now, before its tasks start. A disk that takes nothing keeps no agent from starting: the last
    /// location is checked the next time.
    pub fn keep_location(&self, runtime: &Path, cgroups: Option<&Path>) {
        let file = self.path.join(FILE);
        let kept = Directory::of(&self.path).and_then(|state| {
            let location = Location {
                instance: self.instance.clone(),
                boot: boot_id().0,
                state,
                runtime: runtime.to_owned(),
                cgroups: cgroups.map(Path::to_owned),
            };
            if Location::read(&file).as_ref() == Some(&location) {
                return Ok(());
            }
            durable::write(&file, &serde_json::to_vec(&location)?)
        });
        if let Err(error) = kept {
            tracing::warn!(
                path = %file.display(), %error,
                "failed to store where this instance runs; until the next start a copy of the state directory is not recognized by it"
            );
        }
    }
}

impl Location {
    /// None where there is none, or a damaged one: it protects against a mistake, and must not keep an agent from its tasks.
    fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }
}

impl Directory {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    fn is(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Whether two paths lead to one directory. One that is gone can't be another's.
fn is_same(one: &Path, other: &Path) -> bool {
    let found = || Some((Directory::of(one).ok()?, Directory::of(other).ok()?));
    one == other || found().is_some_and(|(one, other)| one.is(&other))
}

/// How many supervisors that have their records in this runtime directory live.
fn living(runtime: &Path) -> usize {
    let attempts = runtime.join("attempts");
    // Where others could write, as where a removed directory lay in /tmp, records say nothing.
    if ownership::check(&attempts).is_err() {
        return 0;
    }
    let Ok(listed) = RuntimeDir::open(&attempts).and_then(|records| records.list()) else { return 0 };
    let records = listed.into_iter().filter_map(|listed| listed.record.ok());
    records.filter(|record| matches!(PidFd::open(record.shim), Ok(Some(_)))).count()
}

/// Whether processes run below a cgroup (`cgroup.events`, cgroups(7)).
fn is_populated(tree: &Path) -> bool {
    let events = fs::read_to_string(tree.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}

#[cfg(test)]
mod tests;
