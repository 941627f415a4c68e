//! What a session hands over, and to whom: the seam between being a node and running allocations.
//!
//! A [`Factory`] starts a [`Runner`] and gives it [`Reports`] on which to answer. One that says of every
//! allocation that it runs, at once:
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
//!         Vec::new() // It remembers nothing from before.
//!     }
//!
//!     async fn apply(&self, desired: Desired) {
//!         for changed in desired.changed {
//!             let is_over = changed.alloc.desired_status.is_terminal();
//!             let client_status = if is_over { ClientStatus::Complete } else { ClientStatus::Running };
//!             self.0.report(AllocReport { id: changed.alloc.id, client_status, ..AllocReport::default() });
//!         }
//!         for (id, why) in desired.unreadable {
//!             let client_description = format!("the allocation can't be read: {why}");
//!             self.0.report(AllocReport {
//!                 id,
//!                 client_status: ClientStatus::Failed,
//!                 client_description,
//!                 ..AllocReport::default()
//!             });
//!         }
//!         // Of what is in `desired.removed`, nothing may be left.
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

pub use crate::decide::desired::{Changed, Desired};
use crate::{reports::Reports, wire::AllocId};

/// Runs allocations.
pub trait Runner: Send + Sync + 'static {
    /// What is here from before, each with the `AllocModifyIndex` of the copy that is kept: also what has ended, what could not be set up,
    /// and that of which nothing but this is left. Asked once, at the beginning. What servers have not changed since is not handed over again, so that one
    /// that is to be gets one less.
    fn known(&self) -> Vec<(AllocId, u64)>;

    /// Takes what is wanted. Should return soon, with the work begun and not done: nothing newer is heard meanwhile.
    fn apply(&self, desired: Desired) -> impl Future<Output = ()> + Send;

    /// The node was out of contact, or has just begun, and servers may think otherwise of what runs here: report once more how everything is.
    fn report_again(&self);
}

/// Starts what runs allocations.
pub trait Factory: Send {
    /// What it starts.
    type Runner: Runner;

    /// Starts it.
    fn start(self, reports: Reports) -> Self::Runner;
}
