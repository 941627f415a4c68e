//! Checks of the machine: kernel, container, cgroups, privileges, limits, ports, clock.
//!
//! In: what the kernel exposes. Out: a finding for each. Nothing is changed.

use std::{fs, path::Path};

use herdlet_api_types::driver::EXEC;
use herdlet_base::privileges::{Mounting, Ownership, Privileges};
use herdlet_config::Config;
use herdlet_driver::{Availability, limits::Controller};
use herdlet_process::{cgroup::Mounts, exec};
use herdlet_unpack::Barrier;
use rustix::{
    fs::{Access, CWD, Mode, OFlags, ResolveFlags},
    process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open},
};

use super::{Finding, Verdict, may};

/// With fewer, tasks can hardly be started.
const DESCRIPTORS_MIN: u64 = 256;
/// With fewer, some hundred tasks use them up: an agent holds about two for each.
const DESCRIPTORS_GOOD: u64 = 4_096;
/// Each agent needs a few, and so do other programs of the same user.
const INOTIFY_INSTANCES_GOOD: u64 = 128;
/// 2026-01-01: a correct clock is later.
pub(super) const CLOCK_MIN: i64 = 1_767_225_600;

/// Checks features instead of the version: distributions backport features, and sandboxes remove them.
pub(super) fn kernel() -> Finding {
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
        "use Linux 5.14 or newer, without a seccomp filter that refuses these calls",
    )
}

/// When the first process of a container ends, all of its processes end.
pub(super) fn container(root: &Path) -> Finding {
    let marks =
        [("run/.containerenv", "Podman"), (".dockerenv", "Docker"), ("run/systemd/container", "systemd")];
    match marks.iter().find(|(mark, _)| root.join(mark).exists()) {
        None => Finding::ok("container", "not in a container"),
        Some((_, which)) => Finding::warning(
            "container",
            format!(
                "this is a container ({which}): tasks of an agent end with it, even if it is only restarted to restart the agent"
            ),
            "start it with --pid=host --cgroupns=host and a writable /sys/fs/cgroup, or run the agent on the host",
        ),
    }
}

pub(super) fn cgroups(parent: &str) -> Finding {
    let hint = "as root, mount cgroup2 on /sys/fs/cgroup; in a container, use --cgroupns=host and a writable /sys/fs/cgroup";
    let limited = |why: String| {
        Finding::warning(
            "cgroups",
            format!("{why}: tasks run without limits, and are tracked by their process tree"),
            hint,
        )
    };
    let hierarchies = Mounts::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let Some(top) = hierarchies.v2.first() else { return limited("no cgroup2 is mounted".to_owned()) };
    // The agent creates missing cgroups below the nearest existing one.
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
        format!(
            "cgroup2 at {} lacks {}: those limits are not enforced",
            top.display(),
            lacking.join(" and ")
        ),
        hint,
    )
}

/// Whether tasks of the driver `exec` can start, if it is enabled.
pub(super) fn isolation(config: &Config) -> Option<Finding> {
    if config.drivers.availability(EXEC) == Availability::Disabled {
        return None;
    }
    let mounted = Mounts::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let cgroups = mounted.v2.first().map(|_| ()).ok_or("no cgroup2 is mounted");
    Some(match exec::obstacle(&std::env::temp_dir(), cgroups) {
        None => Finding::ok("isolation", "driver exec: namespaces and roots can be made"),
        Some(exec::Obstacle { why, remedy }) => {
            Finding::warning("isolation", format!("driver exec: {why}"), remedy)
        }
    })
}

/// Whether this machine isolates tasks, if the driver `exec` is enabled.
pub(super) fn isolates(config: &Config) -> bool {
    isolation(config).is_some_and(|found| found.verdict == Verdict::Ok)
}

