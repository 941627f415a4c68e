//! Directories of allocations that an older agent left open to every user.
//!
//! In: the directories, with what is kept in them of their allocations. Out: nothing of them is open to strangers, and the users of their
//! tasks enter as before. It comes before everything that writes, because an agent on a full disk may get no further, and writes nothing
//! itself. What can't be told yet (an allocation whose file is damaged, users while name services fail) is left to the planner.

use herdlet_api_types::alloc::Allocation;
use herdlet_base::{
    error::in_full,
    paths::{Paths, alloc_ids},
};
use herdlet_storage::alloc_dir::{LeftOpen, left_open};

use crate::{executor::places, state_db::accepted::KeptAllocation};

/// Closes them around the tasks that may run in them; `guests` may enter every allocation.
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
