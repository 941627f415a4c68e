//! Services in a Consul agent.
//!
//! In: registrations by owner. Out: what was done or seen, and (from [`Consul::watch`]) changes made behind our back and the results
//! of checks, which Consul makes. Every entry of ours carries our instance in its meta; nothing else is ever touched. What should be there
//! is told to the agent only where it differs.
//!
//! Consul is asked only from the first registration on: on a machine without it nothing is tried.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use herdlet_api_types::{
    AllocId, InstanceId,
    service::{CheckStatus, Registration},
};
use tokio::sync::{Notify, watch};

mod client;
mod config;
mod entry;
mod watching;

pub use config::{ConsulConfig, ConsulConfigError};

use self::{
    client::HttpApi,
    entry::{CheckEntry, Entry, META_ALLOC, META_INSTANCE},
};
use super::{CatalogError, CatalogFailure, ServiceOwner};
use crate::drivers::sight::{Class, Sight};

/// A Consul agent.
#[derive(Debug)]
pub struct Consul {
    instance: InstanceId,
    api: HttpApi,
    is_named: bool,
    held: Mutex<BTreeMap<ServiceOwner, Held>>,
    /// How many owners have something there.
    held_count: watch::Sender<usize>,
    /// Orders what was seen.
    clock: AtomicU64,
    /// What is held has changed.
    changed: Notify,
}

/// What should be in Consul for an owner.
#[derive(Debug, Clone)]
struct Held {
    registrations: Vec<Registration>,
    /// When it was last seen there as it should be, while no change was told since: then a difference is news. Counts up.
    settled: Option<u64>,
    /// What its checks say is told once more: whoever registers them has forgotten what he heard before.
    tell_again: bool,
}