/// The isolation of the process that unpacks artifacts.
pub(crate) fn unpacking(barrier: Barrier) -> Finding {
    let hint = "use a kernel with Landlock (Linux 5.13 or newer); if the kernel's command line sets `lsm=`, add landlock to it";
    match barrier {
        Barrier::Landlock => Finding::ok("unpacking", "archives are unpacked in a Landlock sandbox"),
        Barrier::Root => Finding::warning(
            "unpacking",
            "the kernel has no Landlock: only chroot and a system call filter confine the process that unpacks archives",
            hint,
        ),
        Barrier::User => Finding::warning(
            "unpacking",
            "the kernel has no Landlock: a process that unpacks an archive can access all files that its user may access",
            hint,
        ),
        Barrier::Nothing => Finding::warning(
            "unpacking",
            "the kernel has no Landlock, and root may not chroot: archives are refused",
            "use a kernel with Landlock, or give the agent CAP_SYS_CHROOT",
        ),
    }
}

pub(super) fn mounts(privileges: Privileges) -> Finding {
    let hint = "run the agent as root, or in a container with CAP_SYS_ADMIN, CAP_CHOWN and CAP_FOWNER";
    match (privileges.mounting, privileges.ownership) {
        (Mounting::Possible, Ownership::Anybody) => {
            Finding::ok("privileges", "the agent may mount file systems and run tasks as any user")
        }
        (Mounting::Possible, Ownership::OwnOnly) => {
            Finding::warning("privileges", "can't change file owners: tasks run only as this user", hint)
        }
        (Mounting::Impossible, Ownership::Anybody) => Finding::warning(
            "privileges",
            "can't mount file systems: secrets are stored on disk, volumes are symbolic links",
            hint,
        ),
        (Mounting::Impossible, Ownership::OwnOnly) => Finding::warning(
            "privileges",
            "not privileged: secrets are stored on disk, volumes are symbolic links, tasks run only as this user",
            hint,
        ),
    }
}

/// The limit of open files.
pub(crate) fn open_files() -> Finding {
    descriptors(getrlimit(Resource::Nofile).current)
}

/// `most`: none for no limit.
pub(super) fn descriptors(most: Option<u64>) -> Finding {
    let hint = "raise LimitNOFILE= of the unit, or ulimit -n";
    match most {
        Some(most) if most < DESCRIPTORS_MIN => {
            Finding::failure("descriptors", format!("at most {most} open files"), hint)
        }
        Some(most) if most < DESCRIPTORS_GOOD => Finding::warning(
            "descriptors",
            format!("at most {most} open files: enough for about {} tasks", most / 2),
            hint,
        ),
        Some(most) => Finding::ok("descriptors", format!("at most {most} open files")),
        None => Finding::ok("descriptors", "no limit of open files"),
    }
}

pub(super) fn inotify(instances: Option<u64>) -> Finding {
    match instances {
        None => Finding::failure(
            "inotify",
            "the kernel has no inotify",
            "the agent watches folders and attempts with it; mount /proc",
        ),
        Some(instances) if instances < INOTIFY_INSTANCES_GOOD => Finding::warning(
            "inotify",
            format!("at most {instances} inotify instances per user"),
            "raise it: sysctl fs.inotify.max_user_instances=1024",
        ),
        Some(instances) => Finding::ok("inotify", format!("at most {instances} inotify instances per user")),
    }
}

/// `ephemeral` is the kernel's range of ports for connections (ip(7)): any port in it may be taken at any time.
pub(super) fn ports(config: &Config, ephemeral: &str) -> Finding {
    let (from, to) = (*config.dynamic_ports.start(), *config.dynamic_ports.end());
    let mut words = ephemeral.split_whitespace().map(str::parse::<u16>);
    match (words.next(), words.next()) {
        (Some(Ok(low)), Some(Ok(high))) if low <= to && from <= high => Finding::warning(
            "ports",
            format!("dynamic ports {from}-{to} overlap the kernel's ephemeral ports {low}-{high}"),
            "set dynamic_ports outside of them, or change sysctl net.ipv4.ip_local_port_range",
        ),
        _ => Finding::ok("ports", format!("dynamic ports {from}-{to}")),
    }
}

/// `systemd` is its runtime directory, in which its time service leaves a mark.
pub(super) fn clock(wall_ns: i64, systemd: &Path) -> Finding {
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
            "check timedatectl; tokens and certificates depend on the clock",
        );
    }
    Finding::ok("clock", if runs { "synchronised by systemd-timesyncd" } else { "plausible" })
}
