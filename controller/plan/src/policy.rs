//! The rules for an allocation that depend on who wants it: by what its health is judged.
//!
//! In: an allocation. Out: the rule. It reads no state.

use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    job::{Check, Group, HealthCheck, JobType, OnUpdate},
};

/// By what the verdict on an allocation's health is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HealthTerms {
    /// What health means.
    pub health_check: HealthCheck,
    /// How long without a break.
    pub min_healthy_time: Duration,
    /// Until when.
    pub healthy_deadline: Duration,
}

impl HealthTerms {
    /// In deployments the group's `update`, which a job of this machine may have outside of them too; servers ask for a verdict on
    /// services only, by `migrate`. None: nobody asks.
    pub(crate) fn of(spec: &Allocation) -> Option<Self> {
        match &spec.server {
            Some(server) if spec.deployment.is_none() => {
                let migrate = server.migrate.filter(|_| spec.job.kind == JobType::Service)?;
                Some(Self {
                    health_check: migrate.health_check,
                    min_healthy_time: migrate.min_healthy_time,
                    healthy_deadline: migrate.healthy_deadline,
                })
            }
            Some(_) | None => {
                let update = spec.group()?.update.as_ref()?;
                Some(Self {
                    health_check: update.health_check,
                    min_healthy_time: update.min_healthy_time,
                    healthy_deadline: update.healthy_deadline,
                })
            }
        }
    }
}

/// Whether health asks for more than the states of tasks.
pub(crate) fn counts_checks(spec: &Allocation) -> bool {
    HealthTerms::of(spec).is_none_or(|terms| terms.health_check != HealthCheck::TaskStates)
}

/// Whether a check has to pass before the allocation is healthy.
pub(crate) fn has_counted_check(spec: &Allocation) -> bool {
    let mut services = spec.group().into_iter().flat_map(Group::all_services);
    counts_checks(spec) && services.any(|(_, service)| service.checks.iter().any(counts))
}

/// Whether health asks for the check.
pub(crate) fn counts(check: &Check) -> bool {
    check.on_update != OnUpdate::Ignore
}
