//! THE TABLES: what an allocation and a task consist of, in the order to bring up and in the order to take down.
//!
//! Read this page first. A part is a small file with `up` and `down`: given a pass over the allocation, it issues the
//! operations that bring it nearer to its goal and says how far it has come. Parts never wait: an operation's end is an
//! event, after which the tables are walked again.
//!
//! ```text
//!   up     dir ─► services ─► volumes ─► tasks ─► checks        task:  dir ─► artifacts ─► identity, mounts ─► process ─► services, checks
//!   down   services ─► checks ─► tasks ─► dir                   task:  services, checks ─► process ─► mounts
//! ```
//!
//! The orders are mirror images but for one thing: registration is *issued* before tasks start and not waited for, while
//! deregistration comes *first* on the way down, before `shutdown_delay` and the kill.

/// One step of planning an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocStep {
    /// The allocation directory.
    Dir,
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
pub const UP: [AllocStep; 5] =
    [AllocStep::Dir, AllocStep::Services, AllocStep::Volumes, AllocStep::Tasks, AllocStep::Checks];

/// The order to take down.
pub const DOWN: [AllocStep; 5] =
    [AllocStep::Services, AllocStep::Checks, AllocStep::Tasks, AllocStep::Volumes, AllocStep::Dir];

/// How far a step has come towards its goal, up or down, or all steps before it together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It has arrived.
    Arrived,
    /// Something is left to do or to wait for.
    Pending,
}

impl Progress {
    /// Arrived where the condition holds.
    pub(crate) fn when(arrived: bool) -> Self {
        if arrived { Self::Arrived } else { Self::Pending }
    }

    /// Arrived where both are.
    pub(crate) fn and(self, other: Self) -> Self {
        Self::when(self.has_arrived() && other.has_arrived())
    }

    /// Whether nothing is left to do or to wait for.
    pub(crate) fn has_arrived(self) -> bool {
        self == Self::Arrived
    }
}
