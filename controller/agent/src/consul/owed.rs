//! Tokens of Consul that are no longer used and must be logged out.
//!
//! In: tokens of tasks that have ended, of services that are deregistered, of log-ins whose token could not be kept. Out: requests,
//! repeated until Consul answers. Each token is stored until its log-out is confirmed, so that no crash of the agent and no outage leaves
//! it valid. The store is in the runtime directory, as the tokens of services are: a reboot loses it.

use std::{collections::BTreeMap, ffi::OsString, fs, io, path::PathBuf, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures_util::future::join_all;
use herdlet_api_types::AllocId;
use herdlet_base::durable;
use herdlet_runtime::off_thread;
use herdlet_services::catalog::AclError;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use zeroize::Zeroizing;

use super::{ConsulCluster, Consuls};
use crate::{
    held_token::HeldToken,
    runtime_file,
    token_audit::{TokenAudit, TokenHolder},
};

/// The pauses while Consul does not answer; jitter at most doubles them.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Tokens that must be logged out.
pub struct OwedTokens {
    dir: PathBuf,
    changed: Notify,
}

/// A token of a holder. Has no `Debug`: it is a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct OwedToken {
    pub alloc: AllocId,
    pub holder: TokenHolder,
    pub held: HeldToken,
}

/// A new token that is owed a log-out until its holder takes it: the log-in may have been dropped meanwhile.
pub struct IssuedToken {
    token: OwedToken,
    owed: Arc<OwedTokens>,
    is_taken: bool,
}

/// A file that can't be read now.
struct Unreadable;

impl OwedTokens {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, changed: Notify::new() }
    }

    /// Stores a token and its replacement, if it has one, which are then logged out. Storing them again changes nothing. Blocks.
    ///
    /// # Errors
    /// If one can't be stored. The caller must keep both; its replacement may be stored, and is then logged out.
    pub fn add(&self, token: OwedToken) -> io::Result<()> {
        let OwedToken { alloc, holder, mut held } = token;
        if let Some(next) = held.next.take() {
            self.add(OwedToken { alloc, holder: holder.clone(), held: *next })?;
        }
        let token = OwedToken { alloc, holder, held };
        let bytes = Zeroizing::new(serde_json::to_vec(&token)?);
        let written = runtime_file::write(&self.dir.join(token.name()), &bytes);
        self.changed.notify_one();
        written
    }

    /// Logs out until the agent ends.
    pub async fn follow(self: Arc<Self>, consuls: Arc<Consuls>) {
        loop {
            let pauses = ExponentialBuilder::new()
                .with_min_delay(RETRY_FIRST)
                .with_max_delay(RETRY_LONGEST)
                .with_jitter()
                .without_max_times();
            for pause in pauses.build() {
                if self.log_out_all(&consuls).await {
                    break;
                }
                self.rest(pause).await;
            }
            self.changed.notified().await;
        }
    }

    /// Waits until the pause is over, or there is another token: Consul may answer again.
    async fn rest(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.changed.notified() => {}
        }
    }

    /// Logs all stored tokens out. Returns whether none is left. A Consul that does not answer delays no other.
    async fn log_out_all(self: &Arc<Self>, consuls: &Consuls) -> bool {
        let store = Arc::clone(self);
        let Ok(Ok(names)) = off_thread(move || store.names()).await else { return false };
        let mut is_done = true;
        let mut by_cluster: BTreeMap<String, Vec<(OsString, OwedToken)>> = BTreeMap::new();
        for name in names {
            match self.load(&name).await {
                Ok(Some(token)) => {
                    by_cluster.entry(token.held.place.cluster.clone()).or_default().push((name, token));
                }
                Ok(None) => is_done &= self.forget(name).await,
                Err(Unreadable) => is_done = false,
            }
        }
        let all =
            by_cluster.iter().map(|(cluster, tokens)| self.log_out_of(consuls.cluster(cluster), tokens));
        join_all(all).await.into_iter().all(|is_done_here| is_done_here) && is_done
    }

    /// Logs tokens of one Consul out. Returns whether none is left.
    async fn log_out_of(
        self: &Arc<Self>,
        cluster: Option<&Arc<ConsulCluster>>,
        tokens: &[(OsString, OwedToken)],
    ) -> bool {
        let mut is_done = true;
        for (name, token) in tokens {
            match cluster {
                Some(cluster) => match token.log_out(cluster).await {
                    // Requests for the others would only wait too.
                    Err(AclError::Unreachable { .. }) => return false,
                    Err(error) if !error.is_denied() => {
                        is_done = false;
                        continue;
                    }
                    Ok(()) | Err(_) => {}
                },
                // Nothing can be done about it; it may expire.
                None => token.audit().end(Some("the agent's config has no such Consul")),
            }
            is_done &= self.forget(name.clone()).await;
        }
        is_done
    }

    /// Reads a stored token; `None` if its file is gone or damaged.
    async fn load(self: &Arc<Self>, name: &OsString) -> Result<Option<OwedToken>, Unreadable> {
        let (store, file) = (Arc::clone(self), name.clone());
        match off_thread(move || store.read(&file)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                tracing::warn!(%error, ?name, "failed to read a token of Consul that must be logged out; retrying");
                Err(Unreadable)
            }
            Err(_) => Err(Unreadable),
        }
    }

    /// Removes a stored token. Returns whether that succeeded.
    async fn forget(self: &Arc<Self>, name: OsString) -> bool {
        let store = Arc::clone(self);
        matches!(off_thread(move || store.remove(&name)).await, Ok(Ok(())))
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names =
            entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()?;
        Ok(names
            .into_iter()
            .filter(|name| name.to_str().is_some_and(|name| !durable::is_temporary(name)))
            .collect())
    }

    /// `None` for a file that is gone or damaged.
    fn read(&self, name: &OsString) -> io::Result<Option<OwedToken>> {
        let bytes = match fs::read(self.dir.join(name)) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let token = serde_json::from_slice(&bytes);
        if token.is_err() {
            tracing::warn!(
                ?name,
                "a token of Consul can't be logged out, because its file is damaged; it may stay valid until it expires"
            );
        }
        Ok(token.ok())
    }

    fn remove(&self, name: &OsString) -> io::Result<()> {
        runtime_file::remove(&self.dir.join(name))
    }
}

