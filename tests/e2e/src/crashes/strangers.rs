//! Unrelated processes that get the pids of ended tasks and supervisors. None of them may ever be harmed.
//!
//! In: the number of concurrent processes. Out: all pids that they had, and reports of those that did not
//! live until they were released. In a small pid namespace, every pid is reused many times.

use std::{
    collections::{BTreeSet, VecDeque},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::wait;

/// Interval at which one of them is replaced.
const EVERY: Duration = Duration::from_millis(10);

/// Keeps `count` of them alive until `over`, and records their pids. Returns reports of those that were
/// harmed.
pub fn live(count: usize, over: &AtomicBool, pids: &Mutex<BTreeSet<u32>>) -> Vec<String> {
    let mut harmed = Vec::new();
    let mut living: VecDeque<Child> = VecDeque::new();
    while count > 0 && !over.load(Ordering::Relaxed) {
        if living.len() >= count
            && let Some(eldest) = living.pop_front()
        {
            harmed.extend(let_go(eldest));
        }
        // If no pid is free, one will be soon.
        if let Ok(born) = Command::new("/bin/sleep").arg("100000").stdin(Stdio::null()).spawn() {
            pids.lock().unwrap_or_else(PoisonError::into_inner).insert(born.id());
            living.push_back(born);
        }
        wait::pause(EVERY);
    }
    harmed.extend(living.into_iter().filter_map(let_go));
    harmed
}

/// Ends a process, which must still be alive.
fn let_go(mut stranger: Child) -> Option<String> {
    let pid = stranger.id();
    let ended = stranger.try_wait();
    let _ = stranger.kill();
    let _ = stranger.wait();
    match ended {
        Ok(None) => None,
        Ok(Some(status)) => Some(format!("unrelated process {pid} was killed: {status}")),
        Err(error) => Some(format!("unrelated process {pid} does not exist: {error}")),
    }
}
