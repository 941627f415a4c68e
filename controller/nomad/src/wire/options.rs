//! What every request and answer has beside what it is about: flattened into it.

use std::time::Duration;

use herdlet_rpc::codec;
use serde::{Deserialize, Serialize};

use super::Secret;

/// Of a request that asks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct QueryOptions {
    /// The region; only a ping needs none.
    pub region: String,
    /// Empty is the default one, where it matters.
    pub namespace: String,
    /// The answer waits until there is something newer.
    pub min_query_index: u64,
    /// For how long; zero: what servers think right, 300 s.
    #[serde(with = "codec::duration")]
    pub max_query_time: Duration,
    /// Any server may answer, not only the leader.
    pub allow_stale: bool,
    /// Who asks.
    pub auth_token: Secret,
    /// A server passes it on to another one. Never from a node.
    pub forwarded: bool,
}

/// Of a request that changes something.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct WriteOptions {
    /// The region.
    pub region: String,
    /// Empty is the default one, where it matters.
    pub namespace: String,
    /// Who asks.
    pub auth_token: Secret,
    /// A server passes it on to another one. Never from a node.
    pub forwarded: bool,
}

/// Of an answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct QueryMeta {
    /// The index of what was answered.
    #[serde(deserialize_with = "codec::nil::or_default")]
    pub index: u64,
    /// Nanoseconds since the server has heard from its leader.
    #[serde(deserialize_with = "codec::nil::or_default")]
    pub last_contact: i64,
    /// Whether it has a leader.
    #[serde(deserialize_with = "codec::nil::or_default")]
    pub known_leader: bool,
}
