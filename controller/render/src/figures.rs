//! Figures about renders, for the agent's metrics.
//!
//! In: how each render has ended. Out: counts by result, and how long data that is gone has been missing. A new agent
//! begins to count when it renders a task for the first time.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::AllocId;
use tokio::time::Instant;

use crate::{RenderError, Rendering, TaskKey};

/// Figures of all templates of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Different queries that are watched.
    pub queries: usize,
    /// Renders of a task's templates that were complete.
    pub done: u64,
    /// Renders for which data was missing.
    pub missing: u64,
    /// Renders that failed.
    pub failed: u64,
    /// Tasks whose last output is kept because data is gone.
    pub outdated: usize,
    /// The time since the first of them lost its data.
    pub outdated_for: Duration,
}

/// Counts renders.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    done: u64,
    missing: u64,
    failed: u64,
    outdated: BTreeMap<TaskKey, Instant>,
}

impl Tally {
    /// A render of a task has ended.
    pub(crate) fn count(&self, task: TaskKey, ended: &Result<Rendering, RenderError>) {
        let mut known = self.known();
        match ended {
            Ok(Rendering::Done { .. }) => {
                known.done += 1;
                known.outdated.remove(&task);
            }
            Ok(Rendering::Missing { kept, .. }) => {
                known.missing += 1;
                if *kept {
                    known.outdated.entry(task).or_insert_with(Instant::now);
                } else {
                    known.outdated.remove(&task);
                }
            }
            // Neither is it rendered, nor is its data known to be gone.
            Err(_) => known.failed += 1,
        }
    }

    /// An allocation is gone.
    pub(crate) fn forget(&self, alloc: AllocId) {
        self.known().outdated.retain(|(of, ..), _| *of != alloc);
    }

    pub(crate) fn figures(&self, queries: usize) -> Figures {
        let known = self.known();
        Figures {
            queries,
            done: known.done,
            missing: known.missing,
            failed: known.failed,
            outdated: known.outdated.len(),
            outdated_for: known.outdated.values().min().map_or(Duration::ZERO, Instant::elapsed),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{renderer::Recheck, watches::Consumer};

    fn missing(kept: bool) -> Result<Rendering, RenderError> {
        Ok(Rendering::Missing { on: String::from("nomad/jobs/x"), kept, recheck: Recheck::Reported })
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_outage_counts_until_all_data_is_back() {
        let tally = Tally::default();
        let task = |number: u8| (AllocId::from_hash([number; 16]), 0, Consumer::Templates);
        let done = || Ok(Rendering::Done { outputs: vec![1] });
        tally.count(task(1), &done());
        tally.count(task(1), &missing(true));
        tokio::time::advance(Duration::from_secs(10)).await;
        tally.count(task(1), &missing(true));
        tally.count(task(2), &missing(true));
        tally.count(task(3), &missing(false));
        tally.count(task(1), &Err(RenderError::Thread(String::from("x"))));
        let figures = tally.figures(7);
        let expected = Figures {
            queries: 7,
            done: 1,
            missing: 4,
            failed: 1,
            outdated: 2,
            outdated_for: Duration::from_secs(10),
        };
        assert_eq!(figures, expected);
        tally.count(task(1), &done());
        assert_eq!(tally.figures(7).outdated_for, Duration::ZERO);
        tally.forget(task(2).0);
        assert_eq!(tally.figures(7).outdated, 0);
    }
}
