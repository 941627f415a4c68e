//! Requests about jobs and deployments.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{Stream, TryStreamExt as _};
use herdlet_api_types::{DeploymentId, JobKey, view::JobVersion};
use herdlet_base::paths::encode;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::json;

use super::{Client, Effect, EndFlags, Pause, Result, broken};

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct JobChange {
    #[serde(rename = "Index")]
    pub index: u64,
    /// The new version of the job.
    #[serde(rename = "JobVersion")]
    pub version: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct Dispatch<'d> {
    pub payload: &'d [u8],
    pub meta: &'d BTreeMap<String, String>,
    /// Part of the child's id; may be empty.
    pub id_prefix: &'d str,
    /// Idempotency token; may be empty.
    pub token: &'d str,
}

#[derive(Deserialize)]
struct Dispatched {
    #[serde(rename = "DispatchedJobID")]
    id: String,
    #[serde(rename = "Index")]
    index: u64,
}

#[derive(Deserialize)]
struct Launched {
    #[serde(rename = "LaunchedJobID")]
    id: String,
}

#[derive(Deserialize)]
struct Promoted {
    #[serde(rename = "DeploymentModifyIndex")]
    index: u64,
}

#[derive(Deserialize)]
struct FailedDeployment {
    #[serde(rename = "RevertedJobVersion")]
    reverted_job_version: Option<u64>,
}

impl Client {
    /// A job in Nomad's JSON.
    pub async fn nomad_job(&self, job: &JobKey) -> Result<serde_json::Value> {
        let path = format!("/v1/job/{}", encode(&job.id));
        self.ask(self.to(Method::GET, &path).query(&[("namespace", &job.namespace)])).await
    }

    /// Deletes a job. Returns the index of the commit.
    pub async fn delete_job(&self, job: &JobKey, ends: EndFlags) -> Result<u64> {
        self.change(self.deletion(job).query(&ends.query())).await
    }

    /// The same, only if this is still the job's version.
    pub async fn delete_version(&self, job: &JobKey, version: u64) -> Result<u64> {
        self.change(self.deletion(job).query(&[("enforce_prior_version", version)])).await
    }

    fn deletion(&self, job: &JobKey) -> RequestBuilder {
        let path = format!("/v1/job/{}", encode(&job.id));
        self.to(Method::DELETE, &path).query(&[("namespace", &*job.namespace), ("purge", "true")])
    }

    /// Holds a job: if the stream ends because this client is gone, the agent deletes the job.
    pub async fn hold_job(&self, job: &JobKey) -> Result<impl Stream<Item = Result<()>> + Unpin + use<>> {
        let path = format!("/v1/herdlet/job/{}/hold", encode(&job.id));
        let request = self.to(Method::PUT, &path).query(&[("namespace", &job.namespace)]);
        let lines = self.send(request).await?.bytes_stream().map_ok(drop);
        Ok(Box::pin(lines.map_err(|error| broken(&error, Effect::None))))
    }

    /// Stops a job without deleting it.
    pub async fn stop_job(&self, job: &JobKey, ends: EndFlags) -> Result<JobChange> {
        let path = format!("/v1/job/{}", encode(&job.id));
        let request = self.to(Method::DELETE, &path).query(&[("namespace", &job.namespace)]);
        self.ask(request.query(&ends.query())).await
    }

    /// Starts a job that was stopped.
    pub async fn start_job(&self, job: &JobKey) -> Result<JobChange> {
        let path = format!("/v1/herdlet/job/{}/start", encode(&job.id));
        self.ask(self.to(Method::PUT, &path).query(&[("namespace", &job.namespace)])).await
    }

    /// Dispatches a parameterized job. Returns the child's key and the index of the commit.
    pub async fn dispatch(&self, job: &JobKey, dispatch: &Dispatch<'_>) -> Result<(JobKey, u64)> {
        let path = format!("/v1/job/{}/dispatch", encode(&job.id));
        let Dispatch { payload, meta, id_prefix, token } = *dispatch;
        let body =
            json!({ "Payload": STANDARD.encode(payload), "Meta": meta, "IdPrefixTemplate": id_prefix });
        let request = self.to(Method::PUT, &path).query(&[("namespace", &*job.namespace)]).json(&body);
        let made: Dispatched = self.ask(request.query(&[("idempotency_token", token)])).await?;
        Ok((JobKey { namespace: job.namespace.clone(), id: made.id.into() }, made.index))
    }

    /// Launches a periodic job now. Returns the child's key.
    pub async fn force_launch(&self, job: &JobKey) -> Result<JobKey> {
        let path = format!("/v1/job/{}/periodic/force", encode(&job.id));
        let made: Launched =
            self.ask(self.to(Method::PUT, &path).query(&[("namespace", &*job.namespace)])).await?;
        Ok(JobKey { namespace: job.namespace.clone(), id: made.id.into() })
    }

    /// The stored versions of a job, newest first.
    pub async fn versions(&self, job: &JobKey) -> Result<Vec<JobVersion>> {
        let path = format!("/v1/herdlet/job/{}/versions", encode(&job.id));
        self.ask(self.to(Method::GET, &path).query(&[("namespace", &job.namespace)])).await
    }

    /// Makes the job of version `to` the newest version, if `current` is the current one.
    pub async fn revert(&self, job: &JobKey, to: u64, current: u64) -> Result<JobChange> {
        let path = format!("/v1/job/{}/revert", encode(&job.id));
        let body = json!({ "JobID": job.id, "JobVersion": to, "EnforcePriorVersion": current });
        self.ask(self.to(Method::PUT, &path).query(&[("namespace", &job.namespace)]).json(&body)).await
    }

    /// Changes the count of a group.
    pub async fn scale(&self, job: &JobKey, group: &str, count: u32, message: &str) -> Result<JobChange> {
        let path = format!("/v1/job/{}/scale", encode(&job.id));
        let body = json!({ "Count": count, "Target": { "Group": group }, "Message": message });
        self.ask(self.to(Method::PUT, &path).query(&[("namespace", &job.namespace)]).json(&body)).await
    }

    /// Promotes the canaries of a deployment; those of all groups if `groups` is empty. Returns the index of
    /// the commit.
    pub async fn promote(&self, id: DeploymentId, groups: &[String]) -> Result<u64> {
        let body = json!({ "DeploymentID": id, "All": groups.is_empty(), "Groups": groups });
        let promoted: Promoted =
            self.ask(self.to(Method::PUT, &format!("/v1/deployment/promote/{id}")).json(&body)).await?;
        Ok(promoted.index)
    }

    /// Pauses or resumes a deployment.
    pub async fn pause_deployment(&self, id: DeploymentId, paused: Pause) -> Result<()> {
        let body = json!({ "DeploymentID": id, "Pause": paused == Pause::Pause });
        self.put(&format!("/v1/deployment/pause/{id}"), &body).await
    }

    /// Marks a deployment as failed. Returns the version that its job reverts to.
    pub async fn fail_deployment(&self, id: DeploymentId) -> Result<Option<u64>> {
        let body = json!({ "DeploymentID": id });
        let request = self.to(Method::PUT, &format!("/v1/deployment/fail/{id}")).json(&body);
        let failed: FailedDeployment = self.ask(request).await?;
        Ok(failed.reverted_job_version)
    }
}
