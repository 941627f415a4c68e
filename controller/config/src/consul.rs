//! The section `consul`: the Consul agents that hold services and give data and tokens, by name.
//!
//! In: the section of a config file. Out: a [`ConsulCluster`] for each, and [`ConsulLogins`], or problems.

use std::{collections::BTreeMap, path::PathBuf};

use herdlet_api_types::{Duration, job::ConsulAccess, names::NameKind};
use herdlet_nomad::wire::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{check::not_absolute, vault::DefaultIdentity};

/// The auth method in Nomad's documentation.
const METHOD: &str = "nomad-workloads";
/// The audience in Nomad's documentation.
const AUDIENCE: &str = "consul.io";
/// A log-in follows at once; Nomad's documentation has the same.
const IDENTITY_TTL: Duration = Duration::from_secs(3_600);

/// Declares the section, and the settings that the Consul `default` in it has in common with the others.
macro_rules! sections {
    ($($(#[$attribute:meta])* $field:ident: $kind:ty,)*) => {
        /// The Consul agent of this machine, which is the Consul `default`, and others.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct Consul {
            $($(#[$attribute])* pub $field: $kind,)*
            /// Whether a node of a cluster searches Consul for servers if none are configured; the default is true.
            pub client_auto_join: Option<bool>,
            /// Other Consuls, by the names that jobs use in `cluster`.
            pub clusters: BTreeMap<String, ConsulCluster>,
        }

        /// A Consul.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct ConsulCluster {
            $($(#[$attribute])* pub $field: $kind,)*
        }

        impl Consul {
            /// The Consul `default`.
            pub fn default_cluster(&self) -> ConsulCluster {
                ConsulCluster { $($field: self.$field.clone(),)* }
            }
        }
    };
}

sections! {
    /// Its address.
    address: Option<String>,
    /// File with the agent's token.
    #[schemars(with = "Option<String>")]
    token_file: Option<PathBuf>,
    /// The agent's token; a file is safer.
    #[schemars(with = "Option<String>")]
    token: Option<Secret>,
    /// Whether to use TLS if the address has no scheme.
    ssl: bool,
    /// Whether its certificate is verified; the default is true.
    verify_ssl: Option<bool>,
    /// CA certificates for its certificate (PEM).
    #[schemars(with = "Option<String>")]
    ca_file: Option<PathBuf>,
    /// The agent's certificate for it (PEM).
    #[schemars(with = "Option<String>")]
    cert_file: Option<PathBuf>,
    /// The key of that certificate (PEM).
    #[schemars(with = "Option<String>")]
    key_file: Option<PathBuf>,
    /// The namespace of jobs that name none, in Consul Enterprise.
    namespace: Option<String>,
    /// Directory of service tokens: a file for each service with a token of its own, named after the service.
    #[schemars(with = "Option<String>")]
    service_tokens_dir: Option<PathBuf>,
    /// The JWT auth method at which tasks log in; default `nomad-workloads`.
    task_auth_method: Option<String>,
    /// The identity of tasks whose job defines none of the name `consul_NAME`; without it, such tasks get no token.
    task_identity: Option<DefaultIdentity>,
    /// The JWT auth method at which services log in; default `nomad-workloads`.
    service_auth_method: Option<String>,
    /// The identity of services whose job defines none; without it, they are registered with the agent's token.
    service_identity: Option<DefaultIdentity>,
}

/// How tasks and services log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsulLogins {
    pub tasks: LoginRules,
    pub services: LoginRules,
}

/// How tasks, or services, log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginRules {
    /// The name of the JWT auth method.
    pub method: String,
    /// The identity of those whose job defines none; without it, they use the agent's token.
    pub identity: Option<IdentityRules>,
}

/// An identity to log in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityRules {
    pub audiences: Vec<String>,
    pub ttl: Duration,
}

impl Default for ConsulLogins {
    fn default() -> Self {
        ConsulCluster::default().logins()
    }
}

impl Consul {
    /// All Consuls, by name.
    pub fn by_name(&self) -> BTreeMap<String, ConsulCluster> {
        let default = (ConsulAccess::DEFAULT_CLUSTER.to_owned(), self.default_cluster());
        self.clusters.clone().into_iter().chain([default]).collect()
    }

    /// Checks what the types can't express. Returns problems by path below `consul`.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        let of_default = self.default_cluster().problems().into_iter();
        let mut problems: Vec<_> = of_default.map(|(field, message)| (field.to_owned(), message)).collect();
        for (name, cluster) in &self.clusters {
            let mut found = cluster.problems();
            if cluster.address.is_none() {
                found.push(("address", "is missing".to_owned()));
            }
            if let Some(rule) = NameKind::Cluster.problem(name) {
                found.push(("address", format!("its name {rule}")));
            } else if name == ConsulAccess::DEFAULT_CLUSTER {
                let message = "write the settings of the Consul `default` directly below `consul`";
                found.push(("address", message.to_owned()));
            }
            problems.extend(
                found.into_iter().map(|(field, message)| (format!("clusters.{name}.{field}"), message)),
            );
        }
        problems
    }

    /// The settings in force.
    pub(super) fn settled(mut self) -> Self {
        let of_others = self.clusters.values_mut().map(|one| (one.ssl, &mut one.address));
        for (ssl, address) in of_others.chain([(self.ssl, &mut self.address)]) {
            if let Some(text) = address.as_mut().filter(|text| ssl && !text.contains("://")) {
                *text = format!("https://{text}");
            }
        }
        self
    }

    /// Files with secrets.
    pub(super) fn private_paths(&self) -> Vec<PathBuf> {
        let clusters = self.by_name().into_values();
        let of = |one: ConsulCluster| [one.token_file, one.service_tokens_dir, one.key_file];
        clusters.flat_map(of).flatten().collect()
    }
}

