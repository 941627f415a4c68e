//! The eyes of the agent: what changes in the world and nobody reports.
//!
//! In: directories, the mount table, the read model. Out: events for the planner. Events of the kernel wherever there are
//! any; a periodic look only for what has none. It decides nothing.

pub mod clock;

pub mod drift;
