//! Kills everything in a cgroup and removes it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_base::ready;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;

use super::{CgroupError, files};

/// How long killed processes may take to end. The kernel needs milliseconds; a process in uninterruptible sleep never
/// ends.
const DEATH_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a cgroup may be busy after its last process ended: the kernel releases it a little later.
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);

pub(super) async fn kill(dir: &Path) -> Result<(), CgroupError> {
    match files::write(&dir.join("cgroup.kill"), "1") {
        Ok(()) => {}
        Err(CgroupError::File { source, .. }) if files::is_gone(&source) => {
            if !dir.exists() {
                return Ok(());
            }
            // Linux before 5.14.
            kill_one_by_one(dir)?;
        }
        Err(error) => return Err(error),
    }
    tokio::time::timeout(DEATH_TIME_MAX, emptied(dir)).await.map_err(|_| populated(dir, DEATH_TIME_MAX))?
}

pub(super) async fn emptied(dir: &Path) -> Result<(), CgroupError> {
    let path = dir.join("cgroup.events");
    let file = match fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if files::is_gone(&error) => return Ok(()),
        Err(error) => return Err(files::failed("open", &path)(error)),
    };
    // The kernel signals a change of this file by POLLPRI. An inotify instance for each wait would soon exhaust their
    // limit.
    let file = ready::register(file.into(), Interest::PRIORITY).map_err(files::failed("watch", &path))?;
    loop {
        let mut text = [0; 256];
        let len = match rustix::io::pread(&file, &mut text, 0) {
            Ok(len) => len,
            Err(errno) if files::is_gone(&errno.into()) => return Ok(()),
            Err(errno) => return Err(files::failed("read", &path)(errno.into())),
        };
        let text = String::from_utf8_lossy(&text[..len]);
        if files::field(&text, "populated") == Some(0) {
            return Ok(());
        }
        let mut ready = file.ready(Interest::PRIORITY).await.map_err(files::failed("watch", &path))?;
        ready.clear_ready();
    }
}

/// Removes a cgroup and those below it, which must be empty.
pub(super) async fn remove_tree(dir: &Path) -> Result<(), CgroupError> {
    let mut below = Vec::new();
    collect_below(dir, &mut below)?;
    for dir in below.iter().rev() {
        remove_one(dir).await?;
    }
    Ok(())
}

pub(super) fn pids_below(dir: &Path) -> Vec<u32> {
    let mut dirs = Vec::new();
    if collect_below(dir, &mut dirs).is_err() {
        return Vec::new();
    }
    let texts = dirs.iter().filter_map(|dir| files::read_if_there(&dir.join("cgroup.procs")));
    texts.flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// `dir` and the cgroups below it, parents first; nothing if it doesn't exist.
fn collect_below(dir: &Path, found: &mut Vec<PathBuf>) -> Result<(), CgroupError> {
    if !dir.is_dir() {
        return Ok(());
    }
    found.push(dir.to_owned());
    for child in files::child_dirs(dir)? {
        collect_below(&child, found)?;
    }
    Ok(())
}

async fn remove_one(dir: &Path) -> Result<(), CgroupError> {
    let began = tokio::time::Instant::now();
    let mut wait = Duration::from_millis(1);
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if files::is_gone(&error) => return Ok(()),
            // The kernel sends no event when it releases the cgroup, so retry a few times.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && began.elapsed() < BUSY_TIME_MAX => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_millis(200));
            }
            Err(error) => return Err(files::failed("remove cgroup", dir)(error)),
        }
    }
}

/// Without `cgroup.kill`: freezes the cgroup, so that nothing forks meanwhile, and kills each process. Frozen v2
/// processes can be killed.
pub(super) fn kill_one_by_one(dir: &Path) -> Result<(), CgroupError> {
    let freeze = dir.join("cgroup.freeze");
    let frozen = files::write(&freeze, "1").is_ok();
    // Without freezing (Linux before 5.2) a fork bomb takes more than one round.
    let rounds = if frozen { 2 } else { 100 };
    for _ in 0..rounds {
        let pids = pids_below(dir);
        if pids.is_empty() {
            break;
        }
        for pid in pids {
            let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
            let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // Between listing and opening, the pid may have been reused.
            if pids_below(dir).contains(&pid.as_raw_nonzero().get().unsigned_abs()) {
                let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
    }
    if frozen { files::write(&freeze, "0") } else { Ok(()) }
}

fn populated(dir: &Path, waited: Duration) -> CgroupError {
    CgroupError::Populated {
        path: dir.to_owned(),
        waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
    }
}
