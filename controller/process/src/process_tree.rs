//! A process and its descendants from /proc. Without cgroups nothing else holds a task together.
//!
//! In: pids. Out: pids, memory, CPU time. It changes nothing. Results may be outdated when returned: a pid may have
//! been reused meanwhile.

use std::{
    fs,
    io::{self, Read as _},
};

use herdlet_driver::{CpuUsage, MemoryUsage};

/// Identity and times of a process. Its start time distinguishes it from a later process with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub parent: u32,
    /// Time in user mode, in clock ticks.
    pub user_ticks: u64,
    /// Time in the kernel, in clock ticks.
    pub system_ticks: u64,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// Whether it has ended and waits to be reaped.
    pub is_zombie: bool,
}

/// Stat of a process from /proc; `None` if there is no such process, or it can't be read.
pub fn stat(pid: u32) -> Option<Stat> {
    read_stat(pid).ok().flatten()
}

/// Stat of a process from /proc; `None` if there is no such process.
///
/// # Errors
/// When /proc can't be read, for instance for lack of descriptors: the process may live.
pub fn read_stat(pid: u32) -> io::Result<Option<Stat>> {
    let mut text = [0; STAT_LEN_MAX];
    match fs::File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut text)) {
        // A process can have any name: only the part after it is sure to be text.
        Ok(len) => Ok(parse(&String::from_utf8_lossy(text.get(..len).unwrap_or_default()))),
        // It may have ended between the two calls.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// 52 numbers of at most 20 digits, and a name of at most 64 bytes. The kernel returns all of it to one read.
const STAT_LEN_MAX: usize = 2048;

/// `root` and all its descendants, without zombies.
pub fn members(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    found.extend(below(root, |pid, _| Some(pid)));
    found
}

/// Calls `take` for each descendant of `root`, from the nearest to the farthest, and collects the results. Descendants
/// of a process for which it returns `None` are skipped. Zombies are skipped: they have no descendants any more.
pub fn below<T>(root: u32, mut take: impl FnMut(u32, Stat) -> Option<T>) -> Vec<T> {
    let mut found = Vec::new();
    let mut pids = vec![root];
    let mut next = 0;
    while let Some(parent) = pids.get(next).copied() {
        next += 1;
        for pid in children_of(parent) {
            let Some(stat) = stat(pid).filter(|stat| stat.parent == parent && !stat.is_zombie) else {
                continue;
            };
            if !pids.contains(&pid)
                && let Some(taken) = take(pid, stat)
            {
                pids.push(pid);
                found.push(taken);
            }
        }
    }
    found
}

/// Resident memory of these processes.
pub fn memory(pids: &[u32]) -> MemoryUsage {
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let (mut anonymous, mut mapped) = (0_u64, 0_u64);
    for pid in pids {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/statm")) else { continue };
        let mut numbers = text.split(' ').skip(1).map_while(|number| number.parse::<u64>().ok());
        let (resident, shared) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        anonymous = anonymous.saturating_add(resident.saturating_sub(shared).saturating_mul(page));
        mapped = mapped.saturating_add(shared.saturating_mul(page));
    }
    MemoryUsage {
        rss: Some(anonymous),
        mapped_file: Some(mapped),
        usage: Some(anonymous.saturating_add(mapped)),
        ..MemoryUsage::default()
    }
}

/// CPU time of those that still live.
pub fn cpu(pids: &[u32]) -> CpuUsage {
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let stats = pids.iter().filter_map(|pid| stat(*pid));
    let (user, system) = stats
        .fold((0_u64, 0_u64), |(user, system), stat| (user + stat.user_ticks, system + stat.system_ticks));
    CpuUsage {
        user_ns: user.saturating_mul(tick_ns),
        system_ns: system.saturating_mul(tick_ns),
        ..CpuUsage::default()
    }
}

/// Direct children: from the kernel's list, or (without CONFIG_PROC_CHILDREN) from the parent of every process.
fn children_of(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => {
                children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()))
            }
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => return children_by_parent(pid),
            Err(_) => {}
        }
    }
    children
}

fn children_by_parent(parent: u32) -> Vec<u32> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent)).collect()
}

fn parse(text: &str) -> Option<Stat> {
    // A process can have any name, also `) R 1`: count from the last parenthesis.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        user_ticks: number(11)?,
        system_ticks: number(12)?,
        start_ticks: number(19)?,
        is_zombie: matches!(fields.first(), Some(&("Z" | "X"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::{PidFd, Process};

    #[test]
    fn a_hostile_name_does_not_shift_the_fields() {
        let stat = parse("7 (a) R 1 (x) S 5 7 7 0 -1 0 1 0 0 0 11 12 0 0 20 0 1 0 99 1 2").unwrap();
        assert_eq!((stat.parent, stat.user_ticks, stat.system_ticks, stat.start_ticks), (5, 11, 12, 99));
        assert!(!stat.is_zombie);
        assert_eq!(parse("rubbish"), None);
    }

    /// An agent short of descriptors considered the supervisors of running tasks dead, and ended those tasks.
    #[test]
    #[expect(unsafe_code, reason = "only a thread with a table of its own can run out of descriptors alone")]
    fn unreadable_process_is_not_dead() {
        let own = std::process::id();
        let process = Process { pid: own, start_ticks: stat(own).unwrap().start_ticks };
        let looked = std::thread::spawn(move || {
            // SAFETY: a plain system call; this thread uses no descriptor that another one opens or closes from here on.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let null = fs::File::open("/dev/null").unwrap();
            let mut all: Vec<fs::File> = std::iter::from_fn(|| null.try_clone().ok()).collect();
            let none = (read_stat(own).is_err(), PidFd::open(process).is_err());
            // The pidfd can be opened, but its start time can't be read.
            drop(all.pop());
            let one = PidFd::open(process).is_err();
            drop(all.pop());
            (none, one, PidFd::open(process).is_ok_and(|found| found.is_some()))
        });
        assert_eq!(looked.join().unwrap(), ((true, true), true, true));
        assert_eq!(read_stat(u32::MAX >> 1).unwrap(), None, "there is no such process");
    }

    #[test]
    fn this_process_is_found_with_its_child() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pids = members(std::process::id());
        assert!(
            children_by_parent(std::process::id()).contains(&child.id()),
            "both functions find the child"
        );
        assert!(pids.contains(&child.id()) && pids.contains(&std::process::id()));
        assert!(memory(&pids).usage.unwrap() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!members(std::process::id()).contains(&child.id()));
        assert_eq!(stat(child.id()).map(|stat| stat.parent), None);
    }
}
