//! Eligibility and drains of this machine: `PUT /v1/node/ID/eligibility` and `PUT /v1/node/ID/drain`.
//!
//! On a node of a cluster both are decided by servers, which place the allocations.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
};
use herdlet_api_types::Duration;
use herdlet_plan::{event::Command, node::DrainRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, body,
    error::{ApiError, ApiResult},
    nodes,
};

/// The most bytes of all notes of a drain.
const META_BYTES_MAX: usize = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Eligibility {
    eligibility: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct DrainUpdate {
    drain_spec: Option<DrainSpec>,
    mark_eligible: bool,
    meta: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DrainSpec {
    /// Nanoseconds; negative for at once, 0 for none.
    deadline: i64,
    ignore_system_jobs: bool,
}

pub(super) async fn set_eligibility(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(wanted): body::Json<Eligibility>,
) -> ApiResult<Json<Value>> {
    is_own(&shared, &id)?;
    let eligible = match wanted.eligibility.as_str() {
        "eligible" => true,
        "ineligible" => false,
        other => {
            return Err(ApiError::bad(format!(
                "\"Eligibility\" is {other:?}; it must be \"eligible\" or \"ineligible\""
            )));
        }
    };
    let index = shared.accepted(Command::SetEligibility { eligible }).await?;
    Ok(Json(updated(&shared, index)))
}

pub(super) async fn drain(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(update): body::Json<DrainUpdate>,
) -> ApiResult<Json<Value>> {
    is_own(&shared, &id)?;
    let meta = update.meta.unwrap_or_default();
    if meta.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > META_BYTES_MAX {
        return Err(ApiError::bad(format!("\"Meta\" has more than {META_BYTES_MAX} bytes")));
    }
    let drain = update.drain_spec.map(|spec| DrainRequest {
        deadline: Duration(spec.deadline),
        ignore_system: spec.ignore_system_jobs,
    });
    let index = shared.accepted(Command::Drain { drain, mark_eligible: update.mark_eligible, meta }).await?;
    Ok(Json(updated(&shared, index)))
}

fn is_own(shared: &Shared, id: &str) -> ApiResult<()> {
    nodes::check(shared, id)?;
    if (shared.vitals)().seen.is_some() {
        let message =
            format!("servers place allocations on this node; ask them instead: nomad node drain {id}");
        return Err(ApiError::Conflict(message));
    }
    Ok(())
}

fn updated(shared: &Shared, index: u64) -> Value {
    json!({
        "EvalIDs": null, "EvalCreateIndex": 0, "NodeModifyIndex": shared.model.node().modify_index,
        "Index": index, "LastContact": 0, "KnownLeader": true,
    })
}