/// Why there is no Consul client.
#[derive(Debug, thiserror::Error)]
#[error("prepare a client for Consul: {0}")]
pub struct ConsulError(#[source] reqwest::Error);

impl Consul {
    /// A client for the agent that `config` names. Nothing is asked yet.
    ///
    /// # Errors
    ///
    /// When no HTTP client can be made.
    pub fn new(config: &ConsulConfig, instance: InstanceId) -> Result<Self, ConsulError> {
        let api = HttpApi::new(config).map_err(ConsulError)?;
        let (held_count, _) = watch::channel(0);
        Ok(Self {
            instance,
            api,
            is_named: config.is_named,
            held: Mutex::default(),
            held_count,
            clock: AtomicU64::new(0),
            changed: Notify::new(),
        })
    }

    /// A client for an agent that there is not.
    #[cfg(any(test, fuzzing))]
    #[expect(clippy::expect_used, reason = "for tests only")]
    pub(crate) fn absent() -> Self {
        let config = ConsulConfig::resolve(Some("unix:///nonexistent/consul.sock"), None, |_| None);
        let client = config.ok().and_then(|config| Self::new(&config, InstanceId("test".to_owned())).ok());
        client.expect("nothing is asked")
    }

    /// Whether somebody said where the agent is. Where nobody did, it is asked only if something is registered in it.
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// Whether something of `owner` should be there.
    pub fn holds(&self, owner: &ServiceOwner) -> bool {
        self.held().contains_key(owner)
    }

    /// Makes the agent hold exactly these registrations for `owner`; what is right already is not registered again. They go
    /// out together, and what is left of older ones goes.
    ///
    /// # Errors
    ///
    /// Lists what was refused; everything else was done.
    pub async fn up(&self, owner: &ServiceOwner, wanted: &[Registration]) -> Result<(), CatalogError> {
        self.hold(owner, wanted);
        if let Some(held) = self.held().get_mut(owner) {
            held.tell_again = true;
        }
        let (entries, checks) = self.list(owner).await?;
        let differing = wanted.iter().filter(|wanted| {
            !entries.get(&wanted.id).is_some_and(|entry| entry.equals(wanted, &self.instance, &checks))
        });
        let stale: Vec<_> =
            entries.keys().filter(|id| !wanted.iter().any(|wanted| wanted.id == **id)).cloned().collect();
        let (registered, removed) = tokio::join!(
            join_all(differing.map(|registration| self.register(registration))),
            join_all(stale.iter().map(|id| self.deregister(id))),
        );
        collect(registered.into_iter().chain(removed))?;
        self.settle(owner);
        Ok(())
    }

    /// Takes back all registrations of `owner`, the ones in `known` and whatever else bears its mark, and makes sure that
    /// they are gone.
    ///
    /// # Errors
    ///
    /// When the agent can't be asked, refuses, or still holds one afterwards.
    pub async fn down(&self, owner: &ServiceOwner, known: &[Registration]) -> Result<(), CatalogError> {
        self.release(owner);
        let (entries, _) = self.list(owner).await?;
        // An entry that hides from our token in the list is still ours to remove.
        let ids: BTreeSet<String> =
            entries.into_keys().chain(known.iter().map(|known| known.id.clone())).collect();
        collect(join_all(ids.iter().map(|id| self.deregister(id))).await)?;
        let (left, _) = self.list(owner).await?;
        collect(left.into_keys().map(|id| {
            let why = format!("deregister service {id}: Consul holds it still");
            Err(CatalogFailure { class: Class::Retry, why })
        }))
    }

    /// Whether the agent answers what a registration asks first. Changes nothing, and nothing of this should be there from now on.
    ///
    /// # Errors
    ///
    /// When it can't be asked.
    pub async fn ask(&self, alloc: AllocId) -> Result<(), CatalogError> {
        self.list_entries(&mark(META_ALLOC, &alloc.to_string())).await.map(drop).map_err(one)
    }

    /// Whether the agent holds exactly these registrations for `owner`.
    ///
    /// # Errors
    ///
    /// When it can't be asked.
    pub async fn look(&self, owner: &ServiceOwner, wanted: &[Registration]) -> Result<Sight, CatalogError> {
        self.hold(owner, wanted);
        let (entries, checks) = self.list(owner).await?;
        let difference = self.difference(wanted, &entries, &checks);
        Ok(match difference {
            None => {
                self.settle(owner);
                Sight::Present
            }
            Some(_) if entries.is_empty() => Sight::Absent,
            Some(why) => Sight::Foreign { why },
        })
    }

    /// Removes entries of this instance that nobody wants any more: those whose id is not in `keep`. Call it only when all that
    /// is wanted is known. Returns how many there were.
    ///
    /// # Errors
    ///
    /// When the agent can't be asked or refuses.
    pub async fn sweep(&self, keep: &BTreeSet<String>) -> Result<usize, CatalogError> {
        let entries =
            self.list_entries(&mark(META_INSTANCE, &self.instance.to_string())).await.map_err(one)?;
        let orphans: Vec<_> = entries.into_keys().filter(|id| !keep.contains(id)).collect();
        collect(join_all(orphans.iter().map(|id| self.deregister(id))).await)?;
        Ok(orphans.len())
    }

    async fn register(&self, registration: &Registration) -> Result<(), CatalogFailure> {
        let doing = || format!("register service {}", registration.id);
        let body = entry::body(registration, &self.instance);
        Ok(self
            .api
            .put("/v1/agent/service/register?replace-existing-checks=true", Some(&body), &doing)
            .await?)
    }

    /// Tells what a check said that Consul does not make itself.
    ///
    /// # Errors
    ///
    /// When the agent can't be asked, refuses, or does not know the check (yet).
    pub async fn update_check(
        &self,
        service: &str,
        id: &str,
        status: CheckStatus,
        output: &str,
    ) -> Result<(), CatalogFailure> {
        let doing = || format!("tell what a check of service {service} said");
        let status = match status {
            CheckStatus::Success => "passing",
            CheckStatus::Warning => "warning",
            CheckStatus::Pending | CheckStatus::Failure => "critical",
        };
        let body = serde_json::json!({ "Status": status, "Output": output });
        let path = format!("/v1/agent/check/update/{}", path_part(id));
        Ok(self.api.put(&path, Some(&body), &doing).await?)
    }

    async fn deregister(&self, id: &str) -> Result<(), CatalogFailure> {
        let doing = || format!("deregister service {id}");
        let path = format!("/v1/agent/service/deregister/{}", path_part(id));
        match self.api.put(&path, None, &doing).await {
            // Newer agents say so where older ones are content.
            Err(refused) if refused.is_missing() => Ok(()),
            result => Ok(result?),
        }
    }

    /// What bears the mark of `owner`, and the checks of it.
    async fn list(
        &self,
        owner: &ServiceOwner,
    ) -> Result<(BTreeMap<String, Entry>, BTreeMap<String, CheckEntry>), CatalogError> {
        let alloc = owner.alloc.to_string();
        let mut entries = self.list_entries(&mark(META_ALLOC, &alloc)).await.map_err(one)?;
        entries.retain(|_, entry| entry.is_of(owner));
        let checks = if entries.is_empty() {
            BTreeMap::new()
        } else {
            // The id of each service of ours holds its allocation's.
            self.list_checks(&format!("-task-{alloc}-")).await.map_err(one)?
        };
        Ok((entries, checks))
    }

    async fn list_entries(&self, filter: &str) -> Result<BTreeMap<String, Entry>, CatalogFailure> {
        let mine = mark(META_INSTANCE, &self.instance.to_string());
        let filter = if filter == mine { mine } else { format!("{mine} and {filter}") };
        self.api.get("/v1/agent/services", &[("filter", &filter)]).await
    }

    async fn list_checks(&self, service_part: &str) -> Result<BTreeMap<String, CheckEntry>, CatalogFailure> {
        let filter = format!("ServiceID matches \"{service_part}\"");
        self.api.get("/v1/agent/checks", &[("filter", &filter)]).await
    }

    /// What is not as it should be, if anything.
    fn difference(
        &self,
        wanted: &[Registration],
        entries: &BTreeMap<String, Entry>,
        checks: &BTreeMap<String, CheckEntry>,
    ) -> Option<String> {
        for wanted in wanted {
            match entries.get(&wanted.id) {
                None => return Some(format!("service {} is not in Consul", wanted.id)),
                Some(entry) if !entry.equals(wanted, &self.instance, checks) => {
                    return Some(format!("service {} differs in Consul", wanted.id));
                }
                Some(_) => {}
            }
        }
        let left = entries.keys().find(|id| !wanted.iter().any(|wanted| wanted.id == **id))?;
        Some(format!("service {left} is in Consul but no longer wanted"))
    }

    fn hold(&self, owner: &ServiceOwner, wanted: &[Registration]) {
        let mut held = self.held();
        if wanted.is_empty() {
            held.remove(owner);
        } else {
            let tell_again = held.get(owner).is_some_and(|before| before.tell_again);
            let now = Held { registrations: wanted.to_vec(), settled: None, tell_again };
            held.insert(owner.clone(), now);
        }
        self.held_count.send_replace(held.len());
    }

    fn settle(&self, owner: &ServiceOwner) {
        if let Some(held) = self.held().get_mut(owner) {
            held.settled = Some(self.clock.fetch_add(1, Ordering::Relaxed));
        }
        self.changed.notify_one();
    }

    fn release(&self, owner: &ServiceOwner) {
        self.hold(owner, &[]);
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<ServiceOwner, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A filter (go-bexpr) on a meta key. The values are ids of ours, without quotes.
fn mark(key: &str, value: &str) -> String {
    format!("Meta[\"{key}\"] == \"{value}\"")
}

/// Service ids hold names of people's choice.
fn path_part(id: &str) -> String {
    let mut url = reqwest::Url::parse("http://x/").ok();
    if let Some(url) = &mut url
        && let Ok(mut parts) = url.path_segments_mut()
    {
        parts.clear().push(id);
    }
    url.map(|url| url.path().trim_start_matches('/').to_owned()).unwrap_or_default()
}

fn one(failure: CatalogFailure) -> CatalogError {
    CatalogError { failures: vec![failure] }
}

fn collect(results: impl IntoIterator<Item = Result<(), CatalogFailure>>) -> Result<(), CatalogError> {
    let failures: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(CatalogError { failures }) }
}

#[cfg(test)]
mod tests;
