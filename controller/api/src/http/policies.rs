//! Scaling policies in Nomad's form: `GET /v1/scaling/policies` and `GET /v1/scaling/policy/ID`, from the `scaling` blocks of jobs.

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{
    JobKey,
    job::{Group, Scaling},
    nomad,
    view::JobView,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
    list::Listed,
    query::{Params, Read},
};

/// The policy of a group.
struct Policy {
    job: Arc<JobView>,
    group: String,
    scaling: Scaling,
}

impl Listed for Policy {
    fn namespace(&self) -> Option<&str> {
        Some(&self.job.key.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Owned(nomad::scaling_policy_id(&self.job.key, &self.group))
    }

    fn create_index(&self) -> u64 {
        self.job.create_index
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Selection {
    job: String,
    #[serde(rename = "type")]
    kind: String,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    Params(selection): Params<Selection>,
) -> ApiResult<Response> {
    let find = |shared: &Shared| {
        let mut found = policies(shared);
        // The only type there is.
        found.retain(|_| ["", "horizontal"].contains(&selection.kind.as_str()));
        found.retain(|one| selection.job.is_empty() || *one.job.key.id == *selection.job);
        Ok(found)
    };
    shared.list(&read, find, |_, one| stub(one)).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let one = |shared: &Shared| {
        let found = policies(shared).into_iter().find(|one| one.id() == id);
        let found = found.ok_or_else(|| ApiError::NotFound("policy not found".to_owned()))?;
        let mut shown = stub(&found);
        shown["Min"] = found.scaling.min.into();
        shown["Max"] = found.scaling.max.into();
        shown["Policy"] = found.scaling.policy.clone().unwrap_or_default();
        shown["Namespace"] = (*found.job.key.namespace).into();
        Ok(shown)
    };
    shared.answer(&read, one).await
}

fn policies(shared: &Shared) -> Vec<Policy> {
    let of_group = |job: &Arc<JobView>, group: &Group| {
        let scaling = group.scaling.clone()?;
        Some(Policy { job: Arc::clone(job), group: group.name.clone(), scaling })
    };
    let jobs = shared.model.jobs();
    let of_job = |job: &Arc<JobView>| {
        job.job.groups.iter().filter_map(|group| of_group(job, group)).collect::<Vec<_>>()
    };
    jobs.iter().flat_map(of_job).collect()
}

fn stub(one: &Policy) -> Value {
    let JobKey { namespace, id } = &one.job.key;
    json!({
        "ID": one.id(), "Enabled": one.scaling.enabled, "Type": "horizontal",
        "Target": { "Namespace": namespace, "Job": id, "Group": one.group },
        "CreateIndex": one.job.create_index, "ModifyIndex": one.job.modify_index,
    })
}
