//! Resolves ids in paths to allocations and jobs, and sends requests to the planner.

use std::sync::Arc;

use herdlet_agent::overview::placed;
use herdlet_api_types::{
    JobKey,
    view::{AllocView, JobView},
};
use herdlet_plan::event::{Command, Ending, Reply};

use super::{
    Shared,
    error::{ApiError, ApiResult, unexpected},
};
use crate::alloc_ops::{self, AllocOps};

impl Shared {
    /// Access to the allocations.
    pub fn reach(&self) -> AllocOps {
        AllocOps {
            model: Arc::clone(&self.model),
            drivers: self.drivers.clone(),
            paths: self.paths.clone(),
            requests: self.requests.clone(),
            gc: Arc::clone(&self.gc),
            core_mhz: self.facts.room.0.cpu_mhz / *alloc_ops::CORES,
            bounds: self.bounds.clone(),
        }
    }

    /// The allocation with this full id.
    pub(super) fn alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        self.reach().alloc(id)
    }

    /// The same with the error text of Nomad's servers.
    pub(super) fn known_alloc(&self, id: &str) -> ApiResult<Arc<AllocView>> {
        self.alloc(id).map_err(|_| ApiError::NotFound("alloc not found".to_owned()))
    }

    pub(super) fn known_job(&self, key: &JobKey) -> ApiResult<Arc<JobView>> {
        placed::job(&self.model, key).ok_or_else(|| ApiError::NotFound("job not found".to_owned()))
    }

    /// Sends a command to the planner, and waits until the reply is durable. Gives up early while the
    /// state can't be stored.
    pub(super) async fn request(&self, command: Command) -> ApiResult<Reply> {
        self.reach().request(command).await
    }

    /// The same for a command that is only accepted: returns the index of its commit.
    pub(super) async fn accepted(&self, command: Command) -> ApiResult<u64> {
        self.reach().accepted(command).await
    }

    /// The same for a change of one job: returns its new version.
    pub(super) async fn job_changed(&self, command: Command) -> ApiResult<JobChange> {
        let reply = self.request(command).await?;
        let Reply::Applied { index, ref jobs, .. } = reply else { return Err(unexpected(reply)) };
        match &jobs[..] {
            [job] => Ok(JobChange { index, version: job.version }),
            _ => Err(unexpected(reply)),
        }
    }
}

/// What a stop skips.
pub(super) struct Skips {
    /// Every `shutdown_delay`.
    pub(super) no_shutdown_delay: bool,
    /// Poststop tasks: those that run are ended with their `kill_timeout`, and none begins.
    pub(super) force: bool,
}

impl Skips {
    /// The stop with what it skips, as one command.
    pub(super) fn with(self, stop: Command, of: Ending) -> Command {
        let delay = self.no_shutdown_delay.then(|| Command::SkipShutdownDelay { of: of.clone() });
        let poststop = self.force.then_some(Command::EndPoststop { of });
        let skips: Vec<Command> = delay.into_iter().chain(poststop).collect();
        if skips.is_empty() { stop } else { Command::StopFast { stop: Box::new(stop), skips } }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct JobChange {
    /// The index of the commit.
    pub(super) index: u64,
    /// The new version of the job.
    pub(super) version: u64,
}

impl JobChange {
    /// The commit and the version, for the evaluation of the change.
    pub(super) fn at(self) -> (u64, Option<u64>) {
        (self.index, Some(self.version))
    }
}
