//! Node mode: the agent as a client of a Nomad server cluster.
//!
//! In: the allocations that servers want on this node, from `herdlet-nomad`'s session. Out: events for the planner, reports on the
//! allocations, and a description of this machine for servers. The same planner, executor and drivers run servers' allocations and those of
//! manifests; this crate holds the differences.
//!
//! ```text
//!   servers ◄─► session ──► runner ──► placed: converts a server's allocation into a planned one ──► inbox
//!    ▲             ▲  ▲        └─────► previous: ends of allocations on other nodes, and their disks ──► inbox
//!    │             │  └── report ◄── read model          limit: too long without servers ─► inbox
//!   `servers`    describe: this machine; meta: its metadata; moving: takeover of a Nomad client's node
//!   finds them
//!
//!   servers ──► serve: calls to this node ──► reach      users ──► http ─┬─► serve          other nodes ──► http ──► snapshot
//!                 └──► acl ──► asking ──► servers                        └─► asking ──► servers
//! ```

pub mod acknowledged;
pub mod acl;
pub mod catalog;
pub mod client_takeover;
pub mod cluster_client;
pub mod consul;
pub mod describe;
pub mod http;
pub mod identities;
pub mod join;
pub mod leave;
pub mod limit;
pub mod member;
pub mod meta;
pub mod predecessor;
pub mod report;
pub mod runner;
pub mod serve;
pub mod server_alloc;
pub mod servers;
pub mod snapshot;
pub mod templates;

#[cfg(test)]
mod test_recordings;
#[cfg(test)]
mod tests;
