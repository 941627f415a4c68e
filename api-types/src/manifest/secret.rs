//! `secrets` of a task: as people write them, and their conversion to and from the canonical form.

use std_alloc::{collections::BTreeMap, string::String};

use super::{Text, strings, texts};
use crate::job;

block! {
    /// Values that are fetched before the task starts, for `${secret.NAME.KEY}`.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-hint" = "write secrets: [{name: db, provider: nomad, path: nomad/jobs/web}], and store the values with herdlet var put",
    )))]
    pub struct Secret {
        /// The `NAME` of `${secret.NAME.KEY}`: 1 to 128 letters, digits and `_`, unique in the task.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub name: String,
        /// `nomad` for a variable, `vault` for a secret of Vault, or the name of a secrets plugin of the agent.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub provider: Text,
        /// The path of the values: of a variable or a secret, or whatever the plugin expects.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub path: Text,
        /// Options of the provider; plugins have none.
        pub config: SecretConfig,
        /// Environment of a plugin; values may contain `${…}`.
        #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = {"x-name": "variable"})))]
        pub env: BTreeMap<String, Text>,
    }
}

block! {
    /// Options of a secret's provider.
    pub struct SecretConfig {
        /// Namespace of the variable; default the job's.
        pub namespace: Text,
        /// Of Vault: `kv_v1` or `kv_v2`; both are recognized without it.
        pub engine: Text,
    }
}

impl Secret {
    /// The canonical secret. Missing required fields become empty; validation refuses them before.
    pub fn to_secret(&self) -> job::Secret {
        let text = |text: &Option<Text>| text.clone().unwrap_or_default().0;
        let namespace = self.config.as_ref().and_then(|config| config.namespace.clone());
        job::Secret {
            name: self.name.clone().unwrap_or_default(),
            provider: text(&self.provider),
            path: text(&self.path),
            namespace: namespace.map(|namespace| namespace.0).filter(|namespace| !namespace.is_empty()),
            env: strings(self.env.as_ref()),
        }
    }

    /// The secret as people write it.
    pub(super) fn of(secret: &job::Secret) -> Self {
        Self {
            name: Some(secret.name.clone()),
            provider: Some(Text(secret.provider.clone())),
            path: Some(Text(secret.path.clone())),
            config: secret
                .namespace
                .clone()
                .map(|namespace| SecretConfig { namespace: Some(Text(namespace)), engine: None }),
            env: texts(&secret.env),
        }
    }
}
