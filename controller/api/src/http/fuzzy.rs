//! `POST /v1/search/fuzzy`: names that contain a text, by kind, each with its place.
//!
//! Facts: `hashicorp/nomad:nomad/search_endpoint.go`.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State};
use herdlet_api_types::nomad;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, body,
    error::{ApiError, ApiResult},
    namespaces, nodes,
    query::{Params, Read},
    search::{self, MATCHES_LEN_MAX},
};

/// The shortest text that is searched for, as in Nomad.
const TEXT_CHARS_MIN: usize = 2;

/// Nomad's kinds; those that herdlet does not have match nothing. Kinds with ids instead of names are searched by prefix.
const CONTEXTS: [&str; 18] = [
    "jobs",
    "groups",
    "services",
    "tasks",
    "images",
    "commands",
    "classes",
    "allocs",
    "nodes",
    "namespaces",
    "node_pools",
    "plugins",
    "vars",
    "evals",
    "deployment",
    "volumes",
    "quotas",
    "scaling_policy",
];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct FuzzyQuery {
    text: String,
    context: String,
}

/// A name, and what it is in.
#[derive(Debug)]
struct Match {
    kind: &'static str,
    name: String,
    scope: Vec<String>,
}

pub(super) async fn search(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    body::Json(wanted): body::Json<FuzzyQuery>,
) -> ApiResult<Json<Value>> {
    if wanted.text.chars().count() < TEXT_CHARS_MIN {
        let message = format!(
            "fuzzy search query must be at least {TEXT_CHARS_MIN} characters, got {}",
            wanted.text.len()
        );
        return Err(ApiError::bad(message));
    }
    let contexts = search::contexts(&wanted.context, &CONTEXTS)?;
    let text = wanted.text.to_lowercase();
    let mut found: BTreeMap<&str, Vec<(usize, Match)>> = BTreeMap::new();
    for one in names(&shared, &read) {
        if let Some(at) = one.name.to_lowercase().find(&text) {
            found.entry(one.kind).or_default().push((at, one));
        }
    }
    for kind in ["evals", "deployment", "volumes"] {
        for id in search::ids(&shared, &read, kind) {
            if id.to_lowercase().starts_with(&text) {
                found.entry(kind).or_default().push((0, Match { kind, name: id, scope: Vec::new() }));
            }
        }
    }
    let (mut matches, mut truncations) = (BTreeMap::new(), BTreeMap::new());
    for kind in contexts {
        let mut of_kind = found.remove(kind).unwrap_or_default();
        // The earlier in the name, the better the match.
        of_kind.sort_by(|(at, a), (other, b)| (at, &a.name, &a.scope).cmp(&(other, &b.name, &b.scope)));
        truncations.insert(kind, of_kind.len() > MATCHES_LEN_MAX);
        of_kind.truncate(MATCHES_LEN_MAX);
        let shown = |(_, one): &(usize, Match)| {
            if one.scope.is_empty() {
                json!({ "ID": one.name })
            } else {
                json!({ "ID": one.name, "Scope": one.scope })
            }
        };
        if !of_kind.is_empty() {
            matches.insert(kind, of_kind.iter().map(shown).collect::<Vec<_>>());
        }
    }
    Ok(Json(json!({
        "Matches": matches, "Truncations": truncations,
        "Index": shared.model.index(), "LastContact": 0, "KnownLeader": true,
    })))
}

/// All names in the namespaces of the request.
fn names(shared: &Shared, read: &Read) -> Vec<Match> {
    let mut all = Vec::new();
    for view in shared.model.jobs() {
        if read.covers(&view.key.namespace) {
            of_job(&nomad::job(&view.job, view.version), &mut all);
        }
    }
    for view in shared.model.allocs() {
        let key = &view.spec.job_key;
        if read.covers(&key.namespace) {
            let scope = vec![key.namespace.to_string(), view.spec.id.to_string()];
            all.push(Match { kind: "allocs", name: view.spec.name(), scope });
        }
    }
    let node = &shared.facts.node;
    all.push(Match { kind: "nodes", name: node.name.clone(), scope: vec![node.id.clone()] });
    let namespaces = namespaces::names(shared).into_iter();
    all.extend(namespaces.map(|name| Match { kind: "namespaces", name, scope: Vec::new() }));
    let pools = nodes::pools(shared).into_iter();
    all.extend(pools.map(|name| Match { kind: "node_pools", scope: vec![name.clone()], name }));
    all
}

/// The names in a job in Nomad's JSON.
fn of_job(job: &Value, into: &mut Vec<Match>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let scope = vec![text(&job["Namespace"]), text(&job["ID"])];
    into.push(Match { kind: "jobs", name: text(&job["Name"]), scope: scope.clone() });
    for group in list(&job["TaskGroups"]) {
        into.push(Match { kind: "groups", name: text(&group["Name"]), scope: scope.clone() });
        let below = |name: &Value| scope.iter().cloned().chain([text(name)]).collect::<Vec<_>>();
        let of_group = below(&group["Name"]);
        for service in list(&group["Services"]) {
            into.push(Match { kind: "services", name: text(&service["Name"]), scope: of_group.clone() });
        }
        for task in list(&group["Tasks"]) {
            into.push(Match { kind: "tasks", name: text(&task["Name"]), scope: of_group.clone() });
            let of_task: Vec<String> = of_group.iter().cloned().chain([text(&task["Name"])]).collect();
            for service in list(&task["Services"]) {
                into.push(Match { kind: "services", name: text(&service["Name"]), scope: of_task.clone() });
            }
            let config = match task["Driver"].as_str() {
                Some("docker") => Some(("images", "image")),
                Some("exec" | "raw_exec") => Some(("commands", "command")),
                Some("java") => Some(("classes", "class")),
                Some(_) | None => None,
            };
            if let Some((kind, key)) = config {
                into.push(Match { kind, name: text(&task["Config"][key]), scope: of_task });
            }
        }
    }
}
