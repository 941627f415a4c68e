//! Tokens of Consul that services are registered with, kept for the next agent, which therefore issues nothing.
//!
//! In: tokens by service and place. Out: the same. Each has one file, 0600, in a directory of its allocation, in the runtime directory. A
//! token is removed only once its service is deregistered in that place and the token is stored for its log-out.

use std::{
    collections::BTreeMap,
    fs, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::{AllocId, job::ConsulAccess};
use herdlet_base::{durable, paths};
use herdlet_services::catalog::ServiceOwner;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::{
    held_token::{HeldToken, TokenPlace},
    runtime_file,
    vault::boot_now,
};

/// The tokens of all services. Methods that access files block.
pub struct ServiceTokens {
    dir: PathBuf,
    /// When the first token of an owner is to be replaced, by the boot clock.
    due: Mutex<BTreeMap<ServiceOwner, u64>>,
    changed: Notify,
}

/// The id of a service in the catalogue, and the place where its token is valid. A service that moves has two until it has left the old place.
pub type TokenKey = (String, TokenPlace);

/// The token of one service. Has no `Debug`: it is a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct ServiceToken {
    /// The id of the service in the catalogue.
    pub id: String,
    /// Its name.
    pub service: String,
    /// The task that owns it; absent for a service of the group.
    pub task: Option<String>,
    pub held: HeldToken,
}

impl ServiceToken {
    pub fn key(&self) -> TokenKey {
        (self.id.clone(), self.held.place.clone())
    }
}

