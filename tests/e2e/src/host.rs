//! The machine's processes, cgroups and mounts. Each call reads them again; there is no cache.
//!
//! In: paths, instance ids. Out: pids and paths. Functions that change something say so, and only change what
//! belongs to the given path or instance.

use std::{
    collections::BTreeMap,
    fs,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// A process of a task attempt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Allocation id.
    pub alloc: String,
    pub task: String,
    pub attempt: u32,
    pub pid: u32,
}

/// Returns the root of the cgroup v2 hierarchy, plain or hybrid.
pub fn cgroup2() -> Option<PathBuf> {
    ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.join("cgroup.controllers").exists())
}

/// Returns the directories of an instance in all cgroup hierarchies, including v1.
pub fn trees(instance: &str) -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let mut tops = vec![top.to_path_buf()];
    tops.extend(fs::read_dir(top).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())));
    let mut found: Vec<PathBuf> = Vec::new();
    for tree in tops.iter().map(|top| top.join("herdlet").join(instance)).filter(|tree| tree.is_dir()) {
        // v1 controllers that are mounted together appear twice, once as a link.
        let tree = tree.canonicalize().unwrap_or(tree);
        if !found.contains(&tree) {
            found.push(tree);
        }
    }
    found
}

/// Returns all processes of an instance's attempts.
pub fn members(instance: &str) -> Vec<Member> {
    let Some(tree) = cgroup2().map(|top| top.join("herdlet").join(instance)) else { return Vec::new() };
    let mut found = Vec::new();
    for dir in child_dirs(&tree) {
        let Some(name) = dir.file_name().and_then(|name| name.to_str()) else { continue };
        let parts: Vec<&str> = name.split('.').collect();
        let [alloc, task, attempt] = parts.as_slice() else { continue };
        let Ok(attempt) = attempt.parse() else { continue };
        for pid in pids_below(&dir) {
            found.push(Member { alloc: (*alloc).to_owned(), task: (*task).to_owned(), attempt, pid });
        }
    }
    found.sort();
    found
}

/// Returns the names of the cgroups of an instance's attempts.
pub fn attempts(instance: &str) -> Vec<String> {
    let mut names = Vec::new();
    for tree in trees(instance) {
        for dir in child_dirs(&tree) {
            if let Some(name) = dir.file_name().and_then(|name| name.to_str())
                && !["shims", "share"].contains(&name)
            {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// Counts the cgroups of attempts, as cheaply as possible, because measurements call it often.
pub fn attempt_count(instance: &str) -> usize {
    let Some(tree) = cgroup2().map(|top| top.join("herdlet").join(instance)) else { return 0 };
    let entries = std::fs::read_dir(tree).into_iter().flatten().flatten();
    // Names of attempts contain dots and end with a number.
    let is_attempt = |name: &[u8]| name.last().is_some_and(u8::is_ascii_digit) && name.contains(&b'.');
    entries.filter(|entry| is_attempt(std::os::unix::ffi::OsStrExt::as_bytes(&*entry.file_name()))).count()
}

/// Returns the supervisors of an instance.
pub fn supervisors(instance: &str) -> Vec<u32> {
    cgroup2().map(|top| pids_below(&top.join("herdlet").join(instance).join("shims"))).unwrap_or_default()
}

/// Returns the supervisors of an instance with pidfds: a victim is chosen among them, and its pid may be
/// reused by then.
pub fn held_supervisors(instance: &str) -> Vec<(u32, OwnedFd)> {
    let mut held: Vec<_> =
        supervisors(instance).into_iter().filter_map(|pid| Some((pid, open(pid)?))).collect();
    // Between listing and opening, a pid may have passed to another process, whose pidfd is dropped here.
    let still = supervisors(instance);
    held.retain(|(pid, _)| still.contains(pid));
    held
}

/// Kills a process by its pidfd and waits for its end, which takes a while on a busy machine.
pub fn kill_held(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::KILL);
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
    assert_eq!(ended, Ok(1), "a killed process ends");
}

/// Returns the cgroup v2 directory of an attempt.
pub fn cgroup_of(instance: &str, member: &Member) -> PathBuf {
    let top = cgroup2().unwrap_or_default();
    top.join("herdlet").join(instance).join(format!("{}.{}.{}", member.alloc, member.task, member.attempt))
}

/// Returns all processes in a cgroup and its descendants.
pub fn pids_below(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for child in child_dirs(dir) {
        pids.extend(pids_below(&child));
    }
    pids
}

/// Returns the processes with `path` in their arguments or environment, whatever their parent or user.
pub fn processes_naming(path: &Path) -> BTreeMap<u32, String> {
    let wanted = path.as_os_str().as_bytes();
    let own = std::process::id();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == own {
            continue;
        }
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if contains(&arguments, wanted) || contains(&environment, wanted) {
            found.insert(pid, String::from_utf8_lossy(&arguments).replace('\0', " "));
        }
    }
    found
}

/// Returns a process's arguments; `None` if it has ended or is a zombie.
pub fn arguments(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|bytes| !bytes.is_empty())?;
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    Some(bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect())
}

/// Returns whether a process is alive, i.e. not a zombie.
pub fn is_alive(pid: u32) -> bool {
    start_time(pid).is_some()
}

/// Returns when a process started, in clock ticks, which together with the pid identifies it. `None` for
/// zombies.
pub fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    if matches!(fields.first(), Some(&("Z" | "X"))) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

pub fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// Sends a signal to a process of the test or of its agent.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(fd) = open(pid) {
        let _ = pidfd_send_signal(&fd, signal);
    }
}

fn open(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Returns the mount points below a directory, the last mounted first.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut found: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    found.reverse();
    found
}

/// Removes an instance's cgroups after killing the processes in its attempts.
pub fn remove_trees(instance: &str) {
    for tree in trees(instance) {
        let _ = fs::write(tree.join("cgroup.kill"), "1");
        super::wait::until_true("the instance's cgroups are empty", || pids_below(&tree).is_empty());
        remove_dirs(&tree);
    }
}

fn remove_dirs(dir: &Path) {
    for child in child_dirs(dir) {
        remove_dirs(&child);
    }
    let _ = fs::remove_dir(dir);
}

fn child_dirs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_held_process_is_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let held = open(child.id()).unwrap();
        kill_held(&held);
        assert!(!is_alive(child.id()));
        child.wait().unwrap();
        // Its pid may be reused now.
        kill_held(&held);
    }
}
