//! `GET` and `POST /v1/jobs/statuses`: jobs with their allocations and last deployments in short.
//!
//! Without a list of jobs: all of them, except children of others. Facts: `hashicorp/nomad:command/agent/job_endpoint.go`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use herdlet_api_types::{JobKey, nomad, view::JobView};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Shared, body,
    error::ApiResult,
    query::{Params, Read, flag},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Extent {
    #[serde(deserialize_with = "flag")]
    include_children: bool,
}

/// The body of a request for some jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Selection {
    jobs: Option<Vec<Selected>>,
    include_children: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selected {
    id: String,
    namespace: String,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    Params(extent): Params<Extent>,
) -> ApiResult<Response> {
    let find = |shared: &Shared| {
        let mut jobs = shared.model.jobs();
        jobs.retain(|view| extent.include_children || view.job.parent_id().is_none());
        Ok(jobs)
    };
    shared.list(&read, find, shown).await
}

pub(super) async fn some(
    State(shared): State<Arc<Shared>>,
    Params(mut read): Params<Read>,
    Params(extent): Params<Extent>,
    body::Json(selection): body::Json<Selection>,
) -> ApiResult<Response> {
    let with_children = extent.include_children || selection.include_children;
    let of_default = |name: &str| if name.is_empty() { "default".to_owned() } else { name.to_owned() };
    let keys: Vec<JobKey> = selection
        .jobs
        .into_iter()
        .flatten()
        .map(|one| JobKey { namespace: of_default(&one.namespace).into(), id: one.id.into() })
        .collect();
    // Each selected job names its namespace.
    if !keys.is_empty() {
        read.namespace = Some("*".to_owned());
    }
    let find = |shared: &Shared| {
        let mut jobs = shared.model.jobs();
        let is_selected = |view: &JobView| {
            let parent = view.job.parent_id().map(|id| JobKey { id: id.into(), ..view.key.clone() });
            let by_parent = with_children && parent.is_some_and(|parent| keys.contains(&parent));
            keys.contains(&view.key) || by_parent
        };
        let is_wanted = |view: &JobView| {
            if keys.is_empty() { with_children || view.job.parent_id().is_none() } else { is_selected(view) }
        };
        jobs.retain(|view| is_wanted(view));
        Ok(jobs)
    };
    shared.list(&read, find, shown).await
}

fn shown(shared: &Shared, view: &Arc<JobView>) -> Value {
    let children = view.job.makes_children().then(|| shared.model.children(&view.key));
    let statuses =
        children.as_ref().map(|children| children.iter().map(|child| nomad::job_status(child)).collect());
    let mut shown = nomad::job_statuses(view, &shared.model.allocs_of(&view.key), statuses);
    for alloc in shown["Allocs"].as_array_mut().into_iter().flatten() {
        alloc["NodeID"] = shared.facts.node.id.clone().into();
    }
    shown
}
