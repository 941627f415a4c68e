//! Tokens of services in Consul: log-ins before registrations, log-outs after confirmed deregistrations.
//!
//! In: the services of an owner. Out: tokens for their registrations, or why a service has none. Services are independent: one that
//! gets no token delays no other. A service without an identity is registered with the token of a file or of the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use herdlet_api_types::{
    alloc::Allocation,
    job::{ConsulAccess, Identity, Provider, Service},
    service::Registration,
};
use herdlet_services::catalog::{Consul, ServiceOwner};
use herdlet_vault::{lease::Step, secret::SecretText};
use tokio::time::timeout;

use crate::{
    consul::{ConsulCluster, owed::OwedToken},
    executor::{
        Context, Refusal,
        blocking::on_files,
        consul::{Holder, Keeper, Session},
        identities,
        login_identity::{self, LoginIdentity},
    },
    held_token::{Confirmation, HeldToken, TokenPlace},
    service_tokens::{ServiceToken, TokenKey},
    token_audit::TokenHolder,
    vault::boot_now,
};

/// The services of an owner, as the job has them, by their ids in the catalogue.
pub(super) type Specs<'s> = BTreeMap<String, &'s Service>;

/// The tokens of an owner that are kept.
pub(super) type KeptTokens = BTreeMap<TokenKey, ServiceToken>;

/// The longest time for the token of one service: the registrations of the others wait for it.
const TOKEN_MAX: Duration = Duration::from_secs(15);
/// The longest time for a replacement, after the last token was verified.
const REPLACEMENT_MAX: Duration = Duration::from_secs(12);

/// What is known of the tokens of an owner's services.
#[derive(Default)]
pub(super) struct Tokens {
    /// The services that log in, each with its place.
    pub(super) wanted: BTreeSet<TokenKey>,
    /// Why services have no token, by their ids.
    pub(super) refused: BTreeMap<String, String>,
}

