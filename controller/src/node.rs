//! Node mode: the agent as a client of a Nomad server cluster.
//!
//! In: what servers want of this node, by `herdlet-nomad`'s session. Out: events for the planner, and reports on what became of them.
//! Allocations of servers run by the same planner, executor and drivers as those of manifests; what differs is here.
//!
//! ```text
//!   servers ◄─► session ──► runner ──► placed: a server's allocation as a planned one ──► inbox
//!                  ▲           └─────► previous: the ends of allocations elsewhere ─────► inbox
//!                  └── report ◄── read model             limit: too long without servers ─► inbox
//! ```

pub mod catalog;
pub mod join;
pub mod limit;
pub mod placed;
pub mod previous;
pub mod report;
pub mod runner;
pub mod tokens;

/// The release of Nomad whose client this is, as far as servers ask.
pub const NOMAD_VERSION: &str = "1.10.5";

#[cfg(test)]
mod tests;
