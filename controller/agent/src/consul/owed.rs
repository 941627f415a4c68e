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
use tokio::sync::watch;
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
    /// Marked when there is another token: Consul may answer again.
    changed: watch::Sender<()>,
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

/// What is stored.
struct StoredTokens {
    /// By the names of their files.
    tokens: Vec<(OsString, OwedToken)>,
    /// Files that are gone or damaged.
    damaged: Vec<OsString>,
    /// Whether each file could be read.
    is_complete: bool,
}

impl OwedTokens {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, changed: watch::Sender::new(()) }
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
        self.changed.send_replace(());
        written
    }

    /// Logs out until the agent ends. Each Consul has a loop of its own, so one that does not answer delays no other.
    pub async fn follow(self: Arc<Self>, consuls: Arc<Consuls>) {
        self.warn_of_unknown(&consuls).await;
        join_all(consuls.clusters().map(|cluster| self.follow_one(cluster))).await;
    }

    async fn follow_one(self: &Arc<Self>, cluster: &ConsulCluster) {
        let mut changes = self.changed.subscribe();
        loop {
            let pauses = ExponentialBuilder::new()
                .with_min_delay(RETRY_FIRST)
                .with_max_delay(RETRY_LONGEST)
                .with_jitter()
                .without_max_times();
            for pause in pauses.build() {
                changes.mark_unchanged();
                if self.log_out_of(cluster).await {
                    break;
                }
                rest(pause, &mut changes).await;
            }
            // `self` holds the sender.
            let _ = changes.changed().await;
        }
    }

    /// Warns once of tokens of Consuls that the config lacks. They stay stored: a later config may have the name again.
    async fn warn_of_unknown(self: &Arc<Self>, consuls: &Consuls) {
        let Ok(StoredTokens { tokens, .. }) = self.load().await else { return };
        let mut unknown = BTreeMap::<String, usize>::new();
        for (_, token) in tokens {
            let cluster = token.held.place.cluster;
            if consuls.cluster(&cluster).is_none() {
                *unknown.entry(cluster).or_default() += 1;
            }
        }
        for (cluster, count) in unknown {
            tracing::warn!(
                cluster,
                count,
                "tokens of a Consul that the agent's config lacks can't be logged out; add it to `consul.clusters`, or delete them in Consul"
            );
        }
    }

    /// Logs the stored tokens of one Consul out. Returns whether none is left.
    async fn log_out_of(self: &Arc<Self>, cluster: &ConsulCluster) -> bool {
        let Ok(StoredTokens { tokens, damaged, mut is_complete }) = self.load().await else { return false };
        for name in damaged {
            is_complete &= self.forget(name).await;
        }
        for (name, token) in tokens.into_iter().filter(|(_, token)| token.held.place.cluster == cluster.name)
        {
            match token.log_out(cluster).await {
                // Requests for the others would only wait too.
                Err(AclError::Unreachable { .. }) => return false,
                Err(error) if !error.is_denied() => {
                    is_complete = false;
                    continue;
                }
                Ok(()) | Err(_) => {}
            }
            is_complete &= self.forget(name).await;
        }
        is_complete
    }

    async fn load(self: &Arc<Self>) -> io::Result<StoredTokens> {
        let store = Arc::clone(self);
        off_thread(move || store.read_all()).await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    fn read_all(&self) -> io::Result<StoredTokens> {
        let mut stored = StoredTokens { tokens: Vec::new(), damaged: Vec::new(), is_complete: true };
        for name in self.names()? {
            match self.read(&name) {
                Ok(Some(token)) => stored.tokens.push((name, token)),
                Ok(None) => stored.damaged.push(name),
                Err(error) => {
                    tracing::warn!(%error, ?name, "failed to read a token of Consul that must be logged out; retrying");
                    stored.is_complete = false;
                }
            }
        }
        Ok(stored)
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

/// Waits until the pause is over, or there is another token.
async fn rest(pause: Duration, changes: &mut watch::Receiver<()>) {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        // The store, which has the sender, outlives this.
        _ = changes.changed() => {}
    }
}

#[cfg(test)]
mod tests;
