//! The agent's interfaces: the HTTP API, DNS, and operations on allocations.
//!
//! In: requests. Out: answers from the read model, requests to the planner.

pub mod alloc_ops;
pub mod dns;
pub mod http;
pub mod listen;
pub mod peer;
