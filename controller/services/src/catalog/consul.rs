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
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::join_all;
use herdlet_api_types::{
    AllocId, InstanceId, UnixNanos,
    service::{CheckStatus, Registration},
};
use herdlet_base::observation::{Class, Observation};
use tokio::sync::Notify;

mod client;
mod config;
mod desired;
mod entry;
#[cfg(any(test, fuzzing, feature = "fixture"))]
mod fed;
mod listing;
mod reader;
mod tokens;
mod watching;

pub use config::{ConsulConfig, ConsulConfigError};
pub use desired::ServiceCounts;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use fed::feed as feed_consul;
pub use reader::ConsulReader;
pub use tokens::check_service_token;

use self::{
    client::{HttpApi, RequestError, RequestKind},
    desired::DesiredServices,
    entry::{Entry, META_INSTANCE},
    listing::{Items, Listing, Shared},
    tokens::{Print, Token, Tokens},
};
use super::{CatalogError, CatalogFailure, ServiceOwner};

/// A Consul agent.
#[derive(Debug)]
pub struct Consul {
    instance: InstanceId,
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
    /// A client for the agent in `config`. Sends no request yet.
    ///
    /// # Errors
    ///
    /// If the HTTP client can't be created.
    pub fn new(config: &ConsulConfig, instance: InstanceId) -> Result<Self, ConsulError> {
        Ok(Self {
            instance,
            api: HttpApi::new(config).map_err(ConsulError)?,
            tokens: Tokens::new(config),
            is_named: config.is_named,
            held: DesiredServices::default(),
            listings: Shared::default(),
            registered_with: Mutex::default(),
            results: Mutex::default(),
            leftovers: Notify::new(),
        })
    }

