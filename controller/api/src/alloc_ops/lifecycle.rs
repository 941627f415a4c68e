//! Restarts, signals, check results, and garbage collection of an allocation.

use std::collections::BTreeMap;

use herdlet_agent::gc::Scope;
use herdlet_api_types::{manifest::scalar::is_signal, view::AllocView};
use herdlet_base::signal;
use herdlet_plan::event::{Command, RestartScope};
use serde_json::{Value, json};

use super::{
    AllocOps,
    error::{ApiError, ApiResult},
};

impl AllocOps {
    /// Restarts one task, the running tasks, or all tasks. Returns the index of the commit.
    pub async fn restart(&self, alloc: &AllocView, task: &str, all: bool) -> ApiResult<u64> {
        let scope = match (task, all) {
            ("", false) => RestartScope::Running,
            ("", true) => RestartScope::All,
            (_, true) => return Err(ApiError::bad("task name cannot be set when restarting all tasks")),
            (task, false) => {
                if !alloc.tasks.iter().any(|known| *known.name == *task) {
                    return Err(ApiError::NotFound(format!("Could not find task runner for task: {task}")));
                }
                RestartScope::Task(task.to_owned())
            }
        };
        self.accepted(Command::Restart { alloc: alloc.spec.id, scope }).await
    }

    /// Sends a signal to one task, or to all tasks. Returns the index of the commit.
    pub async fn signal(&self, alloc: &AllocView, task: &str, signal: &str) -> ApiResult<u64> {
        let name = signal::full_name(signal);
        if !is_signal(&name) {
            return Err(ApiError::bad(format!("invalid signal {signal:?}: there is no such signal")));
        }
        if !task.is_empty() && !alloc.tasks.iter().any(|known| *known.name == *task) {
            return Err(ApiError::NotFound(format!("unknown task name {task:?}")));
        }
        let task = (!task.is_empty()).then(|| task.to_owned());
        self.accepted(Command::Signal { alloc: alloc.spec.id, task, signal: name }).await
    }

    /// Collects an allocation's directory. Returns whether the directory is gone, now or since
    /// before.
    pub async fn collect(&self, alloc: &AllocView) -> ApiResult<bool> {
        let collected = self.gc.collect_now(Scope::Alloc(alloc.spec.id)).await?;
        Ok(alloc.collected || !collected.is_empty())
    }

    /// Collects the directories of all allocations that have ended.
    pub async fn collect_all(&self) -> ApiResult<()> {
        self.gc.collect_now(Scope::Allocs).await?;
        Ok(())
    }
}

/// Latest results of the checks in the built-in catalogue, by check id: Nomad's
/// `CheckQueryResult`s.
pub fn checks(alloc: &AllocView) -> BTreeMap<String, Value> {
    let results = alloc.checks.iter().map(|check| {
        let shown = json!({
            "ID": check.id, "Mode": if check.counts() { "healthiness" } else { "readiness" }, "Status": check.status.as_str(), "StatusCode": check.http_status.unwrap_or_default(),
            "Output": check.output, "Timestamp": check.at.0 / 1_000_000_000, "Group": alloc.spec.name(),
            "Task": check.task.clone().unwrap_or_default(), "Service": check.service, "Check": check.check,
        });
        (check.id.clone(), shown)
    });
    results.collect()
}
