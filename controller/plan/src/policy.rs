//! The rules for an allocation that depend on who wants it, this machine's jobs or servers. Only here its origin is asked for.
//!
//! In: an allocation. Out: its rules. They are derived when an allocation is read, and never stored.

use std_alloc::{collections::BTreeMap, string::String};

use herdlet_api_types::{
    Duration,
    alloc::{Allocation, AssignedPort},
    job::{Check, Group, HealthCheck, JobType, OnUpdate},
};

/// The rules for one allocation.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub owner: Owner,
    pub start: StartGate,
    pub health: Option<HealthTerms>,
    pub missing_volume: MissingVolume,
    /// How long it may be there, from when it was made.
    pub run_for: Option<Duration>,
    /// Why nothing of it can run.
    pub refused: Option<String>,
    pub events: EventTexts,
}

/// Who makes another allocation in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A job of this machine.
    Job,
    Servers,
}

/// What has to be known before anything of it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartGate {
    Open,
    /// That the allocations before it have ended.
    Previous,
    /// The same, and that it does not run on another node by now: servers tell, unless it may start without them.
    Contact,
}

/// What a volume means that isn't on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingVolume {
    /// It may come.
    Wait,
    /// The machine was chosen for it: the allocation fails, as by Nomad's client.
    Fail,
}

/// In whose words the history of a task is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventTexts {
    /// Our own, where Nomad's say less.
    Own,
    /// Those of Nomad's client, which servers and tools compare.
    Nomad,
}

impl Policy {
    /// The rules for an allocation.
    pub(crate) fn of(spec: &Allocation) -> Self {
        let health = HealthTerms::of(spec);
        let Some(server) = &spec.server else {
            return Self {
                owner: Owner::Job,
                start: StartGate::Open,
                health,
                missing_volume: MissingVolume::Wait,
                run_for: None,
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
            run_for: server.max_run_duration,
            refused: server.refused.clone(),
            events: EventTexts::Nomad,
        }
    }

    /// Whether health asks for more than the states of tasks.
    pub(crate) fn counts_checks(&self) -> bool {
        self.health.is_none_or(|terms| terms.health_check != HealthCheck::TaskStates)
    }
}

/// Ports of single tasks, which only servers give: by task, then by label.
pub(crate) fn task_ports(
    spec: &Allocation,
) -> impl Iterator<Item = (&String, &BTreeMap<String, AssignedPort>)> {
    spec.server.iter().flat_map(|server| &server.task_ports)
}

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

/// Whether a check has to pass before the allocation is healthy.
pub(crate) fn has_counted_check(spec: &Allocation) -> bool {
    let mut services = spec.group().into_iter().flat_map(Group::all_services);
    let counts_checks =
        HealthTerms::of(spec).is_none_or(|terms| terms.health_check != HealthCheck::TaskStates);
    counts_checks && services.any(|(_, service)| service.checks.iter().any(counts))
}

/// Whether health asks for the check.
pub(crate) fn counts(check: &Check) -> bool {
    check.on_update != OnUpdate::Ignore
}
