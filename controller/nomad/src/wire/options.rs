//! Options and metadata of all requests and responses, flattened into them.

use std::time::Duration;

use herdlet_rpc::codec;
use serde::{Deserialize, Serialize};

use super::Secret;

/// Options of a read request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct QueryOptions {
    /// The region; only a ping needs none.
    pub region: String,
    /// The namespace; empty for the default one.
    pub namespace: String,
    /// Block until there is something newer.
    pub min_query_index: u64,
    /// For how long to block; zero means the servers' default, 300 s.
    #[serde(with = "codec::duration")]
    pub max_query_time: Duration,
    /// Whether any server may answer, rather than only the leader.
    pub allow_stale: bool,
    /// The caller's token.
    pub auth_token: Secret,
    /// Set by servers that forward a request; never by a node.
    pub forwarded: bool,
}

/// Options of a write request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct WriteOptions {
    /// The region.
    pub region: String,
    /// The namespace; empty for the default one.
    pub namespace: String,
    /// The caller's token.
    pub auth_token: Secret,
    /// Set by servers that forward a request; never by a node.
    pub forwarded: bool,
}

/// Metadata of a response.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct QueryMeta {
    /// The index of the result.
    #[serde(deserialize_with = "codec::nil::or_default")]
    pub index: u64,
    /// Nanoseconds since the server last heard from its leader.
    #[serde(deserialize_with = "codec::nil::or_default")]
    pub last_contact: i64,
    /// Whether the server knows a leader.
    #[serde(deserialize_with = "codec::nil::or_default")]
    pub known_leader: bool,
}
