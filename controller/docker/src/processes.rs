//! The processes of a container on this machine. They are found by their cgroup, whose name has the container's id.
//!
//! In: the id of a container. Out: its processes are killed. An engine ends the processes only of containers that it records as
//! running. Docker that is killed during a start has not recorded it, and the program continues.

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
/// The waits between two searches grow: each reads a file of every process of the machine.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The length of an id. A shorter text may be part of the names of other cgroups.
const ID_LEN: usize = 64;

/// What engines put before the id in the name of a container's cgroup. Podman's monitor has another one, `libpod-conmon-`.
const PREFIXES: [&str; 4] = ["", "docker-", "libpod-", "libpod-payload-"];

/// Kills all processes of a container, and returns when none is left.
pub(crate) async fn end(container: &str) -> DriverResult<()> {
    let failed =
        |why: String| DriverError::retry(format!("end the processes of the container {container}: {why}"));
    let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let own = container.to_owned();
        let left = off_thread(move || kill_all(&own)).await.map_err(io::Error::other).flatten();
        let left = left.map_err(|error| failed(error.to_string()))?;
        if left == 0 {
            return Ok(());
        }
        if pause == FIRST_PAUSE {
            tracing::warn!(
                container,
                left,
                "killing the processes of a container that its engine does not report as running"
            );
        }
        if began.elapsed() > END_MAX {
            return Err(failed(format!("they still run {} s after SIGKILL", END_MAX.as_secs())));
        }
        time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns how many there were.
///
/// # Errors
/// The first one, after all others were killed.
fn kill_all(container: &str) -> io::Result<usize> {
    let (mut left, mut failed) = (0, None);
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match kill(pid, container) {
            Ok(may_run) => left += usize::from(may_run),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(left), Err)
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
        // The second one on kernels that still know the number as that of a group.
        Err(Errno::SRCH | Errno::INVAL) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // Its number may have become another process's before it was opened.
    if !runs_in(pid, container)? {
        return Ok(false);
    }
    match pidfd_send_signal(&process, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    let stat = u32::try_from(pid).ok().and_then(process_tree::stat);
    Ok(stat.is_some_and(|stat| !stat.is_zombie))
}

/// Whether a process is in the cgroup of a container, or below it.
///
/// # Errors
/// For lack of descriptors or memory. A user can name a cgroup so that reading fails otherwise, and engines name none so.
fn runs_in(pid: i32, container: &str) -> io::Result<bool> {
    match fs::read(format!("/proc/{pid}/cgroup")) {
        Ok(cgroups) => Ok(is_of(&cgroups, container)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(error),
            _ => Ok(false),
        },
    }
}

/// Whether these lines of `/proc/PID/cgroup` are about the cgroup of a container, in any hierarchy.
fn is_of(cgroups: &[u8], container: &str) -> bool {
    let is_own = |name: &[u8]| {
        let name = name.strip_suffix(b".scope").unwrap_or(name);
        let prefix = name.strip_suffix(container.as_bytes());
        prefix.is_some_and(|prefix| PREFIXES.iter().any(|known| known.as_bytes() == prefix))
    };
    let mut paths =
        cgroups.split(|byte| *byte == b'\n').filter_map(|line| line.splitn(3, |byte| *byte == b':').nth(2));
    container.len() == ID_LEN && paths.any(|path| path.split(|byte| *byte == b'/').any(is_own))
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        process::{Child, Command},
    };

    use super::*;

    /// A cgroup with the name that an engine gives to that of a container.
    struct Cgroup(PathBuf);

    impl Cgroup {
        /// Makes it in the first hierarchy that allows it; otherwise reports that the test is skipped.
        fn create(container: &str) -> Option<Self> {
            let hierarchies = ["", "unified", "pids", "systemd", "freezer"];
            let made = hierarchies.into_iter().find_map(|hierarchy| {
                let path =
                    PathBuf::from("/sys/fs/cgroup").join(hierarchy).join(format!("docker-{container}.scope"));
                fs::create_dir(&path).ok()?;
                let own = Self(path);
                // The place of the hierarchies is no cgroup itself.
                own.0.join("cgroup.procs").exists().then_some(own)
            });
            if made.is_none() {
                herdlet_base::test_env::leave_out("a directory of cgroups that can be changed");
            }
            made
        }

        fn sleeper(&self) -> Child {
            let procs = self.0.join("cgroup.procs");
            let script = format!("echo $$ > {} && exec sleep 1000", procs.display());
            let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
            let pid = child.id().to_string();
            let is_inside = || fs::read_to_string(&procs).unwrap().lines().any(|line| line == pid);
            while !is_inside() {
                assert!(child.try_wait().unwrap().is_none(), "it failed to enter its cgroup");
                std::thread::yield_now();
            }
            child
        }
    }

    impl Drop for Cgroup {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[tokio::test]
    async fn all_processes_of_a_container_are_killed_and_no_others() {
        let (id, other) = (random_id(), random_id());
        let (Some(own), Some(foreign)) = (Cgroup::create(&id), Cgroup::create(&other)) else { return };
        let (first, second, mut stranger) = (own.sleeper(), own.sleeper(), foreign.sleeper());
        // A killed process stays until its parent has fetched its end.
        let parents = [first, second].map(|mut child| std::thread::spawn(move || child.wait().unwrap()));
        end(&id).await.unwrap();
        for parent in parents {
            let status = parent.join().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        }
        assert!(stranger.try_wait().unwrap().is_none(), "a process of another container was killed");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        end(&id).await.unwrap();
    }

    fn random_id() -> String {
        let half = || uuid::Uuid::new_v4().simple().to_string();
        half() + &half()
    }

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
            assert_eq!(is_of(cgroups.as_bytes(), &id), found, "{cgroups}");
        }
        let strange = [b"1:name=systemd:/user/\xff\n0::/docker/", id.as_bytes(), b"\n"].concat();
        assert!(is_of(&strange, &id) && !is_of(&strange, &other));
        for part in ["", "a", "docker"] {
            assert!(!is_of(format!("0::/docker/{id}\n").as_bytes(), part), "{part:?}");
        }
    }
}
