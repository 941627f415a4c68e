//! Decides which changes are events for a reader.
//!
//! In: objects that may have changed, and what the reader already knows. Out: events. A new version of a job, its
//! deletion, and a step of its deployment are events; coming and going allocations of a job are no event of the job.
//! Service events follow what `/v1/service/NAME` would list: a service with checks comes and goes with their results.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_agent::service_health::is_listed;
use herdlet_api_types::{AllocId, DeploymentId, JobKey, nomad, service::Registration, view::JobView};
use serde_json::{Value, json};

use super::topics::Topics;
use crate::http::{Shared, allocs, evaluations, jobs, nodes, query::Read, services};

pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) topics: Topics,
    pub(super) read: Read,
    pub(super) known: KnownObjects,
}

/// The state that a reader already knows or did not ask for.
#[derive(Default)]
pub(super) struct KnownObjects {
    jobs: BTreeMap<JobKey, KnownJob>,
    services: BTreeMap<String, Registration>,
    /// The number of evaluations.
    evaluations: u64,
}

/// The commits in which a job and its deployments last changed.
#[derive(Default)]
struct KnownJob {
    modify_index: u64,
    /// Whether the deletion was already sent; the removal is no event then.
    deleting: bool,
    deployments: BTreeMap<DeploymentId, u64>,
}

impl KnownObjects {
    /// The present state.
    pub(super) fn now(shared: &Shared) -> Self {
        let services = shared.catalog.all().into_iter().filter(|one| is_listed(&shared.model, one));
        let services = services.map(|one| (one.id.clone(), one)).collect();
        Self { services, ..Self::before(shared, u64::MAX) }
    }

    /// The state before a commit, as far as it is still known.
    pub(super) fn before(shared: &Shared, index: u64) -> Self {
        let jobs = shared.model.jobs().into_iter().map(|view| {
            let deployments = view.deployments.iter().filter(|one| one.modify_index < index);
            let deployments = deployments.map(|one| (one.id, one.modify_index)).collect();
            let modify_index = if view.modify_index < index { view.modify_index } else { 0 };
            (view.key.clone(), KnownJob { modify_index, deleting: view.deleting, deployments })
        });
        let made = |one: &Registration| {
            shared.model.alloc(&one.alloc).map_or(u64::MAX, |view| view.spec.create_index)
        };
        // No commit records when a check began to pass.
        let is_old = |one: &Registration| one.checks.is_empty() && made(one) < index;
        let services = shared.catalog.all().into_iter().filter(is_old);
        let services = services.map(|one| (one.id.clone(), one)).collect();
        Self { jobs: jobs.collect(), services, evaluations: shared.evaluations.made_before(index) }
    }
}

struct About<'a> {
    topic: &'static str,
    kind: &'static str,
    key: &'a str,
    /// None for objects without a namespace.
    namespace: Option<&'a str>,
    filter_keys: &'a [&'a str],
    index: u64,
}

impl Reader {
    fn event(&self, about: About<'_>, payload: impl FnOnce() -> Value) -> Option<Value> {
        let About { topic, kind, key, namespace, filter_keys, index } = about;
        let keys: Vec<&str> = std::iter::once(key).chain(filter_keys.iter().copied()).collect();
        let is_wanted =
            namespace.is_none_or(|namespace| self.read.covers(namespace)) && self.topics.want(topic, &keys);
        is_wanted.then(|| {
            let filter_keys = if filter_keys.is_empty() { Value::Null } else { json!(filter_keys) };
            json!({
                "Topic": topic, "Type": kind, "Key": key, "Namespace": namespace.unwrap_or_default(),
                "FilterKeys": filter_keys, "Index": index, "Payload": payload(),
            })
        })
    }

