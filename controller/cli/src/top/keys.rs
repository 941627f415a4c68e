//! The keys of `herdlet top`.
//!
//! In: bytes of a terminal. Out: what is chosen, open and sorted by. Without a terminal there are no keys.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use herdlet_api_types::{JobKey, overview::JobRow};
use tokio::sync::mpsc;

use crate::screen::Load;

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Up,
    Down,
    /// Opens or closes the chosen job.
    Open,
    /// Opens or closes all jobs.
    All,
    Sort,
}

/// The keys, for the screen.
pub(super) const HELP: &str = "q quit  ↑↓ choose  enter tasks  a all tasks  s sort by ";

/// The order of jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// What has not converged first, as in `status`.
    #[default]
    State,
    Cpu,
    Memory,
    Name,
}

impl Sort {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::State => Self::Cpu,
            Self::Cpu => Self::Memory,
            Self::Memory => Self::Name,
            Self::Name => Self::State,
        }
    }

    /// Sorts the jobs; equal ones stay in their order.
    pub(super) fn sort(self, jobs: &mut [JobRow], loads: &BTreeMap<JobKey, Load>) {
        let load = |row: &JobRow| loads.get(&row.key).copied().unwrap_or_default();
        match self {
            Self::State => {}
            Self::Cpu => jobs.sort_by(|a, b| {
                load(b).cpu_percent.partial_cmp(&load(a).cpu_percent).unwrap_or(Ordering::Equal)
            }),
            Self::Memory => jobs.sort_by_key(|row| std::cmp::Reverse(load(row).memory)),
            Self::Name => jobs.sort_by(|a, b| a.key.cmp(&b.key)),
        }
    }
}

/// What the user has chosen.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) sort: Sort,
    pub(super) chosen: Option<JobKey>,
    pub(super) open: BTreeSet<JobKey>,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    GoOn,
    Quit,
}

impl Choice {
    /// Applies a key to the jobs that are shown, in their order.
    pub(super) fn apply(&mut self, key: Key, jobs: &[JobRow]) -> Flow {
        let at = self.chosen.as_ref().and_then(|chosen| jobs.iter().position(|row| row.key == *chosen));
        let last = jobs.len().saturating_sub(1);
        let choose = |at: usize| jobs.get(at).map(|row| row.key.clone());
        match key {
            Key::Quit => return Flow::Quit,
            Key::Up => self.chosen = choose(at.map_or(last, |at| at.saturating_sub(1))),
            Key::Down => self.chosen = choose(at.map_or(0, |at| (at + 1).min(last))),
            Key::Open => {
                if let Some(chosen) = at.and_then(choose).or_else(|| choose(0))
                    && !self.open.remove(&chosen)
                {
                    self.open.insert(chosen);
                }
            }
            Key::All if self.open.is_empty() => self.open = jobs.iter().map(|row| row.key.clone()).collect(),
            Key::All => self.open.clear(),
            Key::Sort => self.sort = self.sort.next(),
        }
        Flow::GoOn
    }
}

/// The keys in bytes that arrived together. An arrow is a sequence that begins with Escape.
fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut found = Vec::new();
    let mut rest = bytes;
    loop {
        let (key, length) = match rest {
            [0x1b, b'[' | b'O', b'A', ..] => (Some(Key::Up), 3),
            [0x1b, b'[' | b'O', b'B', ..] => (Some(Key::Down), 3),
            [0x1b, b'[' | b'O', _, ..] => (None, 3),
            // Escape alone, Ctrl-C, Ctrl-D.
            [0x1b] | [b'q' | b'Q' | 3 | 4, ..] => (Some(Key::Quit), 1),
            [b'k', ..] => (Some(Key::Up), 1),
            [b'j', ..] => (Some(Key::Down), 1),
            [b'\r' | b'\n' | b' ' | b'o', ..] => (Some(Key::Open), 1),
            [b'a', ..] => (Some(Key::All), 1),
            [b's', ..] => (Some(Key::Sort), 1),
            [_, ..] => (None, 1),
            [] => return found,
        };
        found.extend(key);
        rest = rest.get(length..).unwrap_or_default();
    }
}

/// Sends the keys that are pressed, until nobody listens or the terminal is gone. On a thread of its own: a read of a terminal cannot
/// be cancelled.
pub(super) fn pressed() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok(count @ 1..) = rustix::io::read(std::io::stdin(), &mut buffer) {
            for key in keys(buffer.get(..count).unwrap_or_default()) {
                if sender.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{UnixNanos, view::ConvergenceState};

    use super::*;

    fn row(name: &str) -> JobRow {
        JobRow {
            key: JobKey { namespace: "default".into(), id: name.into() },
            version: 0,
            from_version: None,
            deleting: false,
            stopped: false,
            held: None,
            placed: false,
            state: ConvergenceState::Converged,
            since: UnixNanos(1),
            healthy: 1,
            wanted: 1,
            next: String::new(),
            next_alloc: None,
            due: None,
        }
    }

    #[test]
    fn bytes_of_a_terminal_are_keys() {
        use Key::{All, Down, Open, Quit, Sort, Up};
        assert_eq!(keys(b"jk\x1b[A\x1b[B\x1bOA\x1b[C\rasx"), [Down, Up, Up, Down, Up, Open, All, Sort]);
        for quits in [&b"q"[..], b"\x1b", b"\x03", b"\x04"] {
            assert_eq!(keys(quits), [Quit]);
        }
    }

    #[test]
    fn jobs_are_chosen_opened_and_sorted() {
        let jobs = ["web", "db", "cache"].map(row);
        let mut choice = Choice::default();
        let chosen = |choice: &Choice| choice.chosen.as_ref().map(|key| key.id.to_string());
        choice.apply(Key::Down, &jobs);
        assert_eq!(chosen(&choice).unwrap(), "web");
        choice.apply(Key::Down, &jobs);
        choice.apply(Key::Open, &jobs);
        assert!(choice.open.contains(&jobs[1].key) && choice.open.len() == 1);
        choice.apply(Key::Up, &jobs);
        choice.apply(Key::Up, &jobs);
        assert_eq!(chosen(&choice).unwrap(), "web", "it stays at the end");
        choice.apply(Key::All, &jobs);
        assert!(choice.open.is_empty());
        choice.apply(Key::All, &jobs);
        assert_eq!(choice.open.len(), 3);
        let loads: BTreeMap<JobKey, Load> = [("web", 1.0, 30), ("db", 9.0, 10), ("cache", 3.0, 20)]
            .map(|(name, cpu_percent, memory)| (row(name).key, Load { cpu_percent, memory }))
            .into();
        let order = |choice: &mut Choice| {
            choice.apply(Key::Sort, &jobs);
            let mut sorted = jobs.clone();
            choice.sort.sort(&mut sorted, &loads);
            sorted.map(|row| row.key.id.to_string()).join(" ")
        };
        let orders = ["db cache web", "web cache db", "cache db web", "web db cache"];
        assert_eq!([(); 4].map(|()| order(&mut choice)), orders);
        assert_eq!(choice.apply(Key::Quit, &jobs), Flow::Quit);
        // The chosen job may be gone, and there may be none.
        choice.chosen = Some(row("gone").key);
        choice.apply(Key::Down, &jobs);
        assert_eq!(chosen(&choice).unwrap(), "web");
        choice.apply(Key::Open, &[]);
        choice.apply(Key::Up, &[]);
    }
}
