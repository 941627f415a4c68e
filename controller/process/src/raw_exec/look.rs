//! What is known of an attempt, and whether it still is where it belongs.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::UnixNanos;
use herdlet_driver::{AttemptId, Class, DriverError, DriverResult, Look, RunState, TaskInfo, limits::Limits};

use super::{Shared, off_thread, retry, supervise};
use crate::{
    attempts::Notice,
    process_tree,
    supervisor::{self, State},
};

pub(super) fn inspect(shared: &Shared, id: &AttemptId) -> DriverResult<TaskInfo> {
    let record = shared.attempts().record(id)?.ok_or_else(|| DriverError::Gone(id.clone()))?;
    let known = shared.find(id);
    let exit = || {
        let exit = known.as_ref().and_then(|live| live.exit());
        exit.unwrap_or_else(|| supervise::result_of(&record, shared.cgroup(id).as_ref()))
    };
    let (state, exit) = match record.state {
        State::Created | State::Tombstone => (RunState::Unknown, None),
        State::Running => match known.as_ref().and_then(|live| live.exit()) {
            None => (RunState::Running, None),
            exit => (RunState::Exited, exit),
        },
        State::StartFailed { .. } | State::Exited(_) => (RunState::Exited, Some(exit())),
    };
    let attributes = match record.task.pid {
        0 => BTreeMap::new(),
        pid => BTreeMap::from([("pid".to_owned(), pid.to_string())]),
    };
    let started_at = started_at(record.task.start_ticks);
    Ok(TaskInfo { state, started_at, exit, attributes, network: None })
}

/// Looks whether the main process is in its cgroup; one that isn't is brought back with all that is below its supervisor,
/// and that is told as a [`Notice::Repaired`].
pub(super) async fn look(shared: &Arc<Shared>, id: &AttemptId) -> DriverResult<Look> {
    let (live, record) = match shared.running(id) {
        Ok(running) => running,
        // That its record can't be read just now says nothing of it.
        Err(error) if error.class() == Class::Retry => return Err(error),
        Err(_) => return Ok(Look::Absent),
    };
    if live.exit().is_some() || supervisor::open_task(&record).map_err(retry)?.is_none() {
        return Ok(Look::Absent);
    }
    let Some(cgroup) = shared.cgroup(id) else { return Ok(Look::Present) };
    if cgroup.pids().contains(&record.task.pid) {
        return Ok(Look::Present);
    }
    let existed = cgroup.exists();
    let limits = live.config().map(|config| Limits::of(&config.resources)).unwrap_or_default();
    off_thread(move || {
        cgroup.make(&limits).map_err(retry)?;
        // Twice: what is forked by one that is not yet inside is born outside.
        for _ in 0..2 {
            let mut below = process_tree::members(record.shim.pid);
            below.retain(|pid| *pid != record.shim.pid);
            cgroup.take_in(&below).map_err(retry)?;
        }
        Ok(())
    })
    .await?;
    let what = if existed { "it had left its cgroup" } else { "its cgroup was gone" };
    let repaired = Notice::Repaired { id: id.clone(), kind: "cgroup", what: what.to_owned() };
    shared.attempts().notify(repaired).await;
    Ok(Look::Repaired { what: what.to_owned() })
}

/// Start times are counted from the boot.
fn started_at(start_ticks: u64) -> UnixNanos {
    if start_ticks == 0 {
        return UnixNanos(0);
    }
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let boot_ns = boot.tv_sec.saturating_mul(1_000_000_000).saturating_add(boot.tv_nsec);
    let start_ns = i64::try_from(start_ticks.saturating_mul(tick_ns)).unwrap_or(i64::MAX);
    UnixNanos(herdlet_base::clock::wall_now().0.saturating_sub(boot_ns.saturating_sub(start_ns)))
}
