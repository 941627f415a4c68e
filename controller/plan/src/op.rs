//! The target of an operation: the key under which at most one operation runs at a time.

use std_alloc::{string::String, sync::Arc};

use herdlet_api_types::{AllocId, JobKey, alloc::Allocation, job::Service};
use serde::{Deserialize, Serialize};

/// The unit of reconciliation. Ordered so that within a turn a job is planned before its allocations.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A job, which creates allocations.
    Job(JobKey),
    /// A volume, which allocations share.
    Volume(String),
    /// An allocation.
    Alloc(AllocId),
    /// A job that waits for freed capacity: planned after everything else, when all allocations that end in the turn
    /// have ended.
    Waiting(JobKey),
}

/// Index of a task in its group's list.
pub type TaskIndex = u16;

/// Index of a template in its task's list.
pub type TemplateIndex = u16;

/// One thing that an allocation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The allocation directory and everything that its tasks share.
    Dir,
    /// The network that its tasks share.
    Network,
    /// Registrations of the group's services.
    Services,
    /// Checks of the group's services in the built-in catalogue.
    Checks,
    /// A part of one task.
    Task(TaskIndex, TaskPart),
}

impl Part {
    /// The services that it registers; `None` if it registers nothing.
    pub fn services(self, spec: &Allocation) -> Option<&[Service]> {
        let group = spec.group()?;
        match self {
            Self::Services => Some(&group.services),
            Self::Task(index, TaskPart::Services) => Some(&group.tasks.get(usize::from(index))?.services),
            Self::Dir | Self::Network | Self::Checks | Self::Task(..) => None,
        }
    }
}

/// One thing that one start of a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskPart {
    /// The task directory with `local`, `secrets`, `private`, `tmp`.
    Dir,
    /// Token files.
    Identity,
    /// The token of Vault.
    Vault,
    /// The token of Consul.
    Consul,
    /// Values of `secret` blocks.
    Secrets,
    /// Files fetched into it.
    Artifacts,
    /// Volumes mounted for the task.
    Mounts,
    /// Files rendered from templates.
    Templates,
    /// The socket of the Task API.
    ApiSocket,
    /// The directories of a CSI plugin.
    CsiPlugin,
    /// Exists only in tests: a source of facts.
    #[cfg(any(test, feature = "fixture"))]
    Probe,
    /// Exists only in tests: reads the facts of `Probe`.
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

/// The target of an operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A part of an allocation.
    Alloc(AllocId, Part),
    /// A volume.
    Volume(String),
}

/// Identifies one operation. An outcome with an outdated generation only triggers an inspection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// What it acts on.
    pub target: Target,
    /// Increases with every operation of this agent process.
    pub generation: u64,
}

/// The subject of an action: the specification that it carries out.
#[derive(Debug, Clone)]
pub enum Subject {
    /// A part of this allocation.
    Alloc(Arc<Allocation>, Part),
    /// This volume.
    Volume(Arc<herdlet_api_types::volume::Volume>),
}
