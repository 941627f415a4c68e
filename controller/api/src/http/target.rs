//! What a path names: an allocation, a job. Requests to the planner.

use std::sync::Arc;

use herdlet_agent::overview::placed;
use herdlet_api_types::{
    JobKey,
    view::{AllocView, JobView},
};
use herdlet_plan::event::{Command, Reply};

use super::{
    Shared,
    error::{ApiError, ApiResult, unexpected},
};
use crate::reach::{self, Reach};

impl Shared {
    /// What is needed to reach into allocations.
    pub fn reach(&self) -> Reach {
        Reach {
            model: Arc::clone(&self.model),
            drivers: self.drivers.clone(),
            paths: self.paths.clone(),
            requests: self.requests.clone(),
            gc: Arc::clone(&self.gc),
            core_mhz: self.facts.room.0.cpu_mhz / *reach::CORES,
            bounds: self.bounds.clone(),
        }
    }

    /// The allocation of that id, in full.
    pub(super) fn alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        self.reach().alloc(id)
    }

    /// The same, as Nomad's servers say that there is none.
    pub(super) fn known_alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        self.alloc(id).map_err(|_| ApiError::NotFound("alloc not found".to_owned()))
    }

    /// The job of that key.
    pub(super) fn known_job(&self, key: &JobKey) -> ApiResult<Arc<JobView>> {
        placed::job(&self.model, key).ok_or_else(|| ApiError::NotFound("job not found".to_owned()))
    }

    /// Asks the planner, and waits until its answer is durable; not for long while it can't become so.
    pub(super) async fn request(&self, command: Command) -> ApiResult<Reply> {
        self.reach().request(command).await
    }

    /// The same for a request whose answer is just that it was accepted: the index of its commit.
    pub(super) async fn accepted(&self, command: Command) -> ApiResult<u64> {
        self.reach().accepted(command).await
    }

    /// The same for a change of one job: with its version now.
    pub(super) async fn job_changed(&self, command: Command) -> ApiResult<Changed> {
        let reply = self.request(command).await?;
        let Reply::Applied { index, ref jobs, .. } = reply else { return Err(unexpected(reply)) };
        match &jobs[..] {
            [job] => Ok(Changed { index, version: job.version }),
            _ => Err(unexpected(reply)),
        }
    }
}

/// What a request has made of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changed {
    /// The index of its commit.
    pub(super) index: u64,
    /// The job's version now.
    pub(super) version: u64,
}
