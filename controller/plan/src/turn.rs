//! What one turn of the world produces.

use std_alloc::{boxed::Box, collections::BTreeSet, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    AllocId, JobKey,
    view::{AllocView, JobView, VolumeView},
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
    /// Counted for the metrics.
    pub notes: Vec<Note>,
}

/// A turn that events and keys are still added to.
pub(crate) struct OpenTurn<'a> {
    /// The present.
    pub now: Now,
    /// Keys that have to be planned.
    pub dirty: &'a mut BTreeSet<Key>,
    /// What comes out.
    pub turn: &'a mut Turn,
}

/// A change of what the agent shows.
#[derive(Debug, Clone)]
pub enum View {
    /// This is the job now.
    Job(Arc<JobView>),
    /// This job is forgotten.
    JobGone(JobKey),
    /// This is the allocation now.
    Alloc(Arc<AllocView>),
    /// This allocation is forgotten.
    AllocGone(AllocId),
    /// This is the volume now.
    Volume(Box<VolumeView>),
    /// This volume is forgotten.
    VolumeGone(String),
}

/// What is not as it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drifted {
    /// Of which allocation.
    pub alloc: AllocId,
    /// Of whose.
    pub job: JobKey,
    /// It, as `job.group[index]`.
    pub name: String,
    /// Of which of its tasks; none where it is the allocation's own.
    pub task: Option<String>,
    /// Part name, for instance `mount`.
    pub kind: &'static str,
}

/// Something worth a counter; never a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A look found a difference.
    DriftDetected {
        /// In what.
        of: Drifted,
        /// How it was noticed.
        by: Noticed,
    },
    /// The difference is gone.
    DriftRepaired {
        /// In what.
        of: Drifted,
        /// Time since it was found; none where it was repaired in the same breath.
        took_ns: Option<u64>,
    },
    /// What differed is no longer wanted.
    DriftDropped {
        /// In what.
        of: Drifted,
    },
    /// A task starts again.
    TaskRestart {
        /// Its job.
        job: JobKey,
        /// Task name.
        task: String,
        /// A word of a closed list: `exit`, `failed_start`, `request`, `identity`, `reboot`.
        reason: &'static str,
    },
    /// The kernel killed a task's attempt for want of memory.
    OutOfMemory {
        /// Its job.
        job: JobKey,
        /// Task name.
        task: String,
    },
    /// We stopped an allocation's tasks.
    Disruption {
        /// Its job.
        job: JobKey,
        /// A word of a closed list: `update`, `stop`, `scale`, `leader`, `sibling`, `restart`.
        cause: &'static str,
    },
    /// An object became converged after a change.
    Converged {
        /// `job` or `alloc`.
        kind: &'static str,
        /// How long it took, in nanoseconds, from durable acceptance.
        took_ns: u64,
        /// A word of a closed list: `apply`, `exit`, `drift`, `boot`.
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
