//! A node of a Nomad cluster, without knowledge of how allocations run.
//!
//! In: the servers ([`herdlet_rpc::pool`]), the node's identity ([`identity`]) and description ([`wire::Node`]), and a runner of
//! allocations ([`seam`]). Out: a node that registers, sends heartbeats, passes its allocations to the runner ([`session`]), and reports on
//! them ([`reports`]). [`decide`] holds the decisions and their timing, without IO. This crate must not know how an allocation is run,
//! stored or stopped.
//!
//! ```text
//!   servers ◄── calls ── session ──► Runner::apply            decide: when, what, with which token
//!                           ▲
//!                           └─────── Reports::report          wire: the messages
//! ```
#![warn(missing_docs)]

pub mod decide;
pub mod identity;
pub mod reports;
pub mod seam;
pub mod session;
pub mod wire;
