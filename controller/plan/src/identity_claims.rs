//! Contents of a workload identity token: the claims of a JWT, in the form of Nomad 1.7 and later.
//!
//! In: the allocation, the task or service, the identity, the time, a token id, and the operator's rules. Out: [`Claims`], ready to
//! be signed. It knows no keys, clocks or files.

use std_alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    Duration, UnixNanos,
    alloc::Allocation,
    job::{Identity, Task},
    manifest::defaults::DEFAULT_IDENTITY,
};
use serde::{Deserialize, Serialize};

use crate::{env::NodeFacts, interpolate};

/// Audience of the default identity.
pub const DEFAULT_AUDIENCE: &str = "nomadproject.io";

/// Claims of one token. Times are whole seconds since 1970-01-01 UTC (RFC 7519 §2, NumericDate).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Namespace of the job.
    pub nomad_namespace: String,
    /// Id of the job; for a child its parent's.
    pub nomad_job_id: String,
    /// Id of the allocation.
    pub nomad_allocation_id: String,
    /// Name of the task; empty for a service.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nomad_task: String,
    /// Name of the service, for the identity that it is registered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nomad_service: Option<String>,
    /// The issuer, if the node has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
    /// `region:namespace:job:group:task:identity`; a `:` within a name is `%3A`.
    pub sub: String,
    /// Intended audience. Absent if the identity has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aud: Vec<String>,
    /// Issue time.
    pub iat: i64,
    /// Start of validity.
    pub nbf: i64,
    /// End of validity; absent if the identity has no `ttl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    /// Unique id of the token.
    pub jti: String,
    /// The namespace of Vault that the task logs in to; only for the identity that it logs in with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault_namespace: Option<String>,
    /// The role that it logs in with, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault_role: Option<String>,
    /// The namespace of Consul that the task or service logs in to, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consul_namespace: Option<String>,
    /// Claims of the operator's [`Issuer`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_claims: BTreeMap<String, String>,
}

/// What the operator defines about all tokens of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Issuer {
    /// The URL below which others find the keys: `iss`.
    pub url: Option<String>,
    /// Claims of all tokens, by name. Values may contain `${…}`.
    pub extra_claims: BTreeMap<String, String>,
    /// Claims of the tokens whose identity names them in `extra_claims`.
    pub optional_extra_claims: BTreeMap<String, String>,
}

/// Who gets a token.
#[derive(Debug, Clone, Copy)]
pub enum Holder<'a> {
    /// A task.
    Task(&'a Task),
    /// A service by its name, for its registration.
    Service(&'a str),
}

impl<'a> Holder<'a> {
    fn name(self) -> &'a str {
        match self {
            Self::Task(task) => &task.name,
            Self::Service(name) => name,
        }
    }

    fn task(self) -> Option<&'a Task> {
        match self {
            Self::Task(task) => Some(task),
            Self::Service(_) => None,
        }
    }
}

/// The subject of a token, and when it is issued.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    /// The allocation.
    pub alloc: &'a Allocation,
    /// One of its tasks or services.
    pub holder: Holder<'a>,
    /// The holder's identity.
    pub identity: &'a Identity,
    /// The current time.
    pub issued_at: UnixNanos,
    /// A fresh unique id, usually a random UUID.
    pub token_id: &'a str,
    /// The operator's rules.
    pub issuer: &'a Issuer,
    /// This machine.
    pub node: &'a NodeFacts,
}

