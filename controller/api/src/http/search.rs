//! `POST /v1/search`: ids with a prefix, by kind, for shell completion.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, body,
    error::{ApiError, ApiResult},
    namespaces, nodes,
    query::{Params, Read},
};

/// At most this many ids of a kind are returned, as in Nomad; `Truncations` says whether there are
/// more.
pub(super) const MATCHES_LEN_MAX: usize = 20;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct SearchQuery {
    prefix: String,
    context: String,
}

/// Nomad's kinds; those that herdlet does not have match nothing.
const CONTEXTS: [&str; 11] = [
    "allocs",
    "jobs",
    "nodes",
    "evals",
    "deployment",
    "namespaces",
    "volumes",
    "plugins",
    "vars",
    "node_pools",
    "quotas",
];

pub(super) async fn prefix(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    body::Json(wanted): body::Json<SearchQuery>,
) -> ApiResult<Json<Value>> {
    let contexts = contexts(&wanted.context, &CONTEXTS)?;
    let (mut matches, mut truncations) = (BTreeMap::new(), BTreeMap::new());
    for context in contexts {
        let mut ids = ids(&shared, &read, context);
        ids.retain(|id| id.starts_with(&wanted.prefix));
        truncations.insert(context, ids.len() > MATCHES_LEN_MAX);
        ids.truncate(MATCHES_LEN_MAX);
        if !ids.is_empty() {
            matches.insert(context, ids);
        }
    }
    Ok(Json(json!({
        "Matches": matches, "Truncations": truncations,
        "Index": shared.model.index(), "LastContact": 0, "KnownLeader": true,
    })))
}

/// The kinds that a request names.
pub(super) fn contexts(named: &str, all: &[&'static str]) -> ApiResult<Vec<&'static str>> {
    match named {
        "" | "all" => Ok(all.to_vec()),
        one => match all.iter().find(|known| **known == one) {
            Some(known) => Ok(vec![*known]),
            None => {
                let known = all.join(", ");
                Err(ApiError::bad(format!("Context: {one:?} is not one of all, {known}")))
            }
        },
    }
}

pub(super) fn ids(shared: &Shared, read: &Read, context: &str) -> Vec<String> {
    let model = &shared.model;
    match context {
        "jobs" => {
            let jobs = model.jobs().into_iter().filter(|view| read.covers(&view.key.namespace));
            jobs.map(|view| view.key.id.to_string()).collect()
        }
        "allocs" => {
            let allocs = model.allocs().into_iter().filter(|view| read.covers(&view.spec.job_key.namespace));
            allocs.map(|view| view.spec.id.to_string()).collect()
        }
        "evals" => shared.evaluations().iter().map(|one| one.id().to_owned()).collect(),
        "nodes" => vec![shared.facts.node.id.clone()],
        "namespaces" => namespaces::names(shared).into_iter().collect(),
        "volumes" => model.volumes().iter().map(|view| view.spec.name.clone()).collect(),
        "deployment" => shared.deployments().iter().map(|(one, _)| one.id.to_string()).collect(),
        "node_pools" => nodes::pools(shared),
        "vars" => {
            let all = shared.variables.store().list().into_iter();
            all.filter(|variable| read.covers(&variable.namespace)).map(|variable| variable.path).collect()
        }
        _ => Vec::new(),
    }
}
