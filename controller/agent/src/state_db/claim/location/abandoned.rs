//! Tasks that run although the state directory of their instance is gone: an agent that begins with an empty directory
//! is another instance, and would start the same jobs a second time.
//!
//! In: a state directory without state, the directory that contains the runtime directories of instances, and the
//! location that each of them records. Out: nothing, or the tasks. Tasks count only if no agent runs their instance.

use std::{
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
};

use herdlet_api_types::InstanceId;
use herdlet_base::{
    clock::boot_id,
    ownership::{self, escape_path},
};
use rustix::fs::{FlockOperation, flock};

use super::super::{ClaimError, StateDir, parse_instance};
use super::{
    FILE, Location,
    elsewhere::Running,
    is_same,
    living::{Supervisor, Tasks, Tree, recorded_in, without_links},
};

/// Running tasks of an instance without an agent and without its state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abandoned {
    instance: InstanceId,
    tasks: Tasks,
    runtime: PathBuf,
    /// The state directory of their agent's last start.
    state: PathBuf,
    /// Where that directory is now, if it was moved.
    moved_to: Option<PathBuf>,
    /// `None` if process trees hold the tasks together.
    cgroups: Option<PathBuf>,
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, tasks, runtime, state, moved_to, cgroups } = self;
        write!(
            f,
            "{} (instance {}, records in {}, supervisor pid {}) whose agent used the state directory {}, and \
             this agent would start their jobs a second time. ",
            Running::Tasks(*tasks),
            instance.0,
            escape_path(runtime),
            tasks.pid,
            escape_path(state)
        )?;
        if let Some(moved) = moved_to {
            let moved = escape_path(moved);
            return write!(
                f,
                "That directory is now at {moved}: start the agent with --state-dir {moved}, or move it back first"
            );
        }
        f.write_str("Put that directory back, and start the agent with it; if it is lost, end its tasks first: reboot")?;
        cgroups.as_ref().map_or(Ok(()), |tree| {
            write!(f, ", or run `echo 1 > {}`", escape_path(&tree.join("cgroup.kill")))
        })
    }
}

impl StateDir {
    /// Checks that an empty state directory does not replace one whose tasks run. `runtimes` contains the runtime
    /// directories of instances. Must be called before the directory is claimed; changes nothing.
    ///
    /// # Errors
    /// [`ClaimError::Abandoned`] if the tasks were started with this path. Returns tasks that were started with
    /// another path, which no longer leads to their state.
    pub fn inspect_abandoned(state: &Path, runtimes: &Path) -> Result<Vec<Abandoned>, ClaimError> {
        if !is_new(state) {
            return Ok(Vec::new());
        }
        let found = list(runtimes);
        match found.iter().find(|found| is_path_of(found, state)) {
            Some(found) => {
                Err(ClaimError::Abandoned { path: state.to_owned(), abandoned: Box::new(found.clone()) })
            }
            None => Ok(found.into_iter().filter(|found| is_gone(&found.state, &found.instance)).collect()),
        }
    }
}

/// Whether no agent has ever used the directory.
fn is_new(state: &Path) -> bool {
    ["state.db", "accepted", FILE].iter().all(|name| fs::symlink_metadata(state.join(name)).is_err())
}

fn is_path_of(found: &Abandoned, state: &Path) -> bool {
    is_same(&found.state, state) || without_links(&found.state) == without_links(state)
}

fn is_gone(state: &Path, instance: &InstanceId) -> bool {
    StateDir::instance_in(state).as_ref() != Some(instance)
}

/// All instances of this boot whose tasks run without an agent. What cannot be read belongs to another agent, and does
/// not keep this one from starting.
fn list(runtimes: &Path) -> Vec<Abandoned> {
    let entries = fs::read_dir(runtimes).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let instance = parse_instance(entry.file_name().to_str()?)?;
            let runtime = entry.path();
            ownership::check(&runtime).ok()?;
            let recorded = Location::read(&runtime.join(FILE))
                .filter(|recorded| recorded.instance == instance && recorded.boot == boot_id())?;
            let tasks = recorded_in(&runtime).ok()??;
            if is_in_use(&runtime) {
                return None;
            }
            let moved_to = moved_to(&instance, &runtime);
            let Location { state, cgroups, .. } = recorded;
            Some(Abandoned { instance, tasks, runtime, state: state.path, moved_to, cgroups })
        })
        .collect()
}

