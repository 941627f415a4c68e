//! Finds what of an instance still runs on this machine, and where: supervisors with their runtime directories and
//! logs.
//!
//! In: the instance, and paths. Out: running supervisors. They are found among the processes of this machine, because
//! their records may have been removed; records are read as well.

use std::{
    fs,
    io::{self, Read as _},
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use herdlet_api_types::InstanceId;
use rustix::fs::{Mode, OFlags, fstat, openat};

use super::super::{INSTANCE, parse_instance};
use herdlet_base::{
    error::in_full,
    ownership::{self, OwnershipError},
};
use herdlet_process::{
    attempts::Supervised,
    supervisor::{Listed, PidFd, ProcessError, RecordsError, RuntimeDir},
};

/// The directory of records, in a runtime directory.
pub(super) const ATTEMPTS: &str = "attempts";
/// The levels from logs up to the state directory (`alloc/ID/alloc/logs`), and more that tasks may have inserted.
const LEVELS_MAX: usize = 16;

/// Why it is unknown what runs. The messages continue "because ".
#[derive(Debug, thiserror::Error)]
pub enum LivingError {
    /// Processes cannot be listed.
    #[error("processes can't be inspected: {0}")]
    Processes(io::Error),
    /// Other users could have changed the records.
    #[error("the runtime directory that its last start used is no longer trusted: {}{}", in_full(.0), restored(.0))]
    Exposed(OwnershipError),
    /// The records cannot be listed.
    #[error("its last start's records can't be read: {}", in_full(.0))]
    Records(RecordsError),
    /// A process cannot be opened.
    #[error("a supervisor can't be inspected: {}", in_full(.0))]
    Supervisor(ProcessError),
}

fn restored(error: &OwnershipError) -> String {
    error.restoring().map(|command| format!("; to use it again run `{command}`")).unwrap_or_default()
}

/// A supervisor of the instance.
#[derive(Debug)]
pub(super) struct Supervisor {
    found: Supervised,
}

/// The state directory that contains the logs of a supervisor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// This one.
    Ours,
    /// Another one of the instance.
    Other(PathBuf),
    /// None was found, for example after a removal.
    Unknown,
}

impl Supervisor {
    /// Lists all supervisors of the instance, and all that have their records in `runtime`.
    pub(super) fn list(instance: &InstanceId, runtime: Option<&Path>) -> Result<Vec<Self>, LivingError> {
        let of_instance = Path::new(&instance.0).join(ATTEMPTS);
        let recorded = runtime.map(|runtime| without_links(runtime).join(ATTEMPTS));
        let is_its = |found: &Supervised| {
            found.dir.ends_with(&of_instance)
                || found.made_at.as_ref().is_some_and(|path| path.ends_with(&of_instance))
                || recorded.as_deref().is_some_and(|attempts| found.is_of(attempts))
        };
        let users = ownership::own_and_trusted_users();
        let mut list = Vec::new();
        for entry in fs::read_dir("/proc").map_err(LivingError::Processes)? {
            let name = entry.map_err(LivingError::Processes)?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let found = Supervised::of(pid, &users).map_err(LivingError::Processes)?;
            list.extend(found.filter(is_its).map(|found| Self { found }));
        }
        Ok(list)
    }

    pub(super) fn pid(&self) -> u32 {
        self.found.process.pid
    }

    pub(super) fn runtime(&self) -> &Path {
        self.found.dir.parent().unwrap_or(&self.found.dir)
    }

    /// Whether its records are, or were, in this runtime directory.
    pub(super) fn is_in(&self, runtime: &Path) -> bool {
        let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let attempts = without_links(runtime).join(ATTEMPTS);
        self.found.is_of(&attempts) || id(&attempts) == Some(self.found.held)
    }

