//! `GET /v1/herdlet/environment/{alloc}?task=NAME`: what templates of a task read with `env`.
//!
//! In: an allocation and one of its tasks. Out: the variables that follow from the job, the allocation and this node. No
//! secrets: neither tokens nor values of `secret` blocks, variables of templates, or the environment of the agent.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use herdlet_agent::executor::environment::dirs_on_host;
use herdlet_api_types::driver::has_own_root;
use herdlet_plan::env::{self, Inputs, TaskDirs, Variables};
use serde::Deserialize;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::Params,
};

#[derive(Debug, Deserialize)]
pub(super) struct TaskQuery {
    #[serde(default)]
    task: String,
}

pub(super) async fn environment(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(named): Params<TaskQuery>,
) -> ApiResult<Json<Variables>> {
    let view = shared.alloc(&id)?;
    let task = view.spec.task(&named.task);
    let task = task.ok_or_else(|| {
        ApiError::bad(format!(
            "allocation {} has no task {:?}: name one with ?task=",
            view.spec.id, named.task
        ))
    })?;
    let dirs = match has_own_root(&task.driver) {
        true => TaskDirs::in_image(),
        false => dirs_on_host(&shared.paths, &view.spec.id, &task.name),
    };
    let inputs =
        Inputs { task: Some(task), dirs: Some(&dirs), ..Inputs::new(&view.spec, &shared.facts.node) };
    Ok(Json(env::build(&inputs).into_variables_and_facts()))
}
