//! What a node of a cluster reads that others have written: Nomad's agent files, what its client has left, and where servers are.

use herdlet_config::fuzz as agent_file;
use herdlet_node::{moving, servers::srv};

use super::manifest::placed;

/// Agent files in HCL1 or JSON: whatever they are, what is told of them has a place.
pub(super) fn feed_agent(data: &[u8]) {
    match agent_file::feed(data) {
        Ok(warnings) => placed(agent_file::NAME, data, &warnings),
        Err(problems) => {
            assert!(!problems.is_empty());
            placed(agent_file::NAME, data, &problems);
        }
    }
}

/// The corpus has them.
pub(super) fn agent_seeds() -> Vec<Vec<u8>> {
    Vec::new()
}

/// The database of Nomad's client.
pub(super) fn feed_bolt(data: &[u8]) {
    moving::feed_bolt(data);
}

pub(super) fn bolt_seeds() -> Vec<Vec<u8>> {
    vec![moving::example()]
}

/// Answers to questions about SRV records.
pub(super) fn feed_srv(data: &[u8]) {
    srv::fed::feed(data);
}

pub(super) fn srv_seeds() -> Vec<Vec<u8>> {
    srv::fed::seeds()
}
