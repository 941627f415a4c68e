//! Services in a Consul agent.
//!
//! In: registrations by owner. Out: changes made, or the result of an inspection; [`Consul::watch`] reports external
//! changes and the results of Consul's checks. Every entry of ours carries our instance id in its meta; no others are
//! ever changed. Only differences are sent to the agent, each service separately and with its own token. A change is
//! complete when a listing that began afterwards shows it.
//!
//! No request is sent before the first registration, so a machine without Consul is unaffected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use herdlet_api_types::{
    AllocId, InstanceId, UnixNanos,
    job::ConsulAccess,
    service::{RegisteredCheck, Registration},
};
use herdlet_base::observation::{Class, Observation};
use tokio::sync::Notify;

mod acl;
mod client;
mod clusters;
mod config;
mod data;
mod desired;
mod entry;
#[cfg(any(test, fuzzing, feature = "fixture"))]
mod fed;
mod fingerprint;
mod listing;
mod reader;
mod registration;
mod results;
mod tokens;
mod watching;

pub use acl::{AclError, ConsulLogin, ConsulToken};
pub use clusters::{ConsulClusters, Place};
pub use config::{ConsulConfig, ConsulConfigError, Verification};
pub use data::{DataError, DataRequest, DataResponse, path_of};
pub use desired::ServiceCounts;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use fed::feed as feed_consul;
pub use fingerprint::ConsulFingerprint;
pub use reader::ConsulReader;
pub use tokens::check_service_token;

use self::{
    client::{HttpApi, Scope},
    desired::{CheckResults, DesiredServices},
    entry::{Entry, META_INSTANCE, Mark},
    listing::{Items, Listing, Shared},
    registration::Sent,
    tokens::{Print, Tokens},
};
use super::{CatalogError, CatalogFailure, ServiceOwner};

/// A Consul agent.
#[derive(Debug)]
pub struct Consul {
    /// A Consul, and a namespace and a partition there if jobs name them.
    place: ConsulAccess,
    mark: Mark,
    api: HttpApi,
    tokens: Tokens,
    is_named: bool,
    held: DesiredServices,
    listings: Shared,
    /// The token each service was last registered with. Consul does not report it, but keeps using it.
    registered_with: Mutex<BTreeMap<String, Print>>,
    /// Notified when there are entries of ours that no owner wants.
    leftovers: Notify,
    /// The last results of checks that we run for Consul, by check id.
    results: Mutex<BTreeMap<String, serde_json::Value>>,
}