    /// A client for an agent that does not exist.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    #[expect(clippy::expect_used, reason = "for tests only")]
    pub fn absent() -> Self {
        let config = ConsulConfig::resolve(Some("unix:///nonexistent/consul.sock"), None, |_| None);
        let client = config.ok().and_then(|config| Self::new(&config, InstanceId("test".to_owned())).ok());
        client.expect("nothing is asked")
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

    /// The number of services in each state; `is_known` tells which allocations exist.
    pub fn counts(&self, is_known: impl Fn(&AllocId) -> bool) -> ServiceCounts {
        self.held.counts(is_known)
    }

    /// The warning that Consul does not answer, if it should hold services of ours.
    pub fn trouble(&self, wall: UnixNanos) -> Option<String> {
        let trouble = self.api.trouble(wall).filter(|_| self.held.is_wanted())?;
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
        self.held.want(owner, wanted, true);
        let result = self.bring_up(owner, wanted).await;
        self.held.unseen(owner);
        if wanted.is_empty() {
            self.held.released(owner, &result);
        }
        result
    }

    async fn bring_up(&self, owner: &ServiceOwner, wanted: &[Registration]) -> Result<(), CatalogError> {
        let mut listing = self.list().await.map_err(one)?;
        let stale: Vec<_> = listing
            .entries(owner)
            .iter()
            .filter(|(id, _)| !is_in(wanted, id))
            .map(|(_, entry)| entry)
            .collect();
        let (registered, removed) = tokio::join!(
            join_all(wanted.iter().map(|wanted| self.register_if_needed(wanted, owner, &listing))),
            join_all(stale.iter().map(|entry| self.deregister(&entry.id, entry.service(), Some(entry)))),
        );
        let was_sent = !stale.is_empty() || registered.iter().any(|result| *result != Ok(Sent::Nothing));
        let mut failures: BTreeMap<String, CatalogFailure> = BTreeMap::new();
        for (wanted, result) in wanted.iter().zip(registered) {
            result.err().map(|failure| failures.insert(wanted.id.clone(), failure));
        }
        for (stale, result) in stale.iter().zip(removed) {
            result.err().map(|failure| failures.insert(stale.id.clone(), failure));
        }
        if was_sent {
            listing = self.list().await.map_err(one)?;
        }
        for (id, why) in self.differences(owner, wanted, &listing) {
            let why = format!(
                "verify a registration: {why}, although it accepted the request; can it be listed {}?",
                self.tokens.agent()
            );
            failures.entry(id).or_insert(CatalogFailure { class: Class::Retry, why });
        }
        self.held.seen(owner, listing.number, failures.keys().cloned().collect());
        collect(failures.into_values().map(Err))
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
        let before = self.list().await.map_err(one)?;
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
        self.held.want(owner, wanted, false);
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

    /// Reports the result of a check that Consul does not run itself.
    ///
    /// # Errors
    ///
    /// If the agent can't be reached, refuses, or does not know the check (yet).
    pub async fn update_check(
        &self,
        service: &str,
        id: &str,
        status: CheckStatus,
        output: &str,
    ) -> Result<(), CatalogFailure> {
        let doing = || format!("report the result of a check of service {service}");
        let token = self.tokens.of(service).await;
        let token = token.map_err(|error| retry(format!("{}: {error}", doing())))?;
        let status = match status {
            CheckStatus::Success => "passing",
            CheckStatus::Warning => "warning",
            CheckStatus::Pending | CheckStatus::Failure => "critical",
        };
        let body = serde_json::json!({ "Status": status, "Output": output });
        self.reported().insert(id.to_owned(), body.clone());
        let path = format!("/v1/agent/check/update/{}", path_part(id));
        Ok(self.api.put(RequestKind::Update, &path, Some(&body), &token, &doing).await?)
    }

    /// Forgets a check that is no longer run.
    pub fn remove_check(&self, id: &str) {
        self.reported().remove(id);
    }

    /// Repeats the last results of checks that Consul does not run itself: the agent forgets them when their service is
    /// registered again or it has lost its data, and the next run may be an hour away.
    async fn report_again(&self, wanted: &Registration, token: &Token) {
        let doing = || format!("report the results of checks of service {}", wanted.name);
        for check in wanted.checks.iter().filter(|check| !check.kind.has_address()) {
            let Some(body) = self.reported().get(&check.id).cloned() else { continue };
            let path = format!("/v1/agent/check/update/{}", path_part(&check.id));
            if let Err(refused) = self.api.put(RequestKind::Update, &path, Some(&body), token, &doing).await {
                let failure = CatalogFailure::from(refused);
                tracing::debug!(why = %failure.why, "failed to report a check result to Consul");
            }
        }
    }

    fn reported(&self) -> MutexGuard<'_, BTreeMap<String, serde_json::Value>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries of this instance without an owner that wants or is removing them.
    fn leftovers<'l>(&self, listing: &'l Listing) -> Vec<&'l Entry> {
        let owners = self.held.owners();
        let is_left = |entry: &&Entry| entry.owner().is_none_or(|owner| !owners.contains(&owner));
        listing.all().map(|(_, entry)| entry).filter(is_left).collect()
    }

    async fn register_if_needed(
        &self,
        wanted: &Registration,
        owner: &ServiceOwner,
        listing: &Listing,
    ) -> Result<Sent, CatalogFailure> {
        let token = self.tokens.of(&wanted.name).await;
        let token = token.map_err(|error| retry(format!("register service {}: {error}", wanted.id)))?;
        let held = listing.entries(owner).get(&wanted.id);
        let held = held.filter(|entry| entry.equals(wanted, &self.instance, listing.checks(&wanted.id)));
        if held.is_some() && self.is_registered_with(&wanted.id, &token) {
            return Ok(Sent::Nothing);
        }
        let mut body = entry::body(wanted, &self.instance);
        // Only the token differs: keep tags that others have changed.
        if let Some(held) = held.filter(|_| wanted.enable_tag_override) {
            body["Tags"] = held.tags().into();
        }
        let path = "/v1/agent/service/register?replace-existing-checks=true";
        self.register(&wanted.id, path, &body, &token).await?;
        self.report_again(wanted, &token).await;
        Ok(Sent::Registration)
    }

    async fn register(
        &self,
        id: &str,
        path: &str,
        body: &serde_json::Value,
        token: &Token,
    ) -> Result<(), RequestError> {
        let doing = || format!("register service {id}");
        self.api.put(RequestKind::Register, path, Some(body), token, &doing).await?;
        self.registered_with().insert(id.to_owned(), token.print());
        Ok(())
    }

