//! Registers and deregisters single services, each with its own token.
//!
//! In: the wanted registration or a listed entry. Out: requests to the agent, or their failure. It remembers the token of
//! each registration, so that a service whose token has changed is registered again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{MutexGuard, PoisonError},
};

use herdlet_api_types::service::Registration;

use super::{
    Consul,
    client::{Put, RequestError, RequestKind},
    entry::{self, Entry},
    listing::Listing,
    path_part, retry,
    tokens::{Print, Token},
};
use crate::catalog::{CatalogFailure, ServiceOwner};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Nothing,
    Registration,
}

impl Consul {
    pub(super) async fn register_if_needed(
        &self,
        wanted: &Registration,
        owner: &ServiceOwner,
        listing: &Listing,
    ) -> Result<Sent, CatalogFailure> {
        let token = self.tokens.by_id(&wanted.id, &wanted.name).await;
        let token = token.map_err(|error| retry(format!("register service {}: {error}", wanted.id)))?;
        let held = listing.entries(owner).get(&wanted.id);
        let held = held.filter(|entry| entry.equals(wanted, &self.mark, listing.checks(&wanted.id)));
        if held.is_some() && self.is_registered_with(&wanted.id, &token) {
            return Ok(Sent::Nothing);
        }
        let mut body = entry::body(wanted, &self.mark);
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
        let put = Put { kind: RequestKind::Register, path, body: Some(body), token };
        self.api.put(put, &doing).await?;
        self.registered_with().insert(id.to_owned(), token.print());
        Ok(())
    }

    /// Deregisters a service with its own token, or with the agent's if that is gone or refused.
    pub(super) async fn deregister(
        &self,
        id: &str,
        service: &str,
        entry: Option<&Entry>,
    ) -> Result<(), CatalogFailure> {
        let agents = self.tokens.agent();
        let own = self.tokens.by_id(id, service).await.unwrap_or_else(|_| agents.clone());
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
        let put = Put { kind: RequestKind::Deregister, path: &path, body: None, token };
        match self.api.put(put, &doing).await {
            // Newer agents report a missing service; older ones don't.
            Err(refused) if refused.is_missing() => {}
            result => result?,
        }
        self.registered_with().remove(id);
        Ok(())
    }

    /// Whether the service was registered with a different token than its current one. An unreadable token is ignored.
    pub(super) async fn has_other_token(&self, wanted: &Registration) -> bool {
        let token = self.tokens.by_id(&wanted.id, &wanted.name).await;
        token.is_ok_and(|token| !self.is_registered_with(&wanted.id, &token))
    }

    /// Owners of services whose token has changed since registration.
    pub(super) async fn owners_with_other_tokens(&self) -> BTreeSet<ServiceOwner> {
        let mut tokens: BTreeMap<String, Option<Token>> = BTreeMap::new();
        let mut owners = BTreeSet::new();
        for (owner, id, name) in self.tokens.may_change().then(|| self.held.settled()).into_iter().flatten() {
            // It changes only in operations on the service.
            if self.tokens.of_log_in(&id).is_some() {
                continue;
            }
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

/// Combines the failures of two tokens.
fn both(first: CatalogFailure, second: CatalogFailure) -> CatalogFailure {
    CatalogFailure { class: first.class.min(second.class), why: format!("{}; {}", first.why, second.why) }
}