/// Gets the tokens of the owner's services in Consul.
pub(super) async fn ensure(
    context: &Arc<Context>,
    (alloc, owner): (&Arc<Allocation>, &ServiceOwner),
    (registrations, specs): (&[Registration], &Specs<'_>),
) -> Result<Tokens, Refusal> {
    let mut kept = read(context, owner).await?;
    make_known(context, owner, &kept);
    let (mut wanted, mut tokens) = (Vec::new(), Tokens::default());
    for one in registrations.iter().filter(|one| one.provider == Provider::Consul) {
        // Without it, the registration fails too.
        let Some(cluster) = context.consuls.cluster(cluster_of(one)) else { continue };
        let spec = specs.get(&one.id);
        let identity = spec.and_then(|service| identity_of((alloc, owner, service), &one.name, cluster));
        match identity {
            Some(identity) => {
                let key = (one.id.clone(), place_of(context, one));
                let last = kept.remove(&key);
                tokens.wanted.insert(key.clone());
                wanted.push((one, cluster, spec, identity, (key.1, last)));
            }
            None => set_token(context, one, None),
        }
    }
    let logins = wanted.into_iter().map(async |(one, cluster, spec, identity, (place, last))| {
        let keeper = ServiceKeeper {
            context,
            alloc,
            owner,
            id: &one.id,
            service: &one.name,
            spec_name: spec.map_or("", |spec| spec.name.as_str()),
            identity,
        };
        let session = Session {
            owed: &context.owed_tokens,
            cluster,
            place,
            method: &cluster.logins.services.method,
            holder: Holder { alloc: alloc.id, name: TokenHolder::Service(one.name.clone()) },
            replacement_max: REPLACEMENT_MAX,
        };
        let result = async {
            let held = session.ensure(last.map(|token| token.held), &keeper).await?;
            keeper.keep(&held).await?;
            Ok::<_, Refusal>(held)
        };
        (one, in_time(result).await)
    });
    let mut current = Vec::new();
    for (one, result) in join_all(logins).await {
        match result {
            Ok(held) => {
                set_token(context, one, Some(&held));
                current.push(held);
            }
            Err(refusal) => {
                let why = format!("get a token of Consul for service {}: {}", one.name, refusal.why);
                tokens.refused.insert(one.id.clone(), why);
            }
        }
    }
    context.service_tokens.note(owner, current.iter());
    Ok(tokens)
}

/// The result of getting the token of one service, or that there is none in time.
async fn in_time<T>(getting: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let late = || {
        Refusal::retry(format!("none within {TOKEN_MAX:?}; the log-in may still wait for its turn at Consul"))
    };
    timeout(TOKEN_MAX, getting).await.unwrap_or_else(|_| Err(late()))
}

/// Makes the kept tokens of an owner known to the catalogue, without a request. Returns those that can be used.
pub(super) async fn load_known(
    context: &Arc<Context>,
    owner: &ServiceOwner,
    registrations: &[Registration],
) -> Result<KeptTokens, Refusal> {
    let mut kept = read(context, owner).await?;
    make_known(context, owner, &kept);
    kept.retain(|_, token| is_usable(token));
    for one in registrations {
        if let Some(token) = kept.get(&(one.id.clone(), place_of(context, one))) {
            set_token(context, one, Some(&token.held));
        }
    }
    context.service_tokens.note(owner, kept.values().map(|token| &token.held));
    Ok(kept)
}

/// Why the tokens of services are not as they should be.
pub(super) fn lack(
    context: &Context,
    (alloc, owner): (&Allocation, &ServiceOwner),
    (registrations, specs): (&[Registration], &Specs<'_>),
    kept: &KeptTokens,
) -> Option<String> {
    registrations.iter().filter(|one| one.provider == Provider::Consul).find_map(|one| {
        let cluster = context.consuls.cluster(cluster_of(one))?;
        let service = specs.get(&one.id)?;
        identity_of((alloc, owner, service), &one.name, cluster)?;
        let key = (one.id.clone(), place_of(context, one));
        match kept.get(&key).map(|token| token.held.lease.step(boot_now())) {
            None => Some(format!("service {} has no token of its own", one.name)),
            Some(Step::Replace(_)) => Some(format!("the token of service {} expires soon", one.name)),
            Some(Step::Wait { .. } | Step::Renew) => None,
        }
    })
}

/// Has the tokens logged out that no service is registered with any more: all of the owner's, except those that `tokens` wants, and those of
/// services that got none in their new place and stay in the old one.
pub(super) async fn release(
    context: &Arc<Context>,
    owner: &ServiceOwner,
    Tokens { wanted, refused }: &Tokens,
) -> Result<(), Refusal> {
    let is_over = |token: &ServiceToken| !wanted.contains(&token.key()) && !refused.contains_key(&token.id);
    let kept = read(context, owner).await?;
    for mut token in kept.into_values().filter(is_over) {
        if let Some(consul) = catalog_of(context, &token.held.place) {
            consul.remove_token(&token.id, token.held.reveal());
        }
        let (owed, tokens, alloc) =
            (Arc::clone(&context.owed_tokens), Arc::clone(&context.service_tokens), owner.alloc);
        on_files("store the token of a service for its log-out", move || {
            // The next agent must not use it. Without space, only a crash before the removal makes a difference.
            token.held = token.held.released();
            let _ = tokens.keep(alloc, &token);
            let (key, ServiceToken { service, held, .. }) = (token.key(), token);
            owed.add(OwedToken { alloc, holder: TokenHolder::Service(service), held })?;
            tokens.remove(alloc, &key)
        })
        .await?;
    }
    if wanted.is_empty() {
        context.service_tokens.note(owner, std::iter::empty());
    }
    Ok(())
}

/// Makes the tokens that can be used known to the catalogue, which needs them to deregister services that are no longer wanted.
fn make_known(context: &Context, owner: &ServiceOwner, kept: &KeptTokens) {
    for ((id, place), token) in kept {
        let Some(consul) = catalog_of(context, place) else { continue };
        consul.may_hold(owner, kept.keys().filter(|(_, other)| other == place).count());
        if is_usable(token) {
            consul.set_token(id, &[], Some(token.held.reveal()));
        }
    }
}

/// The Consul in which a service with a token is registered.
fn catalog_of(context: &Context, place: &TokenPlace) -> Option<Arc<Consul>> {
    let TokenPlace { cluster, namespace, partition } = place.clone();
    context.services.catalogs.consuls.find(Some(&ConsulAccess { cluster, namespace, partition }))
}

fn set_token(context: &Context, one: &Registration, token: Option<&HeldToken>) {
    if let Some(consul) = context.services.catalogs.consuls.find(one.consul.as_ref()) {
        consul.set_token(&one.id, &one.checks, token.map(HeldToken::reveal));
    }
}

fn cluster_of(one: &Registration) -> &str {
    one.consul.as_ref().map_or(ConsulAccess::DEFAULT_CLUSTER, |access| &access.cluster)
}

fn place_of(context: &Context, one: &Registration) -> TokenPlace {
    let named = context.services.catalogs.consuls.named(one.consul.as_ref());
    let ConsulAccess { cluster, namespace, partition } = named;
    TokenPlace { cluster, namespace, partition }
}

fn is_usable(token: &ServiceToken) -> bool {
    token.held.confirmation != Confirmation::Released
}

/// The kept tokens, also those to be logged out.
async fn read(context: &Arc<Context>, owner: &ServiceOwner) -> Result<KeptTokens, Refusal> {
    let (tokens, owner) = (Arc::clone(&context.service_tokens), owner.clone());
    on_files("read the tokens of services", move || tokens.read(&owner)).await
}

/// The identity that a service logs in with: of the job, or of the config.
fn identity_of(
    (alloc, owner, service): (&Allocation, &ServiceOwner, &Service),
    name: &str,
    cluster: &ConsulCluster,
) -> Option<Identity> {
    if service.identity.is_some() || alloc.server.is_some() {
        return service.identity.clone();
    }
    let rules = cluster.logins.services.identity.as_ref()?;
    let prefix = owner.task.as_ref().map(|task| format!("{task}-")).unwrap_or_default();
    let port = service.port.as_deref().unwrap_or_default();
    // Nomad's name.
    let name = format!("consul-service_{prefix}{name}-{port}");
    Some(LoginIdentity { name, audiences: rules.audiences.clone(), ttl: rules.ttl }.into())
}

/// The token of a service.
struct ServiceKeeper<'a> {
    context: &'a Arc<Context>,
    alloc: &'a Arc<Allocation>,
    owner: &'a ServiceOwner,
    id: &'a str,
    service: &'a str,
    /// The name before variables are replaced, by which servers know the service.
    spec_name: &'a str,
    identity: Identity,
}

impl Keeper for ServiceKeeper<'_> {
    async fn bearer(&self) -> Result<SecretText, Refusal> {
        if self.alloc.server.is_some() {
            let names = (self.spec_name, self.service);
            return identities::sign_service(self.context, self.alloc, names, &self.identity.name).await;
        }
        let (context, alloc) = (Arc::clone(self.context), Arc::clone(self.alloc));
        let (service, identity) = (self.service.to_owned(), self.identity.clone());
        let work = move || login_identity::of_service(&context, &alloc, (&service, &identity));
        on_files("get the identity of a service", work).await
    }

    async fn keep(&self, held: &HeldToken) -> Result<(), Refusal> {
        let token = ServiceToken {
            id: self.id.to_owned(),
            service: self.service.to_owned(),
            task: self.owner.task.clone(),
            held: held.clone(),
        };
        let (tokens, alloc) = (Arc::clone(&self.context.service_tokens), self.alloc.id);
        on_files("keep the token of a service", move || tokens.keep(alloc, &token)).await
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    /// The registrations of an owner's other services waited for a slow log-in.
    #[tokio::test(start_paused = true)]
    async fn a_slow_log_in_ends_in_time() {
        let begun = Instant::now();
        assert!(in_time(pending::<Result<(), _>>()).await.is_err());
        assert_eq!(begun.elapsed().as_secs(), TOKEN_MAX.as_secs());
        assert!(in_time(ready(Ok(()))).await.is_ok());
    }
}
