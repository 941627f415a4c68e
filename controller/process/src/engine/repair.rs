//! Checks that a running attempt is still in its cgroup.

use std::sync::Arc;

use herdlet_driver::{AttemptId, DriverResult, FailureClass};

use super::{Shared, off_thread, retry};
use crate::{process_tree, supervisor};

/// The result of checking a running attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inspected {
    /// It runs, and is in its cgroup if there is one.
    Present,
    /// It had drifted, and was repaired without touching the task.
    Repaired,
    /// Its main process does not run.
    Absent,
}

/// Checks whether the main process is in its cgroup. If it isn't, moves it and all descendants of its supervisor back, and
/// reports a [`herdlet_driver::TaskEvent::Repaired`].
pub(super) async fn repair(shared: &Arc<Shared>, id: &AttemptId) -> DriverResult<Inspected> {
    let (live, record) = match shared.running(id) {
        Ok(running) => running,
        // An unreadable record does not show the attempt.
        Err(error) if error.class() == FailureClass::Retry => return Err(error),
        Err(_) => return Ok(Inspected::Absent),
    };
    if live.exit().is_some() || supervisor::open_task(&record).map_err(retry)?.is_none() {
        return Ok(Inspected::Absent);
    }
    let Some(cgroup) = shared.cgroup(id) else { return Ok(Inspected::Present) };
    if cgroup.pids().contains(&record.task.pid) {
        return Ok(Inspected::Present);
    }
    let existed = cgroup.exists();
    let limits = live.config().map(|config| shared.translate.limits(&config)).unwrap_or_default();
    off_thread(move || {
        cgroup.make(&limits).map_err(retry)?;
        // Twice: a child forked by a process that is still outside starts outside.
        for _ in 0..2 {
            let mut below = process_tree::members(record.shim.pid);
            below.retain(|pid| *pid != record.shim.pid);
            cgroup.take_in(&below).map_err(retry)?;
        }
        Ok(())
    })
    .await?;
    let what = if existed { "it had left its cgroup" } else { "its cgroup was gone" };
    shared.reports().add_repair(id.clone(), "cgroup", what);
    Ok(Inspected::Repaired)
}
