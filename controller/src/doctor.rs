//! What an agent finds on this machine: the kernel, cgroups, mounts, limits, ports, disk, clock, Consul, folders of manifests, servers.
//!
//! In: the config that an agent would get, and where one that runs keeps its state. Out: findings, in the order in which somebody would
//! mend them. Nothing is changed, and nothing is asked of an agent that runs: that is the command's.

mod cluster;
mod ownership;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_api_types::{AllocId, InstanceId, job::Provider};
use rustix::{
    fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags},
    process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open},
};
use serde::Serialize;

use crate::{
    config::Config,
    desired::manifests::{Drivers, read_folder},
    drivers::{
        acl::{Acl, AclError},
        artifact::unpack::Barrier,
        catalog::{Consul, ServiceOwner, check_service_token},
        cgroup::{Controller, Mounts},
        privileges::{Mounting, Ownership, Privileges},
        task::in_full,
    },
    http::{Tls, Token},
};

/// Below it tasks can hardly be started.
const DESCRIPTORS_MIN: u64 = 256;
/// Below it some hundred tasks use them up: an agent holds about two for each.
const DESCRIPTORS_GOOD: u64 = 4_096;
/// Each agent needs a few, and so does everything else of the same user.
const INOTIFY_INSTANCES_GOOD: u64 = 128;
/// Less of a disk is soon full of logs.
const DISK_GOOD: u64 = 1 << 30;
/// Less is not enough for a commit of the database.
const DISK_MIN: u64 = 16 << 20;
/// How long Consul may take to answer.
const CONSUL_MAX: Duration = Duration::from_secs(3);
/// 2026-01-01: no clock that is right shows less.
const CLOCK_MIN: i64 = 1_767_225_600;

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
    /// What.
    pub check: &'static str,
    /// How it is.
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
        clock(crate::agent::now().wall.0, Path::new("/run/systemd")),
    ];
    findings.extend(ownership::ownership(config, state_dir));
    findings.extend(config.manifests.iter().map(|folder| manifests(folder)));
    findings.extend(config.host_volumes.iter().map(|volume| host_volume(&volume.name.0, &volume.path)));
    findings.extend(listener(config));
    findings.extend(consul(config).await);
    findings.extend(cluster::cluster(config).await);
    findings
}

/// By what it can do, not by its number: distributions carry features back, and sandboxes take them away.
fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let openat2 = rustix::fs::openat2(
        CWD,
        c"/",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    );
    let lacks: Vec<&str> =
        [("pidfd_open", pidfd_open(getpid(), PidfdFlags::empty()).is_ok()), ("openat2", openat2.is_ok())]
            .into_iter()
            .filter_map(|(name, has)| (!has).then_some(name))
            .collect();
    if lacks.is_empty() {
        return Finding::ok("kernel", format!("Linux {release}"));
    }
    Finding::failure(
        "kernel",
        format!("Linux {release} refuses {}", lacks.join(" and ")),
        "Linux 5.14 or newer is needed, and no seccomp filter that refuses these calls",
    )
}

/// A container ends all its processes when its first one ends.
fn container(root: &Path) -> Finding {
    let marks =
        [("run/.containerenv", "Podman"), (".dockerenv", "Docker"), ("run/systemd/container", "a container")];
    match marks.iter().find(|(mark, _)| root.join(mark).exists()) {
        None => Finding::ok("container", "not in a container"),
        Some((_, which)) => Finding::warning(
            "container",
            format!(
                "in {which}: tasks end with it, also when the agent is only restarted with its container"
            ),
            "give it --pid=host --cgroupns=host and /sys/fs/cgroup writable, or run the agent on the host itself",
        ),
    }
}

fn cgroups(parent: &str) -> Finding {
    let hint = "as root, mount cgroup2 on /sys/fs/cgroup; in a unit, set Delegate=yes; in a container, use --cgroupns=host";
    let limited = |why: String| {
        Finding::warning(
            "cgroups",
            format!("{why}: tasks run without limits, and are held by their process tree"),
            hint,
        )
    };
    let hierarchies = Mounts::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let Some(top) = hierarchies.v2.first() else { return limited("no cgroup2 is mounted".to_owned()) };
    // What is not there yet is made below what is.
    let tree = top.join(parent.trim_start_matches('/'));
    let nearest = tree.ancestors().find(|dir| dir.is_dir()).unwrap_or(top);
    if !may(nearest, Access::WRITE_OK) {
        return limited(format!("{} can't be written to", nearest.display()));
    }
    let controllers = fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
    let has = |controller: &Controller| {
        let name = controller.name();
        controllers.split_whitespace().any(|known| known == name) || hierarchies.v1.contains_key(controller)
    };
    let lacking: Vec<&str> = Controller::ALL.iter().filter(|one| !has(one)).map(|one| one.name()).collect();
    if lacking.is_empty() {
        return Finding::ok("cgroups", format!("cgroup2 at {}, with cpu, memory and pids", top.display()));
    }
    Finding::warning(
        "cgroups",
        format!("cgroup2 at {} lacks {}: those limits do not hold", top.display(), lacking.join(" and ")),
        hint,
    )
}

