//! Errors of requests to the agent, as text for people.

use std::time::Duration;

use herdlet_manifest::yaml::Problems;

use crate::Address;

/// The possible effect of a request without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// None: it was a read.
    None,
    /// The request may have been carried out, or may still be.
    Open,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The HTTP client could not be created.
    #[error("failed to prepare the connection")]
    Setup(#[source] reqwest::Error),
    #[error("cannot reach the agent at {address}: {why}")]
    Unreachable {
        address: Address,
        /// The innermost cause; the others only repeat the address.
        why: String,
    },
    /// A process accepts the connection and does not answer: it is suspended or overloaded.
    #[error("the agent at {address} did not answer within {} s", within.as_secs())]
    Silent {
        address: Address,
        /// The timeout.
        within: Duration,
        /// The possible effect of the request.
        effect: Effect,
    },
    #[error("{message}")]
    Status {
        status: u16,
        /// The body of the agent's answer.
        message: String,
    },
    /// The agent could not persist the change in time: it may still take effect.
    #[error("{0}")]
    Open(String),
    /// The manifests are invalid.
    #[error("{0}")]
    Problems(Problems),
    #[error("the connection to the agent broke: {why}")]
    Broken {
        /// The innermost cause.
        why: String,
        /// The possible effect of the request.
        effect: Effect,
    },
    /// The answer could not be parsed.
    #[error("failed to parse the agent's answer to {what}: {why}")]
    Answer { what: String, why: String },
}
