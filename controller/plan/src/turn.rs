//! The output of one turn of the world.

use std_alloc::{boxed::Box, collections::BTreeSet, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    AllocId, JobKey,
    view::{AllocView, JobView, NodeView, VolumeView},
};

use crate::{
    action::Action,
    event::{Noticed, Reply},
    op::Key,
    record::Record,
    time::Now,
};

/// The output of planning the dirty keys once.
#[derive(Debug, Default)]
pub struct Turn {
    /// Written in one transaction before anything else of the turn is released.
    pub records: Vec<Record>,
    /// Started once the records are durable.
    pub actions: Vec<Action>,
    /// Published once the records are durable.
    pub views: Vec<View>,
    /// Sent once the records are durable.
    pub replies: Vec<(u64, Reply)>,
    /// When to plan which key again, by `CLOCK_BOOTTIME`.
    pub wakes: Vec<(Key, u64)>,
    /// Events for the metrics.
    pub notes: Vec<Note>,
}

/// A turn in progress.
pub(crate) struct OpenTurn<'a> {
    /// The current time.
    pub now: Now,
    /// Keys that have to be planned.
    pub dirty: &'a mut BTreeSet<Key>,
    /// The output.
    pub turn: &'a mut Turn,
}

/// A change of the published views.
#[derive(Debug, Clone)]
pub enum View {
    /// The job's current view.
    Job(Arc<JobView>),
    /// The job was removed.
    JobGone(JobKey),
    /// The allocation's current view.
    Alloc(Arc<AllocView>),
    /// The allocation was removed.
    AllocGone(AllocId),
    /// The volume's current view.
    Volume(Box<VolumeView>),
    /// The volume was removed.
    VolumeGone(String),
    /// The node's current view.
    Node(Arc<NodeView>),
}

/// A part that has drifted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drifted {
    /// The allocation.
    pub alloc: AllocId,
    /// Its job.
    pub job: JobKey,
    /// The allocation's name, `job.group[index]`.
    pub name: String,
    /// The task; `None` for the allocation's own part.
    pub task: Option<String>,
    /// Part name, for instance `mount`.
    pub kind: &'static str,
}

/// Something to count; never a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// An inspection found a difference.
    DriftDetected {
        /// The part.
        of: Drifted,
        /// How it was noticed.
        by: Noticed,
        /// What differs.
        why: String,
    },
    /// The difference is repaired.
    DriftRepaired {
        /// The part.
        of: Drifted,
        /// Time since it was found; `None` if it was repaired at once.
        took_ns: Option<u64>,
    },
    /// The part that differs is no longer wanted.
    DriftDropped {
        /// The part.
        of: Drifted,
    },
    /// A task starts again.
    TaskRestart {
        /// Its job.
        job: JobKey,
        /// Task name.
        task: String,
        /// One of: `exit`, `failed_start`, `request`, `identity`, `reboot`, `check`, `plugin`.
        reason: &'static str,
    },
    /// The kernel's OOM killer killed a task's attempt.
    OutOfMemory {
        /// Its job.
        job: JobKey,
        /// Task name.
        task: String,
    },
    /// The agent stopped the running tasks of an allocation.
    Disruption {
        /// Its job.
        job: JobKey,
        /// One of: `stop`, `leader`, `sibling`, `main`, `outlived`.
        cause: &'static str,
    },
    /// An object converged after a change.
    Converged {
        /// `job` or `alloc`.
        kind: &'static str,
        /// Time from durable acceptance, in nanoseconds.
        took_ns: u64,
        /// One of: `apply`, `exit`, `drift`, `boot`.
        cause: &'static str,
    },
    /// A key was planned: `unchanged`, `changed` or `waiting`.
    Reconciled {
        /// `job`, `alloc` or `volume`.
        kind: &'static str,
        /// The result.
        result: &'static str,
    },
}
