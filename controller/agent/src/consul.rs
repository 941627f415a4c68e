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
    logged_in: AtomicU64,
    failed: AtomicU64,
}

/// One Consul.
pub struct ConsulCluster {
    pub name: String,
    pub logins: ConsulLogins,
    pub reader: ConsulReader,
    queue: LoginQueue,
}

/// Figures for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsulLoginFigures {
    /// Log-ins that gave a token.
    pub logged_in: u64,
    /// Other log-ins.
    pub failed: u64,
}

impl Consuls {
    /// Sends no request.
    ///
    /// # Errors
    /// If the HTTP client can't be created.
    pub fn new(clusters: BTreeMap<String, (ConsulConfig, ConsulLogins)>) -> Result<Self, ConsulError> {
        let cluster = |(name, (config, logins)): (String, (ConsulConfig, ConsulLogins))| {
            let (reader, queue) = (ConsulReader::new(&config)?, LoginQueue::default());
            Ok((name.clone(), Arc::new(ConsulCluster { name, logins, reader, queue })))
        };
        let clusters = clusters.into_iter().map(cluster).collect::<Result<_, ConsulError>>()?;
        Ok(Self { clusters, logged_in: AtomicU64::default(), failed: AtomicU64::default() })
    }

    pub fn cluster(&self, name: &str) -> Option<&Arc<ConsulCluster>> {
        self.clusters.get(name)
    }

    /// Logs in when there is room for it, and counts it. The request, once it is sent, runs to its end even if this is dropped: Consul may
    /// issue the token.
    ///
    /// # Errors
    /// Those of the log-in.
    pub async fn log_in<T: Send + 'static>(
        &self,
        cluster: &ConsulCluster,
        request: impl Future<Output = Result<T, AclError>> + Send + 'static,
    ) -> Result<T, AclError> {
        let asked = async {
            match tokio::spawn(request).await {
                Ok(result) => result.map_err(LoginError::Answer),
                Err(error) => Err(LoginError::Task(error.to_string())),
            }
        };
        let result = cluster.queue.run(Spread::random(), asked).await;
        let counter = if result.is_ok() { &self.logged_in } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        result.map_err(|error| match error {
            LoginError::Answer(error) => error,
            LoginError::Task(why) => {
                AclError::Unreachable { doing: "log in", address: cluster.name.clone(), why }
            }
        })
    }

    pub fn figures(&self) -> ConsulLoginFigures {
        ConsulLoginFigures {
            logged_in: self.logged_in.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
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
