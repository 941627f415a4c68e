//! Cores that single attempts use alone.
//!
//! In: attempts with their cores. Out: attempts with cores run on these only, all others on the rest. If nothing is left, the others
//! use all cores. Which attempts have cores is known to the kernel alone: in v1 these have a cpuset of their own, while the others share
//! one; in v2 their cgroups are marked by an attribute.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::alloc::CoreSet;
use herdlet_driver::AttemptId;
use rustix::fs::XattrFlags;

use super::{CgroupError, Mounts, detect, files};

/// The v1 cpuset of attempts without cores of their own.
const SHARE: &str = "share";

/// On the v2 cgroup of an attempt: its cores.
const MARK: &str = "user.herdlet.cores";

/// Length of the list of cores of an attempt, in the kernel's notation, at most: every second one of 8,192.
const LIST_LEN_MAX: usize = 32 * 1024;

/// The cores of an instance.
#[derive(Debug)]
pub struct Cores {
    /// The v2 cgroup of the instance, or its v1 cpuset.
    tree: PathBuf,
    hierarchy: Hierarchy,
    available: CoreSet,
    /// By the name of the attempt. The lock is held while the kernel's files are written, so that they agree.
    held: Mutex<BTreeMap<String, CoreSet>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hierarchy {
    V1,
    V2,
}

impl Cores {
    /// Prepares the cpuset of an instance: `below` the top of the hierarchy.
    ///
    /// # Errors
    /// When the controller is missing, or its files can't be written.
    pub(super) fn open(mounts: &Mounts, top: &Path, below: &Path) -> Result<Self, CgroupError> {
        let (hierarchy, top) = match &mounts.cpuset {
            Some(mount) => (Hierarchy::V1, mount.as_path()),
            None => (Hierarchy::V2, top),
        };
        let mut dir = top.to_owned();
        if hierarchy == Hierarchy::V2 {
            detect::enable(detect::CPUSET, &dir)?;
        }
        for part in below {
            dir.push(part);
            match hierarchy {
                Hierarchy::V1 => make_v1(&dir)?,
                Hierarchy::V2 => detect::enable(detect::CPUSET, &dir)?,
            }
        }
        let cores = Self {
            available: read_available(hierarchy, &dir)?,
            tree: dir,
            hierarchy,
            held: Mutex::default(),
        };
        if hierarchy == Hierarchy::V1 {
            make_v1(&cores.tree.join(SHARE))?;
        }
        let held = cores.read_held()?;
        cores.limit_others(&held)?;
        *cores.lock() = held;
        Ok(cores)
    }

    /// The cores that attempts may get.
    pub fn available(&self) -> &CoreSet {
        &self.available
    }

    /// The v1 tree, which contains cgroups of attempts.
    pub(super) fn v1_tree(&self) -> Option<&Path> {
        (self.hierarchy == Hierarchy::V1).then_some(self.tree.as_path())
    }

    /// The v1 cpuset for the processes of an attempt.
    pub(super) fn v1_dir(&self, name: &str) -> Option<PathBuf> {
        let own = self.v1_tree()?.join(name);
        Some(if own.exists() { own } else { self.tree.join(SHARE) })
    }

    /// Gives cores to an attempt whose v2 cgroup exists, or none.
    ///
    /// # Errors
    /// When the kernel's files can't be written.
    pub(super) fn give(&self, name: &str, cores: &CoreSet) -> Result<(), CgroupError> {
        let mut held = self.lock();
        if cores.is_empty() {
            return match self.hierarchy {
                Hierarchy::V2 if !held.is_empty() => write_v2(&self.tree.join(name), &self.left(&held)),
                Hierarchy::V1 | Hierarchy::V2 => Ok(()),
            };
        }
        let dir = self.tree.join(name);
        match self.hierarchy {
            Hierarchy::V1 => {
                make_v1(&dir)?;
                files::write(&dir.join("cpuset.cpus"), &cores.to_string())?;
            }
            Hierarchy::V2 => {
                let list = cores.to_string();
                rustix::fs::setxattr(&dir, MARK, list.as_bytes(), XattrFlags::empty())
                    .map_err(|errno| files::failed("mark", &dir)(errno.into()))?;
                write_v2(&dir, &list)?;
            }
        }
        held.insert(name.to_owned(), cores.clone());
        self.limit_others(&held)
    }

