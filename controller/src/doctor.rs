//! What an agent finds on this machine: the kernel, cgroups, mounts, limits, ports, disk, clock, Consul, folders of manifests, servers.
//!
//! In: the config that an agent would get, and where one that runs keeps its state. Out: findings, in the order in which somebody would
//! mend them. Nothing is changed, and nothing is asked of an agent that runs: that is the command's.
//!
//! - `machine`: the machine itself.
//! - `storage`: where things are kept and read.
//! - `peers`: the API on TCP, and Consul.
//! - `cluster`: servers.
//! - `ownership`: who else could change what the agent obeys.
//! - `instance`: whether the instance or its tasks run elsewhere.

mod cluster;
mod instance;
mod machine;
mod ownership;
mod peers;
mod storage;
mod task_dir_users;

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdlet_base::privileges::Privileges;
use herdlet_config::Config;
use herdlet_storage::artifact::unpack::Barrier;
use rustix::fs::{Access, AtFlags, CWD};
use serde::Serialize;

use machine::{cgroups, clock, container, inotify, kernel, mounts, ports};
pub(crate) use machine::{open_files, unpacking};
use peers::{consul, listener};
use storage::{access_lists, disk, host_volume, manifests};

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but less well, or not for long.
    Warning,
    /// An agent can't work like this.
    Failure,
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    /// What was found, in a sentence.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    /// It is as it should be.
    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, message: message.into(), hint: None }
    }

    /// It works, but.
    pub fn warning(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, message: message.into(), hint: Some(hint.into()) }
    }

    /// It does not work.
    pub fn failure(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Failure, message: message.into(), hint: Some(hint.into()) }
    }
}

/// Where an agent keeps its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateDir<'d> {
    /// One with this config would, as this user.
    Planned(&'d Path),
    /// The one that runs does, as whoever it runs: whether it can write there is told by itself.
    InUse(&'d Path),
}

/// Looks at everything. `in_use` is where an agent that runs keeps its state.
pub async fn examine(config: &Config, in_use: Option<&Path>) -> Vec<Finding> {
    let state_dir = in_use.map_or(StateDir::Planned(&config.state_dir), StateDir::InUse);
    let mut findings = vec![
        kernel(),
        container(Path::new("/")),
        cgroups(&config.cgroup_parent),
        mounts(Privileges::probe()),
        unpacking(Barrier::probe()),
        open_files(),
        inotify(number_in("/proc/sys/fs/inotify/max_user_instances")),
        ports(config, &fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default()),
        disk(state_dir),
        access_lists(state_dir),
        clock(herdlet_base::clock::wall_now().0, Path::new("/run/systemd")),
    ];
    findings.extend(ownership::ownership(config, state_dir));
    findings.extend(instance::instance(config, state_dir));
    findings.extend(task_dir_users::task_dir_users(config));
    findings.extend(config.manifests.iter().map(|folder| manifests(folder)));
    findings.extend(config.host_volumes.iter().map(|volume| host_volume(&volume.name.0, &volume.path)));
    findings.extend(listener(config));
    findings.extend(consul(config).await);
    findings.extend(cluster::cluster(config).await);
    findings
}

fn may(path: &Path, access: Access) -> bool {
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(PathBuf::from(path)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
