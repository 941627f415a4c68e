//! The tables: the parts of an allocation and of a task, in the order to bring up and in the order to take down.
//!
//! Read this page first. A part is a row of properties ([`alloc`], [`task`]; the columns are in [`mod@column`]). Planning,
//! reactions to events and texts for people look them up there. Parts never wait: an operation's end is an event, after
//! which the tables are walked again.
//!
//! ```text
//!   up     dir ─► network ─► services ─► volumes ─► tasks ─► checks   task:  dir ─► identity ─► vault, consul ─► artifacts, mounts ─► templates ─► process ─► services, checks
//!   down   services ─► checks ─► tasks ─► network ─► dir              task:  services, checks ─► process ─► mounts
//! ```
//!
//! The orders are mirror images, with one exception: registration is *issued* before tasks start and not waited for,
//! while deregistration comes *first* on the way down, before `shutdown_delay` and the kill.

pub mod alloc;
pub mod column;
#[cfg(any(test, feature = "fixture"))]
mod probe;
pub mod set;
pub mod task;
mod templates;

use herdlet_api_types::job::{Check, CheckKind, Provider, Service};

pub(crate) use self::{alloc::AllocNeeds, column::IfFatal};
pub use self::{
    column::{
        BeforeStart, Down, IfLost, Inside, Medium, Memory, Need, PartRow, Read, ReadWhen, Source, Trust,
        WhileRunning, Withdraw,
    },
    set::PartSet,
    task::TASK_PARTS,
};
use crate::op::{Part, TaskIndex, TaskPart};

impl Part {
    /// An allocation's own parts, in the order to bring up.
    pub const OWN: [Self; 4] = [Self::Dir, Self::Network, Self::Services, Self::Checks];

    /// The properties of operations on it.
    pub const fn row(self) -> &'static PartRow {
        match self {
            Self::Dir => &alloc::DIR.row,
            Self::Network => &alloc::NETWORK.row,
            Self::Services => &alloc::SERVICES.row,
            Self::Checks => &alloc::CHECKS.row,
            Self::Task(_, part) => &part.row().row,
        }
    }

    /// The task that owns it; `None` for an allocation's own part.
    pub const fn task(self) -> Option<TaskIndex> {
        match self {
            Self::Task(index, _) => Some(index),
            Self::Dir | Self::Network | Self::Services | Self::Checks => None,
        }
    }

    /// Whether it lies in the directory `dir`, which is another part.
    pub fn lies_in(self, dir: Self) -> bool {
        match self.row().inside {
            Inside::Nothing => false,
            Inside::AllocDir => dir == Self::Dir,
            Inside::TaskDir => {
                dir == Self::Dir || self.task().is_some_and(|index| dir == Self::Task(index, TaskPart::Dir))
            }
        }
    }
}

/// Whether any of these services has a check that the agent itself runs. A Consul agent runs the others.
pub(crate) fn has_own_checks(services: &[Service]) -> bool {
    let is_ours = |service: &Service, check: &Check| {
        service.provider == Provider::Nomad || matches!(check.kind, CheckKind::Script { .. })
    };
    services.iter().any(|service| service.checks.iter().any(|check| is_ours(service, check)))
}

/// One step of planning an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocStep {
    /// The allocation directory.
    Dir,
    /// The network that the tasks share.
    Network,
    /// Registrations of the group's services.
    Services,
    /// Claims on volumes.
    Volumes,
    /// All tasks.
    Tasks,
    /// Checks of the group's services.
    Checks,
}

/// The order to bring up.
pub const UP: [AllocStep; 6] = [
    AllocStep::Dir,
    AllocStep::Network,
    AllocStep::Services,
    AllocStep::Volumes,
    AllocStep::Tasks,
    AllocStep::Checks,
];

/// The order to take down.
pub const DOWN: [AllocStep; 6] = [
    AllocStep::Services,
    AllocStep::Checks,
    AllocStep::Tasks,
    AllocStep::Network,
    AllocStep::Volumes,
    AllocStep::Dir,
];

/// The progress of a step, or of all steps before it together, towards its goal: up or down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It has arrived.
    Arrived,
    /// Something is left to do or to wait for.
    Pending,
}

impl Progress {
    /// `Arrived` if the condition holds.
    pub(crate) fn when(arrived: bool) -> Self {
        if arrived { Self::Arrived } else { Self::Pending }
    }

    /// `Arrived` if both are.
    pub(crate) fn and(self, other: Self) -> Self {
        Self::when(self.has_arrived() && other.has_arrived())
    }

    /// Whether nothing is left to do or to wait for.
    pub(crate) fn has_arrived(self) -> bool {
        self == Self::Arrived
    }
}
