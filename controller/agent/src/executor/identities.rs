//! Identities of tasks and services that servers sign on request (1.7 and later): all but the default one, which comes with the
//! allocation.
//!
//! In: a task's `identities`, and a [`Cluster`]. Out: tokens, stored for the next agent ([`crate::server_tokens`]). After half of
//! a token's lifetime a new one is requested; the planner decides how that affects the task.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use herdlet_api_types::{
    AllocId, UnixNanos, alloc::Allocation, job::Task, manifest::defaults::DEFAULT_IDENTITY,
};
use herdlet_base::clock;
use herdlet_nomad::wire::Secret;
use herdlet_runtime::off_thread;
use herdlet_storage::identity::{SignedToken, Token};
use herdlet_vault::secret::SecretText;

use super::{Context, Refusal};
use crate::server_tokens::{Identities, KeptIdentity, ServerTokens};

/// Requests to a cluster about the allocations its servers have placed here. The node implements it, since it knows the servers.
pub trait Cluster: Send + Sync {
    /// Requests signed identities from servers. Bounded in time.
    ///
    /// # Errors
    /// Why they are not signed, and whether a retry may help.
    fn sign(&self, request: SignRequest) -> BoxFuture<'static, Result<Vec<SignedIdentity>, Refusal>>;

    /// Requests a token of Vault from servers through 1.9. It is wrapped, and can be taken out once. Bounded in time.
    ///
    /// # Errors
    /// Why they give none, and whether a retry may help.
    fn derive_vault_token(&self, request: DeriveRequest) -> BoxFuture<'static, Result<Secret, Refusal>>;
}

/// A request for a token of Vault.
#[derive(Debug, Clone)]
pub struct DeriveRequest {
    /// The allocation.
    pub alloc: AllocId,
    /// The task.
    pub task: String,
}

/// A request to sign identities of one task or service.
#[derive(Debug, Clone)]
pub struct SignRequest {
    /// The allocation.
    pub alloc: AllocId,
    /// The allocation's create index on the servers.
    pub create_index: u64,
    /// Whose identities they are.
    pub workload: SignedWorkload,
    /// Names of the identities.
    pub identities: Vec<String>,
}

/// Who has identities, in the terms of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedWorkload {
    /// A task.
    Task(String),
    /// A service, before and after its variables are replaced.
    Service {
        /// Its name in the job.
        spec_name: String,
        /// Its name in the catalogue.
        name: String,
    },
}

impl SignedWorkload {
    /// The name by which servers know it.
    pub fn identifier(&self) -> &str {
        match self {
            Self::Task(name) | Self::Service { spec_name: name, .. } => name,
        }
    }
}

/// An identity that servers have signed.
#[derive(Debug, Clone)]
pub struct SignedIdentity {
    /// Its name.
    pub name: String,
    /// The token.
    pub token: Secret,
    /// When to request a new one; none if it doesn't expire.
    pub renew_at: Option<UnixNanos>,
}

/// Requests the identities of a task that are missing or due for renewal. Sends no request if there are none.
///
/// # Errors
/// Why the task can't get its identities.
pub async fn sign(context: &Arc<Context>, alloc: &Arc<Allocation>, task: &Task) -> Result<(), Refusal> {
    let Some(server) = &alloc.server else { return Ok(()) };
    let names: Vec<&String> = named(task).collect();
    if names.is_empty() {
        return Ok(());
    }
    let tokens = Arc::clone(&context.server_tokens);
    let mut kept = tokens.identities(alloc.id, &task.name).map_err(|error| keeping(&error))?;
    let now = clock::wall_now().0;
    let is_wanting = |name: &&&String| kept.get(**name).is_none_or(|kept| is_due(kept, now));
    let wanted: Vec<String> = names.iter().filter(is_wanting).map(|name| (*name).clone()).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let retry = Refusal::retry;
    let cluster = context.cluster.get();
    let cluster = cluster.ok_or_else(|| retry("ask servers for identities: no cluster joined".to_owned()))?;
    let request = SignRequest {
        alloc: alloc.id,
        create_index: server.create_index,
        workload: SignedWorkload::Task(task.name.clone()),
        identities: wanted.clone(),
    };
    for SignedIdentity { name, token, renew_at } in cluster.sign(request).await? {
        kept.insert(name, KeptIdentity { token, renew_at: renew_at.map(|at| at.0) });
    }
    if let Some(missing) = wanted.iter().find(|name| kept.get(*name).is_none_or(|kept| is_due(kept, now))) {
        return Err(retry(format!(
            "get identity {missing:?} from servers: their response does not contain it"
        )));
    }
    // Drop identities that the job no longer names.
    kept.retain(|name, _| names.contains(&name));
    let (id, task) = (alloc.id, task.name.clone());
    let written = off_thread(move || tokens.keep_identities(id, &task, &kept)).await;
    written.map_err(io::Error::other).flatten().map_err(|error| keeping(&error))
}

/// Has servers sign the identity of a service, with its name in the job and its name in the catalogue. The identity is for one log-in,
/// and is not kept.
///
/// # Errors
/// Why it is not signed.
pub(super) async fn sign_service(
    context: &Arc<Context>,
    alloc: &Allocation,
    (spec_name, name): (&str, &str),
    identity: &str,
) -> Result<SecretText, Refusal> {
    let retry = |why: &str| Refusal::retry(why.to_owned());
    let cluster = context.cluster.get();
    let cluster = cluster.ok_or_else(|| retry("ask servers for an identity: no cluster joined"))?;
    let request = SignRequest {
        alloc: alloc.id,
        create_index: alloc.server.as_ref().map_or(0, |server| server.create_index),
        workload: SignedWorkload::Service { spec_name: spec_name.to_owned(), name: name.to_owned() },
        identities: vec![identity.to_owned()],
    };
    let signed = cluster.sign(request).await?;
    let found = signed.into_iter().find(|one| one.name == identity);
    let found = found.ok_or_else(|| {
        retry("get the identity of a service from servers: their response does not contain it")
    })?;
    Ok(SecretText::new(found.token.reveal().to_owned()))
}

fn keeping(error: &io::Error) -> Refusal {
    Refusal::retry(format!("store the identities signed by servers: {error}"))
}

/// All server-signed tokens of a task, by identity name.
///
/// # Errors
/// If they can't be read.
pub fn signed_by_servers(
    tokens: &ServerTokens,
    id: AllocId,
    task: &Task,
) -> io::Result<BTreeMap<String, SignedToken>> {
    let mut given = BTreeMap::new();
    if let Some(token) = tokens.of_task(id, &task.name)? {
        given.insert(DEFAULT_IDENTITY.to_owned(), SignedToken { token, renew_in: None });
    }
    if named(task).next().is_none() {
        return Ok(given);
    }
    let now = clock::wall_now().0;
    let kept: Identities = tokens.identities(id, &task.name)?;
    for (name, kept) in kept {
        let left = |at: i64| Duration::from_nanos(u64::try_from(at.saturating_sub(now)).unwrap_or_default());
        let token = Token::from_servers(kept.token.reveal().to_owned());
        given.insert(name, SignedToken { token, renew_in: kept.renew_at.map(left) });
    }
    Ok(given)
}

fn is_due(kept: &KeptIdentity, now: i64) -> bool {
    kept.renew_at.is_some_and(|at| at <= now)
}

fn named(task: &Task) -> impl Iterator<Item = &String> {
    task.identities.iter().map(|identity| &identity.name).filter(|name| *name != DEFAULT_IDENTITY)
}
