//! Where an instance runs on this machine. Claims end with the agent, but its tasks keep running: an agent on a copy
//! of the state directory, or with another runtime directory, would start each of them a second time.
//!
//! In: the runtime directory and cgroups of this start, the file `location`, which the last start wrote, and the
//! processes of this machine. Out: nothing, or why this agent must not start. Only what still runs counts: after a
//! reboot, or once all tasks have ended, an instance may run anywhere.
//!
//! ```text
//! runtime directory, state directory              refused while tasks run that
//! same             , the recorded one             have their logs in another state directory of the instance
//! same             , moved (the old one is gone)  do so, or are not visible, but have processes in the recorded cgroups
//! another          , any                          are there, or in the recorded cgroups and not in the new runtime directory
//! any              , a copy (the old one is there) are there, or in the recorded cgroups
//! ```
//!
//! If the last start was in another PID namespace, its tasks are not visible. The start is then refused while the
//! recorded cgroups have processes, or, where these cgroups are not visible, while the records are open for writing.
//! If this start uses other cgroups, it is refused while the recorded ones have processes that no record names.
//!
//! - `living`: finds what runs.
//! - `abandoned`: finds what runs for other instances whose state is gone.
//! - `namespace`: finds what may run in another PID namespace.
//! - `elsewhere`: the messages.

mod abandoned;
mod elsewhere;
mod living;
mod namespace;

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use herdlet_api_types::InstanceId;
use herdlet_base::{clock::boot_id, durable};
use serde::{Deserialize, Serialize};

pub use abandoned::Abandoned;
pub use elsewhere::Elsewhere;
use elsewhere::{Cause, Running, Why};
pub use living::LivingError;
use living::{Supervisor, Tasks, Tree, recorded_in, without_links};

use super::{ClaimError, StateDir, io_error};

/// The file name, in the state directory and, for starts with another state directory, in the runtime directory.
const FILE: &str = "location";

/// The stored location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Location {
    instance: InstanceId,
    boot: u64,
    state: Directory,
    runtime: PathBuf,
    /// `None` if process trees hold the tasks together.
    cgroups: Option<PathBuf>,
    /// The inode of the PID namespace in which the pids of the records are valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid_namespace: Option<u64>,
}

/// The identity of a directory, which distinguishes it from its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Directory {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// A start to be checked.
#[derive(Debug, Clone, Copy)]
struct Start<'s> {
    state: &'s Path,
    instance: &'s InstanceId,
    runtime: &'s Path,
}

/// The recorded and the running parts of an instance.
struct Found {
    recorded: Option<Location>,
    supervisors: Vec<Supervisor>,
}

