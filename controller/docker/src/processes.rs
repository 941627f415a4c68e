//! The processes of a container on this machine. They are found by their cgroup, whose name has the container's id.
//!
//! In: the id of a container. Out: its processes are killed. An engine ends those of a container that it knows to run. Docker that is
//! killed while it starts a container forgets the start, and the program runs on.

use std::{
    fs, io,
    time::{Duration, Instant},
};

use herdlet_driver::{DriverError, DriverResult};
use herdlet_process::process_tree;
use herdlet_runtime::off_thread;
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::time;

/// How long killed processes may take to end.
const END_MAX: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(20);

/// The length of an id. A shorter text may be part of the names of other cgroups.
const ID_LEN: usize = 64;

/// What engines put before the id in the name of a container's cgroup. Podman's monitor has another one, `libpod-conmon-`.
const PREFIXES: [&str; 4] = ["", "docker-", "libpod-", "libpod-payload-"];

/// Kills all processes of a container, and returns when none is left.
pub(crate) async fn end(container: &str) -> DriverResult<()> {
    let failed =
        |why: String| DriverError::retry(format!("end the processes of the container {container}: {why}"));
    let began = Instant::now();
    let mut is_first = true;
    loop {
        let own = container.to_owned();
        let left = off_thread(move || kill_all(&own)).await.map_err(io::Error::other).flatten();
        let left = left.map_err(|error| failed(error.to_string()))?;
        if left == 0 {
            return Ok(());
        }
        if is_first {
            tracing::warn!(
                container,
                left,
                "its engine does not know that it runs; its processes are killed"
            );
            is_first = false;
        }
        if began.elapsed() > END_MAX {
            return Err(failed(format!("they still run {} s after SIGKILL", END_MAX.as_secs())));
        }
        time::sleep(PAUSE).await;
    }
}

/// Returns how many there were.
fn kill_all(container: &str) -> io::Result<usize> {
    let mut left = 0;
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        left += usize::from(kill(pid, container)?);
    }
    Ok(left)
}

/// Kills a process if it runs in the cgroup of a container. Returns whether it may still run.
///
/// # Errors
/// If that can't be found out, for instance for lack of descriptors.
pub(crate) fn kill(pid: i32, container: &str) -> io::Result<bool> {
    if !runs_in(pid, container)? {
        return Ok(false);
    }
    let Some(number) = Pid::from_raw(pid) else { return Ok(false) };
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // Its number may have become another process's before it was opened.
    if !runs_in(pid, container)? {
        return Ok(false);
    }
    let _ = pidfd_send_signal(&process, Signal::KILL);
    let stat = u32::try_from(pid).ok().and_then(process_tree::stat);
    Ok(stat.is_some_and(|stat| !stat.is_zombie))
}

/// Whether a process is in the cgroup of a container, or below it.
fn runs_in(pid: i32, container: &str) -> io::Result<bool> {
    match fs::read_to_string(format!("/proc/{pid}/cgroup")) {
        Ok(cgroups) => Ok(is_of(&cgroups, container)),
        // It has ended, or its owner is one whose processes the agent must not see.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
                || error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether these lines of `/proc/PID/cgroup` are about the cgroup of a container, in any hierarchy.
fn is_of(cgroups: &str, container: &str) -> bool {
    let is_own = |name: &str| {
        let name = name.strip_suffix(".scope").unwrap_or(name);
        name.strip_suffix(container).is_some_and(|prefix| PREFIXES.contains(&prefix))
    };
    let mut paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    container.len() == ID_LEN && paths.any(|path| path.split('/').any(is_own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_the_id_in_the_name_of_their_cgroup() {
        let (id, other) = ("ab".repeat(32), "cd".repeat(32));
        for (cgroups, found) in [
            (format!("0::/docker/{id}\n"), true),
            (format!("0::/system.slice/docker-{id}.scope/init\n"), true),
            (format!("0::/machine.slice/libpod-{id}.scope/container\n"), true),
            (format!("0::/user.slice/libpod-payload-{id}\n"), true),
            (format!("2:cpu,cpuacct:/../docker/{id}\n1:name=systemd:/\n0::/\n"), true),
            (format!("0::/docker/{other}\n"), false),
            (format!("0::/machine.slice/libpod-conmon-{id}.scope\n"), false),
            (format!("0::/docker/{other}{id}\n"), false),
            (format!("0::/docker/{id}0\n"), false),
            ("0::/\n".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_of(&cgroups, &id), found, "{cgroups}");
        }
        for part in ["", "a", "docker"] {
            assert!(!is_of(&format!("0::/docker/{id}\n"), part), "{part:?}");
        }
    }
}