impl Claims {
    /// The claims for a grant.
    pub fn new(grant: &Grant<'_>) -> Self {
        let Grant { alloc, holder, identity, issued_at, token_id, issuer, node: _ } = *grant;
        let now = seconds(issued_at.0);
        // Only the default identity is for this API.
        let is_default = identity.name == DEFAULT_IDENTITY && identity.aud.is_empty();
        let aud = if is_default { vec![DEFAULT_AUDIENCE.to_string()] } else { identity.aud.clone() };
        let vault = holder.task().and_then(|task| task.vault.as_ref());
        let vault = vault.filter(|access| access.identity_name() == identity.name);
        let consul = holder.task().and_then(|task| task.consul.as_ref());
        let consul = consul.filter(|access| access.identity_name() == identity.name);
        Self {
            nomad_namespace: alloc.job_key.namespace.to_string(),
            nomad_job_id: job_id(alloc).to_string(),
            nomad_allocation_id: alloc.id.to_string(),
            nomad_task: holder.task().map(|task| task.name.clone()).unwrap_or_default(),
            nomad_service: match holder {
                Holder::Task(_) => None,
                Holder::Service(name) => Some(name.to_string()),
            },
            iss: issuer.url.clone(),
            sub: subject(grant),
            aud,
            iat: now,
            nbf: now,
            exp: expires(issued_at, identity.ttl),
            jti: token_id.to_string(),
            vault_namespace: vault.and_then(|access| access.namespace.clone()),
            vault_role: vault.and_then(|access| access.role.clone()),
            consul_namespace: consul.and_then(|access| access.namespace.clone()),
            extra_claims: extra_claims(grant),
        }
    }
}

/// All children count as one job for authorization: their own ids are not known in advance.
fn job_id(alloc: &Allocation) -> &str {
    alloc.job.identity_owner().unwrap_or(&alloc.job_key.id)
}

/// `:` and `%` within a name are percent-encoded. Otherwise a job could get the subject of another one.
fn subject(grant: &Grant<'_>) -> String {
    let Grant { alloc, holder, identity, .. } = grant;
    let names = [
        &*alloc.job.region,
        &*alloc.job_key.namespace,
        job_id(alloc),
        &*alloc.group,
        holder.name(),
        &*identity.name,
    ];
    names.map(|name| name.replace('%', "%25").replace(':', "%3A")).join(":")
}

/// The operator's claims for this identity. An optional claim that the operator has not defined is left out, as in Nomad.
fn extra_claims(grant: &Grant<'_>) -> BTreeMap<String, String> {
    let Issuer { extra_claims, optional_extra_claims, .. } = grant.issuer;
    let chosen =
        grant.identity.extra_claims.iter().filter_map(|name| optional_extra_claims.get_key_value(name));
    let filled = |text: &str| interpolate::replace(text, CLAIM_BYTES_MAX, |name| value_of(grant, name));
    extra_claims.iter().chain(chosen).map(|(name, text)| (name.clone(), filled(text))).collect()
}

/// The value of `${name}` in a claim. Nomad's names, except those of Vault's namespace and role.
fn value_of<'a>(grant: &Grant<'a>, name: &str) -> Option<&'a str> {
    let Grant { alloc, holder, node, .. } = *grant;
    Some(match name {
        "job.region" => &alloc.job.region,
        "job.namespace" => &alloc.job_key.namespace,
        "job.id" => job_id(alloc),
        "job.node_pool" => &alloc.job.node_pool,
        "group.name" => &alloc.group,
        "task.name" => &holder.task()?.name,
        "node.id" => &node.id,
        "node.datacenter" => &node.datacenter,
        "node.pool" => &node.pool,
        "node.class" => &node.class,
        _ => return alloc.job.meta.get(name.strip_prefix("job.meta.")?).map(String::as_str),
    })
}

/// A token is sent in a header with each request.
const CLAIM_BYTES_MAX: usize = 1_024;

/// The last second in which a token is valid. A `ttl` of 0 means none, as in Nomad.
fn expires(issued_at: UnixNanos, ttl: Option<Duration>) -> Option<i64> {
    let ttl = ttl.filter(|ttl| !ttl.is_zero() && !ttl.is_negative())?;
    Some(seconds(issued_at.0.saturating_add(ttl.as_nanos())))
}

fn seconds(nanos: i64) -> i64 {
    nanos.div_euclid(1_000_000_000)
}

#[cfg(test)]
mod tests;
