//! When to kill: after a random time, or right after an event that is visible from outside.
//!
//! In: a life, its agent's instance, a pending request. Out: after the wait, whether the event occurred. The
//! wait polls without a pause, because the relevant windows last microseconds.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{home, host, random::Rng, wait};

/// Maximum wait for an event, since not every operation causes it. After that, the kill has no particular
/// moment.
const LIMIT: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// After a random time.
    Random,
    /// The request was answered.
    Answer,
    /// The database was written to.
    Commit,
    /// An allocation's directory was created or removed.
    Directory,
    /// An attempt's record was created or removed.
    Record,
    /// An attempt's cgroup was created or removed.
    Cgroup,
    /// The network of an allocation was made or removed.
    Network,
    /// A task wrote to the journal.
    FirstAct,
    /// The agent is killed twice, the second time while it starts.
    Starting,
}

pub const MOMENTS: [Moment; 9] = [
    Moment::Random,
    Moment::Answer,
    Moment::Commit,
    Moment::Directory,
    Moment::Record,
    Moment::Cgroup,
    Moment::Network,
    Moment::FirstAct,
    Moment::Starting,
];

impl Moment {
    /// The name in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Random => "after a random time",
            Self::Answer => "at the response",
            Self::Commit => "at a commit",
            Self::Directory => "at a directory",
            Self::Record => "at a record",
            Self::Cgroup => "at a cgroup",
            Self::Network => "at a network",
            Self::FirstAct => "at a task's first action",
            Self::Starting => "and while starting",
        }
    }
}

/// A snapshot of the paths that a moment watches.
#[derive(Debug)]
pub struct Snapshot {
    seen: Vec<(PathBuf, Stamp)>,
}

type Stamp = Option<(u64, i64, i64, u64)>;

impl Snapshot {
    /// Takes a snapshot of the paths that `moment` watches.
    pub fn of(moment: Moment, state: &Path, instance: &str, journal: &Path) -> Self {
        let paths = match moment {
            Moment::Random | Moment::Answer | Moment::Starting => Vec::new(),
            Moment::Commit => vec![state.join("state.db")],
            Moment::Directory => vec![state.join("alloc")],
            Moment::Record => vec![home::runtime(instance).join("attempts")],
            Moment::Cgroup => {
                host::cgroup2().map(|top| top.join("herdlet").join(instance)).into_iter().collect()
            }
            Moment::Network => {
                let runtime = home::runtime(instance);
                let bridges = fs::read_dir(runtime.join("addresses")).into_iter().flatten().flatten();
                let dirs = [runtime.join("netns"), state.join("cni")];
                dirs.into_iter().chain(bridges.map(|entry| entry.path())).collect()
            }
            Moment::FirstAct => vec![journal.join("begun")],
        };
        Self { seen: paths.into_iter().map(|path| (path.clone(), stamp(&path))).collect() }
    }

    /// Waits until a path changes or `answered` returns true, up to a limit, and then for a short random
    /// time. Returns the moment if it occurred.
    pub fn wait(&self, moment: Moment, rng: &mut Rng, mut answered: impl FnMut() -> bool) -> Option<Moment> {
        let came = match moment {
            // A request is answered after some milliseconds, and carried out some ten milliseconds later.
            Moment::Random | Moment::Starting => {
                wait::pause(Duration::from_micros(rng.below(60_000)));
                true
            }
            Moment::Answer => until(&mut answered),
            Moment::Commit
            | Moment::Directory
            | Moment::Record
            | Moment::Cgroup
            | Moment::Network
            | Moment::FirstAct => until(|| self.seen.iter().any(|(path, was)| stamp(path) != *was)),
        };
        if rng.one_in(2) {
            wait::pause(Duration::from_micros(rng.below(3_000)));
        }
        came.then_some(moment)
    }
}

fn until(mut reached: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + LIMIT;
    loop {
        if reached() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::yield_now();
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.len(), found.mtime(), found.mtime_nsec(), found.nlink()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killing_counts_at_a_moment_only_if_that_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(1);
        let mut wait = |moment, change: &dyn Fn()| {
            let sight = Snapshot::of(moment, dir.path(), "none", dir.path());
            change();
            sight.wait(moment, &mut rng, || false)
        };
        assert_eq!(wait(Moment::Commit, &|| ()), None);
        assert_eq!(wait(Moment::Answer, &|| ()), None);
        let commit = || fs::write(dir.path().join("state.db"), "x").unwrap();
        assert_eq!(wait(Moment::Commit, &commit), Some(Moment::Commit));
        assert_eq!(wait(Moment::Random, &|| ()), Some(Moment::Random));
    }
}
