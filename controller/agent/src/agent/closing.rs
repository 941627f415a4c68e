//! Closes directories of allocations that an older agent left open to every user.
//!
//! In: the directories, and the allocation stored in each. Out: no directory is open to other users, and the users of
//! its tasks can enter as before. This runs before everything that writes, and writes nothing itself, because an
//! agent on a full disk may get no further. Cases that cannot be decided yet (an allocation whose file is damaged,
//! users while name services fail) are left to the planner.

use herdlet_api_types::alloc::Allocation;
use herdlet_base::{
    error::in_full,
    paths::{Paths, alloc_ids},
};
use herdlet_storage::alloc_dir::{LeftOpen, left_open};

use crate::{executor::places, state_db::accepted::KeptAllocation};

/// Closes the directories to all but the users of their tasks; `guests` may enter every allocation.
pub fn close_left_open(paths: &Paths, guests: &[String]) {
    for id in alloc_ids(&paths.allocs()) {
        let closed = match left_open(paths, id) {
            Ok(None) => continue,
            Ok(Some(open)) => close(&open, guests),
            Err(error) => Err(in_full(&error)),
        };
        match closed {
            Ok(()) => tracing::debug!(alloc = %id, "closed a directory that was open to other users"),
            Err(error) => {
                tracing::warn!(alloc = %id, error, "failed to close a directory that is open to other users");
            }
        }
    }
}

fn close(open: &LeftOpen, guests: &[String]) -> Result<(), String> {
    let spec = open.spec().map_err(|error| in_full(&error))?;
    let kept: KeptAllocation =
        serde_json::from_slice(&spec).map_err(|error| format!("read alloc.json: {error}"))?;
    let alloc = Allocation { job: kept.job, ..kept.allocation };
    let users = places::users_of(&alloc, guests).map_err(|error| in_full(&error))?;
    open.close_around(&users).map_err(|error| in_full(&error))
}