impl Start<'_> {
    /// The location of the last start. Nothing from before a reboot still runs.
    fn recorded(self) -> Option<Location> {
        let recorded = Location::read(&self.state.join(FILE));
        recorded.filter(|found| found.instance == *self.instance && found.boot == boot_id())
    }

    fn find(self) -> Result<Found, ClaimError> {
        let recorded = self.recorded();
        let runtime = recorded.as_ref().map(|recorded| &*recorded.runtime);
        let supervisors = Supervisor::list(self.instance, runtime).map_err(self.unknown())?;
        Ok(Found { recorded, supervisors })
    }

    fn judge(self, found: &Found) -> Result<Option<Elsewhere>, ClaimError> {
        let by_record = match &found.recorded {
            Some(recorded) => self.judge_recorded(recorded, found)?,
            None => None,
        };
        Ok(by_record.or_else(|| self.judge_seen(&found.supervisors)))
    }

    /// Checks against the location of the last start.
    fn judge_recorded(self, recorded: &Location, found: &Found) -> Result<Option<Elsewhere>, ClaimError> {
        let Self { state, runtime, .. } = self;
        let here = Directory::of(state).map_err(io_error("inspect", state))?;
        let is_moved = !recorded.state.is(&here);
        let is_copy =
            is_moved && Directory::of(&recorded.state.path).is_ok_and(|found| recorded.state.is(&found));
        let is_other = !is_same(&recorded.runtime, runtime);
        // With the same runtime directory, records count only if the state directory has changed.
        let there =
            if is_copy || is_other || is_moved { self.tasks_in(&recorded.runtime, found)? } else { None };
        let tasks = there.map(Running::Tasks);
        let in_cgroups = || recorded.populated_cgroups().map(Running::Cgroups);
        let unseen = |cause| Why::Unseen { file: state.join(FILE), cause };
        let judged = if is_copy {
            tasks.or_else(in_cgroups).map(|running| (running, Why::Copy(recorded.state.path.clone())))
        } else if is_other {
            let running = match tasks {
                Some(tasks) => Some(tasks),
                None if self.tasks_in(runtime, found)?.is_none() => in_cgroups(),
                None => None,
            };
            running.map(|running| (running, Why::Runtime(runtime.to_owned())))
        } else if is_moved && there.is_none() {
            in_cgroups().map(|running| (running, unseen(Cause::Moved)))
        } else {
            None
        };
        let judged = match judged {
            None if namespace::is_another(recorded) => {
                let running = namespace::running(recorded).map_err(self.unknown())?;
                running.map(|running| (running, unseen(Cause::Namespace)))
            }
            judged => judged,
        };
        Ok(judged.map(|(running, why)| self.elsewhere(running, &recorded.runtime, why)))
    }

    /// The supervisors whose records are in this runtime directory.
    fn tasks_in(self, runtime: &Path, found: &Found) -> Result<Option<Tasks>, ClaimError> {
        match found.tasks_in(runtime) {
            Some(tasks) => Ok(Some(tasks)),
            None => recorded_in(runtime).map_err(self.unknown()),
        }
    }

    /// Checks the cgroups of the last start if this one uses others: nothing would end the processes in them that
    /// have no supervisor.
    fn judge_cgroups(self, tree: Option<&Path>) -> Result<Option<Elsewhere>, ClaimError> {
        let Some(recorded) = self.recorded() else { return Ok(None) };
        let Some(last) = recorded.populated_cgroups() else { return Ok(None) };
        // Before processes are listed, because this holds at nearly every start.
        if tree.is_some_and(|tree| is_same(tree, &last)) {
            return Ok(None);
        }
        if self.tasks_in(self.runtime, &self.find()?)?.is_some() {
            return Ok(None);
        }
        let why = Why::Unseen { file: self.state.join(FILE), cause: Cause::Cgroups };
        Ok(Some(self.elsewhere(Running::Cgroups(last), &recorded.runtime, why)))
    }

    /// Checks against the running supervisors, for a directory without a record of its last start, or whose path
    /// another one has taken. If some tasks run here too, nothing is refused, because otherwise no agent could start
    /// for them.
    fn judge_seen(self, supervisors: &[Supervisor]) -> Option<Elsewhere> {
        let running = Running::Tasks(Tasks::of(supervisors.iter().map(Supervisor::pid))?);
        let mut other = None;
        for supervisor in supervisors {
            match supervisor.tree(self.state, self.instance) {
                Tree::Ours => {
                    other = None;
                    break;
                }
                Tree::Other(path) => other = other.or(Some((supervisor, path))),
                Tree::Unknown => {}
            }
        }
        if let Some((supervisor, path)) = other {
            return Some(self.elsewhere(running, supervisor.runtime(), Why::Copy(path)));
        }
        let first = supervisors.first()?;
        let is_here = supervisors.iter().any(|supervisor| supervisor.is_in(self.runtime));
        (!is_here).then(|| self.elsewhere(running, first.runtime(), Why::Runtime(self.runtime.to_owned())))
    }

    fn elsewhere(self, running: Running, runtime: &Path, why: Why) -> Elsewhere {
        Elsewhere { instance: self.instance.clone(), running, runtime: runtime.to_owned(), why }
    }

    fn unknown(self) -> impl Fn(LivingError) -> ClaimError {
        let path = self.state.to_owned();
        move |why| ClaimError::Unknown { path: path.clone(), why: Box::new(why) }
    }

    fn refused(self, elsewhere: Elsewhere) -> ClaimError {
        ClaimError::Elsewhere { path: self.state.to_owned(), elsewhere: Box::new(elsewhere) }
    }

    /// Warns about a moved state directory: tasks know the paths of their directories from their environment.
    fn warn_of_a_move(self, found: &Found) {
        let Some(recorded) = &found.recorded else { return };
        if found.supervisors.is_empty() || is_same(&recorded.state.path, self.state) {
            return;
        }
        tracing::warn!(
            from = %recorded.state.path.display(), to = %self.state.display(), tasks = found.supervisors.len(),
            "the state directory was moved; running tasks know only its old path ($NOMAD_TASK_DIR and similar) until \
             they restart"
        );
    }
}