impl ServiceTokens {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, due: Mutex::default(), changed: Notify::new() }
    }

    /// The tokens of an owner's services. A damaged file counts as missing: the service logs in again.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn read(&self, owner: &ServiceOwner) -> io::Result<BTreeMap<TokenKey, ServiceToken>> {
        let entries = match fs::read_dir(self.of_alloc(owner.alloc)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(error),
        };
        let mut found = BTreeMap::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_str().is_none_or(durable::is_temporary) {
                continue;
            }
            let bytes = match fs::read(entry.path()) {
                Ok(bytes) => Zeroizing::new(bytes),
                // Another owner has removed its own.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            match serde_json::from_slice::<ServiceToken>(&bytes) {
                Ok(token) if token.task == owner.task => drop(found.insert(token.key(), token)),
                Ok(_) => {}
                Err(_) => tracing::warn!(
                    alloc = %owner.alloc,
                    file = ?entry.file_name(),
                    "the file of a service's token of Consul is damaged: the service logs in again, and the token stays valid until it expires"
                ),
            }
        }
        Ok(found)
    }

    /// Stores a token.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn keep(&self, alloc: AllocId, token: &ServiceToken) -> io::Result<()> {
        let bytes = Zeroizing::new(serde_json::to_vec(token)?);
        runtime_file::write(&self.file(alloc, &token.key()), &bytes)
    }

    /// Removes the token of a service, and the directory of an allocation that has no other.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn remove(&self, alloc: AllocId, key: &TokenKey) -> io::Result<()> {
        runtime_file::remove(&self.file(alloc, key))?;
        match fs::remove_dir(self.of_alloc(alloc)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
            // It has others, or is gone.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Notes when the first of an owner's tokens is to be replaced.
    pub fn note<'t>(&self, owner: &ServiceOwner, tokens: impl Iterator<Item = &'t HeldToken>) {
        let now = boot_now();
        let next = tokens.filter_map(|held| held.lease.due_in(now)).min();
        let mut due = self.due();
        match next {
            Some(next) => {
                let at_ns = now.ns.saturating_add(u64::try_from(next.as_nanos()).unwrap_or(u64::MAX));
                due.insert(owner.clone(), at_ns);
            }
            None => drop(due.remove(owner)),
        }
        drop(due);
        self.changed.notify_one();
    }

    /// Returns an owner with a token that is to be replaced, once there is one. Returns it once.
    pub async fn due_owner(&self) -> ServiceOwner {
        loop {
            let first =
                self.due().iter().min_by_key(|(_, at_ns)| **at_ns).map(|(owner, at)| (owner.clone(), *at));
            let Some((owner, at_ns)) = first else {
                self.changed.notified().await;
                continue;
            };
            let wait = Duration::from_nanos(at_ns.saturating_sub(boot_now().ns));
            if wait.is_zero() {
                self.due().remove(&owner);
                return owner;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    fn of_alloc(&self, alloc: AllocId) -> PathBuf {
        self.dir.join(alloc.to_string())
    }

    /// In the Consul `default`, the name is that of earlier versions.
    fn file(&self, alloc: AllocId, (id, place): &TokenKey) -> PathBuf {
        let TokenPlace { cluster, namespace, partition } = place;
        let is_default =
            cluster == ConsulAccess::DEFAULT_CLUSTER && namespace.is_none() && partition.is_none();
        let name = if is_default {
            paths::file_name(id)
        } else {
            let text = |name: &Option<String>| name.clone().unwrap_or_default();
            // No name of a place has this character.
            paths::file_name(&format!("{cluster}/{}/{}/{id}", text(namespace), text(partition)))
        };
        self.of_alloc(alloc).join(name)
    }

    fn due(&self) -> MutexGuard<'_, BTreeMap<ServiceOwner, u64>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use herdlet_vault::{
        lease::{LeaseKind, LeaseTerms},
        secret::SecretText,
    };

    use super::*;
    use crate::held_token::{NewToken, TokenPlace};

    fn token(id: &str, task: Option<&str>, lifetime: Duration) -> ServiceToken {
        let terms = LeaseTerms { duration: lifetime, kind: LeaseKind::Fixed };
        let token = SecretText::new("s3cret".to_owned());
        let place = TokenPlace { cluster: "default".to_owned(), namespace: None, partition: None };
        let held = HeldToken::new(NewToken { token, accessor: "a".to_owned(), terms }, place);
        ServiceToken { id: id.to_owned(), service: "web".to_owned(), task: task.map(str::to_owned), held }
    }

    #[tokio::test]
    async fn the_next_agent_finds_the_tokens_of_each_owner() {
        let parent = tempfile::tempdir().unwrap();
        let tokens = ServiceTokens::new(parent.path().join("services"));
        let alloc = AllocId::from_hash([7; 16]);
        let group = ServiceOwner { alloc, task: None };
        assert!(tokens.read(&group).unwrap().is_empty());
        let hour = Duration::from_secs(3_600);
        tokens.keep(alloc, &token("_herdlet-task-a/b", None, hour)).unwrap();
        tokens.keep(alloc, &token("_herdlet-task-c", Some("t"), Duration::ZERO)).unwrap();
        let key = |id: &str| token(id, None, hour).key();
        assert_eq!(tokens.read(&group).unwrap().into_keys().collect::<Vec<_>>(), [key("_herdlet-task-a/b")]);
        let task = ServiceOwner { alloc, task: Some("t".to_owned()) };
        let found = tokens.read(&task).unwrap();
        assert_eq!(found[&key("_herdlet-task-c")].held.reveal(), "s3cret");
        tokens.note(&group, tokens.read(&group).unwrap().values().map(|token| &token.held));
        tokens.note(&task, found.values().map(|token| &token.held));
        let due = tokio::time::timeout(Duration::from_secs(60), tokens.due_owner()).await;
        assert_eq!(due, Ok(task));
        for id in ["_herdlet-task-a/b", "_herdlet-task-c"] {
            tokens.remove(alloc, &key(id)).unwrap();
            tokens.remove(alloc, &key(id)).unwrap();
        }
        assert!(std::fs::read_dir(parent.path().join("services")).unwrap().next().is_none());
    }

    /// The token of the new place took the file of the old one, whose service still needed it.
    #[test]
    fn a_service_that_moves_has_a_token_for_each_place() {
        let parent = tempfile::tempdir().unwrap();
        let tokens = ServiceTokens::new(parent.path().join("services"));
        let (alloc, hour) = (AllocId::from_hash([7; 16]), Duration::from_secs(3_600));
        let here = token("_herdlet-task-a", None, hour);
        let mut there = here.clone();
        there.held.place.cluster = "eu".to_owned();
        let mut team = here.clone();
        team.held.place.namespace = Some("team".to_owned());
        for token in [&here, &there, &team] {
            tokens.keep(alloc, token).unwrap();
        }
        let owner = ServiceOwner { alloc, task: None };
        let keys = || tokens.read(&owner).unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(keys(), [here.key(), team.key(), there.key()]);
        tokens.remove(alloc, &here.key()).unwrap();
        assert_eq!(keys(), [team.key(), there.key()]);
    }
}
