//! Garbage collection as shown: objects that have ended, and when and why they are collected.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::UnixNanos;

/// An ended object that can be collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collectable {
    /// The kind of object.
    pub kind: CollectableKind,
    /// The job's namespace.
    pub namespace: String,
    /// The job's id, or `job.group[index]`.
    pub name: String,
    /// The job's id, or the allocation's.
    pub id: String,
    /// The time it ended.
    pub ended_at: UnixNanos,
    /// Whether it ended with a failure.
    pub failed: bool,
    /// Why it is collected now; `None` if it is kept for now.
    pub due: Option<Due>,
    /// The reason in a sentence, or how long it is kept.
    pub message: String,
}

/// A finished job, or an ended allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectableKind {
    /// The job is removed with all its allocations.
    Job,
    /// The allocation's directory is removed.
    Alloc,
}

impl CollectableKind {
    /// The name in output and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Alloc => "alloc",
        }
    }
}

/// Why an object is collected: a closed list, used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Due {
    /// It ended long ago.
    Age,
    /// Too many have ended.
    Count,
    /// Disk space is low.
    Disk,
    /// The disk has few free inodes.
    Inodes,
    /// A user requested it.
    Request,
}

impl Due {
    /// All values.
    pub const ALL: [Self; 5] = [Self::Age, Self::Count, Self::Disk, Self::Inodes, Self::Request];

    /// The name in output and metrics.
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
