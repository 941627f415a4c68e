//! Commands of checks, in the attempts that run now.
//!
//! In: the allocation, the task and the command. Out: how the command ended. Which attempt runs is what was last published; the
//! driver knows whether it still does.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api_types::{AllocId, task::TaskPhase};
use herdlet_driver::{AttemptId, ExecOutcome, Registry};
use herdlet_services::checks::{NoResult, Scripts};

use crate::publish::ReadModel;

/// What a driver gives a command beyond its time.
const LEEWAY: Duration = Duration::from_secs(1);

/// Runs commands through the drivers of this agent.
#[derive(Debug)]
pub struct InTasks {
    /// The task drivers.
    pub drivers: Registry,
    /// What runs.
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
            // Whoever asked ends it before that, in words of its own.
            let outcome = driver.exec(&attempt, &command, timeout + LEEWAY).await;
            outcome.map_err(|error| NoResult::of(&error, error.why()))
        }
        .boxed()
    }
}
