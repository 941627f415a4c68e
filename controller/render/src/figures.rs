//! Figures about renders, for the agent's metrics.
//!
//! In: how each render has ended. Out: counts by result, and how long data that is gone has been missing. A new agent
//! counts a task once it has rendered it for the first time.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::AllocId;

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
    outdated: BTreeMap<TaskKey, u64>,
}

impl Tally {
    /// A render of a task has ended.
    pub(crate) fn count(&self, task: TaskKey, ended: &Result<Rendering, RenderError>) {
        let mut known = self.known();
        match ended {
            Ok(Rendering::Done { upkeep, .. }) => {
                known.done += 1;
                match &upkeep.outdated {
                    Some(values) => known.outdated.insert(task, values.since_ns),
                    None => known.outdated.remove(&task),
                };
            }
            Ok(Rendering::Missing { outdated_since_ns, .. }) => {
                known.missing += 1;
                match outdated_since_ns {
                    Some(since_ns) => known.outdated.insert(task, *since_ns),
                    None => known.outdated.remove(&task),
                };
            }
            // Neither is it rendered, nor is its data known to be gone.
            Err(_) => known.failed += 1,
        }
    }

    /// An allocation is gone.
    pub(crate) fn forget(&self, alloc: AllocId) {
        self.known().outdated.retain(|(of, ..), _| *of != alloc);
    }

    pub(crate) fn figures(&self, queries: usize, now_ns: u64) -> Figures {
        let known = self.known();
        let since_ns = known.outdated.values().min().copied().unwrap_or(now_ns);
        Figures {
            queries,
            done: known.done,
            missing: known.missing,
            failed: known.failed,
            outdated: known.outdated.len(),
            outdated_for: Duration::from_nanos(now_ns.saturating_sub(since_ns)),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OutdatedValues, Upkeep, renderer::Recheck, watches::Consumer};

    fn missing(outdated_since_ns: Option<u64>) -> Result<Rendering, RenderError> {
        Ok(Rendering::Missing {
            on: String::from("nomad/jobs/x"),
            outdated_since_ns,
            recheck: Recheck::Reported,
            upkeep: Upkeep::default(),
        })
    }

    #[test]
    fn the_oldest_outage_counts_until_all_data_is_back() {
        let tally = Tally::default();
        let task = |number: u8| (AllocId::from_hash([number; 16]), 0, Consumer::Templates);
        let done = || Ok(Rendering::Done { outputs: vec![1], upkeep: Upkeep::default() });
        tally.count(task(1), &done());
        tally.count(task(1), &missing(Some(5)));
        tally.count(task(2), &missing(Some(12)));
        tally.count(task(3), &missing(None));
        tally.count(task(1), &Err(RenderError::Thread(String::from("x"))));
        let figures = tally.figures(7, 15);
        let expected = Figures {
            queries: 7,
            done: 1,
            missing: 3,
            failed: 1,
            outdated: 2,
            outdated_for: Duration::from_nanos(10),
        };
        assert_eq!(figures, expected);
        tally.count(task(1), &done());
        assert_eq!(tally.figures(7, 15).outdated_for, Duration::from_nanos(3));
        let outdated = Some(OutdatedValues { on: String::from("secret x"), since_ns: 4 });
        let kept = Ok(Rendering::Done { outputs: vec![1], upkeep: Upkeep { due_in: None, outdated } });
        tally.count(task(1), &kept);
        assert_eq!(tally.figures(7, 15).outdated_for, Duration::from_nanos(11), "Vault does not answer");
        tally.count(task(1), &done());
        tally.forget(task(2).0);
        let figures = tally.figures(7, 15);
        assert_eq!((figures.outdated, figures.outdated_for), (0, Duration::ZERO));
    }
}
