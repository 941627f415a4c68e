//! Blocking work on the files of tasks.
//!
//! In: work that may wait for a disk. Out: its result in the terms of the planner, or why it is repeated.

use std::{fmt::Display, sync::Arc};

use herdlet_base::observation::Observation;
use herdlet_plan::{action::Outcome, facts::Facts};

use super::Refusal;

/// Performs blocking work on the files of a task.
///
/// # Errors
/// Those of the work, which is repeated then; `what` completes "failed to".
pub(super) async fn on_files<T, E>(
    what: &str,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Refusal>
where
    T: Send + 'static,
    E: Display + Send + 'static,
{
    let failed = |error: &dyn Display| Refusal::retry(format!("{what}: {error}"));
    let done = herdlet_runtime::off_thread(work).await.map_err(|error| failed(&error))?;
    done.map_err(|error| failed(&error))
}

/// The outcome of an inspection. `facts` are those of what is present.
pub(super) fn inspected(seen: Observation, facts: Option<Arc<Facts>>) -> Outcome {
    match seen {
        Observation::Present => Outcome::Present(facts),
        Observation::Absent => Outcome::Absent,
        Observation::Foreign { why } => Outcome::Foreign { why },
        Observation::Lost { why } => Outcome::Lost { why },
    }
}