impl Found {
    fn tasks_in(&self, runtime: &Path) -> Option<Tasks> {
        Tasks::of(self.supervisors.iter().filter(|supervisor| supervisor.is_in(runtime)).map(Supervisor::pid))
    }
}

impl StateDir {
    /// Checks that no tasks of the instance run elsewhere. Must be called after the claims are made and before
    /// anything is adopted.
    ///
    /// # Errors
    /// [`ClaimError::Elsewhere`], [`ClaimError::Unknown`].
    pub(super) fn check_location(&self, runtime: &Path) -> Result<(), ClaimError> {
        let start = Start { state: &self.path, instance: &self.instance, runtime };
        let found = start.find()?;
        let Some(elsewhere) = start.judge(&found)? else {
            start.warn_of_a_move(&found);
            return Ok(());
        };
        // If an agent is running in another network namespace, report it rather than its tasks.
        if let Some(tree) = found.recorded.as_ref().and_then(|recorded| recorded.cgroups.as_ref()) {
            self.lock_cgroups(tree)?;
        }
        Err(start.refused(elsewhere))
    }

    /// Checks that the last start has left nothing in its cgroups, if they are others than `tree`. Must be called
    /// once the cgroups are known, before anything is adopted and before [`Self::keep_location`] replaces the
    /// recorded ones.
    ///
    /// # Errors
    /// Same as [`Self::claim_runtime`].
    pub fn check_cgroups(&self, runtime: &Path, tree: Option<&Path>) -> Result<(), ClaimError> {
        let start = Start { state: &self.path, instance: &self.instance, runtime };
        start.judge_cgroups(tree)?.map_or(Ok(()), |elsewhere| Err(start.refused(elsewhere)))
    }

    /// Checks whether an agent would refuse the state directory `state` with this runtime directory because of tasks
    /// elsewhere. Claims nothing.
    ///
    /// # Errors
    /// Same as [`Self::claim_runtime`].
    pub fn inspect_location(state: &Path, runtime: &Path) -> Result<(), ClaimError> {
        let Some(instance) = Self::instance_in(state) else { return Ok(()) };
        let start = Start { state, instance: &instance, runtime };
        let elsewhere = start.judge(&start.find()?)?;
        elsewhere.map_or(Ok(()), |elsewhere| Err(start.refused(elsewhere)))
    }

    /// Stores the current location of the instance, before its tasks start. A failure does not prevent the start: the
    /// next start then checks the previous location.
    pub fn keep_location(&self, runtime: &Path, cgroups: Option<&Path>) {
        let files = [self.path.join(FILE), runtime.join(FILE)];
        let kept = Directory::of(&self.path).and_then(|state| {
            let location = Location {
                instance: self.instance.clone(),
                boot: boot_id(),
                state,
                // A link in the path may be gone by the next start.
                runtime: without_links(runtime),
                cgroups: cgroups.map(Path::to_owned),
                pid_namespace: namespace::own(),
            };
            files
                .iter()
                .filter(|file| Location::read(file).as_ref() != Some(&location))
                .try_for_each(|file| durable::write(file, &serde_json::to_vec(&location)?))
        });
        if let Err(error) = kept {
            tracing::warn!(
                path = %self.path.display(), %error,
                "failed to store where this instance runs; a copy of the state directory is not recognized until the next start"
            );
        }
    }
}

impl Location {
    /// `None` if the file is missing or damaged: it protects against a mistake, and must not keep an agent from its
    /// tasks.
    fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    fn populated_cgroups(&self) -> Option<PathBuf> {
        self.cgroups.clone().filter(|tree| is_populated(tree))
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

/// Whether two paths lead to the same directory; `false` if one of two different paths does not exist.
fn is_same(one: &Path, other: &Path) -> bool {
    let found = || Some((Directory::of(one).ok()?, Directory::of(other).ok()?));
    one == other || found().is_some_and(|(one, other)| one.is(&other))
}

/// Whether processes run below a cgroup (`cgroup.events`, cgroups(7)).
fn is_populated(tree: &Path) -> bool {
    let events = fs::read_to_string(tree.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}

#[cfg(test)]
mod tests;
