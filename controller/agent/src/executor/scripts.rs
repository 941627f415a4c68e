//! Runs commands of checks in the attempts that currently run.
//!
//! In: the allocation, the task and the command. Out: the result of the command. The read model determines which attempt runs;
//! the driver knows whether it still does.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api_types::{AllocId, task::TaskPhase};
use herdlet_driver::{AttemptId, ExecOutcome, Registry};
use herdlet_services::checks::{NoResult, Scripts};

use crate::publish::ReadModel;

/// Time that a driver gets in addition to the command's timeout.
const LEEWAY: Duration = Duration::from_secs(1);

/// Runs commands through the drivers of this agent.
#[derive(Debug)]
pub struct InTasks {
    /// The task drivers.
    pub drivers: Registry,
    /// The read model, which knows the running attempts.
    pub model: Arc<ReadModel>,
}

impl Scripts for InTasks {
    fn run<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, NoResult>> {
        async move {
            let not_running = || NoResult::Failure(format!("task {task} is not running"));
            let view = self.model.alloc(&alloc).ok_or_else(not_running)?;
            let known = view.tasks.iter().find(|known| *known.name == *task);
            let known = known.filter(|known| known.phase == TaskPhase::Running).ok_or_else(not_running)?;
            let spec = view.spec.task(task).ok_or_else(not_running)?;
            let driver = self.drivers.get(&spec.driver);
            let no_driver = || NoResult::Failure(format!("there is no driver {:?}", spec.driver));
            let driver = driver.ok_or_else(no_driver)?;
            let attempt = AttemptId { alloc, task: task.to_owned(), attempt: known.attempt };
            // The caller enforces the timeout earlier, with an error of its own.
            let outcome = driver.exec(&attempt, &command, timeout + LEEWAY).await;
            outcome.map_err(|error| NoResult::of(&error, error.why()))
        }
        .boxed()
    }
}
