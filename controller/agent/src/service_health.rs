//! Whether a service instance may receive requests, by the results of its checks.
//!
//! In: registrations, and the views of their allocations. Out: their health.

use herdlet_api_types::{
    service::{CheckResult, CheckStatus, Registration, ServiceHealth},
    task::TaskPhase,
    view::AllocView,
};

use crate::publish::ReadModel;

/// Whether an instance may receive requests: all of its checks must have run, and none may fail.
pub fn is_listed(model: &ReadModel, registration: &Registration) -> bool {
    let alloc = model.alloc(&registration.alloc);
    alloc.is_some_and(|alloc| health(registration, &alloc).is_listed())
}

/// The latest results of an instance's checks. After a check was changed, its old result counts until the new check has run.
pub fn results<'r>(
    registration: &'r Registration,
    alloc: &'r AllocView,
) -> impl Iterator<Item = &'r CheckResult> {
    registration.checks.iter().filter_map(|check| {
        let is_its = |result: &&CheckResult| {
            (&result.task, &result.service, &result.check)
                == (&registration.task, &registration.name, &check.name)
        };
        let by_id = alloc.checks.iter().find(|result| result.id == check.id);
        by_id.or_else(|| alloc.checks.iter().find(is_its))
    })
}

/// The health of an instance by the latest results of its checks. A task that is being stopped for a restart may pass them until
/// its end.
pub fn health(registration: &Registration, alloc: &AllocView) -> ServiceHealth {
    if registration.checks.is_empty() {
        return ServiceHealth::Passing;
    }
    let count = |status| results(registration, alloc).filter(|result| result.status == status).count();
    let is_its = |task: &str| registration.task.as_deref().is_none_or(|name| name == task);
    let is_stopping = alloc.tasks.iter().any(|task| is_its(&task.name) && task.phase == TaskPhase::Stopping);
    if count(CheckStatus::Failure) > 0 {
        ServiceHealth::Critical
    } else if count(CheckStatus::Success) + count(CheckStatus::Warning) != registration.checks.len()
        || is_stopping
    {
        ServiceHealth::Pending
    } else if count(CheckStatus::Warning) > 0 {
        ServiceHealth::Warning
    } else {
        ServiceHealth::Passing
    }
}
