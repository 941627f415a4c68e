//! Control groups: hold, limit and measure the processes of every attempt, and kill them.
//!
//! In: the instance, attempts, their limits. Out: a [`Cgroup`] per attempt, or [`Isolation::None`] with the reason. It
//! knows no task and no supervisor and keeps no state: the tree of this instance is the only truth.
//!
//! ```text
//! <cgroup2>/<parent>/<instance>/shims        all supervisors of the instance; never killed as one
//! <cgroup2>/<parent>/<instance>/<attempt>    one attempt, with all its descendants
//! <v1 memory, cpu, pids>/<parent>/<instance>/<attempt>    on a hybrid machine, only where there is a limit
//! <v1 cpuset>/<parent>/<instance>/<attempt>               the same: an attempt with cores of its own
//! <v1 cpuset>/<parent>/<instance>/share                   all other attempts
//! ```
//!
//! An attempt's cgroup is never reused: one that was killed through `cgroup.kill` may kill any process that is cloned
//! into it later (seen on Linux 6.18).

mod attempt;
mod cores;
mod detect;
mod files;
mod kill;
mod limits;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_base::error::in_full;
use herdlet_driver::{
    AttemptId,
    limits::{Controller, Ineffective, Limits},
};
use rustix::mount::UnmountFlags;

pub use attempt::Cgroup;
pub use cores::Cores;
pub use detect::Mounts;

/// Why a cgroup operation failed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{operation} {}", path.display())]
    File {
        /// The operation, for instance `make cgroup`.
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Processes that don't end.
    #[error("end the processes in {}: some are left after {waited_ms} ms", path.display())]
    Populated {
        path: PathBuf,
        /// How long the agent waited for them.
        waited_ms: u64,
    },
    /// There is no cgroup2.
    #[error("find a cgroup2 hierarchy: {why}")]
    NoHierarchy { why: String },
}

/// Whether cgroups hold the tasks.
#[derive(Debug, Clone)]
pub enum Isolation {
    Cgroups(Arc<Cgroups>),
    /// Tasks are tracked through their process tree only.
    None {
        /// The reason, for status and log.
        why: String,
    },
}

impl Isolation {
    /// Finds and prepares this instance's tree.
    pub fn detect(setup: &Setup) -> Self {
        match Mounts::read(setup).and_then(|mounts| Cgroups::open(setup, &mounts)) {
            Ok(cgroups) => Self::Cgroups(Arc::new(cgroups)),
            Err(error) => Self::None { why: format!("failed to {}", in_full(&error)) },
        }
    }

    /// The tree, if there is one.
    pub fn cgroups(&self) -> Option<&Arc<Cgroups>> {
        match self {
            Self::Cgroups(cgroups) => Some(cgroups),
            Self::None { .. } => None,
        }
    }
}

/// The topmost directory as shown to tasks and servers: an absolute path, unless it is a systemd slice.
pub fn reported_parent(parent: &str) -> String {
    if parent.starts_with('/') || parent.ends_with(".slice") {
        parent.to_owned()
    } else {
        format!("/{parent}")
    }
}

/// Where the tree belongs.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Name of the topmost directory, by default `herdlet`; slashes separate levels.
    pub parent: String,
    pub instance: String,
    /// The instance's runtime directory, where a cgroup2 is mounted if the machine has none.
    pub runtime: PathBuf,
}

/// The cgroups of one instance.
#[derive(Debug)]
pub struct Cgroups {
    tree: PathBuf,
    own_mount: Option<PathBuf>,
    v2: BTreeSet<Controller>,
    v1: BTreeMap<Controller, PathBuf>,
    unlimited: Vec<String>,
    cores: Result<Arc<Cores>, String>,
}

impl Cgroups {
    /// Makes or finds the tree of the instance, and enables the available controllers.
    ///
    /// # Errors
    /// When there is no cgroup2, or it can't be written to.
    pub fn open(setup: &Setup, mounts: &Mounts) -> Result<Self, CgroupError> {
        let top =
            mounts.v2.first().ok_or_else(|| CgroupError::NoHierarchy { why: "none is mounted".into() })?;
        let below = Path::new(&setup.parent).join(&setup.instance);
        let tree = top.join(&below);
        files::make_dirs(&tree)?;
        files::make_dirs(&tree.join(SHIMS))?;
        let own_mount = Some(detect::own_mount(&setup.runtime)).filter(|own| own == top);
        let cores = Cores::open(mounts, top, &below).map(Arc::new);
        let cores = cores.map_err(|error| format!("failed to {}", in_full(&error)));
        let mut cgroups =
            Self { tree, own_mount, v2: BTreeSet::new(), v1: BTreeMap::new(), unlimited: Vec::new(), cores };

        for controller in Controller::ALL {
            match cgroups.enable(controller, top, &below, mounts) {
                Ok(()) => {}
                Err(error) => {
                    cgroups.unlimited.push(format!("{}: failed to {}", controller.name(), in_full(&error)))
                }
            }
        }
        Ok(cgroups)
    }

