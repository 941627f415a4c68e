//! How others reach the agent: the HTTP API, DNS, and what people do with allocations.
//!
//! In: requests. Out: answers from the read model, requests to the planner.

pub mod dns;
pub mod http;
pub mod listen;
pub mod peer;
pub mod reach;
