//! Being a node of a Nomad cluster, without knowing how allocations run.
//!
//! In: the servers ([`herdlet_rpc::pool`]), who the node is ([`identity`]), what it is ([`wire::Node`]), and something that runs allocations
//! ([`seam`]). Out: a node that registers, sends heartbeats, hands over the allocations that it should run, and reports on them
//! ([`session`]) by [`reports`]. What it decides, and when, is in [`decide`], without IO. Must not know how an allocation is run, stored or stopped.
//!
//! ```text
//!   servers ◄── calls ── session ──► Runner::apply            decide: when, what, with which token
//!                           ▲
//!                           └─────── Reports::report          wire: what is said
//! ```
#![warn(missing_docs)]

pub mod decide;
pub mod identity;
pub mod reports;
pub mod seam;
pub mod session;
pub mod wire;
