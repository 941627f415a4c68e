//! What a look saw, and how an operation failed: the words that all places (directories, mounts, volumes, tokens,
//! catalogues) answer with. It knows no place.

/// Answer of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// It is there as wanted.
    Present,
    /// There is nothing: taking it down again would have nothing to do.
    Absent,
    /// What was kept in it is gone, in whole or in part: bringing it up makes it anew, empty, which is no repair. Taking it down
    /// still has something to do.
    Lost {
        /// What, as a sentence without a full stop.
        why: String,
    },
    /// Something stands in its place that is not as wanted: incomplete, damaged or not ours. Bringing it up repairs what
    /// can be repaired; taking it down still has something to do.
    Foreign {
        /// What, as a sentence without a full stop.
        why: String,
    },
}

impl Sight {
    /// [`Sight::Foreign`] because of `why`.
    pub fn foreign(why: impl Into<String>) -> Self {
        Self::Foreign { why: why.into() }
    }
}

/// Whether trying again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It may work later.
    Retry,
    /// It will not work as specified.
    Fatal,
}