    /// Gives the cores of an attempt, whose cgroup is removed, to the others.
    ///
    /// # Errors
    /// When the kernel's files can't be written.
    pub(super) fn take_back(&self, name: &str) -> Result<(), CgroupError> {
        let mut held = self.lock();
        match held.remove(name) {
            Some(_) => self.limit_others(&held),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, CoreSet>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cores of attempts that an earlier agent has started.
    fn read_held(&self) -> Result<BTreeMap<String, CoreSet>, CgroupError> {
        let mut held = BTreeMap::new();
        for (name, dir) in self.attempts()? {
            let list = match self.hierarchy {
                Hierarchy::V1 => files::read_if_there(&dir.join("cpuset.cpus")),
                Hierarchy::V2 => mark(&dir),
            };
            if let Some(cores) = list.and_then(|list| CoreSet::parse(&list)).filter(|cores| !cores.is_empty())
            {
                held.insert(name, cores);
            }
        }
        Ok(held)
    }

    fn attempts(&self) -> Result<impl Iterator<Item = (String, PathBuf)> + use<>, CgroupError> {
        let dirs = files::child_dirs(&self.tree)?;
        Ok(dirs.into_iter().filter_map(|dir| {
            let name = dir.file_name()?.to_str()?.to_owned();
            AttemptId::parse(&name).map(|_| (name, dir))
        }))
    }

    /// The list of cores for attempts without cores of their own; in v2 empty if they are not limited.
    fn left(&self, held: &BTreeMap<String, CoreSet>) -> String {
        let taken: BTreeSet<u16> = held.values().flat_map(|cores| cores.0.iter().copied()).collect();
        let left = CoreSet(self.available.0.difference(&taken).copied().collect());
        match (left.is_empty() || left == self.available, self.hierarchy) {
            (true, Hierarchy::V1) => self.available.to_string(),
            (true, Hierarchy::V2) => String::new(),
            (false, Hierarchy::V1 | Hierarchy::V2) => left.to_string(),
        }
    }

    fn limit_others(&self, held: &BTreeMap<String, CoreSet>) -> Result<(), CgroupError> {
        let left = self.left(held);
        if self.hierarchy == Hierarchy::V1 {
            return files::write(&self.tree.join(SHARE).join("cpuset.cpus"), &left);
        }
        for (_, dir) in self.attempts()?.filter(|(name, _)| !held.contains_key(name)) {
            write_v2(&dir, &left)?;
        }
        Ok(())
    }
}

/// Makes a v1 cpuset with all that its parent has: a new one has no cores and no memory, and then no process can enter it.
fn make_v1(dir: &Path) -> Result<(), CgroupError> {
    files::make_dirs(dir)?;
    let Some(parent) = dir.parent() else { return Ok(()) };
    for (file, effective) in
        [("cpuset.cpus", "cpuset.effective_cpus"), ("cpuset.mems", "cpuset.effective_mems")]
    {
        let own = dir.join(file);
        if files::read(&own)?.trim().is_empty() {
            let of_parent = files::read_if_there(&parent.join(effective));
            let of_parent = of_parent.map_or_else(|| files::read(&parent.join(file)), Ok)?;
            files::write(&own, of_parent.trim())?;
        }
    }
    Ok(())
}

fn read_available(hierarchy: Hierarchy, dir: &Path) -> Result<CoreSet, CgroupError> {
    let path = dir.join(match hierarchy {
        Hierarchy::V1 => "cpuset.cpus",
        Hierarchy::V2 => "cpuset.cpus.effective",
    });
    let list = files::read(&path)?;
    CoreSet::parse(&list).ok_or_else(|| {
        files::failed("read the cores in", &path)(std::io::Error::from(std::io::ErrorKind::InvalidData))
    })
}

/// Writes the cores of a v2 cgroup; an empty list means those of its parent. A missing cgroup needs none.
fn write_v2(dir: &Path, list: &str) -> Result<(), CgroupError> {
    match files::write(&dir.join("cpuset.cpus"), &format!("{list}\n")) {
        Err(CgroupError::File { source, .. }) if files::is_gone(&source) && !dir.exists() => Ok(()),
        result => result,
    }
}

/// The cores on the mark of a v2 cgroup.
fn mark(dir: &Path) -> Option<String> {
    let mut list = vec![0; LIST_LEN_MAX];
    let len = rustix::fs::getxattr(dir, MARK, &mut list).ok()?;
    list.truncate(len);
    String::from_utf8(list).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use herdlet_api_types::AllocId;

    use super::*;

    fn name(attempt: u32) -> String {
        AttemptId { alloc: AllocId::from_hash([7; 16]), task: "web".into(), attempt }.name()
    }

    fn set(cores: &[u16]) -> CoreSet {
        CoreSet(cores.iter().copied().collect())
    }

    /// A directory with the files of a v2 hierarchy of four cores.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for dir in ["", "herdlet", "herdlet/i"] {
                let dir = tree.0.path().join(dir);
                fs::create_dir_all(&dir).unwrap();
                fs::write(dir.join("cgroup.subtree_control"), "cpuset\n").unwrap();
                fs::write(dir.join("cpuset.cpus.effective"), "0-3\n").unwrap();
            }
            tree
        }

