//! The cgroup of one attempt.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_driver::limits::{Controller, Limits};

use super::{
    CgroupError, Cores, files, kill,
    limits::{write_v1, write_v2},
};

/// The cgroup of one attempt: a v2 directory and, on a hybrid machine, v1 directories of the same name.
#[derive(Debug, Clone)]
pub struct Cgroup {
    pub(super) dir: PathBuf,
    v2: BTreeSet<Controller>,
    v1: BTreeMap<Controller, PathBuf>,
    cores: Option<Arc<Cores>>,
}

impl Cgroup {
    pub(super) fn at(
        dir: PathBuf,
        v2: BTreeSet<Controller>,
        v1: BTreeMap<Controller, PathBuf>,
        cores: Option<Arc<Cores>>,
    ) -> Self {
        Self { dir, v2, v1, cores }
    }

    /// The v2 directory, in which the task starts.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The v1 `tasks` files into which the task's first process writes itself.
    pub fn tasks_files(&self) -> Vec<PathBuf> {
        self.v1_dirs().map(|dir| dir.join("tasks")).collect()
    }

    /// Whether the v2 directory exists.
    pub fn exists(&self) -> bool {
        self.dir.exists()
    }

    /// Whether any process is in it or below it.
    ///
    /// # Errors
    /// When the system can't report that.
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        match files::read(&self.dir.join("cgroup.events")) {
            Ok(events) => Ok(files::field(&events, "populated") == Some(1)),
            Err(CgroupError::File { source, .. }) if files::is_gone(&source) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The processes in it and below it.
    pub fn pids(&self) -> Vec<u32> {
        kill::pids_below(&self.dir)
    }

    /// Makes it and sets its limits; an existing one gets the limits again.
    ///
    /// # Errors
    /// When it can't be created, or a limit that this machine supports can't be set.
    pub fn make(&self, limits: &Limits) -> Result<(), CgroupError> {
        files::make_dirs(&self.dir)?;
        for controller in Controller::ALL.into_iter().filter(|controller| limits.needs(*controller)) {
            if let Some(dir) = self.v1.get(&controller) {
                files::make_dirs(dir)?;
                write_v1(limits, controller, dir)?;
            } else if self.v2.contains(&controller) {
                write_v2(limits, controller, &self.dir)?;
            }
        }
        match &self.cores {
            Some(cores) => cores.give(&self.name(), &limits.cores),
            None => Ok(()),
        }
    }

    /// Moves processes into it; skips those that have ended. Slow (up to 12 ms): only for repairs, and not on async
    /// threads.
    ///
    /// # Errors
    /// When a living process can't be moved.
    pub fn take_in(&self, pids: &[u32]) -> Result<(), CgroupError> {
        let mut targets = vec![self.dir.join("cgroup.procs")];
        targets.extend(self.v1_dirs().map(|dir| dir.join("cgroup.procs")));
        for target in &targets {
            for pid in pids {
                match files::write(target, &pid.to_string()) {
                    Err(CgroupError::File { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => {}
                    result => result?,
                }
            }
        }
        Ok(())
    }

    /// Number of its processes that the kernel's OOM killer killed. Read it before removing the cgroup.
    pub fn oom_kills(&self) -> u64 {
        let v2 = files::read_if_there(&self.dir.join("memory.events"));
        let v1 = self.v1.get(&Controller::Memory);
        let v1 = v1.and_then(|dir| files::read_if_there(&dir.join("memory.oom_control")));
        [v2, v1].into_iter().flatten().filter_map(|text| files::field(&text, "oom_kill")).sum()
    }

    /// Kills everything in it and waits until it is empty. A missing one counts as empty. It can't be reused.
    ///
    /// # Errors
    /// When processes remain that can't die, for instance in uninterruptible sleep.
    pub async fn kill(&self) -> Result<(), CgroupError> {
        kill::kill(&self.dir).await
    }

    /// Waits until it is empty.
    ///
    /// # Errors
    /// When it can't be watched.
    pub async fn emptied(&self) -> Result<(), CgroupError> {
        kill::emptied(&self.dir).await
    }

    /// Removes it. A missing one counts as removed.
    ///
    /// # Errors
    /// When it stays populated.
    pub async fn remove(&self) -> Result<(), CgroupError> {
        kill::remove_tree(&self.dir).await?;
        for dir in self.v1.values() {
            kill::remove_tree(dir).await?;
        }
        let Some(cores) = &self.cores else { return Ok(()) };
        if let Some(tree) = cores.v1_tree() {
            kill::remove_tree(&tree.join(self.name())).await?;
        }
        cores.take_back(&self.name())
    }

    /// The v1 directories of its processes.
    fn v1_dirs(&self) -> impl Iterator<Item = PathBuf> {
        let cpuset = self.cores.as_ref().and_then(|cores| cores.v1_dir(&self.name()));
        self.v1.values().filter(|dir| dir.exists()).cloned().chain(cpuset)
    }

    /// The name of the attempt.
    fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn v1_dir(&self, controller: Controller) -> Option<&PathBuf> {
        self.v1.get(&controller).filter(|dir| dir.exists())
    }
}
