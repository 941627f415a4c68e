//! The desired state of a node, from the last response of its servers.

use crate::wire::{AllocId, Allocation, Secret};

/// Changes to the desired state of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The index of the list. It only grows, unless servers were restored from an older state: then changes back to that state are
    /// included.
    pub index: u64,
    /// Whether this is the first list of the session. Until then it is unknown whether running allocations are still wanted.
    pub is_first: bool,
    /// Allocations that are new, or that servers have changed since they were delivered. One with a terminal
    /// [`desired_status`](Allocation::desired_status) must be stopped. One whose [`client_status`](Allocation::client_status) is `unknown`
    /// keeps running, and its state must be reported again.
    pub changed: Vec<DesiredAlloc>,
    /// Allocations that the servers have deleted: remove everything that is left of them. Some were never delivered, because they are
    /// unreadable.
    pub removed: Vec<AllocId>,
    /// New or changed allocations that cannot be decoded, each with the reason: `decode A.B: …`. A new one counts as failed. A known
    /// one keeps running from its older copy, even if the newer one asks to stop it. Delivered again after a restart and whenever servers
    /// change it.
    pub unreadable: Vec<(AllocId, String)>,
}

/// An allocation and its migrate token.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredAlloc {
    /// The allocation.
    pub alloc: Allocation,
    /// Gives access to the directory of the previous allocation, if that is on another node.
    pub migrate_token: Option<Secret>,
}
