//! The actions of a job: named commands of its tasks.
//!
//! `GET /v1/job/JOB/actions`. Out: `[{"Name":…,"Command":…,"Args":[…],"TaskName":…,"TaskGroupName":…}]`.
//!
//! `GET /v1/job/JOB/action?action=NAME&allocID=ALLOC&task=TASK[&tty=true]`: runs one over a websocket, as in
//! [`super::exec`]. As in Nomad, the commands are those of the allocation's version of the job.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::nomad;
use serde::Deserialize;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    exec::{self, Upgrade},
    query::{Params, Read, flag},
};
use crate::alloc_ops::exec::ExecSpec;

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    shared.answer(&read, |shared: &Shared| Ok(nomad::actions(&shared.known_job(&key)?.job))).await
}

/// Query parameters.
#[derive(Debug, Deserialize)]
pub(super) struct ActionQuery {
    namespace: Option<String>,
    #[serde(default)]
    action: String,
    #[serde(default, rename = "allocID")]
    alloc: String,
    #[serde(default)]
    task: String,
    #[serde(default, deserialize_with = "flag")]
    tty: bool,
}

pub(super) async fn run(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<ActionQuery>,
    upgrade: Upgrade,
) -> ApiResult<Response> {
    let ActionQuery { namespace, action, alloc, task, tty } = wanted;
    for (value, name) in [(&action, "action"), (&alloc, "allocID"), (&task, "task")] {
        if value.is_empty() {
            return Err(ApiError::bad(format!("the parameter \"{name}\" is missing")));
        }
    }
    let job = Read { namespace, ..Read::default() }.job(id);
    let reach = shared.reach();
    let alloc = reach.alloc(&alloc)?;
    if alloc.spec.job_key != job {
        return Err(ApiError::bad(format!("allocation {} is not of job \"{}\"", alloc.spec.id, job.id)));
    }
    let found = alloc.spec.action(&task, &action);
    let found =
        found.ok_or_else(|| ApiError::NotFound(format!("action {action:?} not found in task {task:?}")))?;
    let command = found.to_command();
    let session = reach.open_exec(&alloc, ExecSpec { task, command, terminal: tty })?;
    exec::serve(shared, session, upgrade)
}
