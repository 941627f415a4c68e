//! Tokens of Vault: revocation of all tokens that tasks of this agent have.

use std::sync::Arc;

use axum::{Json, extract::State};
use herdlet_api_types::vault::RevokedToken;

use super::{Shared, error::ApiResult};

/// Revokes the tokens, and returns them. Running tasks get others.
pub(super) async fn revoke_all(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Vec<RevokedToken>>> {
    Ok(Json((shared.revoke_vault_tokens)().await))
}
