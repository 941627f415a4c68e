//! Tokens of Consul that are no longer used and must be logged out.
//!
//! In: tokens of tasks that have ended, of services that are deregistered. Out: requests, repeated until Consul answers. Each token is
//! stored until its log-out is confirmed, so that no crash and no outage leaves it valid. The directory is in memory, as the tokens.

use std::{ffi::OsString, fs, io, path::PathBuf, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use herdlet_api_types::AllocId;
use herdlet_base::durable;
use herdlet_runtime::off_thread;
use herdlet_services::catalog::AclError;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use zeroize::Zeroizing;

use super::Consuls;
use crate::{
    held_token::HeldToken,
    token_audit::{TokenAudit, TokenHolder},
};

/// The pauses while Consul does not answer; jitter at most doubles them.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Tokens that must be logged out. The methods block, except [`OwedTokens::follow`].
pub struct OwedTokens {
    dir: PathBuf,
    changed: Notify,
}

/// Whose token it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastHolder {
    Task(String),
    Service(String),
}

/// A stored token. Has no `Debug`: it is a secret.
#[derive(Serialize, Deserialize)]
struct OwedToken {
    alloc: AllocId,
    holder: LastHolder,
    held: HeldToken,
}

impl OwedTokens {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, changed: Notify::new() }
    }

    /// Stores a token, which is then logged out. Storing it again changes nothing.
    ///
    /// # Errors
    /// If it can't be stored: the caller must keep it.
    pub fn add(&self, alloc: AllocId, holder: LastHolder, held: HeldToken) -> io::Result<()> {
        let path = self.dir.join(format!("{:016x}", held.id));
        let bytes = Zeroizing::new(serde_json::to_vec(&OwedToken { alloc, holder, held })?);
        durable::make_dir(&self.dir)?;
        durable::write(&path, &bytes)?;
        self.changed.notify_one();
        Ok(())
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
                tokio::time::sleep(pause).await;
            }
            self.changed.notified().await;
        }
    }

    /// Logs all stored tokens out. Returns whether none is left.
    async fn log_out_all(self: &Arc<Self>, consuls: &Consuls) -> bool {
        let store = Arc::clone(self);
        let Ok(Ok(names)) = off_thread(move || store.names()).await else { return false };
        let mut is_done = true;
        for name in names {
            is_done &= self.log_out(consuls, name).await;
        }
        is_done
    }

    /// Logs one token out. Returns whether it is gone.
    async fn log_out(self: &Arc<Self>, consuls: &Consuls, name: OsString) -> bool {
        let (store, file) = (Arc::clone(self), name.clone());
        let Ok(found) = off_thread(move || store.read(&file)).await else { return false };
        if let Some(OwedToken { alloc, holder, held }) = found {
            let result = match consuls.cluster(&held.place.cluster) {
                Some(cluster) => cluster.reader.log_out(held.reveal()).await,
                // Nothing can be done about it; it may expire.
                None => Ok(()),
            };
            let failure = result.as_ref().err().filter(|error| !matches!(error, AclError::NotFound { .. }));
            if failure.is_some_and(AclError::is_of_server) {
                return false;
            }
            let audit = TokenAudit {
                system: "Consul",
                alloc,
                holder: match &holder {
                    LastHolder::Task(name) => TokenHolder::Task(name),
                    LastHolder::Service(name) => TokenHolder::Service(name),
                },
                operation: "revoke",
                cluster: &held.place.cluster,
                accessor: &held.accessor,
            };
            audit.end(failure.map(AclError::to_string).as_deref());
        }
        let store = Arc::clone(self);
        matches!(off_thread(move || durable::remove(&store.dir.join(name))).await, Ok(Ok(())))
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        Ok(names.filter(|name| name.to_str().is_some_and(|name| !durable::is_temporary(name))).collect())
    }

    /// `None` for a file that is damaged or gone.
    fn read(&self, name: &OsString) -> Option<OwedToken> {
        let bytes = fs::read(self.dir.join(name)).map(Zeroizing::new).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}
