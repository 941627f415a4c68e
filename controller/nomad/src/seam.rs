//! The interface between a session and the code that runs allocations.
//!
//! A [`Factory`] starts a [`Runner`] and gives it [`Reports`] for its answers. A runner that reports every allocation as running, at once:
//!
//! ```
//! use herdlet_nomad::{
//!     reports::Reports,
//!     seam::{Desired, Factory, Runner},
//!     wire::{AllocId, AllocReport, ClientStatus},
//! };
//!
//! struct Optimist(Reports);
//!
//! impl Runner for Optimist {
//!     fn known(&self) -> Vec<(AllocId, u64)> {
//!         Vec::new() // Keeps nothing from earlier sessions.
//!     }
//!
//!     async fn apply(&self, desired: Desired) {
//!         for changed in desired.changed {
//!             let is_over = changed.alloc.desired_status.is_terminal();
//!             let client_status = if is_over { ClientStatus::Complete } else { ClientStatus::Running };
//!             self.0.report(AllocReport { id: changed.alloc.id, client_status, ..AllocReport::default() });
//!         }
//!         for (id, why) in desired.unreadable {
//!             let client_description = format!("the allocation cannot be decoded: {why}");
//!             self.0.report(AllocReport {
//!                 id,
//!                 client_status: ClientStatus::Failed,
//!                 client_description,
//!                 ..AllocReport::default()
//!             });
//!         }
//!         // A real runner deletes everything that is left of `desired.removed`.
//!     }
//!
//!     fn report_again(&self) {}
//! }
//!
//! struct Factor;
//!
//! impl Factory for Factor {
//!     type Runner = Optimist;
//!
//!     fn start(self, reports: Reports) -> Optimist {
//!         Optimist(reports)
//!     }
//! }
//! ```

use std::future::Future;

pub use crate::decide::desired::{Desired, DesiredAlloc};
use crate::{reports::Reports, wire::AllocId};

/// Runs allocations.
pub trait Runner: Send + Sync + 'static {
    /// The allocations from earlier sessions, each with the `AllocModifyIndex` of the stored copy. Includes those that have ended, those
    /// that could not be set up, and those of which only this record is left. Called once, at the start. The session skips allocations that
    /// servers have not changed since; to have one delivered again, return its index minus one.
    fn known(&self) -> Vec<(AllocId, u64)>;

    /// Accepts the desired state. Should start the work and return soon: the session receives no newer lists in the meantime.
    fn apply(&self, desired: Desired) -> impl Future<Output = ()> + Send;

    /// Reports the state of every allocation again: the node was out of contact or has just started, and the servers may have another view.
    fn report_again(&self);
}

/// Starts a runner.
pub trait Factory: Send {
    /// The type of the runner.
    type Runner: Runner;

    /// Starts the runner.
    fn start(self, reports: Reports) -> Self::Runner;
}
