//! What a path names: an allocation, one of its tasks, an attempt of it. Requests to the planner.

use std::sync::Arc;

use herdlet_api_types::{
    AllocId, JobKey,
    view::{AllocView, JobView, TaskView},
};
use herdlet_plan::event::{Command, Reply};

use super::{
    Shared,
    error::{ApiError, ApiResult, unexpected},
};
use crate::drivers::task::{AttemptId, TaskDriver};

/// One task of an allocation, and the driver that runs it.
pub(super) struct TaskTarget {
    pub(super) task: TaskView,
    pub(super) attempt: AttemptId,
    pub(super) driver: Arc<dyn TaskDriver>,
}

impl Shared {
    /// The allocation of that id, in full.
    pub(super) fn alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        let unknown = || ApiError::NotFound(format!("Unknown allocation {id:?}"));
        self.model.alloc(&alloc_id(id).ok_or_else(unknown)?).ok_or_else(unknown)
    }

    /// The same, whose logs and files are there.
    pub(super) fn alloc_with_files(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        let alloc = self.alloc(id)?;
        if let Some(loss) = alloc.loss() {
            return Err(ApiError::NotFound(format!("allocation {} {loss}", alloc.spec.name())));
        }
        Ok(alloc)
    }

    /// The same, as Nomad's servers say that there is none.
    pub(super) fn known_alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        self.alloc(id).map_err(|_| ApiError::NotFound("alloc not found".to_owned()))
    }

    /// The job of that key.
    pub(super) fn known_job(&self, key: &JobKey) -> ApiResult<Arc<JobView>> {
        self.model.job(key).ok_or_else(|| ApiError::NotFound("job not found".to_owned()))
    }

    /// A task of it that has been started.
    pub(super) fn task(&self, alloc: &AllocView, name: &str) -> ApiResult<TaskTarget> {
        let task = alloc.tasks.iter().find(|task| *task.name == *name);
        let (Some(task), Some(spec)) = (task, alloc.spec.task(name)) else {
            return Err(ApiError::bad(format!("unknown task name {name:?}")));
        };
        if task.attempt == 0 {
            return Err(ApiError::NotFound(format!("task {name:?} not started yet.")));
        }
        let driver = self.drivers.get(&spec.driver).cloned();
        let driver =
            driver.ok_or_else(|| ApiError::Failed(format!("find driver {:?} on this node", spec.driver)))?;
        let attempt = AttemptId { alloc: alloc.spec.id, task: name.to_owned(), attempt: task.attempt };
        Ok(TaskTarget { task: task.clone(), attempt, driver })
    }

    /// Asks the planner, and waits until its answer is durable; not for long while it can't become so.
    pub(super) async fn request(&self, command: Command) -> ApiResult<Reply> {
        let reply = self.requests.ask(command).await?.reply;
        if let Reply::Refused(refusal) = reply { Err(refusal.into()) } else { Ok(reply) }
    }

    /// The same for a request whose answer is just that it was accepted: the index of its commit.
    pub(super) async fn accepted(&self, command: Command) -> ApiResult<u64> {
        let reply = self.request(command).await?;
        let Reply::Accepted { index } = reply else { return Err(unexpected(reply)) };
        Ok(index)
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

/// A whole allocation id; not every spelling of a UUID is one.
fn alloc_id(text: &str) -> Option<AllocId> {
    (text.len() == 36).then(|| text.parse().ok().map(AllocId)).flatten()
}