    /// The directory of all cgroups of the instance.
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// The cgroup of all supervisors.
    pub fn shims(&self) -> PathBuf {
        self.tree.join(SHIMS)
    }

    /// The limits that can't be set on this machine, with reasons; for status.
    pub fn unlimited(&self) -> &[String] {
        &self.unlimited
    }

    /// The cores of the instance.
    ///
    /// # Errors
    /// Why attempts can't have cores of their own.
    pub fn cores(&self) -> Result<&Cores, &str> {
        self.cores.as_deref().map_err(String::as_str)
    }

    /// An attempt's cgroup, whether or not it exists.
    pub fn of(&self, id: &AttemptId) -> Cgroup {
        let name = id.name();
        let v1 = self.v1.iter().map(|(controller, tree)| (*controller, tree.join(&name))).collect();
        Cgroup::at(self.tree.join(&name), self.v2.clone(), v1, self.cores.as_ref().ok().cloned())
    }

    /// Makes an attempt's cgroup with these limits. An existing one that was never killed is reused.
    ///
    /// # Errors
    /// When it can't be created, or a limit that this machine supports can't be set.
    pub fn create(&self, id: &AttemptId, limits: &Limits) -> Result<Cgroup, CgroupError> {
        let cgroup = self.of(id);
        cgroup.make(limits)?;
        Ok(cgroup)
    }

    /// The attempts that have a cgroup.
    ///
    /// # Errors
    /// When the tree can't be listed.
    pub fn existing_attempts(&self) -> Result<BTreeSet<AttemptId>, CgroupError> {
        let mut found = BTreeSet::new();
        for tree in self.trees() {
            let names = files::child_dirs(tree)?;
            found.extend(names.iter().filter_map(|path| AttemptId::parse(path.file_name()?.to_str()?)));
        }
        Ok(found)
    }

    /// Removes the tree, and the cgroup2 mount if it is our own, for an instance that leaves nothing behind. Kills
    /// processes that still run in it. Call it before removing the runtime directory, or that would remove cgroups.
    ///
    /// When a part of it can't be removed.
    pub async fn remove(&self) -> Result<(), CgroupError> {
        for id in self.existing_attempts()? {
            let cgroup = self.of(&id);
            cgroup.kill().await?;
            cgroup.remove().await?;
        }
        for tree in self.trees() {
            kill::remove_tree(tree).await?;
        }
        // All instances share the parent: the last one removes it.
        for tree in self.trees() {
            if let Some(parent) = tree.parent() {
                let _ = std::fs::remove_dir(parent);
            }
        }
        match &self.own_mount {
            Some(point) => rustix::mount::unmount(point, UnmountFlags::DETACH)
                .map_err(|errno| files::failed("unmount", point)(errno.into())),
            None => Ok(()),
        }
    }

    /// Its directories in all hierarchies.
    fn trees(&self) -> impl Iterator<Item = &Path> {
        let cores = self.cores.as_ref().ok().and_then(|cores| cores.v1_tree());
        std::iter::once(self.tree.as_path()).chain(self.v1.values().map(PathBuf::as_path)).chain(cores)
    }

    fn enable(
        &mut self,
        controller: Controller,
        top: &Path,
        below: &Path,
        mounts: &Mounts,
    ) -> Result<(), CgroupError> {
        if let Some(mount) = mounts.v1.get(&controller) {
            let tree = mount.join(below);
            files::make_dirs(&tree)?;
            self.v1.insert(controller, tree);
            return Ok(());
        }
        let mut dir = top.to_owned();
        detect::enable(controller.name(), &dir)?;
        for part in below {
            dir.push(part);
            detect::enable(controller.name(), &dir)?;
        }
        self.v2.insert(controller);
        Ok(())
    }
}

const SHIMS: &str = "shims";

impl Isolation {
    /// The limits that have no effect.
    pub fn ineffective(&self) -> Ineffective {
        let has = |controller: Controller| {
            self.cgroups().is_some_and(|cgroups| {
                cgroups.v2.contains(&controller) || cgroups.v1.contains_key(&controller)
            })
        };
        Ineffective::without(Controller::ALL.into_iter().filter(|controller| !has(*controller)).collect())
    }
}

#[cfg(test)]
mod tests;
