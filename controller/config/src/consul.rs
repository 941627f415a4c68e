//! The part of the section `consul` about tokens: how tasks and services log in.
//!
//! In: the section of a config file. Out: [`ConsulLogins`], or problems.

use herdlet_api_types::Duration;

use super::{Consul, vault::DefaultIdentity};

/// The auth method in Nomad's documentation.
const METHOD: &str = "nomad-workloads";
/// The audience in Nomad's documentation.
const AUDIENCE: &str = "consul.io";
/// A log-in follows at once; Nomad's documentation has the same.
const IDENTITY_TTL: Duration = Duration::from_secs(3_600);

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
        Consul::default().logins()
    }
}

impl Consul {
    /// How tasks and services log in, with defaults.
    pub fn logins(&self) -> ConsulLogins {
        ConsulLogins {
            tasks: rules(&self.task_auth_method, &self.task_identity),
            services: rules(&self.service_auth_method, &self.service_identity),
        }
    }

    /// Problems of the settings of log-ins, by path below `consul`.
    pub(super) fn login_problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
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
            Consul::default().logins().tasks,
            LoginRules { method: METHOD.to_owned(), identity: None }
        );
        let own = Consul {
            task_auth_method: Some("tasks".to_owned()),
            task_identity: Some(DefaultIdentity::default()),
            ..Consul::default()
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
        let wrong = Consul {
            task_identity: Some(zero),
            service_auth_method: Some("a/b".to_owned()),
            ..Consul::default()
        };
        let paths: Vec<&str> = wrong.login_problems().into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["task_identity.ttl", "service_auth_method"]);
    }
}
