//! Processes that have nothing to do with herdlet and get the pids that its dead had: none of them may ever be harmed.
//!
//! In: how many there are to be at a time. Out: which pids they have had, at any time, and what became of those that did not live until
//! they were let go. In a small pid namespace every pid comes round many times.

use std::{
    collections::{BTreeSet, VecDeque},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::e2e::wait;

/// How often one of them makes room for another.
const EVERY: Duration = Duration::from_millis(10);

/// Keeps `count` of them alive until `over`, and notes every pid that one has. Those that were harmed, in words.
pub fn live(count: usize, over: &AtomicBool, pids: &Mutex<BTreeSet<u32>>) -> Vec<String> {
    let mut harmed = Vec::new();
    let mut living: VecDeque<Child> = VecDeque::new();
    while count > 0 && !over.load(Ordering::Relaxed) {
        if living.len() >= count
            && let Some(eldest) = living.pop_front()
        {
            harmed.extend(let_go(eldest));
        }
        // Where no pid is free, there will be one soon.
        if let Ok(born) = Command::new("/bin/sleep").arg("100000").stdin(Stdio::null()).spawn() {
            pids.lock().unwrap_or_else(PoisonError::into_inner).insert(born.id());
            living.push_back(born);
        }
        wait::pause(EVERY);
    }
    harmed.extend(living.into_iter().filter_map(let_go));
    harmed
}

/// Ends one that must still live.
fn let_go(mut stranger: Child) -> Option<String> {
    let pid = stranger.id();
    let ended = stranger.try_wait();
    let _ = stranger.kill();
    let _ = stranger.wait();
    match ended {
        Ok(None) => None,
        Ok(Some(status)) => Some(format!("stranger {pid} was ended: {status}")),
        Err(error) => Some(format!("stranger {pid} is not there: {error}")),
    }
}
