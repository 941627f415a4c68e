//! The built-in catalogue of services, in Nomad's form.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{
    job::Provider,
    service::{CheckStatus, Registration},
    task::TaskPhase,
    view::AllocView,
};
use serde_json::{Value, json};

use super::{
    Shared,
    error::ApiResult,
    filter::Filter,
    list::{Listed, fitting},
    query::{Params, Read, Source},
};

impl Listed for Registration {
    const SOURCE: Source = Source::Services;

    fn namespace(&self) -> Option<&str> {
        Some(&self.job.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.id)
    }

    /// Made with its allocation, and in no commit of its own: by id within one.
    fn create_index(&self) -> u64 {
        0
    }
}

/// Everything the built-in catalogue holds, of every namespace.
pub(super) async fn registrations(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.filtered(Source::Services, &read, |shared| Ok(shared.catalog.all())).await
}

/// Names and tags, by namespace. Filtered are the services of each, by `Namespace`, `ServiceName` and `Tags`.
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let filter = Filter::parse(&read.filter)?;
    let stubs = |shared: &Shared| {
        let mut found: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        for registration in shared.catalog.all().into_iter().filter(|one| read.covers(&one.job.namespace)) {
            let services = found.entry(registration.job.namespace.to_string()).or_default();
            services.entry(registration.name).or_default().extend(registration.tags);
        }
        let mut stubs = Vec::new();
        for (namespace, services) in found {
            let services = fitting(of_namespace(&namespace, services), &filter)?;
            if !services.is_empty() {
                stubs.push(stub(&namespace, services));
            }
        }
        Ok(stubs)
    };
    shared.answer_from(Source::Services, &read, stubs).await
}

/// Instances of one service that requests may be sent to.
pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let instances = |shared: &Shared| {
        let mut found = shared.catalog.all();
        found.retain(|one| one.name == name && is_listed(shared, one));
        Ok(found)
    };
    shared.list(&read, instances, instance).await
}

/// What an allocation has registered, whatever its checks say.
pub(super) async fn of_alloc(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let instances = |shared: &Shared| {
        let alloc = shared.known_alloc(&id)?.spec.id;
        let mut found = shared.catalog.all();
        found.retain(|one| one.alloc == alloc);
        Ok(found)
    };
    shared.list(&read, instances, instance).await
}

/// What a job has registered, whatever its checks say.
pub(super) async fn of_job(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let instances = |shared: &Shared| {
        shared.known_job(&key)?;
        let mut found = shared.catalog.all();
        found.retain(|one| one.job == key);
        Ok(found)
    };
    shared.list(&read, instances, instance).await
}

/// Whether requests may be sent to an instance: one with checks takes them only while all of them pass.
pub(super) fn is_listed(shared: &Shared, registration: &Registration) -> bool {
    shared.model.alloc(&registration.alloc).is_some_and(|view| passes(registration, &view))
}

/// Whether all checks of an instance have passed when they were last made. A task that is being stopped to be restarted may
/// pass them until its end.
fn passes(registration: &Registration, view: &AllocView) -> bool {
    let passed = registration.checks.iter().all(|check| {
        view.checks.iter().any(|result| result.id == check.id && result.status == CheckStatus::Success)
    });
    let is_its = |task: &str| registration.task.as_deref().is_none_or(|name| name == task);
    let mut tasks = view.tasks.iter();
    passed
        && (registration.checks.is_empty()
            || !tasks.any(|task| is_its(&task.name) && task.phase == TaskPhase::Stopping))
}

/// The services of a namespace, each with its namespace for a filter to name.
fn of_namespace(namespace: &str, services: BTreeMap<String, Vec<String>>) -> Vec<Value> {
    let one = |(name, mut tags): (String, Vec<String>)| {
        tags.sort();
        tags.dedup();
        json!({ "Namespace": namespace, "ServiceName": name, "Tags": tags })
    };
    services.into_iter().map(one).collect()
}

fn stub(namespace: &str, services: Vec<Value>) -> Value {
    let without_namespace = |mut service: Value| {
        service.as_object_mut().map(|fields| fields.remove("Namespace"));
        service
    };
    let services: Vec<_> = services.into_iter().map(without_namespace).collect();
    json!({ "Namespace": namespace, "Services": services })
}

pub(super) fn instance(shared: &Shared, registration: &Registration) -> Value {
    let index = shared.model.alloc(&registration.alloc).map_or(0, |view| view.spec.create_index);
    let provider = match registration.provider {
        Provider::Nomad => "nomad",
        Provider::Consul => "consul",
    };
    json!({
        "ID": registration.id, "ServiceName": registration.name, "Namespace": registration.job.namespace,
        "NodeID": shared.facts.node.id, "Datacenter": shared.facts.node.datacenter, "JobID": registration.job.id,
        "AllocID": registration.alloc, "Tags": registration.tags, "Address": registration.address,
        "Port": registration.port, "Provider": provider, "CreateIndex": index, "ModifyIndex": index,
    })
}
