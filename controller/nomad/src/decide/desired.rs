//! What a node should run, as servers have said last.

use crate::wire::{AllocId, Allocation, Secret};

/// What servers want of a node, as far as it has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// Of the list that said so. It grows, unless servers were restored from an older state: then all of what changes is told, also back.
    pub index: u64,
    /// Nothing was heard before, since the session began. Until then it isn't known whether what runs is still wanted.
    pub is_first: bool,
    /// New, or changed by servers since they were handed over. One whose [`desired_status`](Allocation::desired_status) is terminal is to
    /// be stopped. One whose [`client_status`](Allocation::client_status) is `unknown` goes on, and how it is has to be reported again.
    pub changed: Vec<Changed>,
    /// The servers have forgotten them: whatever is left of them goes. Some may never have been handed over, since they can't be read.
    pub removed: Vec<AllocId>,
    /// New, or changed by servers, in a way that can't be read; each with why: `decode field A.B: …`. A new one has failed. One that is
    /// here goes on by its older copy, though the newer one may want to stop it. Told again after a restart and whenever servers change it.
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
