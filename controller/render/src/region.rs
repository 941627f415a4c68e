//! The port to the servers of a cluster, which have the variables and services of their jobs, and to Consul.
//!
//! In: one read, with the token of a task. Out: the data with its index, or why there is none. The node implements it for
//! servers, [`crate::consul`] for Consul.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use herdlet_template::{Answer, Query};
use zeroize::Zeroizing;

/// Reads from servers.
pub trait Region: Send + Sync {
    /// Reads once. Bounded in time: by some seconds, and the time for which servers may block.
    ///
    /// # Errors
    /// Why there is no answer.
    fn read(&self, request: RegionRequest) -> BoxFuture<'static, Result<RegionAnswer, RegionError>>;
}

/// One read.
#[derive(Debug, Clone)]
pub struct RegionRequest {
    /// A query for variables or services, without tag and choice, or for Consul.
    pub query: Query,
    /// The namespace of the data.
    pub namespace: String,
    /// The partition of the data in Consul; empty for that of Consul's agent.
    pub partition: String,
    pub token: AccessToken,
    pub newer: Newer,
}

/// Whether to wait for newer data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newer {
    /// The leader's present data.
    Now,
    /// Any server's data as soon as its index is greater than this, or after `block`.
    Than { index: u64, block: Duration },
}

/// Data as of an index.
#[derive(Clone)]
pub struct RegionAnswer {
    pub index: u64,
    pub answer: Answer,
    /// How long ago the server had contact with its leader.
    pub last_contact: Duration,
}

/// Why servers do not give data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// No server answers, or there is no leader.
    #[error("servers cannot be reached: {0}")]
    Away(String),
    /// The token does not allow it.
    #[error("{0}")]
    Denied(String),
    /// The servers are too old.
    #[error("the servers are too old: this needs Nomad {0} or later on all of them")]
    TooOld(&'static str),
    /// Another error.
    #[error("{0}")]
    Failed(String),
}

/// The token of a task: its default identity, or its token of Consul. Empty if it has none.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct AccessToken(Arc<Zeroizing<String>>);

impl AccessToken {
    pub fn new(text: &str) -> Self {
        Self(Arc::new(Zeroizing::new(text.to_owned())))
    }

    /// Its text, for servers only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(…)")
    }
}
