//! The keys of variables, at Nomad's paths of its keyring: list, rotate, remove. Never a key itself.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_variables::store::KeyInfo;
use serde_json::{Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, Read, Source},
    variables::{Accessor, VariableRefusal},
};

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let keys = |shared: &Shared| {
        let infos = shared.variables.store().key_infos();
        Ok(infos.iter().map(to_json).collect::<Vec<Value>>())
    };
    shared.answer_from(Source::Variables, &read, keys).await
}

pub(super) async fn rotate(
    State(shared): State<Arc<Shared>>,
    Accessor(actor): Accessor,
) -> Result<Json<Value>, VariableRefusal> {
    let key = shared.variables.rotate(&actor).await?;
    Ok(Json(json!({ "Key": to_json(&key), "Index": shared.index(Source::Variables) })))
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Accessor(actor): Accessor,
) -> Result<Json<Value>, VariableRefusal> {
    let id = id.parse().map_err(|_| {
        shared.variables.key_refused(&actor, &id);
        ApiError::bad(format!("{id:?} is not the id of a key"))
    })?;
    shared.variables.remove_key(&actor, id).await?;
    Ok(Json(json!({ "Index": shared.index(Source::Variables) })))
}

fn to_json(key: &KeyInfo) -> Value {
    // Nomad's names, as far as they fit. `missing` is ours.
    let state = match (key.is_present, key.is_active, key.variables) {
        (false, ..) => "missing",
        (true, true, _) => "active",
        (true, false, 0) => "inactive",
        (true, false, _) => "rekeying",
    };
    let created = key.created_s.saturating_mul(1_000_000_000);
    json!({
        "KeyID": key.id.to_string(), "Algorithm": "aes256-gcm", "State": state, "CreateTime": created,
        "CreateIndex": 0, "ModifyIndex": 0, "PublishTime": 0, "Variables": key.variables,
    })
}
