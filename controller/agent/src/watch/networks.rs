//! Detects damage of networks under running tasks.
//!
//! In: the networks of allocations whose tasks run, inspected regularly. Out: events that ask the planner to inspect them, which then has
//! them repaired. It repairs nothing.

use std::sync::Arc;

use herdlet_api_types::{alloc::Allocation, task::TaskStatus, view::AllocView};
use herdlet_plan::{
    action::Outcome,
    event::{Event, Noticed},
    op::Part,
};
use herdlet_runtime::{Inbox, off_thread};
use tokio::time::MissedTickBehavior;

use super::drift::INSPECTION_PERIOD;
use crate::{networks::AllocNetworks, planner::Input, publish::ReadModel};

/// Inspects networks until the agent ends.
pub async fn watch(networks: Arc<AllocNetworks>, model: Arc<ReadModel>, inbox: Inbox<Input>) {
    let mut inspections = tokio::time::interval(INSPECTION_PERIOD);
    inspections.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The planner inspects all of them at first.
    inspections.tick().await;
    while !inbox.is_closed() {
        inspections.tick().await;
        let used: Vec<Arc<Allocation>> = model.allocs().iter().filter_map(|view| used(view)).collect();
        if used.is_empty() {
            continue;
        }
        let networks = Arc::clone(&networks);
        let damaged = off_thread(move || {
            networks.maintain();
            used.into_iter().filter(|alloc| is_damaged(&networks.inspect_often(alloc))).collect::<Vec<_>>()
        });
        for alloc in damaged.await.unwrap_or_default() {
            let drift = Event::Drift { alloc: alloc.id, part: Part::Network, by: Noticed::Periodic };
            if inbox.send(Input::Event(drift)).await.is_err() {
                return;
            }
        }
    }
}

/// The allocation, if its tasks run in a network of its own, or with a file about the machine's.
fn used(view: &AllocView) -> Option<Arc<Allocation>> {
    let is_own = view.spec.group().is_some_and(|group| group.has_own_network() || group.has_own_dns());
    let runs = view.tasks.iter().any(|task| task.state == TaskStatus::Running);
    (is_own && runs).then(|| Arc::clone(&view.spec))
}

/// Whether an inspection found damage; one that failed found nothing.
fn is_damaged(seen: &Outcome) -> bool {
    matches!(seen, Outcome::Absent | Outcome::Foreign { .. })
}
