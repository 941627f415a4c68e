//! The number of the last commit, beside the database.
//!
//! In: the number after each commit. Out: the same at the next start. A database whose newest pages are damaged may
//! fall back to the previous commit, and somebody may replace it with an even older copy. This number reveals both,
//! and it distinguishes an accepted file that is newer than the database from one whose commit never happened. It is
//! written without waiting for the disk: it outlives a killed agent, which is when it is needed.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use herdlet_base::durable::{self, Outlives, Steps};

#[derive(Debug)]
pub(crate) struct Mark(File);

impl Mark {
    /// Opens `<state>/committed`.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let path = state.join("committed");
        let file = durable::open_in_place(&path)?;
        if !durable::has_other_names(&file)? {
            return Ok(Self(file));
        }
        let known = std::fs::read(&path)?;
        durable::write_in_steps(&path, &known, Outlives::Processes, &Steps::default())?;
        durable::open_in_place(&path).map(Self)
    }

    /// Stores the number of a commit.
    pub(crate) fn set(&self, index: u64) {
        if let Err(error) = self.0.write_all_at(format!("{index:020}\n").as_bytes(), 0) {
            tracing::debug!(%error, "the number of the last commit could not be written beside the database");
        }
    }
}

/// Reads the number; `None` if there is none.
pub(crate) fn read(state: &Path) -> Option<u64> {
    std::fs::read_to_string(state.join("committed")).ok()?.trim().parse().ok()
}