/// What keeps the process that unpacks artifacts from files of the machine.
pub(crate) fn unpacking(barrier: Barrier) -> Finding {
    let hint = "use a kernel with Landlock (Linux 5.13), and name it in `lsm=` of the kernel's command line where that is set";
    match barrier {
        Barrier::Landlock => Finding::ok("unpacking", "archives are unpacked behind Landlock"),
        Barrier::Root => Finding::warning(
            "unpacking",
            "the kernel has no Landlock: archives are unpacked behind chroot and a filter of system calls alone",
            hint,
        ),
        Barrier::User => Finding::warning(
            "unpacking",
            "the kernel has no Landlock: a process that unpacks an archive reaches all files that its user may reach",
            hint,
        ),
        Barrier::Nothing => Finding::warning(
            "unpacking",
            "the kernel has no Landlock, and root may not chroot here: archives are refused",
            "use a kernel with Landlock, or give the agent CAP_SYS_CHROOT",
        ),
    }
}

fn mounts(privileges: Privileges) -> Finding {
    let hint = "run the agent as root, or in a container with CAP_SYS_ADMIN, CAP_CHOWN and CAP_FOWNER";
    match (privileges.mounting, privileges.ownership) {
        (Mounting::Possible, Ownership::Anybody) => {
            Finding::ok("privileges", "may mount file systems and run tasks as any user")
        }
        (Mounting::Possible, Ownership::OwnOnly) => {
            Finding::warning("privileges", "can't give files away: tasks run as this user only", hint)
        }
        (Mounting::Impossible, Ownership::Anybody) => Finding::warning(
            "privileges",
            "can't mount: secrets lie on the disk, volumes are symbolic links",
            hint,
        ),
        (Mounting::Impossible, Ownership::OwnOnly) => Finding::warning(
            "privileges",
            "a plain user: secrets lie on the disk, volumes are symbolic links, tasks run as this user only",
            hint,
        ),
    }
}

/// How many files an agent may have open here.
pub(crate) fn open_files() -> Finding {
    descriptors(getrlimit(Resource::Nofile).current)
}

/// None is no limit.
fn descriptors(most: Option<u64>) -> Finding {
    let hint = "raise LimitNOFILE= of the unit, or ulimit -n";
    match most {
        Some(most) if most < DESCRIPTORS_MIN => {
            Finding::failure("descriptors", format!("no more than {most} open files"), hint)
        }
        Some(most) if most < DESCRIPTORS_GOOD => Finding::warning(
            "descriptors",
            format!("no more than {most} open files: enough for some {} tasks", most / 2),
            hint,
        ),
        Some(most) => Finding::ok("descriptors", format!("up to {most} open files")),
        None => Finding::ok("descriptors", "as many open files as wanted"),
    }
}

fn inotify(instances: Option<u64>) -> Finding {
    match instances {
        None => Finding::failure(
            "inotify",
            "the kernel has no inotify",
            "folders and attempts are watched by it; /proc must be mounted",
        ),
        Some(instances) if instances < INOTIFY_INSTANCES_GOOD => Finding::warning(
            "inotify",
            format!("no more than {instances} watchers for each user"),
            "sysctl fs.inotify.max_user_instances=1024",
        ),
        Some(instances) => Finding::ok("inotify", format!("up to {instances} watchers for each user")),
    }
}

/// `ephemeral` is the kernel's range for connections (ip(7)): a port from it can be taken at any moment.
fn ports(config: &Config, ephemeral: &str) -> Finding {
    let (from, to) = (*config.dynamic_ports.start(), *config.dynamic_ports.end());
    let mut words = ephemeral.split_whitespace().map(str::parse::<u16>);
    match (words.next(), words.next()) {
        (Some(Ok(low)), Some(Ok(high))) if low <= to && from <= high => Finding::warning(
            "ports",
            format!(
                "dynamic ports {from}-{to} are among those that the kernel gives to connections, {low}-{high}"
            ),
            "set dynamic_ports apart from it, or sysctl net.ipv4.ip_local_port_range",
        ),
        _ => Finding::ok("ports", format!("dynamic ports {from}-{to}")),
    }
}