    /// Deregisters a service with its own token, or with the agent's if that is gone or refused.
    async fn deregister(&self, id: &str, service: &str, entry: Option<&Entry>) -> Result<(), CatalogFailure> {
        let agents = self.tokens.agent();
        let own = self.tokens.of(service).await.unwrap_or_else(|_| agents.clone());
        match self.deregister_with(&own, id, entry).await {
            Err(refused) if refused.is_denied() && own.print() != agents.print() => {
                let again = self.deregister_with(agents, id, entry).await;
                again.map_err(|again| both(refused.into(), again.into()))
            }
            result => Ok(result?),
        }
    }

    async fn deregister_with(
        &self,
        token: &Token,
        id: &str,
        entry: Option<&Entry>,
    ) -> Result<(), RequestError> {
        // Consul notifies its servers with the token of the registration, and gives up if that was revoked: the service
        // would stay in the catalogue forever. So register it with a valid token first.
        if let Some(entry) = entry
            && !self.is_registered_with(id, token)
        {
            self.register(id, "/v1/agent/service/register", &entry.as_body(), token).await?;
        }
        let doing = || format!("deregister service {id}");
        let path = format!("/v1/agent/service/deregister/{}", path_part(id));
        match self.api.put(RequestKind::Deregister, &path, None, token, &doing).await {
            // Newer agents report a missing service; older ones don't.
            Err(refused) if refused.is_missing() => {}
            result => result?,
        }
        self.registered_with().remove(id);
        Ok(())
    }

    /// Lists the agent's entries of this instance; the listing begins after this call.
    async fn list(&self) -> Result<Arc<Listing>, CatalogFailure> {
        let ask = async {
            let token = self.tokens.agent();
            // The values are our ids, which contain no quotes.
            let filter = format!("Meta[\"{META_INSTANCE}\"] == \"{}\"", self.instance);
            let services = self.api.get("/v1/agent/services", Some(&filter), token, Items::read).await?;
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
                Some(entry) if entry.equals(wanted, &self.instance, listing.checks(id)) => continue,
                Some(_) => "differs in Consul",
            };
            differences.insert(id.clone(), format!("service {id} {why}"));
        }
        let left = entries.keys().filter(|id| !is_in(wanted, id));
        differences
            .extend(left.map(|id| (id.clone(), format!("service {id} is in Consul but no longer wanted"))));
        differences
    }

    /// Whether the service was registered with a different token than its current one. An unreadable token is ignored.
    async fn has_other_token(&self, wanted: &Registration) -> bool {
        let token = self.tokens.of(&wanted.name).await;
        token.is_ok_and(|token| !self.is_registered_with(&wanted.id, &token))
    }

    /// Owners of services whose token has changed since registration.
    async fn owners_with_other_tokens(&self) -> BTreeSet<ServiceOwner> {
        let mut tokens: BTreeMap<String, Option<Token>> = BTreeMap::new();
        let mut owners = BTreeSet::new();
        for (owner, id, name) in self.tokens.may_change().then(|| self.held.settled()).into_iter().flatten() {
            if !tokens.contains_key(&name) {
                tokens.insert(name.clone(), self.tokens.of(&name).await.ok());
            }
            if let Some(Some(token)) = tokens.get(&name)
                && !self.is_registered_with(&id, token)
            {
                owners.insert(owner);
            }
        }
        owners
    }

    /// Whether it was registered with this token, as far as known. Without tokens it does not matter.
    fn is_registered_with(&self, id: &str, token: &Token) -> bool {
        match self.registered_with().get(id) {
            Some(print) => *print == token.print(),
            None => !token.is_some(),
        }
    }

    fn registered_with(&self) -> MutexGuard<'_, BTreeMap<String, Print>> {
        self.registered_with.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Nothing,
    Registration,
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

/// Combines the failures of two tokens.
fn both(first: CatalogFailure, second: CatalogFailure) -> CatalogFailure {
    CatalogFailure { class: first.class.min(second.class), why: format!("{}; {}", first.why, second.why) }
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
