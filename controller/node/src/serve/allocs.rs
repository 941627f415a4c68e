//! `Allocations.*` without streams: restarts, signals, statistics, checks, collecting.

use herdlet_api::alloc_ops::{error::ApiError, lifecycle};
use herdlet_nomad::wire::Secret;
use herdlet_rpc::serve::answer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, NodeService, Queried, TokenOnly, done};
use crate::acl::{Capability, Denied};

/// The arguments of calls about an allocation or one of its tasks.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct OfAlloc {
    #[serde(rename = "AllocID")]
    alloc_id: String,
    task: String,
    task_name: String,
    all_tasks: bool,
    signal: String,
    auth_token: Secret,
}

/// Returned for unknown allocations as well as for those that still run.
const NOT_COLLECTED: &str = "No such allocation on client, or allocation not eligible for GC";

impl NodeService {
    pub(super) async fn restart(&self, asked: OfAlloc) -> Answered {
        let alloc = self.alloc(&asked.alloc_id, &asked.auth_token, Capability::AllocLifecycle).await?;
        self.parts.reach.restart(&alloc, &asked.task_name, asked.all_tasks).await?;
        done()
    }

    pub(super) async fn signal(&self, asked: OfAlloc) -> Answered {
        let alloc = self.alloc(&asked.alloc_id, &asked.auth_token, Capability::AllocLifecycle).await?;
        self.parts.reach.signal(&alloc, &asked.task, &asked.signal).await?;
        done()
    }

    pub(super) async fn stats(&self, asked: OfAlloc) -> Answered {
        let alloc = self.alloc(&asked.alloc_id, &asked.auth_token, Capability::ReadJob).await?;
        let usage = self.parts.reach.usage(&alloc, &asked.task).await?;
        Ok(answer(&Queried::new(json!({ "Stats": usage })))?)
    }

    pub(super) async fn checks(&self, asked: OfAlloc) -> Answered {
        let alloc = self.alloc(&asked.alloc_id, &asked.auth_token, Capability::ReadJob).await?;
        let results = lifecycle::checks(&alloc);
        Ok(answer(&Queried::new(json!({ "Results": results })))?)
    }

    pub(super) async fn collect(&self, asked: OfAlloc) -> Answered {
        // Check the token first, so that callers without permission learn nothing about missing allocations.
        let Ok(alloc) = self.parts.reach.alloc(&asked.alloc_id) else {
            self.acl(&asked.auth_token).await?;
            return Err(ApiError::NotFound(NOT_COLLECTED.to_owned()).into());
        };
        let enough = [Capability::SubmitJob, Capability::GcAllocation];
        self.may(&alloc, &asked.auth_token, &enough).await?;
        if self.parts.reach.collect(&alloc).await? {
            return done();
        }
        Err(ApiError::NotFound(NOT_COLLECTED.to_owned()).into())
    }

    pub(super) async fn collect_all(&self, asked: TokenOnly) -> Answered {
        if !self.acl(&asked.auth_token).await?.node().writes() {
            return Err(Denied::Refused.into());
        }
        self.parts.reach.collect_all().await?;
        done()
    }

    /// Jobs with pause schedules are refused, so no task is ever paused.
    pub(super) async fn pause_state(&self, asked: OfAlloc) -> Answered {
        let alloc = self.alloc(&asked.alloc_id, &asked.auth_token, Capability::ReadJob).await?;
        if !alloc.tasks.iter().any(|task| *task.name == *asked.task) {
            return Err(ApiError::NotFound(format!("unknown task name {:?}", asked.task)).into());
        }
        Ok(answer::<Value>(&json!({ "ScheduleState": "" }))?)
    }

    pub(super) async fn set_pause_state(&self, asked: OfAlloc) -> Answered {
        self.alloc(&asked.alloc_id, &asked.auth_token, Capability::AllocLifecycle).await?;
        Err(ApiError::NotBuilt("pausing tasks is not supported".to_owned()).into())
    }
}
