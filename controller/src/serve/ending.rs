//! When the agent ends, and whether its node leaves the cluster first.
//!
//! In: signals, and the config for them. Out: the time to end.

use std::{io, sync::OnceLock};

use anyhow::Context as _;
use herdlet_config::{Cluster, DrainOnShutdown};
use herdlet_node::member::Joined;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::systemd::notify;

/// Signals that end the agent. Subscribed to from the beginning.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// The signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopSignal {
    Interrupt,
    Terminate,
}

impl Signals {
    pub(super) fn listen() -> anyhow::Result<Self> {
        let listen = || {
            let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
            Ok::<_, io::Error>(Self { interrupt: signal(interrupt)?, terminate: signal(terminate)? })
        };
        listen().context("listen for signals")
    }

    async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
        }
    }
}

/// Waits for a signal to end and, if the node leaves, until it is drained. A second signal ends the agent at once.
pub(super) async fn wait(mut signals: Signals, cluster: Option<&Cluster>, joined: &OnceLock<Joined>) {
    let asked = signals.next().await;
    let drain = cluster.and_then(|cluster| drain(cluster, asked));
    let (Some(how), Some(joined)) = (drain, joined.get()) else { return };
    tracing::info!("draining the node before leaving; another signal ends the agent at once");
    notify(&[
        NotifyState::Stopping,
        NotifyState::Status("draining the node"),
        NotifyState::ExtendTimeoutUsec(longest(how)),
    ]);
    tokio::select! {
        drained = joined.drain(how) => match drained {
            Ok(()) => tracing::info!("the node is drained"),
            Err(error) => tracing::warn!("leaving without a complete drain: failed to {error:#}"),
        },
        _ = signals.next() => tracing::warn!("second signal: leaving without a complete drain"),
    }
}

/// How to drain the node; none if it does not leave.
fn drain(cluster: &Cluster, asked: StopSignal) -> Option<DrainOnShutdown> {
    let leaves = match asked {
        StopSignal::Interrupt => cluster.leave_on_interrupt,
        StopSignal::Terminate => cluster.leave_on_terminate,
    };
    cluster.drain_on_shutdown.filter(|_| leaves)
}

/// The time that the service manager should wait, in µs: it kills a service that takes longer than its limit.
fn longest(how: DrainOnShutdown) -> u32 {
    let deadline = how.deadline.map(|deadline| (deadline.to_std() + GOING).as_micros());
    deadline.and_then(|micros| u32::try_from(micros).ok()).unwrap_or(u32::MAX)
}

/// Time for the end after the drain.
const GOING: std::time::Duration = std::time::Duration::from_secs(30);
