//! Checks of this machine: the kernel, cgroups, mounts, limits, ports, disk, clock, Consul, folders of manifests, servers.
//!
//! In: the config of an agent, and the state directory of a running one. Out: findings, in the order in which an admin would fix
//! them. Nothing is changed. The command itself contacts a running agent.
//!
//! - `machine`: the machine itself.
//! - `networks`: networks of allocations, and who drops their packets.
//! - `storage`: where state is kept and manifests are read.
//! - `cluster`: servers.
//! - `drivers`: what drivers of processes need.
//! - `ownership`: whether other users could change what the agent obeys.
//! - `instance`: whether the instance or its tasks run elsewhere.
//! - `identities`: whether identities can be signed.
//! - `variables`: whether variables can be decrypted.
//! - `secrets`: whether every user can read passwords in folders of manifests.

mod cluster;
mod drivers;
mod engines;
mod identities;
mod instance;
mod machine;
mod networks;
mod ownership;
mod peers;
mod secrets;
mod storage;
mod task_dir_users;
mod variables;

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdlet_base::privileges::Privileges;
use herdlet_config::Config;
use herdlet_unpack::Barrier;
use rustix::fs::{Access, AtFlags, CWD};
use serde::Serialize;

use machine::{cgroups, clock, container, inotify, isolation, kernel, mounts, ports};
pub(crate) use machine::{open_files, unpacking};
use peers::{consuls, listener};
use storage::{access_lists, disk, host_volume, manifests};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works, but with restrictions, or not for long.
    Warning,
    /// An agent can't work.
    Failure,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    /// What was found, as a sentence.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, message: message.into(), hint: None }
    }

    pub fn warning(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, message: message.into(), hint: Some(hint.into()) }
    }

    pub fn failure(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Failure, message: message.into(), hint: Some(hint.into()) }
    }
}

/// The state directory to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateDir<'d> {
    /// An agent with this config, running as this user, would use it.
    Planned(&'d Path),
    /// A running agent uses it. That agent reports itself if it can't write there.
    InUse(&'d Path),
}

/// Runs all checks. `in_use` is the state directory of a running agent.
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
    let instance = herdlet_agent::state_db::StateDir::instance_in(in_use.unwrap_or(&config.state_dir));
    findings.extend(isolation(config));
    findings.push(networks::networks(config, instance.as_ref()));
    findings.extend(drivers::drivers(config));
    findings.extend(config_warnings(config));
    findings.extend(ownership::ownership(config, state_dir));
    findings.extend(instance::instance(config, state_dir));
    findings.extend(task_dir_users::task_dir_users(config));
    findings.extend(variables::variables(config, state_dir));
    findings.extend(identities::identities(state_dir));
    findings.extend(config.manifests.iter().map(|folder| manifests(folder)));
    findings.extend(secrets::secrets(config));
    findings.extend(config.host_volumes.iter().map(|volume| host_volume(&volume.name.0, &volume.path)));
    findings.extend(listener(config));
    findings.extend(consuls(config).await);
    findings.extend(cluster::cluster(config).await);
    findings.extend(engines::engines(config, instance.as_ref().map(|instance| &*instance.0)).await);
    findings
}

/// Warnings about the config, such as keys of Nomad's files that herdlet does not use.
fn config_warnings(config: &Config) -> Vec<Finding> {
    let hint = "correct or remove the setting; what depends on it does not work with herdlet";
    let problems = config.warnings.into_iter();
    problems.map(|problem| Finding::warning("config", problem.to_string(), hint)).collect()
}

fn may(path: &Path, access: Access) -> bool {
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(PathBuf::from(path)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
