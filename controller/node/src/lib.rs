//! Node mode: the agent as a client of a Nomad server cluster.
//!
//! In: what servers want of this node, by `herdlet-nomad`'s session. Out: events for the planner, and reports on what became of them;
//! what this machine is, told to servers. Allocations of servers run by the same planner, executor and drivers as those of manifests; what
//! differs is here.
//!
//! ```text
//!   servers ◄─► session ──► runner ──► placed: a server's allocation as a planned one ──► inbox
//!    ▲             ▲  ▲        └─────► previous: the ends of allocations elsewhere, and their disks ──► inbox
//!    │             │  └── report ◄── read model          limit: too long without servers ─► inbox
//!  found by      describe: this machine; meta: what is said of it; moving: whose node it was
//!  `servers`
//!
//!   servers ──► serve: calls on this node ──► reach      people ──► http ─┬─► serve         other nodes ──► http ──► snapshot
//!                 └──► acl ──► asking ──► servers                        └─► asking ──► servers
//! ```

pub mod acknowledged;
pub mod acl;
pub mod asking;
pub mod catalog;
pub mod consul;
pub mod describe;
pub mod http;
pub mod identities;
pub mod join;
pub mod leave;
pub mod limit;
pub mod member;
pub mod meta;
pub mod moving;
pub mod placed;
pub mod previous;
pub mod report;
pub mod runner;
pub mod serve;
pub mod servers;
pub mod snapshot;

#[cfg(test)]
mod test_recordings;
#[cfg(test)]
mod tests;