/// Whether an agent has locked the runtime directory. An agent that starts meanwhile repeats its attempt to lock it.
fn is_in_use(runtime: &Path) -> bool {
    File::open(runtime).is_ok_and(|dir| flock(&dir, FlockOperation::NonBlockingLockShared).is_err())
}

/// The state directory that contains the logs of the instance's supervisors.
fn moved_to(instance: &InstanceId, runtime: &Path) -> Option<PathBuf> {
    let supervisors = Supervisor::list(instance, Some(runtime)).unwrap_or_default();
    // No state directory is here, so the runtime directory takes its place in the comparison.
    supervisors.iter().find_map(|supervisor| match supervisor.tree(runtime, instance) {
        Tree::Other(path) => Some(path),
        Tree::Ours | Tree::Unknown => None,
    })
}

#[cfg(test)]
mod tests {
    use herdlet_process::{
        process_tree,
        supervisor::{Process, Record, RuntimeDir, State},
    };

    use super::*;

    /// A state directory that was used, whose task is supervised by this process.
    struct Bench {
        dir: tempfile::TempDir,
        instance: InstanceId,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let state = StateDir::claim(&dir.path().join("state")).unwrap();
            let instance = state.instance().clone();
            let runtime = dir.path().join("run").join(&instance.0);
            fs::create_dir_all(runtime.join("attempts")).unwrap();
            state.keep_location(&runtime, Some(Path::new("/sys/fs/cgroup/none")));
            fs::write(dir.path().join("state/state.db"), "").unwrap();
            Self { dir, instance }
        }

        fn runtime(&self) -> PathBuf {
            self.dir.path().join("run").join(&self.instance.0)
        }

        fn put(&self, start_ticks: u64) {
            let records = RuntimeDir::open(&self.runtime().join("attempts")).unwrap();
            let shim = Process { pid: std::process::id(), start_ticks };
            records.put("a.t.1", &Record { state: State::Running, shim, ..Record::claimed() }).unwrap();
        }

        fn inspect(&self, state: &str) -> Result<Vec<Abandoned>, ClaimError> {
            StateDir::inspect_abandoned(&self.dir.path().join(state), &self.dir.path().join("run"))
        }
    }

    // The state was moved away while tasks ran, and the next agent started every job of its folders again.
    #[test]
    fn empty_state_does_not_replace_one_with_live_tasks() {
        let bench = Bench::new();
        let own = process_tree::read_stat(std::process::id()).unwrap().unwrap().start_ticks;
        bench.put(own);
        assert_eq!(bench.inspect("state").unwrap(), [], "it is the directory of the tasks");
        assert_eq!(bench.inspect("another").unwrap(), [], "the state of the tasks is where it was");
        fs::rename(bench.dir.path().join("state"), bench.dir.path().join("old")).unwrap();
        let refused = bench.inspect("state").unwrap_err().to_string();
        let kill = "echo 1 > /sys/fs/cgroup/none/cgroup.kill";
        for part in ["1 task still runs", &*bench.instance.0, "a second time", "reboot", kill] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        let [beside] = &*bench.inspect("another").unwrap() else { panic!("the tasks are not reported") };
        assert_eq!(beside.instance, bench.instance);
        // An agent of the instance runs.
        let held = File::open(bench.runtime()).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(bench.inspect("state").unwrap(), []);
        drop(held);
        // A new directory that was claimed, but never used.
        drop(StateDir::claim(&bench.dir.path().join("state")).unwrap());
        bench.inspect("state").unwrap_err();
        // The tasks have ended.
        bench.put(1);
        assert_eq!(bench.inspect("state").unwrap(), []);
    }
}
