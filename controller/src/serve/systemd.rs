//! Messages to the service manager: `sd_notify(3)`, and the watchdog.
//!
//! In: states to report; the agent's loop. Out: datagrams to `NOTIFY_SOCKET`, if there is one.

use std::sync::Arc;

use herdlet_agent::planner::Input;
use herdlet_plan::event::Command;
use herdlet_runtime::{Inbox, Metrics};
use tokio::sync::oneshot;

pub(super) fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "failed to notify the service manager");
    }
}

/// Notifies the service manager that the loop still runs, at the requested rate. Does not wait for replies: they need a
/// commit, and a full or hanging disk is reported as degraded, which a restart would not fix.
pub(super) async fn pet_watchdog(inbox: Inbox<Input>, metrics: Arc<Metrics>) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    loop {
        let before = metrics.turns.get();
        let (nobody, _) = oneshot::channel();
        let nothing = Command::Apply { jobs: Vec::new(), volumes: Vec::new() };
        if inbox.send(Input::Request(nothing, nobody)).await.is_err() {
            return;
        }
        tokio::time::sleep(period / 3).await;
        if metrics.turns.get() == before {
            tracing::error!("the agent loop did not complete a turn in time");
        } else {
            notify(&[sd_notify::NotifyState::Watchdog]);
        }
    }
}
