//! The Consul from which tasks and services get tokens.
//!
//! In: the config. Out: log-ins that don't overload a server, figures for metrics, tokens that are owed a log-out ([`owed`]). It must
//! not know how the planner acts on failures: see the executor.

#[cfg(test)]
pub(crate) mod fixture;
pub mod owed;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use herdlet_config::consul::ConsulLogins;
use herdlet_services::catalog::{AclError, ConsulConfig, ConsulError, ConsulReader, ConsulToken};
use herdlet_vault::{
    lease::{LeaseKind, LeaseTerms},
    login_queue::{LoginQueue, Outage},
    secret::SecretText,
    spread::Spread,
};

use crate::held_token::NewToken;

/// Every Consul in the config.
pub struct Consuls {
    clusters: BTreeMap<String, Arc<ConsulCluster>>,
}

/// The settings of each Consul, by name. One is `default`.
pub type ConsulSettings = BTreeMap<String, (ConsulConfig, ConsulLogins)>;

/// One Consul.
pub struct ConsulCluster {
    pub name: String,
    pub logins: ConsulLogins,
    pub reader: ConsulReader,
    queue: LoginQueue,
    logged_in: AtomicU64,
    failed: AtomicU64,
}

/// Figures for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsulLoginFigures {
    /// Log-ins that gave a token.
    pub logged_in: u64,
    /// Other log-ins.
    pub failed: u64,
}

/// The figures of each Consul, by name.
pub type FiguresByName = BTreeMap<String, ConsulLoginFigures>;

impl Consuls {
    /// Sends no request.
    ///
    /// # Errors
    /// If the HTTP client can't be created.
    pub fn new(settings: ConsulSettings) -> Result<Self, ConsulError> {
        let cluster = |(name, (config, logins)): (String, (ConsulConfig, ConsulLogins))| {
            let (reader, queue) = (ConsulReader::new(&config)?, LoginQueue::default());
            let (logged_in, failed) = (AtomicU64::default(), AtomicU64::default());
            let cluster = ConsulCluster { name: name.clone(), logins, reader, queue, logged_in, failed };
            Ok((name, Arc::new(cluster)))
        };
        let clusters = settings.into_iter().map(cluster).collect::<Result<_, ConsulError>>()?;
        Ok(Self { clusters })
    }

    pub fn cluster(&self, name: &str) -> Option<&Arc<ConsulCluster>> {
        self.clusters.get(name)
    }

    pub fn clusters(&self) -> impl Iterator<Item = &Arc<ConsulCluster>> {
        self.clusters.values()
    }

    /// The names of all Consuls, as the second half of a message about another name.
    pub fn known(&self) -> String {
        let names: Vec<String> = self.clusters.keys().map(|name| format!("`{name}`")).collect();
        format!("the agent's config has only {}", names.join(", "))
    }

    /// The figures of each Consul, by name.
    pub fn figures(&self) -> FiguresByName {
        let figures = |cluster: &ConsulCluster| ConsulLoginFigures {
            logged_in: cluster.logged_in.load(Ordering::Relaxed),
            failed: cluster.failed.load(Ordering::Relaxed),
        };
        self.clusters.iter().map(|(name, cluster)| (name.clone(), figures(cluster))).collect()
    }
}

impl ConsulCluster {
    /// Logs in when there is room for it, and counts it. The request, once it is sent, runs to its end even if this is dropped: Consul may
    /// issue the token.
    ///
    /// # Errors
    /// Those of the log-in.
    pub async fn log_in<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, AclError>> + Send + 'static,
    ) -> Result<T, AclError> {
        let asked = async {
            match tokio::spawn(request).await {
                Ok(result) => result.map_err(LoginError::Answer),
                Err(error) => Err(LoginError::Task(error.to_string())),
            }
        };
        let result = self.queue.run(Spread::random(), asked).await;
        let counter = if result.is_ok() { &self.logged_in } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        result.map_err(|error| match error {
            LoginError::Answer(error) => error,
            LoginError::Task(why) => {
                AclError::Unreachable { doing: "log in", address: self.name.clone(), why }
            }
        })
    }
}

/// Consul renews no token: one that expires is replaced before.
pub(crate) fn new_token(issued: ConsulToken) -> NewToken {
    let ConsulToken { secret, accessor, lifetime } = issued;
    let kind = if lifetime.is_some() { LeaseKind::Fixed } else { LeaseKind::Endless };
    let terms = LeaseTerms { duration: lifetime.unwrap_or_default(), kind };
    NewToken { token: SecretText::new(String::clone(&secret)), accessor, terms }
}

/// The error of a log-in, for the queue.
enum LoginError {
    Answer(AclError),
    /// The task with the request has ended.
    Task(String),
}

impl Outage for LoginError {
    fn is_outage(&self) -> bool {
        match self {
            Self::Answer(error) => error.is_of_server(),
            Self::Task(_) => false,
        }
    }
}
