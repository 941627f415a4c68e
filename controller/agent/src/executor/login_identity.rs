//! Identities with which tasks and services log in at Vault and Consul: signed now, or by servers.
//!
//! In: the name of an identity, and what it is like if the job does not define it. Out: a JWT. Everything here blocks.

use std::sync::Arc;

use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    job::{ChangeMode, Identity},
};
use herdlet_base::{clock::wall_now, error::in_full};
use herdlet_plan::identity_claims::{Claims, Grant, Holder};
use herdlet_vault::secret::SecretText;

use super::{Context, Workload, identities};

/// An identity to log in with, of tasks and services whose job defines none.
#[derive(Debug, Clone)]
pub(crate) struct LoginIdentity {
    /// `vault_NAME` or `consul_NAME`.
    pub(crate) name: String,
    pub(crate) audiences: Vec<String>,
    pub(crate) ttl: Duration,
}

impl From<LoginIdentity> for Identity {
    /// The workload does not get it.
    fn from(LoginIdentity { name, audiences, ttl }: LoginIdentity) -> Self {
        Self {
            name,
            aud: audiences,
            ttl: Some(ttl),
            env: false,
            file: false,
            filepath: None,
            change_mode: ChangeMode::Noop,
            change_signal: None,
            extra_claims: Vec::new(),
        }
    }
}

/// The JWT with which a task logs in at `system`.
///
/// # Errors
/// Why there is none.
pub(crate) fn of_task(
    context: &Context,
    workload: &Workload,
    (system, wanted): (&str, LoginIdentity),
) -> Result<SecretText, String> {
    let task = workload.task().ok_or("find the task")?;
    if workload.alloc.server.is_some() {
        let signed = identities::signed_by_servers(&context.server_tokens, workload.alloc.id, task);
        let mut signed = signed.map_err(|error| format!("read the identities signed by servers: {error}"))?;
        let identity = signed.remove(&wanted.name).ok_or_else(|| missing(&wanted.name, system))?;
        return Ok(SecretText::new(identity.token.reveal().to_owned()));
    }
    let own = task.identities.iter().find(|identity| identity.name == wanted.name).cloned();
    let identity = own.unwrap_or_else(|| wanted.into());
    sign(context, &workload.alloc, (Holder::Task(task), &identity))
}

/// The JWT with which a service logs in, signed now.
///
/// # Errors
/// If it can't be signed.
pub(crate) fn of_service(
    context: &Context,
    alloc: &Arc<Allocation>,
    (service, identity): (&str, &Identity),
) -> Result<SecretText, String> {
    sign(context, alloc, (Holder::Service(service), identity))
}

fn sign(
    context: &Context,
    alloc: &Arc<Allocation>,
    (holder, identity): (Holder<'_>, &Identity),
) -> Result<SecretText, String> {
    let claims = Claims::new(&Grant {
        alloc,
        holder,
        identity,
        issued_at: wall_now(),
        token_id: &uuid::Uuid::new_v4().to_string(),
        issuer: &context.issuer,
        node: &context.node.get(),
    });
    let signed = context.signer.sign(&claims).map_err(|error| in_full(&error))?;
    Ok(SecretText::new(signed.reveal().to_owned()))
}

fn missing(name: &str, system: &str) -> String {
    // The keys of the servers' config.
    let key = if system == "Vault" { "default_identity" } else { "task_identity" };
    format!(
        "find the identity {name} of the task: set `{key}` in the block `{}` of the servers' config, or add the identity to the job",
        system.to_ascii_lowercase()
    )
}
