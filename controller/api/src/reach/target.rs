//! What is named: an allocation, one of its tasks, an attempt of it. Requests to the planner.

use std::sync::Arc;

use herdlet_agent::overview::placed;
use herdlet_api_types::{
    AllocId,
    view::{AllocView, TaskView},
};
use herdlet_driver::{AttemptId, TaskDriver};
use herdlet_plan::event::{Command, Reply};

use super::{
    Reach,
    error::{ApiError, ApiResult, unexpected},
};

/// One task of an allocation, and the driver that runs it.
pub(crate) struct TaskTarget {
    pub(crate) task: TaskView,
    pub(crate) attempt: AttemptId,
    pub(crate) driver: Arc<dyn TaskDriver>,
}

impl Reach {
    /// The allocation of that id, in full.
    pub fn alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        let unknown = || ApiError::NotFound(format!("Unknown allocation {id:?}"));
        self.model.alloc(&alloc_id(id).ok_or_else(unknown)?).ok_or_else(unknown)
    }

    /// A task of it that has been started.
    pub(crate) fn task(&self, alloc: &AllocView, name: &str) -> ApiResult<TaskTarget> {
        let task = alloc.tasks.iter().find(|task| *task.name == *name);
        let (Some(task), Some(spec)) = (task, alloc.spec.task(name)) else {
            return Err(ApiError::bad(format!("unknown task name {name:?}")));
        };
        if task.attempt == 0 {
            return Err(ApiError::NotFound(format!("task {name:?} not started yet.")));
        }
        let driver = self.drivers.get(&spec.driver);
        let driver =
            driver.ok_or_else(|| ApiError::Failed(format!("find driver {:?} on this node", spec.driver)))?;
        let attempt = AttemptId { alloc: alloc.spec.id, task: name.to_owned(), attempt: task.attempt };
        Ok(TaskTarget { task: task.clone(), attempt, driver })
    }

    /// Asks the planner, and waits until its answer is durable; not for long while it can't become so.
    pub(crate) async fn request(&self, command: Command) -> ApiResult<Reply> {
        placed::allow(&self.model, &command).map_err(|placed| ApiError::Conflict(placed.to_string()))?;
        let reply = self.requests.ask(command).await?.reply;
        if let Reply::Refused(refusal) = reply { Err(refusal.into()) } else { Ok(reply) }
    }

    /// The same for a request whose answer is just that it was accepted: the index of its commit.
    pub(crate) async fn accepted(&self, command: Command) -> ApiResult<u64> {
        let reply = self.request(command).await?;
        let Reply::Accepted { index } = reply else { return Err(unexpected(reply)) };
        Ok(index)
    }
}

/// Whether its logs and files are there.
pub(crate) fn has_files(alloc: &AllocView) -> ApiResult<()> {
    match alloc.loss() {
        Some(loss) => Err(ApiError::NotFound(format!("allocation {} {loss}", alloc.spec.name()))),
        None => Ok(()),
    }
}

/// A whole allocation id; not every spelling of a UUID is one.
fn alloc_id(text: &str) -> Option<AllocId> {
    (text.len() == 36).then(|| text.parse().ok().map(AllocId)).flatten()
}
