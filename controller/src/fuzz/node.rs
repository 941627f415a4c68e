//! Foreign data that a node of a cluster reads: Nomad's agent files, the state of its client, and SRV answers.

use herdlet_config::fuzz as agent_file;
use herdlet_node::{client_takeover, servers::srv};

use super::manifest::check_positions;

/// Agent files in HCL1 or JSON: for any bytes, every problem has a position.
pub(super) fn feed_agent(data: &[u8]) {
    match agent_file::feed(data) {
        Ok(warnings) => check_positions(agent_file::NAME, data, &warnings),
        Err(problems) => {
            assert!(!problems.is_empty());
            check_positions(agent_file::NAME, data, &problems);
        }
    }
}

/// The corpus has the examples.
pub(super) fn agent_seeds() -> Vec<Vec<u8>> {
    Vec::new()
}

pub(super) fn feed_bolt(data: &[u8]) {
    client_takeover::feed_bolt(data);
}

pub(super) fn bolt_seeds() -> Vec<Vec<u8>> {
    vec![client_takeover::example()]
}

/// Answers to SRV queries.
pub(super) fn feed_srv(data: &[u8]) {
    srv::fed::feed(data);
}

pub(super) fn srv_seeds() -> Vec<Vec<u8>> {
    srv::fed::seeds()
}