/// Why the Consul client can't be created.
#[derive(Debug, thiserror::Error)]
#[error("prepare a client for Consul: {0}")]
pub struct ConsulError(#[source] reqwest::Error);

impl Consul {
    /// A client for the agent in `config`, as the Consul `default`. Sends no request yet.
    ///
    /// # Errors
    ///
    /// If the HTTP client can't be created.
    pub fn new(config: &ConsulConfig, instance: InstanceId) -> Result<Self, ConsulError> {
        Self::of_cluster(ConsulAccess::DEFAULT_CLUSTER, config, instance)
    }

    /// As [`Self::new`], as the Consul of this name.
    fn of_cluster(name: &str, config: &ConsulConfig, instance: InstanceId) -> Result<Self, ConsulError> {
        let (api, place) = (HttpApi::new(config).map_err(ConsulError)?, ConsulAccess::of_cluster(name));
        Ok(Self::of_api(&api, (place, instance), config))
    }

    /// A client of the same agent for another namespace or partition.
    fn at(&self, place: ConsulAccess, config: &ConsulConfig) -> Self {
        Self::of_api(&self.api, (place, self.mark.instance.clone()), config)
    }

    fn of_api(api: &HttpApi, (place, instance): (ConsulAccess, InstanceId), config: &ConsulConfig) -> Self {
        let namespace = place.namespace.as_deref().unwrap_or(config.namespace());
        let scope = [
            ("ns", Some(namespace).filter(|name| !name.is_empty())),
            ("partition", place.partition.as_deref()),
        ];
        let scope: Scope =
            scope.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned()))).collect();
        Self {
            mark: Mark::new(instance, &place),
            place,
            api: api.in_scope(scope),
            tokens: Tokens::new(config),
            is_named: config.is_named,
            held: DesiredServices::default(),
            listings: Shared::default(),
            registered_with: Mutex::default(),
            results: Mutex::default(),
            leftovers: Notify::new(),
        }
    }

    /// A client for an agent that does not exist.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    #[expect(clippy::expect_used, reason = "for tests only")]
    pub fn absent() -> Self {
        let config = ConsulConfig::resolve(Some("unix:///nonexistent/consul.sock"), None, |_| None);
        let client = config.ok().and_then(|config| Self::new(&config, InstanceId("test".to_owned())).ok());
        client.expect("nothing is asked")
    }

    /// Whether it is for the namespace of the config, or else of the token, and not for one that jobs name.
    fn is_whole(&self) -> bool {
        self.place.namespace.is_none() && self.place.partition.is_none()
    }

    /// Whether the agent's address is configured. Otherwise it is used only once something is registered in it.
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// Stops counting this owner as waiting for Consul's first answer.
    pub fn stop_waiting_for(&self, owner: &ServiceOwner) {
        self.held.stop_waiting_for(owner);
    }

    /// Whether services of `owner` should be there, or are not known to be removed.
    pub fn holds(&self, owner: &ServiceOwner) -> bool {
        self.held.holds(owner)
    }

    /// Notes that services of `owner` may be there, of an earlier agent: their removal must be confirmed.
    pub fn may_hold(&self, owner: &ServiceOwner, count: usize) {
        self.held.may_hold(owner, count);
    }

    /// Sets the token of a log-in with which a service is registered, and the results of its checks are reported, also of those named
    /// before; without it, the token of a file or of the agent. Sends no request.
    pub fn set_token(&self, id: &str, checks: &[RegisteredCheck], token: Option<&str>) {
        self.tokens.set(id, checks.iter().map(|check| check.id.as_str()), token);
    }

    /// Removes such a token, unless the service has another one by now.
    pub fn remove_token(&self, id: &str, token: &str) {
        self.tokens.remove(id, token);
    }

    /// The number of services in each state; `is_known` returns whether an allocation exists.
    pub fn counts(&self, is_known: impl Fn(&AllocId) -> bool) -> ServiceCounts {
        self.held.counts(is_known)
    }

    /// The warning that Consul does not answer, if it should hold services of ours. `is_known` returns whether an
    /// allocation exists.
    pub fn trouble(&self, wall: UnixNanos, is_known: impl Fn(&AllocId) -> bool) -> Option<String> {
        let trouble = self.api.trouble(wall).filter(|_| self.held.is_wanted(is_known))?;
        Some(format!("{trouble}. Services will be updated there once it answers; no task waits for it"))
    }

    /// The number of failed requests so far, by kind.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.api.failures().into_iter()
    }

    /// Makes the agent hold exactly these registrations for `owner`; correct ones are not registered again. Requests
    /// run concurrently, and outdated registrations are removed.
    ///
    /// # Errors
    ///
    /// Lists the failures; everything else succeeded.
    pub async fn up(&self, owner: &ServiceOwner, wanted: &[Registration]) -> Result<(), CatalogError> {
        self.up_except(owner, wanted, &BTreeSet::new()).await
    }

    /// As [`Self::up`], but leaves the services `untouched` as they are, wanted here or not: they have no token now. They count as missing
    /// if they are not correct.
    ///
    /// # Errors
    ///
    /// Lists the failures of the others.
    pub async fn up_except(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
        untouched: &BTreeSet<String>,
    ) -> Result<(), CatalogError> {
        self.held.want(owner, wanted, CheckResults::ReportAgain);
        let result = self.bring_up(owner, wanted, untouched).await;
        self.held.unseen(owner);
        result
    }

    async fn bring_up(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
        untouched: &BTreeSet<String>,
    ) -> Result<(), CatalogError> {
        let ready: Vec<_> = wanted.iter().filter(|wanted| !untouched.contains(&wanted.id)).collect();
        let mut listing = match self.list().await {
            Err(refused) if wanted.is_empty() && self.can_hold_nothing(&refused) => {
                self.held.released(owner, &Ok(()));
                return Ok(());
            }
            listing => listing.map_err(one)?,
        };
        let stale: Vec<_> = listing
            .entries(owner)
            .iter()
            .filter(|(id, _)| !is_in(wanted, id) && !untouched.contains(*id))
            .map(|(_, entry)| entry)
            .collect();
        let (registered, removed) = tokio::join!(
            join_all(ready.iter().map(|wanted| self.register_if_needed(wanted, owner, &listing))),
            join_all(stale.iter().map(|entry| self.deregister(&entry.id, entry.service(), Some(entry)))),
        );
        let was_sent = !stale.is_empty() || registered.iter().any(|result| *result != Ok(Sent::Nothing));
        let mut failures: BTreeMap<String, CatalogFailure> = BTreeMap::new();
        for (wanted, result) in ready.iter().zip(registered) {
            result.err().map(|failure| failures.insert(wanted.id.clone(), failure));
        }
        for (stale, result) in stale.iter().zip(removed) {
            result.err().map(|failure| failures.insert(stale.id.clone(), failure));
        }
        if was_sent {
            listing = self.list().await.map_err(one)?;
        }
        let mut missing = BTreeSet::new();
        for (id, why) in self.differences(owner, wanted, &listing) {
            if untouched.contains(&id) {
                missing.insert(id);
                continue;
            }
            let why = format!(
                "verify a registration: {why}, although it accepted the request; can it be listed {}?",
                self.tokens.agent()
            );
            failures.entry(id).or_insert(CatalogFailure { class: Class::Retry, why });
        }
        missing.extend(failures.keys().cloned());
        self.held.seen(owner, listing.number, missing);
        let result = collect(failures.into_values().map(Err));
        // Untouched ones may be left.
        if wanted.is_empty() && listing.entries(owner).is_empty() {
            self.held.released(owner, &result);
        }
        result
    }

    /// Removes all registrations of `owner`, those in `known` and all others with its mark, and verifies that they are
    /// gone.
    ///
    /// # Errors
    ///
    /// If the agent can't be reached, refuses, or still holds one afterwards.
    pub async fn down(&self, owner: &ServiceOwner, known: &[Registration]) -> Result<(), CatalogError> {
        self.held.release(owner, known.len());
        let result = self.take_down(owner, known).await;
        self.held.released(owner, &result);
        result
    }

    async fn take_down(&self, owner: &ServiceOwner, known: &[Registration]) -> Result<(), CatalogError> {
        let before = match self.list().await {
            Err(refused) if self.can_hold_nothing(&refused) => return Ok(()),
            listing => listing.map_err(one)?,
        };
        // An entry that the agent's token can't list is still ours to remove.
        let mut services: BTreeMap<&str, (&str, Option<&Entry>)> =
            known.iter().map(|known| (&*known.id, (&*known.name, None))).collect();
        services
            .extend(before.entries(owner).iter().map(|(id, entry)| (&**id, (entry.service(), Some(entry)))));
        let removed = services.iter().map(|(id, (name, entry))| self.deregister(id, name, *entry));
        let mut failures: BTreeMap<&str, CatalogFailure> = BTreeMap::new();
        for (id, result) in services.keys().zip(join_all(removed).await) {
            result.err().map(|failure| failures.insert(id, failure));
        }
        let after = self.list().await.map_err(one)?;
        let left = services.keys().copied().filter(|id| after.has(id));
        for id in left.chain(after.entries(owner).keys().map(|id| &**id)) {
            let why = format!("deregister service {id}: Consul still has it");
            failures.entry(id).or_insert(CatalogFailure { class: Class::Retry, why });
        }
        collect(failures.into_values().map(Err))
    }

    /// Whether the refusal of a listing means that nothing can be there: a Consul that is not Enterprise refuses each request with a
    /// namespace, so none was ever registered in it.
    fn can_hold_nothing(&self, refused: &CatalogFailure) -> bool {
        refused.class == Class::Fatal && !self.is_whole()
    }

    /// Checks that the agent answers the request that precedes a registration. Changes nothing.
    ///
    /// # Errors
    ///
    /// If it can't be reached.
    pub async fn ask(&self) -> Result<(), CatalogError> {
        self.list().await.map(drop).map_err(one)
    }

    /// As [`Self::ask`] for an owner that wants `count` services there.
    ///
    /// # Errors
    ///
    /// If it can't be reached.
    pub async fn ask_for(&self, owner: &ServiceOwner, count: usize) -> Result<(), CatalogError> {
        self.held.ask(owner, count);
        self.ask().await
    }

    /// Whether the agent holds exactly these registrations for `owner`.
    ///
    /// # Errors
    ///
    /// If it can't be reached.
    pub async fn inspect(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
    ) -> Result<Observation, CatalogError> {
        self.held.want(owner, wanted, CheckResults::Leave);
        let seen = self.see(owner, wanted).await;
        self.held.unseen(owner);
        seen
    }

    async fn see(&self, owner: &ServiceOwner, wanted: &[Registration]) -> Result<Observation, CatalogError> {
        let listing = self.list().await.map_err(one)?;
        let mut differences = self.differences(owner, wanted, &listing);
        for wanted in wanted {
            if !differences.contains_key(&wanted.id) && self.has_other_token(wanted).await {
                let why =
                    format!("service {} is registered with a token other than its current one", wanted.id);
                differences.insert(wanted.id.clone(), why);
            }
        }
        self.held.seen(owner, listing.number, differences.keys().cloned().collect());
        Ok(match differences.into_values().next() {
            None => Observation::Present,
            Some(_) if listing.entries(owner).is_empty() => Observation::Absent,
            Some(why) => Observation::Foreign { why },
        })
    }

    /// Removes leftover entries of this instance: those without an owner whose id is not in `keep`. Call it only when
    /// all wanted entries are known. Returns the number of removed entries.
    ///
    /// # Errors
    ///
    /// If the agent can't be reached or refuses; the other entries are removed.
    pub async fn sweep(&self, keep: &BTreeSet<String>) -> Result<usize, CatalogError> {
        let listing = self.list().await.map_err(one)?;
        let leftovers: Vec<_> =
            self.leftovers(&listing).into_iter().filter(|entry| !keep.contains(&entry.id)).collect();
        let removed = leftovers.iter().map(|entry| self.deregister(&entry.id, entry.service(), Some(entry)));
        collect(join_all(removed).await)?;
        Ok(leftovers.len())
    }

    /// Waits until entries of this instance seem to be left over.
    pub async fn until_leftovers(&self) {
        self.leftovers.notified().await;
    }

    /// Entries of this instance without an owner that wants or is removing them.
    fn leftovers<'l>(&self, listing: &'l Listing) -> Vec<&'l Entry> {
        let owners = self.held.owners();
        let is_left = |entry: &&Entry| entry.owner().is_none_or(|owner| !owners.contains(&owner));
        listing.all().map(|(_, entry)| entry).filter(is_left).collect()
    }

    /// Lists the agent's entries of this instance for this place; the listing begins after this call.
    async fn list(&self) -> Result<Arc<Listing>, CatalogFailure> {
        let ask = async {
            let token = self.tokens.agent();
            // The values are our ids, which contain no quotes.
            let filter = format!("Meta[\"{META_INSTANCE}\"] == \"{}\"", self.mark.instance);
            let services = self.api.get("/v1/agent/services", Some(&filter), token, Items::read).await?;
            let services = services.filtered(|entry: &Entry| entry.is_of(&self.mark));
            let checks = if services.is_empty() {
                Items::default()
            } else {
                // All our service ids have this form.
                let filter = "ServiceID matches \"^_(herdlet|nomad)-task-\"";
                self.api.get("/v1/agent/checks", Some(filter), token, Items::read).await?
            };
            Ok(Listing::of(services, checks))
        };
        self.listings.get(ask).await
    }

    /// Differences to the wanted state, by id.
    fn differences(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
        listing: &Listing,
    ) -> BTreeMap<String, String> {
        let entries = listing.entries(owner);
        let mut differences = BTreeMap::new();
        for wanted in wanted {
            let id = &wanted.id;
            let why = match entries.get(id) {
                None if listing.has(id) => "has an invalid entry in Consul",
                None => "is not in Consul",
                Some(entry) if entry.equals(wanted, &self.mark, listing.checks(id)) => continue,
                Some(_) => "differs in Consul",
            };
            differences.insert(id.clone(), format!("service {id} {why}"));
        }
        let left = entries.keys().filter(|id| !is_in(wanted, id));
        differences
            .extend(left.map(|id| (id.clone(), format!("service {id} is in Consul but no longer wanted"))));
        differences
    }
}

fn is_in(registrations: &[Registration], id: &str) -> bool {
    registrations.iter().any(|registration| registration.id == *id)
}

/// Service ids contain user-chosen names.
fn path_part(id: &str) -> String {
    let mut url = reqwest::Url::parse("http://x/").ok();
    if let Some(url) = &mut url
        && let Ok(mut parts) = url.path_segments_mut()
    {
        parts.clear().push(id);
    }
    url.map(|url| url.path().trim_start_matches('/').to_owned()).unwrap_or_default()
}

fn retry(why: String) -> CatalogFailure {
    CatalogFailure { class: Class::Retry, why }
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
