//! `secrets` of a task: values that are fetched before it starts, for `${secret.NAME.KEY}`.

use std_alloc::{collections::BTreeMap, string::String};

use serde::{Deserialize, Serialize};

/// A `secret` block. It names values, and has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Unique in the task; the `NAME` of `${secret.NAME.KEY}`.
    pub name: String,
    /// Who has the values: [`Secret::VARIABLES`], [`Secret::VAULT`], or the name of a plugin.
    pub provider: String,
    /// The path of the values at the provider.
    pub path: String,
    /// The namespace of a variable; the job's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Environment of a plugin. May contain `${…}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl Secret {
    /// The provider of variables.
    pub const VARIABLES: &str = "nomad";
    /// The provider of secrets of Vault.
    pub const VAULT: &str = "vault";

    /// Whether a plugin fetches the values.
    pub fn is_of_plugin(&self) -> bool {
        self.provider != Self::VARIABLES && self.provider != Self::VAULT
    }

    /// The name of a value for `${…}`.
    pub fn value_name(&self, key: &str) -> String {
        std_alloc::format!("secret.{}.{key}", self.name)
    }
}
