//! Tokens of Vault that the agent has revoked on request.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

/// A token of a task, and whether Vault has revoked it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedToken {
    /// The job's namespace.
    pub namespace: String,
    /// The allocation, as `job.group[index]`.
    pub alloc: String,
    /// The allocation's id.
    pub alloc_id: String,
    /// The task.
    pub task: String,
    /// The agent's name for the server.
    pub cluster: String,
    /// Names the token without giving its rights.
    pub accessor: String,
    /// Why it was not revoked; absent if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
