//! THE TABLES: what an allocation and a task consist of, in the order to bring up and in the order to take down.
//!
//! Read this page first. A part is a small file with `up` and `down`: given a pass over the allocation, it issues the
//! operations that bring it nearer to its goal and says whether it has arrived. Parts never wait: an operation's end is an
//! event, after which the tables are walked again.
//!
//! ```text
//!   up     dir ─► services ─► volumes ─► tasks ─► checks        task:  dir ─► artifacts ─► identity, mounts ─► process ─► services, checks
//!   down   services ─► checks ─► tasks ─► dir                   task:  services, checks ─► process ─► mounts
//! ```
//!
//! The orders are mirror images but for one thing: registration is *issued* before tasks start and not waited for, while
//! deregistration comes *first* on the way down, before `shutdown_delay` and the kill.

use crate::{alloc, pass::Pass};

/// One row of the tables.
pub struct AllocPart {
    /// Name, for instance in metrics.
    pub name: &'static str,
    /// Brings it nearer to being up. The flag says whether everything above it in the table is; the answer whether it is.
    pub up: fn(&mut Pass<'_>, bool) -> bool,
    /// Brings it nearer to being gone. The flag says whether everything above it in the table is; the answer whether it is.
    pub down: fn(&mut Pass<'_>, bool) -> bool,
}

/// The order to bring up.
pub const UP: [&AllocPart; 5] = [&DIR, &SERVICES, &VOLUMES, &TASKS, &CHECKS];

/// The order to take down.
pub const DOWN: [&AllocPart; 5] = [&SERVICES, &CHECKS, &TASKS, &VOLUMES, &DIR];

const DIR: AllocPart = AllocPart { name: "dir", up: alloc::dir::up, down: alloc::dir::down };
const SERVICES: AllocPart =
    AllocPart { name: "services", up: alloc::services::up, down: alloc::services::down };
const VOLUMES: AllocPart = AllocPart { name: "volumes", up: alloc::volumes::up, down: alloc::volumes::down };
const TASKS: AllocPart = AllocPart { name: "tasks", up: alloc::tasks::up, down: alloc::tasks::down };
const CHECKS: AllocPart = AllocPart { name: "checks", up: alloc::checks::up, down: alloc::checks::down };
