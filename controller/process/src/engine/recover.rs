//! Takes over an attempt that an earlier agent started.

use std::sync::Arc;

use herdlet_driver::{AttemptId, DriverResult, Recovered, Recovery, Started, TaskConfig, recover_by};

use super::{
    Shared, repair,
    supervise::{self, Cause, Live, NeverRan},
};
use crate::supervisor::{Record, State};

impl Shared {
    pub(super) async fn recover(self: &Arc<Self>, recovery: Recovery) -> DriverResult<Recovered> {
        let Recovery { id, config, .. } = recovery;
        if let Some(live) = self.find(&id) {
            if let Some(config) = config {
                live.set_config(Arc::new(config));
            }
            return Ok(self.recovered(&id, &live).await);
        }
        recover_by(&**self, &id, |record| self.take_over(&id, record, config.map(Arc::new))).await
    }

    /// Takes over an attempt that an earlier agent started.
    async fn take_over(
        self: &Arc<Self>,
        id: &AttemptId,
        record: Record,
        config: Option<Arc<TaskConfig>>,
    ) -> DriverResult<Recovered> {
        match record.state {
            // The agent that was to report the failure, or to retry the start, ended before it could. The next start reports it.
            State::StartFailed { .. } => Ok(Recovered::NotStarted),
            State::Exited(_) | State::Tombstone => {
                Ok(Recovered::Exited(supervise::result_of(&record, self.cgroup(id).as_ref())))
            }
            State::Created | State::Running => {
                let live = self.supervise(id, config).await?;
                Ok(self.recovered(id, &live).await)
            }
        }
    }

    /// The state of a supervised attempt. One that runs is moved back into its cgroup if necessary.
    async fn recovered(self: &Arc<Self>, id: &AttemptId, live: &Live) -> Recovered {
        match live.begun().await {
            Ok(()) => {}
            Err(NeverRan { cause: Cause::Machine, .. }) => {
                self.live().remove(id);
                return Recovered::NotStarted;
            }
            Err(NeverRan { why, cause: Cause::Task | Cause::Unknown }) => return Recovered::Lost { why },
        }
        if live.exit().is_none()
            && let Err(error) = repair::repair(self, id).await
        {
            tracing::warn!(%id, error = error.why(), "failed to move a task back into its cgroup");
        }
        live.exit().map_or_else(|| Recovered::Running(Started::default()), Recovered::Exited)
    }
}
