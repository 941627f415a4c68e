//! Whether this machine can isolate tasks.
//!
//! In: a directory for a trial. Out: what is missing, with a remedy. A root is made and forgotten, because no list of features shows
//! whether a sandbox allows the calls.

use std::{fmt, fs, io, path::Path, thread};

use herdlet_api_types::driver::ExecOptions;
use herdlet_base::error::in_full;
use herdlet_rootfs::{builder::build, root::Root, seed::Seed};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Why tasks can't be isolated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The problem and its cause.
    pub why: String,
    pub remedy: &'static str,
}

impl Obstacle {
    fn no_cgroups(why: &str) -> Self {
        Self {
            why: format!("Failed to discover cgroup mount point: {why}"),
            remedy: "as root, mount cgroup2 on /sys/fs/cgroup; in a container, use --cgroupns=host and a writable /sys/fs/cgroup",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.why, self.remedy)
    }
}

/// The paths of `chroot_env` that this machine does not have: tasks do not see them.
pub fn missing_sources(options: &ExecOptions) -> Vec<&Path> {
    let sources = options.chroot_env.iter().flat_map(|shown| shown.keys()).map(Path::new);
    sources.filter(|path| !path.exists()).collect()
}

/// Tries to make namespaces and a root. `scratch`: a directory for files that are removed at once. `cgroups`: why there are none.
pub fn obstacle(scratch: &Path, cgroups: Result<(), &str>) -> Option<Obstacle> {
    if !rustix::process::geteuid().is_root() {
        let remedy = "run the agent as root, or use the driver raw_exec";
        return Some(Obstacle { why: "Driver must run as root".to_owned(), remedy });
    }
    if let Err(why) = cgroups {
        return Some(Obstacle::no_cgroups(why));
    }
    let kinds = ["cgroup", "ipc", "mnt", "pid"];
    if let Some(missing) = kinds.iter().find(|kind| !Path::new("/proc/self/ns").join(kind).exists()) {
        let remedy = "use a kernel with all kinds of namespaces, and mount /proc";
        return Some(Obstacle { why: format!("the kernel has no {missing} namespaces"), remedy });
    }
    let why = match namespaces() {
        Err(error) => format!("namespaces can't be made: {error}"),
        Ok(()) => match root(scratch) {
            Err(why) => format!("a root can't be made: {why}"),
            Ok(()) => return None,
        },
    };
    let remedy =
        "use Linux 5.12 or newer, and run the agent on the machine itself or in a privileged container";
    Some(Obstacle { why, remedy })
}

fn namespaces() -> io::Result<()> {
    let trial = || {
        #[expect(unsafe_code, reason = "the other threads keep their namespaces")]
        // SAFETY: descriptors stay shared, and this thread ends now.
        unsafe {
            unshare_unsafe(UnshareFlags::NEWIPC | UnshareFlags::NEWCGROUP)
        }
    };
    let running = thread::Builder::new().name("probe".to_owned()).spawn(trial)?;
    Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
}

fn root(scratch: &Path) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let seed = Seed::new().map_err(failed)?;
    let alloc = scratch.join(format!(".exec-{}", uuid::Uuid::new_v4()));
    fs::create_dir(&alloc).and_then(|()| fs::create_dir(alloc.join("task"))).map_err(failed)?;
    let root = Root { alloc: alloc.clone(), task: "task".into(), work: ".work".into(), ..Root::default() };
    let built = build(&seed, &root).map(drop).map_err(|error| in_full(&error));
    let removed = fs::remove_dir_all(&alloc).map_err(failed);
    built.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let found = obstacle(dir.path(), Ok(()));
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(found.is_none(), is_root, "{found:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        if is_root {
            let found = obstacle(&dir.path().join("missing"), Ok(())).unwrap().to_string();
            assert!(found.contains("a root can't be made") && found.contains("Linux 5.12"), "{found}");
        }
    }
}
