//! `consul` of a group or a task: as people write it, and its conversion to and from the canonical form.

use std_alloc::{borrow::ToOwned, string::String};

use super::{Text, unless};
use crate::job::ConsulAccess;

block! {
    /// The Consul of a task: it has the task's services, templates read from it, and the task gets a token of it if the agent's config
    /// sets `task_identity`, or the task has an identity of the name `consul_CLUSTER`.
    pub struct Consul {
        /// The Consul, by its name in the agent's config; default `default`.
        pub cluster: String,
        /// The namespace of Consul Enterprise; default that of the agent's config.
        pub namespace: Text,
        /// The partition of Consul Enterprise; default that of Consul's agent.
        pub partition: Text,
    }
}

impl Consul {
    /// The canonical block.
    pub fn to_access(&self) -> ConsulAccess {
        let text = |text: &Option<Text>| text.clone().map(|text| text.0).filter(|text| !text.is_empty());
        let cluster = self.cluster.clone().filter(|cluster| !cluster.is_empty());
        ConsulAccess {
            cluster: cluster.unwrap_or_else(|| ConsulAccess::DEFAULT_CLUSTER.to_owned()),
            namespace: text(&self.namespace),
            partition: text(&self.partition),
        }
    }

    /// The block as people write it.
    pub(super) fn from_access(access: &ConsulAccess) -> Self {
        Self {
            cluster: unless(&access.cluster, ConsulAccess::DEFAULT_CLUSTER),
            namespace: access.namespace.clone().map(Text),
            partition: access.partition.clone().map(Text),
        }
    }

    /// Fills in the defaults.
    pub(super) fn fill(&mut self, access: &ConsulAccess) {
        self.cluster.get_or_insert_with(|| access.cluster.clone());
    }
}
