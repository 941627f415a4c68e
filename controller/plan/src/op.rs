//! What an operation acts on: the key under which at most one operation lives at a time.

use std_alloc::{string::String, sync::Arc};

use herdlet_api_types::{AllocId, JobKey, alloc::Allocation, job::Service};
use serde::{Deserialize, Serialize};

/// What is reconciled as one. Ordered so that within a turn a job is planned before the allocations it makes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A job, which makes allocations.
    Job(JobKey),
    /// A volume, which allocations share.
    Volume(String),
    /// An allocation.
    Alloc(AllocId),
    /// A job that waits for what has become free: planned once all else is, so that all that ends in a turn is known to have ended.
    Waiting(JobKey),
}

/// Index of a task in its group's list.
pub type TaskIndex = u16;

/// One thing that an allocation needs to be in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The allocation directory and what all its tasks share.
    Dir,
    /// Registrations of the group's services.
    Services,
    /// Checks of the group's services in the built-in catalogue.
    Checks,
    /// A part of one task.
    Task(TaskIndex, TaskPart),
}

impl Part {
    /// The services that it registers; none where it registers nothing.
    pub fn services(self, spec: &Allocation) -> Option<&[Service]> {
        let group = spec.group()?;
        match self {
            Self::Services => Some(&group.services),
            Self::Task(index, TaskPart::Services) => Some(&group.tasks.get(usize::from(index))?.services),
            Self::Dir | Self::Checks | Self::Task(..) => None,
        }
    }
}

/// One thing that one start of a task needs to be in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskPart {
    /// The task directory with `local`, `secrets`, `private`, `tmp`.
    Dir,
    /// What was fetched into it.
    Artifacts,
    /// Token files.
    Identity,
    /// Volumes mounted where the task wants them.
    Mounts,
    /// What only tests have: it is made elsewhere.
    #[cfg(any(test, feature = "fixture"))]
    Probe,
    /// What only tests have: it is made of the probe.
    #[cfg(any(test, feature = "fixture"))]
    ProbeReader,
    /// The process of one attempt.
    Process,
    /// Registrations of the task's services.
    Services,
    /// Checks of the task's services in the built-in catalogue.
    Checks,
    /// The `prestop` command.
    Prestop,
}

/// What an operation acts on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A part of an allocation.
    Alloc(AllocId, Part),
    /// A volume.
    Volume(String),
}

/// Identifies one operation. An outcome whose generation is not the awaited one only asks for a look.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// What it acts on.
    pub target: Target,
    /// Grows with every operation of this agent process.
    pub generation: u64,
}

/// What an action is about: the specification it carries out.
#[derive(Debug, Clone)]
pub enum Subject {
    /// A part of this allocation.
    Alloc(Arc<Allocation>, Part),
    /// This volume.
    Volume(Arc<herdlet_api_types::volume::Volume>),
}
