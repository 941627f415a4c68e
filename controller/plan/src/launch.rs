//! The record of an attempt that was started: all that recover, stop, signal and exec need to know of it.
//!
//! In: what a driver gave back at the start, and the facts that it was started with. Out: the same, stored, for the agents after this one. What
//! has become of the facts since does not matter to the attempt.

use core::fmt;
use std_alloc::{collections::BTreeMap, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{facts::Revision, network::DriverNetwork, op::Part};

/// An attempt that was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Its number.
    pub attempt: u32,
    /// What it has read, by part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "crate::state::pairs")]
    pub revisions: BTreeMap<Part, Revision>,
    /// What its driver wants to be given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// The network that its driver made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<DriverNetwork>,
}

impl Launch {
    /// That of an attempt of which nothing else is known.
    pub fn of(attempt: u32) -> Self {
        Self { attempt, ..Self::default() }
    }
}

/// A driver's own note about an attempt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// Version of the note's format, by the driver.
    pub version: u32,
    /// The note, opaque to everyone else.
    pub state: Vec<u8>,
}

/// The note may hold anything, secrets too.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle {{ version: {}, {} bytes }}", self.version, self.state.len())
    }
}
