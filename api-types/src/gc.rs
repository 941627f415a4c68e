//! Garbage collection as shown: what has ended, and when and why it is collected.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::UnixNanos;

/// Something that has ended and can be collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// What it is.
    pub kind: EndedKind,
    /// Of the job.
    pub namespace: String,
    /// The job's id, or `job.group[index]`.
    pub name: String,
    /// The job's id, or the allocation's.
    pub id: String,
    /// When it ended.
    pub ended_at: UnixNanos,
    /// It did not end well.
    pub failed: bool,
    /// Why it is collected now; none where it stays for now.
    pub due: Option<Due>,
    /// The same in a sentence, or until when it stays.
    pub message: String,
}

/// A job that is over, or an allocation that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndedKind {
    /// It is forgotten with all its allocations.
    Job,
    /// Its directory goes.
    Alloc,
}

impl EndedKind {
    /// The word for it in output and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Alloc => "alloc",
        }
    }
}

/// Why something is collected: a closed list, used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Due {
    /// It ended long ago.
    Age,
    /// Many have ended.
    Count,
    /// The disk is filling.
    Disk,
    /// The disk has few inodes left.
    Inodes,
    /// Somebody asked for it.
    Request,
}

impl Due {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Age, Self::Count, Self::Disk, Self::Inodes, Self::Request];

    /// The word for it in output and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Count => "count",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Request => "request",
        }
    }
}
