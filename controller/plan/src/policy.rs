//! The rules for an allocation that depend on its owner, this machine's jobs or servers. Only this module checks the
//! owner.
//!
//! In: an allocation. Out: its rules. They are derived when an allocation is read, and never stored.

use std_alloc::string::String;

use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    job::{Check, Group, HealthCheck, JobType, OnUpdate},
};

/// The rules for one allocation.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub owner: Owner,
    pub start: StartGate,
    pub health: Option<HealthTerms>,
    pub missing_volume: MissingVolume,
    /// How many allocations of its group may restart at a time because their templates have changed. `None`: all.
    pub parallel_restarts: Option<u32>,
    /// How long it may run, counted from its creation.
    pub run_for: Option<Duration>,
    /// Why nothing of it can run.
    pub refused: Option<String>,
    pub events: EventTexts,
}

/// The owner, which creates a replacement for the allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A job of this machine.
    Job,
    Servers,
}

/// Condition for starting anything of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartGate {
    Open,
    /// The allocations before it have ended.
    Previous,
    /// The same, and it does not run on another node: the servers confirm that, unless it may start without them.
    Contact,
}

/// What to do about a volume that isn't on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingVolume {
    /// Wait: it may be created.
    Wait,
    /// Fail, as Nomad's client does: the machine was chosen for the volume.
    Fail,
}

/// Whose texts the task's events use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventTexts {
    /// Our own, where Nomad's contain less information.
    Own,
    /// Those of Nomad's client, which servers and tools compare.
    Nomad,
}

impl Policy {
    /// Derives the rules for an allocation.
    pub(crate) fn of(spec: &Allocation) -> Self {
        let health = HealthTerms::of(spec);
        let Some(server) = &spec.server else {
            return Self {
                owner: Owner::Job,
                start: StartGate::Open,
                health,
                missing_volume: MissingVolume::Wait,
                parallel_restarts: spec
                    .group()
                    .filter(|_| !spec.job.kind.completes())
                    .and_then(|group| group.update.as_ref())
                    .map(|update| update.max_parallel),
                run_for: spec
                    .group()
                    .filter(|_| spec.job.kind.completes())
                    .and_then(|group| group.max_run_duration),
                refused: None,
                events: EventTexts::Own,
            };
        };
        let is_on_each_node = spec.job.kind == JobType::System;
        Self {
            owner: Owner::Servers,
            start: if is_on_each_node { StartGate::Previous } else { StartGate::Contact },
            health,
            missing_volume: MissingVolume::Fail,
            // Each node knows only its own allocations of the job.
            parallel_restarts: None,
            run_for: server.max_run_duration,
            refused: server.refused.clone(),
            events: EventTexts::Nomad,
        }
    }

    /// Whether health depends on more than the states of tasks.
    pub(crate) fn counts_checks(&self) -> bool {
        self.health.is_none_or(|terms| terms.health_check != HealthCheck::TaskStates)
    }
}

/// The criteria of the verdict on an allocation's health.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HealthTerms {
    /// What counts as healthy.
    pub health_check: HealthCheck,
    /// How long it has to be healthy without a break.
    pub min_healthy_time: Duration,
    /// Until when it has to be healthy.
    pub healthy_deadline: Duration,
}

impl HealthTerms {
    /// In deployments the group's `update`, which a job of this machine may also have outside of them. Without a
    /// deployment, servers want a verdict only for services, by `migrate`. `None` if no verdict is needed.
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

/// Whether a check has to pass before the allocation is healthy.
pub(crate) fn has_counted_check(spec: &Allocation) -> bool {
    let mut services = spec.group().into_iter().flat_map(Group::all_services);
    let counts_checks =
        HealthTerms::of(spec).is_none_or(|terms| terms.health_check != HealthCheck::TaskStates);
    counts_checks && services.any(|(_, service)| service.checks.iter().any(counts))
}

/// Whether the check counts for health.
pub(crate) fn counts(check: &Check) -> bool {
    check.on_update != OnUpdate::Ignore
}
