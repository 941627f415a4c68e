//! Metrics of the state: what is written to its database, and the disk.
//!
//! In: the runtime's figures, and facts about the disk. Out: samples.

use std::fmt;

use herdlet_runtime::StoreHealth;

use super::{Sources, names, number, page::Page};

pub(super) fn write(page: &mut Page<'_>, sources: &Sources) -> fmt::Result {
    let none: [&str; 0] = [];
    let runtime = &sources.runtime;
    page.histograms(&names::STATE_WRITE, [(none, runtime.commit_duration.read())])?;
    page.counters(&names::STATE_WRITE_FAILURES, [(none, runtime.commit_failures.get())])?;
    let degraded = *sources.store_health.borrow() != StoreHealth::Ok;
    page.gauges(&names::STATE_DEGRADED, [(none, number(u64::from(degraded)))])?;
    let is_released = (sources.reserve_in_use)();
    page.gauges(&names::STATE_RESERVE_IN_USE, [(none, number(u64::from(is_released)))])?;
    page.counters(&names::STATE_RECORDS, [(none, runtime.records.get())])?;
    page.gauges(&names::STATE_BYTES, [(none, number((sources.state_bytes)()))])?;
    page.counters(&names::STOPS_AHEAD, [(none, runtime.stops_ahead.get())])
}