        fn open(&self) -> Cores {
            Cores::open(&Mounts::default(), self.0.path(), Path::new("herdlet/i")).unwrap()
        }

        fn dir(&self, attempt: u32) -> PathBuf {
            self.0.path().join("herdlet/i").join(name(attempt))
        }

        /// Starts an attempt, as the kernel and the engine do.
        fn start(&self, cores: &Cores, attempt: u32, given: &[u16]) {
            fs::create_dir(self.dir(attempt)).unwrap();
            fs::write(self.dir(attempt).join("cpuset.cpus"), "").unwrap();
            cores.give(&name(attempt), &set(given)).unwrap();
        }

        fn end(&self, cores: &Cores, attempt: u32) {
            fs::remove_dir_all(self.dir(attempt)).unwrap();
            cores.take_back(&name(attempt)).unwrap();
        }

        fn lists(&self, attempts: &[u32]) -> Vec<String> {
            let list = |attempt: &u32| fs::read_to_string(self.dir(*attempt).join("cpuset.cpus")).unwrap();
            // The kernel keeps what was written last; a plain file keeps the end of a longer text.
            let list = attempts.iter().map(list);
            list.map(|list| list.lines().next().unwrap_or_default().to_owned()).collect()
        }
    }

    #[test]
    fn others_keep_off_the_cores_of_an_attempt_in_v2() {
        let tree = Tree::new();
        let cores = tree.open();
        assert_eq!(*cores.available(), set(&[0, 1, 2, 3]));
        tree.start(&cores, 1, &[]);
        assert_eq!(tree.lists(&[1]), [""], "nothing is limited before the first has cores");
        tree.start(&cores, 2, &[0, 1]);
        tree.start(&cores, 3, &[]);
        assert_eq!(tree.lists(&[1, 2, 3]), ["2-3", "0-1", "2-3"]);
        drop(cores);
        // Another agent finds who has which cores.
        let cores = tree.open();
        tree.start(&cores, 4, &[3]);
        assert_eq!(tree.lists(&[1, 2, 3, 4]), ["2", "0-1", "2", "3"]);
        tree.end(&cores, 2);
        assert_eq!(tree.lists(&[1, 3, 4]), ["0-2", "0-2", "3"]);
        tree.end(&cores, 4);
        assert_eq!(tree.lists(&[1, 3]), ["", ""]);
    }

    #[test]
    fn others_have_all_cores_if_none_is_left() {
        let tree = Tree::new();
        let cores = tree.open();
        tree.start(&cores, 1, &[]);
        tree.start(&cores, 2, &[0, 1, 2, 3]);
        tree.start(&cores, 3, &[]);
        assert_eq!(tree.lists(&[1, 2, 3]), ["", "0-3", ""]);
    }
}
