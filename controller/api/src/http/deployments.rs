//! Deployments in Nomad's form: listing, reading, promoting and failing them.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{deployment::Deployment, nomad, view::JobView};
use herdlet_plan::event::{Command, PromoteScope, Reply};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, allocs, body,
    error::{ApiError, ApiResult, unexpected},
    list::Listed,
    query::{Params, Read, Source},
};

/// A deployment and its job.
type Found = (Arc<Deployment>, Arc<JobView>);

impl Listed for Found {
    fn namespace(&self) -> Option<&str> {
        Some(&self.0.job_key.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Owned(self.0.id.to_string())
    }

    fn create_index(&self) -> u64 {
        self.0.create_index
    }
}

impl Shared {
    pub(super) fn deployments(&self) -> Vec<Found> {
        let jobs = self.model.jobs().into_iter();
        let of_job = |job: Arc<JobView>| {
            let deployments = job.deployments.clone();
            deployments.into_iter().map(move |deployment| (deployment, Arc::clone(&job)))
        };
        jobs.flat_map(of_job).collect()
    }

    /// Finds the deployment by its id or a unique prefix of it.
    fn deployment(&self, id: &str) -> ApiResult<Found> {
        let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
        let wanted = plain(id);
        let mut found = self.deployments();
        found.retain(|(deployment, _)| plain(&deployment.id.to_string()).starts_with(&wanted));
        match found.len() {
            1 => found.pop().ok_or_else(|| unknown(id)),
            0 => Err(unknown(id)),
            several => {
                Err(ApiError::bad(format!("{several} deployment ids begin with {id:?}; use a longer prefix")))
            }
        }
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::NotFound(format!("there is no deployment {id:?}"))
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let show = |_: &Shared, (deployment, job): &Found| nomad::deployment(deployment, job);
    shared.list(&read, |shared| Ok(shared.deployments()), show).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let one = |shared: &Shared| {
        let (deployment, job) = shared.deployment(&id)?;
        Ok(nomad::deployment(&deployment, &job))
    };
    shared.answer(&read, one).await
}

/// The allocations of a deployment: created for it or taken over, and not taken over by a newer
/// one.
pub(super) async fn allocations(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let allocs = |shared: &Shared| {
        let (deployment, _) = shared.deployment(&id)?;
        let mut views = shared.model.allocs_of(&deployment.job_key);
        views.retain(|view| view.spec.deployment.is_some_and(|part| part.id == deployment.id));
        Ok(views)
    };
    shared.list(&read, allocs, allocs::stub).await
}

/// The stored deployments of a job, newest first.
pub(super) async fn of_job(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let read_all = |shared: &Shared| {
        let job = shared.model.job(&key);
        let deployments = job.iter().flat_map(|job| job.deployments.iter().map(move |one| (one, job)));
        Ok(deployments.map(|(one, job)| nomad::deployment(one, job)).collect::<Vec<_>>())
    };
    shared.filtered(Source::Model, &read, read_all).await
}

/// The newest deployment of a job; `null` if it has none.
pub(super) async fn latest_of_job(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let latest = |shared: &Shared| {
        let job = shared.model.job(&key);
        Ok(job.and_then(|job| job.deployments.first().map(|latest| nomad::deployment(latest, &job))))
    };
    shared.answer(&read, latest).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Promote {
    all: bool,
    groups: Option<Vec<String>>,
}

pub(super) async fn promote(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(promote): body::Json<Promote>,
) -> ApiResult<Json<Value>> {
    let found = shared.deployment(&id)?.0;
    if !found.is_running() {
        return Err(ApiError::bad("can't promote terminal deployment"));
    }
    let scope = match (promote.all, promote.groups.unwrap_or_default()) {
        (true, _) => PromoteScope::All,
        (false, groups) if groups.is_empty() => {
            return Err(ApiError::bad("set \"All\": true, or name the \"Groups\" to promote"));
        }
        (false, groups) => PromoteScope::Groups(groups),
    };
    let index = shared.accepted(Command::PromoteDeployment { id: found.id, scope }).await?;
    Ok(Json(updated(index, None)))
}

pub(super) async fn fail(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> ApiResult<Json<Value>> {
    let id = shared.deployment(&id)?.0.id;
    let reply = shared.request(Command::FailDeployment { id }).await?;
    let Reply::DeploymentFailed { index, reverted } = reply else { return Err(unexpected(reply)) };
    Ok(Json(updated(index, reverted)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Pause {
    pause: bool,
}

pub(super) async fn pause(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(Pause { pause }): body::Json<Pause>,
) -> ApiResult<Json<Value>> {
    let id = shared.deployment(&id)?.0.id;
    let index = shared.accepted(Command::PauseDeployment { id, paused: pause }).await?;
    Ok(Json(updated(index, None)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SetHealth {
    /// The deployment's id again, as Nomad's clients send it.
    #[serde(rename = "DeploymentID")]
    deployment: String,
    #[serde(rename = "HealthyAllocationIDs")]
    healthy: Option<Vec<String>>,
    #[serde(rename = "UnhealthyAllocationIDs")]
    unhealthy: Option<Vec<String>>,
}

pub(super) async fn set_health(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(body): body::Json<SetHealth>,
) -> ApiResult<Json<Value>> {
    if !shared.deployment(&id)?.0.is_running() {
        return Err(ApiError::bad("can't set health of allocations for a terminal deployment"));
    }
    let ids = |ids: Option<Vec<String>>| {
        let ids = ids.unwrap_or_default();
        ids.iter().map(|id| Ok(shared.alloc(id)?.spec.id)).collect::<ApiResult<Vec<_>>>()
    };
    let (healthy, unhealthy) = (ids(body.healthy)?, ids(body.unhealthy)?);
    if healthy.is_empty() && unhealthy.is_empty() {
        return Err(ApiError::bad("set \"HealthyAllocationIDs\" or \"UnhealthyAllocationIDs\""));
    }
    let id = shared.deployment(&id)?.0.id;
    if !body.deployment.is_empty() && shared.deployment(&body.deployment)?.0.id != id {
        return Err(ApiError::bad(format!(
            "\"DeploymentID\" is {:?}, but the path names deployment {id}",
            body.deployment
        )));
    }
    let (index, reverted) = match shared.request(Command::SetAllocHealth { id, healthy, unhealthy }).await? {
        Reply::Accepted { index } => (index, None),
        Reply::DeploymentFailed { index, reverted } => (index, reverted),
        other @ (Reply::Applied { .. }
        | Reply::Dispatched { .. }
        | Reply::Collected { .. }
        | Reply::Explanation(_)
        | Reply::Refused(_)) => return Err(unexpected(other)),
    };
    Ok(Json(updated(index, reverted)))
}

fn updated(index: u64, reverted: Option<u64>) -> Value {
    json!({
        "EvalID": "", "EvalCreateIndex": 0, "DeploymentModifyIndex": index, "RevertedJobVersion": reverted,
        "Index": index, "LastContact": 0, "KnownLeader": true,
    })
}