impl ConsulCluster {
    /// How tasks and services log in, with defaults.
    pub fn logins(&self) -> ConsulLogins {
        ConsulLogins {
            tasks: rules(&self.task_auth_method, &self.task_identity),
            services: rules(&self.service_auth_method, &self.service_identity),
        }
    }

    /// Problems by field.
    fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (field, path) in [
            ("token_file", &self.token_file),
            ("service_tokens_dir", &self.service_tokens_dir),
            ("ca_file", &self.ca_file),
            ("cert_file", &self.cert_file),
            ("key_file", &self.key_file),
        ] {
            problems.extend(path.iter().filter_map(|path| Some((field, not_absolute(path)?))));
        }
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => problems.push(("cert_file", "requires key_file".to_owned())),
            (None, Some(_)) => problems.push(("key_file", "requires cert_file".to_owned())),
            (Some(_), Some(_)) | (None, None) => {}
        }
        for (field, identity) in
            [("task_identity.ttl", &self.task_identity), ("service_identity.ttl", &self.service_identity)]
        {
            let ttl = identity.as_ref().and_then(|identity| identity.ttl);
            if ttl.is_some_and(|ttl| ttl.0 <= Duration::ZERO) {
                problems.push((field, "must be longer than 0".to_owned()));
            }
        }
        for (field, method) in
            [("task_auth_method", &self.task_auth_method), ("service_auth_method", &self.service_auth_method)]
        {
            let is_name = |name: &String| {
                (1..=128).contains(&name.len())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            };
            if method.as_ref().is_some_and(|name| !is_name(name)) {
                problems.push((field, "must be 1 to 128 letters, digits, _ and -".to_owned()));
            }
        }
        problems
    }
}

fn rules(method: &Option<String>, identity: &Option<DefaultIdentity>) -> LoginRules {
    let identity = identity.clone().map(|DefaultIdentity { aud, ttl }| IdentityRules {
        audiences: if aud.is_empty() { vec![AUDIENCE.to_owned()] } else { aud },
        ttl: ttl.map_or(IDENTITY_TTL, |ttl| ttl.0),
    });
    LoginRules { method: method.clone().unwrap_or_else(|| METHOD.to_owned()), identity }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_nomads_defaults() {
        assert_eq!(
            ConsulCluster::default().logins().tasks,
            LoginRules { method: METHOD.to_owned(), identity: None }
        );
        let own = ConsulCluster {
            task_auth_method: Some("tasks".to_owned()),
            task_identity: Some(DefaultIdentity::default()),
            ..ConsulCluster::default()
        };
        let LoginRules { method, identity } = own.logins().tasks;
        let identity = identity.unwrap();
        assert_eq!((method.as_str(), identity.ttl.as_secs()), ("tasks", 3_600));
        assert_eq!(identity.audiences, ["consul.io"]);
        assert_eq!(own.logins().services.identity, None);
    }

    #[test]
    fn wrong_settings_are_reported_by_their_paths() {
        let zero = DefaultIdentity {
            ttl: Some(herdlet_api_types::manifest::Span(Duration::ZERO)),
            ..DefaultIdentity::default()
        };
        let wrong = ConsulCluster {
            address: Some("10.0.0.1:8500".to_owned()),
            task_identity: Some(zero),
            service_auth_method: Some("a/b".to_owned()),
            cert_file: Some("cert.pem".into()),
            ..ConsulCluster::default()
        };
        let clusters = [("eu", wrong.clone()), ("e u", ConsulCluster::default()), ("default", wrong)];
        let clusters = clusters.map(|(name, cluster)| (name.to_owned(), cluster)).into();
        let section = Consul { key_file: Some("/key".into()), clusters, ..Consul::default() };
        let paths: Vec<String> = section.problems().into_iter().map(|(path, _)| path).collect();
        let of = |name: &str| {
            ["cert_file", "cert_file", "task_identity.ttl", "service_auth_method"]
                .map(|field| format!("clusters.{name}.{field}"))
        };
        let mut expected = vec!["key_file".to_owned()];
        expected.extend(of("default"));
        expected.extend(
            ["clusters.default.address", "clusters.e u.address", "clusters.e u.address"].map(str::to_owned),
        );
        expected.extend(of("eu"));
        assert_eq!(paths, expected);
    }

    #[test]
    fn each_consul_has_its_own_tls_and_secrets() {
        let eu = ConsulCluster {
            address: Some("eu:8501".to_owned()),
            ssl: true,
            key_file: Some("/eu.key".into()),
            ..ConsulCluster::default()
        };
        let clusters = [("eu".to_owned(), eu)].into();
        let address = Some("127.0.0.1:8500".to_owned());
        let section = Consul { address, token_file: Some("/token".into()), clusters, ..Consul::default() };
        let section = section.settled();
        let all = section.by_name();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["default", "eu"]);
        assert_eq!(all["eu"].address.as_deref(), Some("https://eu:8501"));
        assert_eq!(all["default"].address.as_deref(), Some("127.0.0.1:8500"));
        assert_eq!(section.private_paths(), [PathBuf::from("/token"), PathBuf::from("/eu.key")]);
    }
}
