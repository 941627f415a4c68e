//! Being a node of a Nomad cluster, without knowing how allocations run.
//!
//! In: the servers ([`herdlet_rpc::pool`]), who the node is ([`identity`]), what it is ([`wire::Node`]), and something that runs allocations
//! ([`seam`]). Out: a node that registers, sends heartbeats, hands over the allocations that it should run, and reports on them
//! ([`session`]). Must not know how an allocation is run, stored or stopped.

pub mod identity;
pub mod wire;
