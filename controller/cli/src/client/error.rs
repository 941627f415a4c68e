//! Why a request to the agent failed, in words for people.

use std::time::Duration;

use herdlet_manifest::yaml::Problems;

use crate::Address;

/// What may have come of a request that nobody has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it was a question.
    None,
    /// What was asked for, now or later.
    Open,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client itself could not be made.
    #[error("failed to prepare the connection")]
    Setup(#[source] reqwest::Error),
    #[error("cannot reach the agent at {address}: {why}")]
    Unreachable {
        address: Address,
        /// Why: the innermost cause, the others only repeat the address.
        why: String,
    },
    /// Somebody listens there and says nothing: it is stopped, or can't keep up.
    #[error("the agent at {address} did not answer within {} s", within.as_secs())]
    Silent {
        address: Address,
        /// How long it was given.
        within: Duration,
        /// What may have come of it.
        effect: Effect,
    },
    #[error("{message}")]
    Status {
        status: u16,
        /// What the agent said.
        message: String,
    },
    /// The agent could not make it durable in time: it may still take effect.
    #[error("{0}")]
    Open(String),
    /// The manifests are wrong.
    #[error("{0}")]
    Problems(Problems),
    #[error("the connection to the agent broke: {why}")]
    Broken {
        /// Why: the innermost cause.
        why: String,
        /// What may have come of it.
        effect: Effect,
    },
    /// The answer is none that we understand.
    #[error("failed to understand the agent's answer to {what}: {why}")]
    Answer { what: String, why: String },
}