impl OwedToken {
    /// Logs it out. A token that does not exist counts as logged out.
    ///
    /// # Errors
    /// Those of the request.
    pub(crate) async fn log_out(&self, cluster: &ConsulCluster) -> Result<(), AclError> {
        let result = match cluster.reader.log_out(self.held.reveal()).await {
            Err(AclError::NotFound { .. }) => Ok(()),
            result => result,
        };
        match &result {
            Err(error) if !error.is_denied() => {}
            Err(error) => self.audit().end(Some(&error.to_string())),
            Ok(()) => self.audit().end(None),
        }
        result
    }

    fn audit(&self) -> TokenAudit<'_> {
        TokenAudit {
            system: "Consul",
            alloc: self.alloc,
            holder: self.holder.clone(),
            operation: "revoke",
            cluster: &self.held.place.cluster,
            accessor: &self.held.accessor,
        }
    }

    /// The name of its file.
    fn name(&self) -> OsString {
        format!("{:016x}", self.held.id).into()
    }
}

impl IssuedToken {
    pub fn new(owed: Arc<OwedTokens>, token: OwedToken) -> Self {
        Self { token, owed, is_taken: false }
    }

    /// Gives the token to its holder.
    pub fn take(mut self) -> HeldToken {
        self.is_taken = true;
        self.token.held.clone()
    }
}

impl Drop for IssuedToken {
    /// Writes a small file in memory, if nobody has taken the token.
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        if let Err(error) = self.owed.add(self.token.clone()) {
            tracing::warn!(%error, "failed to store a token of Consul for its log-out; it stays valid until it expires");
        }
    }
}

#[cfg(test)]
mod tests;
