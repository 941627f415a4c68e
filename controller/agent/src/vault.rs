//! Servers of Vault or OpenBao from which tasks get tokens.
//!
//! In: the config. Out: clients, log-ins that don't overload a server, figures for metrics, audit lines. It must not know
//! how the planner acts on failures: see [`crate::executor::vault`].

pub mod attributes;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdlet_api_types::AllocId;
use herdlet_base::{error::in_full, http_client::CredentialFiles};
use herdlet_config::vault::VaultServer;
use herdlet_runtime::off_thread;
use herdlet_vault::{
    answer::TokenGrant,
    client::VaultClient,
    config::{VaultConfig, Verification},
    error::VaultError,
    lease::BootTime,
    login_queue::LoginQueue,
    spread::Spread,
};

use crate::present;

/// The target of all audit lines, as for variables.
pub const AUDIT: &str = "herdlet::audit";

/// A task: its allocation, and its index in the group.
pub type TaskKey = (AllocId, u16);

/// The servers in the config.
#[derive(Default)]
pub struct Vaults {
    servers: BTreeMap<String, Arc<Server>>,
    /// Since when a token can't be renewed, by the boot clock.
    outdated: Mutex<BTreeMap<TaskKey, u64>>,
    /// Tokens that were revoked on request, and are not replaced yet, by [`crate::held_token::HeldToken::id`].
    revoked: Mutex<BTreeSet<u64>>,
    logged_in: AtomicU64,
    failed: AtomicU64,
}

/// One server.
pub struct Server {
    pub name: String,
    pub config: VaultServer,
    queue: LoginQueue,
    /// By namespace.
    clients: Mutex<BTreeMap<Option<String>, Arc<VaultClient>>>,
}

/// Figures for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VaultFigures {
    /// Log-ins that gave a token.
    pub logged_in: u64,
    /// Other log-ins.
    pub failed: u64,
    /// Tasks that keep a token that can't be renewed.
    pub outdated: usize,
    /// Since when the first of them keeps it.
    pub outdated_for: Duration,
}

impl Vaults {
    /// Sends no request and reads no file.
    pub fn new(servers: BTreeMap<String, VaultServer>) -> Self {
        let server = |(name, config): (String, VaultServer)| {
            let (queue, clients) = (LoginQueue::default(), Mutex::default());
            (name.clone(), Arc::new(Server { name, config, queue, clients }))
        };
        Self { servers: servers.into_iter().map(server).collect(), ..Self::default() }
    }

    pub fn server(&self, name: &str) -> Option<&Arc<Server>> {
        self.servers.get(name)
    }

    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    /// Runs a log-in when there is room for it, and counts it.
    ///
    /// # Errors
    /// Those of the log-in.
    pub async fn log_in(
        &self,
        server: &Server,
        login: impl Future<Output = Result<TokenGrant, VaultError>>,
    ) -> Result<TokenGrant, VaultError> {
        let result = server.queue.run(Spread::random(), login).await;
        let counter = if result.is_ok() { &self.logged_in } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Notes since when the token of a task can't be renewed, by the boot clock; `None` if it can.
    pub fn note(&self, task: TaskKey, failing_since_ns: Option<u64>) {
        let mut outdated = lock(&self.outdated);
        match failing_since_ns {
            Some(since_ns) => _ = outdated.insert(task, since_ns),
            None => _ = outdated.remove(&task),
        }
    }

    /// Notes that a token was revoked: the next operation on it replaces it.
    pub fn note_revoked(&self, token: u64) {
        lock(&self.revoked).insert(token);
    }

    /// Whether a token was revoked, and that is not stored yet.
    pub fn is_revoked(&self, token: u64) -> bool {
        lock(&self.revoked).contains(&token)
    }

    pub fn forget_revoked(&self, token: u64) {
        lock(&self.revoked).remove(&token);
    }

    pub fn figures(&self) -> VaultFigures {
        let (outdated, now_ns) = (lock(&self.outdated), boot_now().ns);
        let since_ns = outdated.values().min().copied().unwrap_or(now_ns);
        VaultFigures {
            logged_in: self.logged_in.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            outdated: outdated.len(),
            outdated_for: Duration::from_nanos(now_ns.saturating_sub(since_ns)),
        }
    }
}

impl Server {
    /// A client for a namespace; the config's if absent. The first call reads the certificates.
    ///
    /// # Errors
    /// If the config or a certificate can't be used.
    pub async fn client(self: &Arc<Self>, namespace: Option<&str>) -> Result<Arc<VaultClient>, String> {
        let namespace = namespace.or(self.config.namespace.as_deref()).map(str::to_owned);
        if let Some(known) = lock(&self.clients).get(&namespace) {
            return Ok(Arc::clone(known));
        }
        let (server, wanted) = (Arc::clone(self), namespace.clone());
        let made = off_thread(move || client_of(&server.config, wanted.as_deref())).await;
        let made = made.map_err(|error| error.to_string()).flatten();
        let client = Arc::new(made.map_err(|why| format!("use Vault `{}`: {why}", self.name))?);
        lock(&self.clients).insert(namespace, Arc::clone(&client));
        Ok(client)
    }
}

/// The current time, for leases.
pub fn boot_now() -> BootTime {
    let now = present::now();
    BootTime { boot_id: now.boot.0, ns: now.boot_ns }
}

fn client_of(server: &VaultServer, namespace: Option<&str>) -> Result<VaultClient, String> {
    let text = |error: &dyn std::error::Error| in_full(error);
    let mut config = VaultConfig::new(&server.address).map_err(|error| text(&error))?;
    if let Some(namespace) = namespace {
        config = config.with_namespace(namespace).map_err(|error| text(&error))?;
    }
    if let Some(name) = &server.server_name {
        config = config.with_server_name(name).map_err(|error| text(&error))?;
    }
    let VaultServer { ca_file, ca_path, certificate, .. } = server.clone();
    config.credentials = CredentialFiles { ca_file, ca_path, certificate }.read()?;
    if server.skip_verify {
        config.verification = Verification::Skipped;
    }
    VaultClient::new(config).map_err(|error| text(&error))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_age_of_the_oldest_token() {
        let (vaults, alloc) = (Vaults::default(), AllocId(uuid::Uuid::nil()));
        assert_eq!(vaults.figures(), VaultFigures::default());
        let now_ns = boot_now().ns;
        vaults.note((alloc, 0), Some(now_ns.saturating_sub(1_000_000_000)));
        vaults.note((alloc, 1), Some(now_ns.saturating_sub(10_000_000)));
        let figures = vaults.figures();
        assert!(figures.outdated == 2 && figures.outdated_for >= Duration::from_secs(1), "{figures:?}");
        vaults.note((alloc, 0), None);
        vaults.note((alloc, 1), None);
        assert_eq!(vaults.figures(), VaultFigures::default());
    }
}
