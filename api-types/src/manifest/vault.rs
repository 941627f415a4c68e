//! `vault` of a task: as people write it, and its conversion to and from the canonical form.

use std_alloc::{borrow::ToOwned, string::String};

#[cfg(feature = "schema")]
use super::unused::ROLE_HAS_POLICIES;
use super::{Signal, Text, unless};
use crate::job::{ChangeMode, VaultAccess};

block! {
    /// A token of Vault or OpenBao for the task.
    #[cfg_attr(feature = "schema", schemars(extend("x-no-effect" = { "policies": ROLE_HAS_POLICIES })))]
    pub struct Vault {
        /// The role to log in with; default `create_from_role` of the agent's config, or the default role of Vault's auth method.
        pub role: Text,
        /// The server: a name below `vault` in the agent's config; default `default`.
        pub cluster: String,
        /// The namespace of Vault; default that of the agent's config.
        pub namespace: Text,
        /// Set `VAULT_TOKEN`, `VAULT_ADDR` and, with a namespace, `VAULT_NAMESPACE`; default true.
        pub env: bool,
        /// Write no `secrets/vault_token`.
        pub disable_file: bool,
        /// What happens to the running task when it gets another token; default `restart`. Renewals keep the token.
        pub change_mode: ChangeMode,
        /// The signal for `change_mode: signal`; default `SIGHUP`.
        pub change_signal: Signal,
        /// Neither renew the token nor replace it: it ends with its lease.
        pub allow_token_expiration: bool,
    }
}

impl Vault {
    /// The canonical block.
    pub fn to_access(&self) -> VaultAccess {
        let text = |text: &Option<Text>| text.clone().map(|text| text.0).filter(|text| !text.is_empty());
        let change_mode = self.change_mode.unwrap_or(ChangeMode::Restart);
        let signal = self.change_signal.as_ref().map(|signal| signal.0.to_ascii_uppercase());
        VaultAccess {
            cluster: self.cluster.clone().unwrap_or_else(|| VaultAccess::DEFAULT_CLUSTER.to_owned()),
            role: text(&self.role),
            namespace: text(&self.namespace),
            env: self.env.unwrap_or(true),
            disable_file: self.disable_file.unwrap_or(false),
            change_mode,
            // Servers write the default signal into blocks of every mode.
            change_signal: signal.filter(|signal| change_mode == ChangeMode::Signal && signal != "SIGHUP"),
            allow_token_expiration: self.allow_token_expiration.unwrap_or(false),
        }
    }

    /// The block as people write it.
    pub(super) fn from_access(access: &VaultAccess) -> Self {
        Self {
            role: access.role.clone().map(Text),
            cluster: unless(&access.cluster, VaultAccess::DEFAULT_CLUSTER),
            namespace: access.namespace.clone().map(Text),
            env: (!access.env).then_some(false),
            disable_file: access.disable_file.then_some(true),
            change_mode: (access.change_mode != ChangeMode::Restart).then_some(access.change_mode),
            change_signal: access.change_signal.clone().map(Signal),
            allow_token_expiration: access.allow_token_expiration.then_some(true),
        }
    }

    /// Fills in the defaults.
    pub(super) fn fill(&mut self, access: &VaultAccess) {
        self.cluster.get_or_insert_with(|| access.cluster.clone());
        self.env.get_or_insert(access.env);
        self.disable_file.get_or_insert(access.disable_file);
        self.change_mode.get_or_insert(access.change_mode);
        self.allow_token_expiration.get_or_insert(access.allow_token_expiration);
    }
}