    /// The events of a change of a job and of its deployments.
    pub(super) fn job(&mut self, key: &JobKey, index: u64) -> Vec<Value> {
        let before = self.known.jobs.remove(key).unwrap_or_default();
        let about = |kind| About {
            topic: "Job",
            kind,
            key: &key.id,
            namespace: Some(&key.namespace),
            filter_keys: &[],
            index,
        };
        let Some(view) = self.shared.model.job(key) else {
            if before.deleting {
                return Vec::new();
            }
            return self.event(about("JobDeregistered"), || json!({ "Job": null })).into_iter().collect();
        };
        let kind = if view.is_stopped() { "JobDeregistered" } else { "JobRegistered" };
        let mut events = Vec::new();
        if before.modify_index != view.modify_index {
            events.extend(self.event(about(kind), || json!({ "Job": jobs::to_json(&view) })));
        }
        let is_newer = |id: &DeploymentId, at: u64| before.deployments.get(id) != Some(&at);
        let newer = view.deployments.iter().filter(|one| is_newer(&one.id, one.modify_index));
        // Oldest first.
        events.extend(newer.rev().filter_map(|one| self.deployment(&view, one.id, index)));
        let deployments = view.deployments.iter().map(|one| (one.id, one.modify_index)).collect();
        let known = KnownJob { modify_index: view.modify_index, deleting: view.deleting, deployments };
        self.known.jobs.insert(key.clone(), known);
        events
    }

    fn deployment(&self, job: &JobView, id: DeploymentId, index: u64) -> Option<Value> {
        let one = job.deployments.iter().find(|one| one.id == id)?;
        let about = About {
            topic: "Deployment",
            kind: "DeploymentStatusUpdate",
            key: &id.to_string(),
            namespace: Some(&job.key.namespace),
            filter_keys: &[&job.key.id],
            index,
        };
        self.event(about, || json!({ "Deployment": nomad::deployment(one, job) }))
    }

    /// The event of a change of an allocation. Nomad sends none when an allocation is removed.
    pub(super) fn alloc(&self, id: AllocId, index: u64) -> Option<Value> {
        let view = self.shared.model.alloc(&id)?;
        let job = &view.spec.job_key;
        let deployment = view.spec.deployment.map(|of| of.id.to_string()).unwrap_or_default();
        let keys = [&*job.id, &*deployment];
        let about = About {
            topic: "Allocation",
            kind: "AllocationUpdated",
            key: &id.to_string(),
            namespace: Some(&job.namespace),
            filter_keys: if deployment.is_empty() { &keys[..1] } else { &keys },
            index,
        };
        // Nomad omits the job too.
        let payload = || nomad::Allocation { job: None, ..allocs::whole(&self.shared, &view) };
        self.event(about, || json!({ "Allocation": payload() }))
    }

    /// The event with the present state of this node.
    pub(super) fn node(&self, index: u64) -> Option<Value> {
        let about = About {
            topic: "Node",
            kind: "NodeRegistration",
            key: &self.shared.facts.node.id,
            namespace: None,
            filter_keys: &[],
            index,
        };
        self.event(about, || json!({ "Node": nomad::node(&nodes::machine(&self.shared)) }))
    }

    /// The events of new evaluations.
    pub(super) fn evaluations(&mut self) -> Vec<Value> {
        let (made, new) = self.shared.evaluations.after(self.known.evaluations);
        self.known.evaluations = made;
        let event = |one: &Arc<evaluations::Evaluation>| {
            let about = About {
                topic: "Evaluation",
                kind: "EvaluationUpdated",
                key: one.id(),
                namespace: Some(&one.job().namespace),
                filter_keys: &[&one.job().id],
                index: one.index(),
            };
            self.event(about, || json!({ "Evaluation": evaluations::to_json(&self.shared, one) }))
        };
        new.iter().filter_map(event).collect()
    }

    /// The events of services that became listed or are no longer listed.
    pub(super) fn services(&mut self) -> Vec<Value> {
        if !self.topics.want_any("Service") {
            return Vec::new();
        }
        let listed = |one: &Registration| is_listed(&self.shared.model, one);
        let now: BTreeMap<String, Registration> =
            self.shared.catalog.all().into_iter().filter(listed).map(|one| (one.id.clone(), one)).collect();
        let before = std::mem::replace(&mut self.known.services, now);
        let gone = before.iter().filter(|(id, _)| !self.known.services.contains_key(*id));
        let new = self.known.services.iter().filter(|(id, one)| before.get(*id) != Some(one));
        let index = self.shared.model.index();
        let event = |kind, one: &Registration| {
            let about = About {
                topic: "Service",
                kind,
                key: &one.id,
                namespace: Some(&one.job.namespace),
                filter_keys: &[&one.job.id, &one.name],
                index,
            };
            self.event(about, || json!({ "Service": services::instance(&self.shared, one) }))
        };
        let gone = gone.filter_map(|(_, one)| event("ServiceDeregistration", one));
        gone.chain(new.filter_map(|(_, one)| event("ServiceRegistration", one))).collect()
    }
}
