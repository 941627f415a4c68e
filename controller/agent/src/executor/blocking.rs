//! Blocking work on the files of tasks, and its times.
//!
//! In: work that may wait for a disk. Out: its result, or why it is repeated.

use std::{fmt::Display, time::Duration};

use herdlet_base::observation::Class;

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
    let failed = |error: &dyn Display| Refusal { class: Class::Retry, why: format!("{what}: {error}") };
    let done = herdlet_runtime::off_thread(work).await.map_err(|error| failed(&error))?;
    done.map_err(|error| failed(&error))
}

/// A length of time, for the planner.
pub(super) fn span(length: Duration) -> herdlet_api_types::Duration {
    herdlet_api_types::Duration(i64::try_from(length.as_nanos()).unwrap_or(i64::MAX))
}
