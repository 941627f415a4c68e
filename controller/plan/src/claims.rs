//! Contents of a workload identity token: the claims of a JWT, in the form of Nomad 1.7 and later.
//!
//! In: the allocation, the task, the identity, the time and a token id. Out: [`Claims`], ready to be signed. It knows
//! no keys, clocks or files.

use std_alloc::{
    string::{String, ToString},
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    Duration, UnixNanos,
    alloc::Allocation,
    job::{Identity, Task},
};
use serde::{Deserialize, Serialize};

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
    /// Name of the task.
    pub nomad_task: String,
    /// The issuer, if the node has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
    /// `region:namespace:job:group:task:identity`; a `:` within a name is `%3A`.
    pub sub: String,
    /// Intended audience.
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
}

/// The subject of a token, and when it is issued.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    /// The allocation.
    pub alloc: &'a Allocation,
    /// One of its tasks.
    pub task: &'a Task,
    /// The task's identity.
    pub identity: &'a Identity,
    /// The current time.
    pub issued_at: UnixNanos,
    /// A fresh unique id, usually a random UUID.
    pub token_id: &'a str,
    /// `iss`, if the node has one.
    pub issuer: Option<&'a str>,
}

impl Claims {
    /// The claims for a grant.
    pub fn new(grant: &Grant<'_>) -> Self {
        let Grant { alloc, task, identity, issued_at, token_id, issuer } = *grant;
        let now = seconds(issued_at.0);
        let aud =
            if identity.aud.is_empty() { vec![DEFAULT_AUDIENCE.to_string()] } else { identity.aud.clone() };
        Self {
            nomad_namespace: alloc.job_key.namespace.to_string(),
            nomad_job_id: job_id(alloc).to_string(),
            nomad_allocation_id: alloc.id.to_string(),
            nomad_task: task.name.clone(),
            iss: issuer.map(ToString::to_string),
            sub: subject(grant),
            aud,
            iat: now,
            nbf: now,
            exp: expires(issued_at, identity.ttl),
            jti: token_id.to_string(),
        }
    }
}

/// All children count as one job for authorization: their own ids are not known in advance.
fn job_id(alloc: &Allocation) -> &str {
    alloc.job.parent_id().unwrap_or(&alloc.job_key.id)
}

/// `:` and `%` within a name are percent-encoded. Otherwise a job could get the subject of another one.
fn subject(grant: &Grant<'_>) -> String {
    let Grant { alloc, task, identity, .. } = grant;
    let names = [
        &*alloc.job.region,
        &*alloc.job_key.namespace,
        job_id(alloc),
        &*alloc.group,
        &*task.name,
        &*identity.name,
    ];
    names.map(|name| name.replace('%', "%25").replace(':', "%3A")).join(":")
}

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
