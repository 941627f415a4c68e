//! Resolves an allocation, one of its tasks and its attempt, and sends requests to the planner.

use std::sync::Arc;

use herdlet_agent::overview::placed;
use herdlet_api_types::{
    AllocId,
    view::{AllocView, TaskView},
};
use herdlet_driver::{AttemptId, TaskDriver};
use herdlet_plan::event::{Command, Reply};

use super::{
    AllocOps,
    error::{ApiError, ApiResult, unexpected},
};

/// One task of an allocation, and its driver.
pub(crate) struct TaskTarget {
    pub(crate) task: TaskView,
    pub(crate) attempt: AttemptId,
    pub(crate) driver: Arc<dyn TaskDriver>,
}

impl AllocOps {
    /// The allocation with this full id.
    pub fn alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        let unknown = || ApiError::NotFound(format!("Unknown allocation {id:?}"));
        self.model.alloc(&alloc_id(id).ok_or_else(unknown)?).ok_or_else(unknown)
    }

    /// A task of the allocation that has been started.
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

    /// Sends a command to the planner, and waits until the reply is durable. Gives up early while the
    /// state can't be stored.
    pub(crate) async fn request(&self, command: Command) -> ApiResult<Reply> {
        placed::allow(&self.model, &command).map_err(|placed| ApiError::Conflict(placed.to_string()))?;
        let reply = self.requests.ask(command).await?.reply;
        if let Reply::Refused(refusal) = reply { Err(refusal.into()) } else { Ok(reply) }
    }

    /// The same for a command that is only accepted: returns the index of its commit.
    pub(crate) async fn accepted(&self, command: Command) -> ApiResult<u64> {
        let reply = self.request(command).await?;
        let Reply::Accepted { index } = reply else { return Err(unexpected(reply)) };
        Ok(index)
    }
}

/// Whether the allocation's logs and files exist.
pub(crate) fn has_files(alloc: &AllocView) -> ApiResult<()> {
    match alloc.loss() {
        Some(loss) => Err(ApiError::NotFound(format!("allocation {} {loss}", alloc.spec.name()))),
        None => Ok(()),
    }
}

/// Parses an allocation id. Only the full form of a UUID is accepted.
fn alloc_id(text: &str) -> Option<AllocId> {
    (text.len() == 36).then(|| text.parse().ok().map(AllocId)).flatten()
}
