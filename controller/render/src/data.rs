//! Data that all tasks share: what a watch is about.
//!
//! In: a query, and the task that asks. Out: the same query without reference to the task. Tags and choices of services
//! are left out: they select from one list, which is watched as a whole.

use herdlet_api_types::variable::VariableKey;
use herdlet_template::Query;

use crate::sources::{Access, ConsulRights, Reader};

/// Data by its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Data {
    pub origin: Origin,
    pub query: Query,
}

/// Who has data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// This agent.
    Agent,
    /// The cluster's servers, in this namespace.
    Servers { namespace: String },
    /// A Consul, by its name in the agent's config, in this namespace, empty for that of the config, and this partition, empty for that
    /// of Consul's agent.
    Consul { cluster: String, namespace: String, partition: String },
}

impl Data {
    /// The data that answers a query of this task.
    pub fn of(query: &Query, reader: &Reader) -> Self {
        let mut query = query.clone();
        if let Query::NomadVariable { namespace, .. } | Query::NomadVariables { namespace, .. } = &mut query
            && namespace.is_empty()
        {
            namespace.clone_from(&reader.namespace);
        }
        let namespace = match &mut query {
            Query::NomadVariable { namespace, .. } | Query::NomadVariables { namespace, .. } => {
                namespace.clone()
            }
            Query::NomadService { tag, choice, .. } => {
                if matches!(reader.access, Access::Servers { .. }) {
                    tag.clear();
                    *choice = None;
                }
                reader.namespace.clone()
            }
            Query::NomadServices { .. } => reader.namespace.clone(),
            Query::Consul { .. } => {
                let ConsulRights { cluster, namespace, partition, .. } = reader.consul.clone();
                return Self { origin: Origin::Consul { cluster, namespace, partition }, query };
            }
            Query::Env { .. } | Query::File { .. } | Query::Addresses | Query::Vault { .. } => {
                return Self { origin: Origin::Agent, query };
            }
        };
        let origin = match reader.access {
            Access::Agent => Origin::Agent,
            Access::Servers { .. } => Origin::Servers { namespace },
        };
        Self { origin, query }
    }
}

/// Whether the data depends on this variable of the agent.
pub(crate) fn is_of(data: &Data, key: &VariableKey) -> bool {
    data.origin == Origin::Agent && is_about(data, key)
}

/// Whether the data depends on this variable, of the agent or of servers.
pub(crate) fn is_about(data: &Data, key: &VariableKey) -> bool {
    match &data.query {
        Query::NomadVariable { path, namespace, .. } => *path == key.path && *namespace == key.namespace,
        Query::NomadVariables { prefix, namespace, .. } => {
            key.path.starts_with(prefix) && *namespace == key.namespace
        }
        Query::Env { .. }
        | Query::File { .. }
        | Query::Addresses
        | Query::NomadService { .. }
        | Query::NomadServices { .. }
        | Query::Consul { .. }
        | Query::Vault { .. } => false,
    }
}

pub(crate) fn is_about_variables(data: &Data) -> bool {
    data.origin == Origin::Agent
        && matches!(data.query, Query::NomadVariable { .. } | Query::NomadVariables { .. })
}

pub(crate) fn is_about_services(data: &Data) -> bool {
    data.origin == Origin::Agent
        && matches!(data.query, Query::NomadService { .. } | Query::NomadServices { .. })
}