fn disk(state_dir: StateDir<'_>) -> Finding {
    let (StateDir::Planned(dir) | StateDir::InUse(dir)) = state_dir;
    let shown = match state_dir {
        StateDir::Planned(_) => dir.display().to_string(),
        StateDir::InUse(_) => format!("{}, where the agent that runs keeps its state", dir.display()),
    };
    let nearest = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    if !nearest.is_dir() {
        return Finding::failure(
            "disk",
            format!("{} is not a directory", nearest.display()),
            "name another with --state-dir",
        );
    }
    if matches!(state_dir, StateDir::Planned(_)) && !may(nearest, Access::WRITE_OK) {
        return Finding::failure(
            "disk",
            format!("{shown}: {} can't be written to", nearest.display()),
            "run the agent as its owner, or name another with --state-dir",
        );
    }
    let Ok(space) = rustix::fs::statvfs(nearest) else {
        return Finding::failure(
            "disk",
            format!("{shown}: its file system does not answer"),
            "look at its mount",
        );
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let found = format!("{} free for {shown}", mebibytes(free));
    // File systems without inodes of their own say 0 of 0.
    let full_of_files = space.f_files > 0 && space.f_favail < 1_000;
    match free {
        _ if full_of_files => Finding::failure(
            "disk",
            format!("{found}, but only {} inodes", space.f_favail),
            "remove files there, or name another directory with --state-dir",
        ),
        0..DISK_MIN => {
            Finding::failure("disk", found, "free space there, or name another directory with --state-dir")
        }
        DISK_MIN..DISK_GOOD => Finding::warning("disk", found, "logs of tasks may fill it"),
        DISK_GOOD.. => Finding::ok("disk", found),
    }
}

/// Without them an allocation's directories are closed to others by their owners alone.
fn access_lists(state_dir: StateDir<'_>) -> Finding {
    // An agent that is not root runs all tasks as its own user.
    if !rustix::process::geteuid().is_root() {
        return Finding::ok(
            "acl",
            "not needed: all tasks run as this user, and modes close their directories to others",
        );
    }
    let (StateDir::Planned(dir) | StateDir::InUse(dir)) = state_dir;
    let nearest = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let opened = fs::File::open(nearest).map_err(|source| AclError::Io { operation: "open", source });
    match opened.and_then(Acl::read) {
        Err(AclError::Unsupported) => Finding::warning(
            "acl",
            format!(
                "the file system of {} has no access control lists: tasks of several users in one group share nothing",
                dir.display()
            ),
            "turn them on (ZFS: acltype=posix), name another with --state-dir, or run all tasks of a group as one user",
        ),
        Ok(_) => Finding::ok("acl", "directories of tasks are closed to others by access control lists"),
        Err(error @ (AclError::Io { .. } | AclError::Malformed)) => Finding::warning(
            "acl",
            format!("{}: failed to {}", nearest.display(), in_full(&error)),
            "repair or replace that file system; until its lists can be read tasks may not start",
        ),
    }
}

/// `systemd` is its runtime directory: its time service leaves a mark there.
fn clock(wall_ns: i64, systemd: &Path) -> Finding {
    if wall_ns / 1_000_000_000 < CLOCK_MIN {
        return Finding::failure(
            "clock",
            "the clock is years behind",
            "set it, and run a time service; tokens and certificates depend on it",
        );
    }
    let runs = systemd.join("timesync").is_dir();
    if runs && !systemd.join("timesync/synchronized").exists() {
        return Finding::warning(
            "clock",
            "systemd-timesyncd has not reached a time server yet",
            "look at timedatectl; tokens and certificates depend on the clock",
        );
    }
    Finding::ok("clock", if runs { "synchronised by systemd-timesyncd" } else { "plausible" })
}

fn manifests(folder: &Path) -> Finding {
    match fs::read_dir(folder) {
        Ok(_) => Finding::ok("manifests", format!("{} can be read", folder.display())),
        Err(error) => Finding::warning(
            "manifests",
            format!("{}: {error}", folder.display()),
            "an agent waits for it, and removes nothing meanwhile",
        ),
    }
}

fn host_volume(name: &str, path: &Path) -> Finding {
    if path.is_dir() {
        return Finding::ok("volumes", format!("host volume {name} is at {}", path.display()));
    }
    Finding::warning(
        "volumes",
        format!("host volume {name}: {} is not a directory", path.display()),
        "jobs that mount it wait until it is",
    )
}

/// The token and the certificates of the API on TCP, as an agent would read them.
fn listener(config: &Config) -> Option<Finding> {
    let (address, token_file) = config.listen.as_ref()?;
    let token = Token::read(token_file).map_err(|error| in_full(&error));
    let tls = config.tls.clone().map(Tls::read).transpose().map_err(|error| in_full(&error));
    Some(match (token, tls) {
        (Err(why), _) | (_, Err(why)) => {
            let hint = "see `token_file` and `tls` of the config; an agent does not start like this";
            Finding::failure("listen", format!("{address}: failed to {why}"), hint)
        }
        (Ok(_), Ok(None)) if !is_loopback(&address.host) => Finding::warning(
            "listen",
            format!("{address}: the token is sent as it is, for all between to read"),
            "set `tls` in the config",
        ),
        (Ok(_), Ok(tls)) => {
            let warnings = tls.as_ref().map(|tls| tls.warnings(crate::agent::now().wall)).unwrap_or_default();
            let found = format!("{address}, {}", if tls.is_some() { "with TLS" } else { "without TLS" });
            if warnings.is_empty() {
                Finding::ok("listen", found)
            } else {
                let hint = "an agent that runs reads a changed file by itself";
                Finding::warning("listen", format!("{found}: {}", warnings.join("; ")), hint)
            }
        }
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Nothing where nobody says that there is a Consul, and no job of a folder has services in one.
async fn consul(config: &Config) -> Option<Finding> {
    let resolved = match crate::serve::consul(config) {
        Ok(resolved) if resolved.is_named() || wants_consul(&config.manifests) => resolved,
        Ok(_) => return None,
        Err(error) => {
            return Some(Finding::failure(
                "consul",
                format!("{error:#}"),
                "mend its address or its token file",
            ));
        }
    };
    let answer = match Consul::new(&resolved, InstanceId("doctor".to_owned())) {
        Ok(client) => {
            // Nobody's services: what is asked costs nothing, and needs what registrations need to be read.
            let nobody = ServiceOwner { alloc: AllocId::from_hash([0; 16]), task: None };
            let asked = tokio::time::timeout(CONSUL_MAX, async { client.look(&nobody, &[]).await.map(drop) });
            asked.await.map_or_else(
                |_| Err("does not answer".to_owned()),
                |answer| answer.map_err(|error| in_full(&error)),
            )
        }
        Err(error) => Err(in_full(&error)),
    };
    let unfit = config.consul.service_tokens_dir.as_deref().map(unfit_tokens).unwrap_or_default();
    Some(match answer {
        Ok(()) if !unfit.is_empty() => Finding::warning(
            "consul",
            format!("answers, but {}", unfit.join("; ")),
            "see `consul.service_tokens_dir` of the config; those services are not registered",
        ),
        Ok(()) => Finding::ok("consul", "answers"),
        Err(why) if resolved.is_named() => {
            Finding::warning("consul", why, "services with provider consul wait for it")
        }
        Err(why) => Finding::warning(
            "consul",
            format!("a job of a folder has services in Consul, and `consul` of the config names none: {why}"),
            "name it, or write provider = \"nomad\": in Nomad's formats a service without provider is Consul's",
        ),
    })
}

/// What of a directory with tokens of services can't be used.
fn unfit_tokens(dir: &Path) -> Vec<String> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return Vec::from([format!("{} can't be read: {error}", dir.display())]),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    // No service is called like this: editors and mounted secrets leave such files.
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names.iter().filter_map(|name| check_service_token(dir, name).err()).collect()
}

/// Whether a job in these folders has services in Consul.
fn wants_consul(folders: &[PathBuf]) -> bool {
    let files =
        folders.iter().flat_map(|folder| read_folder(folder, &Drivers::built_in(), &BTreeSet::new()).files);
    let mut jobs = files.filter_map(|file| file.content.ok()).flat_map(|set| set.jobs);
    jobs.any(|job| job.object.has_services_in(Provider::Consul))
}

fn may(path: &Path, access: Access) -> bool {
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(PathBuf::from(path)).ok()?.trim().parse().ok()
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests;
