//! `vault` of a task: a token of Vault or OpenBao, and what the task gets of it.

use std_alloc::{borrow::ToOwned, format, string::String};

use serde::{Deserialize, Serialize};

use super::ChangeMode;

/// A `vault` block. It has no token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultAccess {
    /// The agent's name for the server: [`VaultAccess::DEFAULT_CLUSTER`], or another one of its config.
    pub cluster: String,
    /// The role to log in with; the agent's, or that of Vault's auth method, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The namespace of Vault; the agent's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Export `VAULT_TOKEN` and the like.
    pub env: bool,
    /// Write no `secrets/vault_token`.
    pub disable_file: bool,
    /// What to do with the task when it gets another token.
    pub change_mode: ChangeMode,
    /// Signal for [`ChangeMode::Signal`]; `SIGHUP` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_signal: Option<String>,
    /// Let the token expire: it is neither renewed nor replaced.
    pub allow_token_expiration: bool,
}

impl VaultAccess {
    /// The name of the server that a block without `cluster` means.
    pub const DEFAULT_CLUSTER: &str = "default";

    /// The name of the identity that the task logs in with, as in Nomad.
    pub fn identity_name(&self) -> String {
        format!("vault_{}", self.cluster)
    }

    /// The signal of `change_mode = "signal"`.
    pub fn signal(&self) -> String {
        self.change_signal.clone().unwrap_or_else(|| "SIGHUP".to_owned())
    }
}
