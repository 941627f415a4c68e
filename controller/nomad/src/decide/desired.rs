//! What a node should run, by the last answer of its servers.

use crate::wire::{AllocId, Allocation, Secret};

/// Changes of what servers want a node to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// Index of the list. It grows, unless servers were restored from an older state: then every change is reported, also those that go back.
    pub index: u64,
    /// The first list of the session. Before it, whether what runs is still wanted is unknown.
    pub is_first: bool,
    /// New, or changed by servers since they were handed over. One whose [`desired_status`](Allocation::desired_status) is terminal is to
    /// be stopped. One whose [`client_status`](Allocation::client_status) is `unknown` goes on, and how it is has to be reported again.
    pub changed: Vec<Changed>,
    /// The servers have forgotten them: whatever is left of them goes. Some may never have been handed over, since they can't be read.
    pub removed: Vec<AllocId>,
    /// New, or changed by servers, in a way that can't be read; each with why: `decode field A.B: …`. A new one has failed. One that is
    /// here goes on by its older copy, though the newer one may want to stop it. Reported again after a restart and whenever servers change it.
    pub unreadable: Vec<(AllocId, String)>,
}

/// An allocation, and what it comes with.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    /// The allocation.
    pub alloc: Allocation,
    /// For the directory of the allocation before it, where that is on another node.
    pub migrate_token: Option<Secret>,
}
