//! Checks of storage: the disk of the state directory, access control lists, folders, host volumes.
//!
//! In: paths of the config. Out: a finding for each. Nothing is changed.

use std::{fs, path::Path};

use herdlet_base::{
    acl::{Acl, AclError},
    error::in_full,
};
use rustix::fs::Access;

use super::{Finding, StateDir, may};

/// With less, logs soon fill the disk.
const DISK_GOOD: u64 = 1 << 30;
/// Less is not enough for a commit of the database.
const DISK_MIN: u64 = 16 << 20;

pub(super) fn disk(state_dir: StateDir<'_>) -> Finding {
    let (StateDir::Planned(dir) | StateDir::InUse(dir)) = state_dir;
    let shown = match state_dir {
        StateDir::Planned(_) => dir.display().to_string(),
        StateDir::InUse(_) => format!("{}, the state directory of the running agent", dir.display()),
    };
    let nearest = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    if !nearest.is_dir() {
        return Finding::failure(
            "disk",
            format!("{} is not a directory", nearest.display()),
            "set another directory with --state-dir",
        );
    }
    if matches!(state_dir, StateDir::Planned(_)) && !may(nearest, Access::WRITE_OK) {
        return Finding::failure(
            "disk",
            format!("{shown}: {} can't be written to", nearest.display()),
            "run the agent as its owner, or set another directory with --state-dir",
        );
    }
    let Ok(space) = rustix::fs::statvfs(nearest) else {
        return Finding::failure(
            "disk",
            format!("{shown}: its file system does not answer"),
            "check its mount",
        );
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let found = format!("{} free for {shown}", mebibytes(free));
    // File systems without inodes report 0 of 0.
    let full_of_files = space.f_files > 0 && space.f_favail < 1_000;
    match free {
        _ if full_of_files => Finding::failure(
            "disk",
            format!("{found}, but only {} inodes", space.f_favail),
            "remove files there, or set another directory with --state-dir",
        ),
        0..DISK_MIN => {
            Finding::failure("disk", found, "free space there, or set another directory with --state-dir")
        }
        DISK_MIN..DISK_GOOD => Finding::warning("disk", found, "the logs of tasks may fill it"),
        DISK_GOOD.. => Finding::ok("disk", found),
    }
}

/// Without access control lists, only owners and modes protect an allocation's directories.
pub(super) fn access_lists(state_dir: StateDir<'_>) -> Finding {
    // An agent that is not root runs all tasks as its own user.
    if !rustix::process::geteuid().is_root() {
        return Finding::ok(
            "acl",
            "not needed: all tasks run as this user, and file modes deny other users access to their directories",
        );
    }
    let (StateDir::Planned(dir) | StateDir::InUse(dir)) = state_dir;
    let nearest = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let opened = fs::File::open(nearest).map_err(|source| AclError::Io { operation: "open", source });
    match opened.and_then(Acl::read) {
        Err(AclError::Unsupported) => Finding::warning(
            "acl",
            format!(
                "the file system of {} has no access control lists: tasks that run as different users in one group can't share files",
                dir.display()
            ),
            "enable them (ZFS: acltype=posix), set another directory with --state-dir, or run all tasks of a group as one user",
        ),
        Ok(_) => Finding::ok("acl", "access control lists protect the directories of tasks"),
        Err(error @ (AclError::Io { .. } | AclError::Malformed)) => Finding::warning(
            "acl",
            format!("{}: failed to {}", nearest.display(), in_full(&error)),
            "repair or replace that file system; tasks may not start until its access control lists can be read",
        ),
    }
}

pub(super) fn manifests(folder: &Path) -> Finding {
    match fs::read_dir(folder) {
        Ok(_) => Finding::ok("manifests", format!("{} can be read", folder.display())),
        Err(error) => Finding::warning(
            "manifests",
            format!("{}: {error}", folder.display()),
            "the agent waits for it, and keeps the folder's jobs until then",
        ),
    }
}

pub(super) fn host_volume(name: &str, path: &Path) -> Finding {
    if path.is_dir() {
        return Finding::ok("volumes", format!("host volume {name} is at {}", path.display()));
    }
    Finding::warning(
        "volumes",
        format!("host volume {name}: {} is not a directory", path.display()),
        "jobs that mount it wait until it is a directory",
    )
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
