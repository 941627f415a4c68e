//! The keys of variables and of identities, at Nomad's paths of its keyring: list, rotate, remove. Never a key itself.
//!
//! In Nomad one key serves both. Here they are apart, because an operator may provide those of variables: `use=variables` or
//! `use=identities` concerns one kind only.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, State},
    response::Response,
};
use herdlet_agent::identity_keys::{Removal, SigningAlgorithm};
use herdlet_variables::store::KeyInfo;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
    identity_keys,
    query::{Params, Read, Source},
    variables::{Accessor, VariableRefusal},
};

/// What a rotation is about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Rotation {
    /// `variables` or `identities`; both if absent.
    #[serde(rename = "use")]
    purpose: Option<Purpose>,
    /// Nanoseconds since 1970 from which the key of identities signs; at once if absent. It is published before.
    publish_time: u64,
    /// `RS256` or `EdDSA`.
    signing_algorithm: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Purpose {
    Variables,
    Identities,
}

/// How a key is removed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyRemoval {
    force: bool,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let signing = shared.identity_keys.infos().await.map_err(identity_keys::refusal)?;
    let keys = |shared: &Shared| {
        let infos = shared.variables.store().key_infos();
        let of_variables = infos.iter().map(to_json);
        Ok(of_variables.chain(signing.iter().map(identity_keys::to_json)).collect::<Vec<Value>>())
    };
    shared.answer_from(Source::Variables, &read, keys).await
}

pub(super) async fn rotate(
    State(shared): State<Arc<Shared>>,
    Accessor(actor): Accessor,
    Query(rotation): Query<Rotation>,
) -> Result<Json<Value>, VariableRefusal> {
    let named = rotation.signing_algorithm.as_deref();
    let algorithm = named.map_or(Some(SigningAlgorithm::default()), SigningAlgorithm::parse);
    let algorithm = algorithm.ok_or_else(|| ApiError::bad("signing_algorithm must be RS256 or EdDSA"))?;
    let mut answer = json!({});
    if rotation.purpose != Some(Purpose::Identities) {
        answer["Key"] = to_json(&shared.variables.rotate(&actor).await?);
    }
    if rotation.purpose != Some(Purpose::Variables) {
        let from_s = rotation.publish_time / 1_000_000_000;
        let added = shared.identity_keys.rotate(algorithm, from_s).await.map_err(identity_keys::refusal)?;
        let name = if rotation.purpose.is_some() { "Key" } else { "SigningKey" };
        answer[name] = identity_keys::to_json(&added);
    }
    answer["Index"] = shared.index(Source::Variables).into();
    Ok(Json(answer))
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Accessor(actor): Accessor,
    Query(KeyRemoval { force }): Query<KeyRemoval>,
) -> Result<Json<Value>, VariableRefusal> {
    // Damaged keys of identities don't concern those of variables.
    let signing = shared.identity_keys.infos().await.unwrap_or_default();
    if signing.iter().any(|key| key.kid == id) {
        let removal = if force { Removal::Forced } else { Removal::Checked };
        shared.identity_keys.remove(&id, removal).await.map_err(identity_keys::refusal)?;
    } else {
        let id = id.parse().map_err(|_| {
            shared.variables.key_refused(&actor, &id);
            ApiError::bad(format!("{id:?} is not the id of a key"))
        })?;
        shared.variables.remove_key(&actor, id).await?;
    }
    Ok(Json(json!({ "Index": shared.index(Source::Variables) })))
}

fn to_json(key: &KeyInfo) -> Value {
    // Nomad's names, as far as they fit. `missing`, `Use` and `Variables` are ours.
    let state = match (key.is_present, key.is_active, key.variables) {
        (false, ..) => "missing",
        (true, true, _) => "active",
        (true, false, 0) => "inactive",
        (true, false, _) => "rekeying",
    };
    let created = key.created_s.saturating_mul(1_000_000_000);
    json!({
        "KeyID": key.id.to_string(), "Algorithm": "aes256-gcm", "State": state, "CreateTime": created,
        "CreateIndex": 0, "ModifyIndex": 0, "PublishTime": 0, "Variables": key.variables, "Use": "variables",
    })
}
