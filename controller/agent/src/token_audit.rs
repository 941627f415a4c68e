//! One line of the audit for each thing that happens to a token of Vault or Consul. No line has a token.

use herdlet_api_types::AllocId;
use serde::{Deserialize, Serialize};

use crate::vault::AUDIT;

/// What happens to a token.
pub(crate) struct TokenAudit<'a> {
    /// `Vault` or `Consul`.
    pub(crate) system: &'static str,
    pub(crate) alloc: AllocId,
    pub(crate) holder: TokenHolder,
    pub(crate) operation: &'static str,
    pub(crate) cluster: &'a str,
    /// The system's name for the token; empty if there is none yet.
    pub(crate) accessor: &'a str,
}

/// Whose token it is, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenHolder {
    Task(String),
    Service(String),
}

impl TokenAudit<'_> {
    /// Writes the line.
    pub(crate) fn end(self, failure: Option<&str>) {
        let Self { system, alloc, holder, operation, cluster, accessor } = self;
        let (task, service) = match holder {
            TokenHolder::Task(name) => (name, String::new()),
            TokenHolder::Service(name) => (String::new(), name),
        };
        match failure {
            None => {
                tracing::info!(target: AUDIT, %alloc, task, service, operation, cluster, accessor, result = "ok", "token of {system}");
            }
            Some(why) => {
                tracing::info!(target: AUDIT, %alloc, task, service, operation, cluster, accessor, result = "failed", why, "token of {system}");
            }
        }
    }
}
