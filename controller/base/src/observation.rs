//! Results of inspections and classes of failure, shared by directories, mounts, volumes, tokens and catalogues. This
//! module knows none of them.

/// Result of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// It exists as wanted.
    Present,
    /// It does not exist; taking it down has nothing to do.
    Absent,
    /// Its contents are lost, in whole or in part: bringing it up creates it again, but empty, which is no repair.
    /// Taking it down still has something to do.
    Lost {
        /// What, as a sentence without a full stop.
        why: String,
    },
    /// Something else is in its place: incomplete, damaged or not ours. Bringing it up repairs what can be repaired;
    /// taking it down still has something to do.
    Foreign {
        /// What, as a sentence without a full stop.
        why: String,
    },
}

impl Observation {
    pub fn foreign(why: impl Into<String>) -> Self {
        Self::Foreign { why: why.into() }
    }
}

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It may work later.
    Retry,
    /// It will not work as specified.
    Fatal,
}
