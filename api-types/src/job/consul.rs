//! `consul` of a task or a service: the Consul from which templates read, whose token the task gets, and that has the service.

use std_alloc::{borrow::ToOwned, format, string::String};

use serde::{Deserialize, Serialize};

/// A `consul` block. It has no token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConsulAccess {
    /// The agent's name for the Consul: [`ConsulAccess::DEFAULT_CLUSTER`], or another one of its config.
    pub cluster: String,
    /// The namespace of Consul Enterprise; the agent's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The partition of Consul Enterprise; that of Consul's agent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
}

impl ConsulAccess {
    /// The name of the Consul that a block without `cluster` means.
    pub const DEFAULT_CLUSTER: &str = "default";

    /// The beginning of names of identities to log in with.
    pub const IDENTITY_PREFIX: &str = "consul_";

    /// The Consul of this name.
    pub fn of_cluster(cluster: &str) -> Self {
        Self { cluster: cluster.to_owned(), namespace: None, partition: None }
    }

    /// The name of the identity that the task logs in with, as in Nomad.
    pub fn identity_name(&self) -> String {
        format!("{}{}", Self::IDENTITY_PREFIX, self.cluster)
    }
}