    /// Climbs up from the logs, whose path is not reliable: they may have been moved, and another directory may be at
    /// their old path.
    pub(super) fn tree(&self, state: &Path, instance: &InstanceId) -> Tree {
        let Ok(ours) = fs::metadata(state) else { return Tree::Unknown };
        let Ok(Some(mut dir)) = self.found.descriptor(herdlet_shim::FD_LOGS) else { return Tree::Unknown };
        let mut other = None;
        for _ in 0..LEVELS_MAX {
            let Ok(found) = fstat(&dir) else { return Tree::Unknown };
            if (found.st_dev, found.st_ino) == (ours.dev(), ours.ino()) {
                return Tree::Ours;
            }
            // A removed directory still leads to its former parent.
            if found.st_nlink == 0 {
                return Tree::Unknown;
            }
            if other.is_none() && is_state_of(&dir, instance) {
                other = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok();
            }
            let Ok(parent) = open_dir(&dir, Path::new("..")) else { break };
            dir = parent;
        }
        other.map_or(Tree::Unknown, Tree::Other)
    }
}

/// A number of running supervisors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tasks {
    pub(super) count: usize,
    /// The process id of one of them.
    pub(super) pid: u32,
}

impl Tasks {
    /// Returns `None` without any pids.
    pub(super) fn of(pids: impl Iterator<Item = u32>) -> Option<Self> {
        pids.fold(None, |tasks, pid| {
            Some(tasks.map_or(Self { count: 1, pid }, |tasks: Self| Self { count: tasks.count + 1, ..tasks }))
        })
    }
}

/// The records of a runtime directory; `None` if the directory does not exist or belongs to another user.
pub(super) fn records_of(runtime: &Path) -> Result<Option<Vec<Listed>>, LivingError> {
    let attempts = runtime.join(ATTEMPTS);
    let Ok(found) = fs::symlink_metadata(&attempts) else { return Ok(None) };
    match ownership::check(&attempts) {
        Ok(()) => {}
        // For example, a removed directory was in /tmp.
        Err(error) if error.is_absent() || found.uid() != rustix::process::geteuid().as_raw() => {
            return Ok(None);
        }
        Err(error) => return Err(LivingError::Exposed(error)),
    }
    let listed = RuntimeDir::open(&attempts).and_then(|records| records.list());
    listed.map(Some).map_err(LivingError::Records)
}

/// The running supervisors that the records of a runtime directory name.
pub(super) fn recorded_in(runtime: &Path) -> Result<Option<Tasks>, LivingError> {
    let listed = records_of(runtime)?.unwrap_or_default();
    let mut living = Vec::new();
    for record in listed.into_iter().filter_map(|listed| listed.record.ok()) {
        match PidFd::open(record.shim) {
            // A process that has ended but was not reaped supervises nothing.
            Ok(Some(found)) if found.has_ended().unwrap_or(false) => {}
            Ok(Some(found)) => living.push(found.process().pid),
            Ok(None) | Err(ProcessError::Unverifiable { .. }) => {}
            Err(
                error @ (ProcessError::Open { .. } | ProcessError::Signal { .. } | ProcessError::Tree { .. }),
            ) => {
                return Err(LivingError::Supervisor(error));
            }
        }
    }
    Ok(Tasks::of(living.into_iter()))
}

/// Whether a directory is a state directory of the instance. Tasks may place such files into their own directories.
fn is_state_of(dir: &OwnedFd, instance: &InstanceId) -> bool {
    let is_ours = |fd: &OwnedFd| {
        fstat(fd).is_ok_and(|found| {
            found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o022 == 0
        })
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(dir, INSTANCE, flags, Mode::empty()) else { return false };
    if !is_ours(dir) || !is_ours(&file) {
        return false;
    }
    let mut text = String::new();
    let read = fs::File::from(file).take(instance.0.len() as u64 + 1).read_to_string(&mut text);
    read.is_ok() && parse_instance(text.trim()).as_ref() == Some(instance)
}

fn open_dir(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(at.as_fd(), path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The path as the kernel shows it, even if its last components do not exist.
pub(super) fn without_links(path: &Path) -> PathBuf {
    let real = |there: &Path| {
        let rest = path.strip_prefix(there).ok()?;
        let real = fs::canonicalize(there).ok()?;
        // Joining an empty path would append a slash.
        Some(if rest.as_os_str().is_empty() { real } else { real.join(rest) })
    };
    path.ancestors().find_map(real).unwrap_or_else(|| path.to_owned())
}
