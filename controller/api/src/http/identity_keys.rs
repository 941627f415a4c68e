//! The keys of workload identities, for services that verify a task's token: public keys and OpenID Connect discovery.
//! Operators list, rotate and remove them at the paths of Nomad's keyring (`super::keyring`).

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use herdlet_agent::identity_keys::{IdentityError, KeyState, SigningKeyInfo};
use serde_json::{Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
};

/// A new key may sign at once. Services fetch the keys again when they see an unknown id; 15 minutes is Nomad's minimum.
const CACHED: &str = "public, max-age=900";

pub(super) async fn jwks(State(shared): State<Arc<Shared>>) -> ApiResult<Response> {
    let keys = shared.identity_keys.jwks().await.map_err(refusal)?;
    Ok(([(header::CACHE_CONTROL, CACHED)], Json(keys)).into_response())
}

pub(super) async fn discovery(State(shared): State<Arc<Shared>>) -> ApiResult<Response> {
    let document = shared.identity_keys.discovery().ok_or_else(|| {
        let message = "OpenID Connect discovery is off: set identities.oidc_issuer in the agent's config";
        ApiError::NotFound(message.to_owned())
    })?;
    Ok(([(header::CACHE_CONTROL, CACHED)], Json(document)).into_response())
}

pub(super) fn refusal(error: IdentityError) -> ApiError {
    let message = format!("failed to {error}");
    match error {
        IdentityError::NoSuchKey { .. } => ApiError::NotFound(message),
        IdentityError::InUse { .. } | IdentityError::TooMany { .. } => ApiError::Conflict(message),
        IdentityError::Key(_)
        | IdentityError::Generate
        | IdentityError::Damaged { .. }
        | IdentityError::Sign
        | IdentityError::Claims(_)
        | IdentityError::Verify(_)
        | IdentityError::OtherKey
        | IdentityError::NoDir { .. }
        | IdentityError::File { .. }
        | IdentityError::TaskDir { .. } => ApiError::Failed(error.to_string()),
    }
}

/// A key in Nomad's terms. `Use` is ours.
pub(super) fn to_json(key: &SigningKeyInfo) -> Value {
    let nanos = |seconds: u64| seconds.saturating_mul(1_000_000_000);
    let (state, publish_time) = match key.state {
        KeyState::Active => ("active", 0),
        KeyState::Inactive { .. } => ("inactive", 0),
        KeyState::Prepublished => ("prepublished", nanos(key.active_from_s)),
    };
    json!({
        "KeyID": key.kid, "Algorithm": key.algorithm.as_str(), "State": state, "CreateTime": nanos(key.created_s),
        "CreateIndex": 0, "ModifyIndex": 0, "PublishTime": publish_time, "Use": "identities",
    })
}
