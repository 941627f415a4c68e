//! The built-in catalogue of services, in Nomad's form.
//!
//! In: the entries of the catalogue, the results of their checks, and requests to delete an entry. Out: entries by name, by
//! default only those that may receive requests. It must not know the desired state: the planner registers a deleted entry again
//! if it is still wanted.

mod choose;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Path, State},
    response::{IntoResponse as _, Response},
};
use herdlet_agent::service_health::{health, is_listed, results};
use herdlet_api_types::service::{Registration, ServiceHealth, ServiceView};
use serde::Deserialize;
use serde_json::{Value, json};

use choose::Choice;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    filter::Filter,
    list::{Listed, fitting},
    query::{INDEX, Params, Read, Source, flag},
    task_api::Scope,
};

impl Listed for Registration {
    const SOURCE: Source = Source::Services;

    fn namespace(&self) -> Option<&str> {
        Some(&self.job.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.id)
    }

    /// Registered with its allocation and not in a commit of its own, so entries are ordered by id.
    fn create_index(&self) -> u64 {
        0
    }
}

/// All entries of the built-in catalogue in every namespace, with their health.
pub(super) async fn registrations(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let views = |shared: &Shared| Ok(shared.catalog.all().into_iter().map(|one| view(shared, one)).collect());
    shared.filtered(Source::Services, &read, views).await
}

/// Names and tags, by namespace. A filter applies to the services of each namespace, by `Namespace`, `ServiceName` and `Tags`.
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    scope: Scope,
) -> ApiResult<Response> {
    scope.check_namespace(read.namespace())?;
    let filter = Filter::parse(&read.filter)?;
    let stubs = |shared: &Shared| {
        let mut found: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        let is_shown =
            |one: &Registration| read.covers(&one.job.namespace) && scope.may_see(&one.job.namespace);
        for registration in shared.catalog.all().into_iter().filter(is_shown) {
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

/// Query parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceQuery {
    /// Include instances that may not receive requests now.
    #[serde(deserialize_with = "flag")]
    all: bool,
    /// `NUMBER|KEY`: a subset of this size, always the same for the same key.
    choose: String,
}

/// Instances of a service that may receive requests, or all of them.
pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(read): Params<Read>,
    Params(wanted): Params<ServiceQuery>,
    scope: Scope,
) -> ApiResult<Response> {
    scope.check_namespace(read.namespace())?;
    let choice = Choice::parse(&wanted.choose)?;
    let instances = |shared: &Shared| {
        let mut found = shared.catalog.all();
        found.retain(|one| {
            one.name == name
                && scope.may_see(&one.job.namespace)
                && (wanted.all || is_listed(&shared.model, one))
        });
        Ok(found)
    };
    let chosen = |shown| match &choice {
        Some(choice) => choice.of(shown),
        None => shown,
    };
    shared.arranged(&read, instances, instance, chosen).await
}

/// Deletes an entry. As in Nomad, only its id counts. If the service still runs, the planner registers it again.
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path((_, id)): Path<(String, String)>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    if !shared.catalog.remove(read.namespace(), &id).await {
        return Err(ApiError::NotFound("service registration not found".to_owned()));
    }
    Ok([(INDEX, shared.index(Source::Services).to_string())].into_response())
}

/// The services that an allocation has registered, regardless of their checks.
pub(super) async fn of_alloc(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let instances = |shared: &Shared| {
        let alloc = shared.known_alloc(&id)?.spec.id;
        Ok(shared.catalog.select(|one| one.alloc == alloc))
    };
    shared.list(&read, instances, instance).await
}

/// The services that a job has registered, regardless of their checks.
pub(super) async fn of_job(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let instances = |shared: &Shared| {
        shared.known_job(&key)?;
        Ok(shared.catalog.select(|one| one.job == key))
    };
    shared.list(&read, instances, instance).await
}

fn view(shared: &Shared, registration: Registration) -> ServiceView {
    let published = (shared.published)(&registration);
    let Some(alloc) = shared.model.alloc(&registration.alloc) else {
        return ServiceView { registration, health: ServiceHealth::Pending, results: Vec::new(), published };
    };
    let health = health(&registration, &alloc);
    let results = results(&registration, &alloc).cloned().collect();
    ServiceView { registration, health, results, published }
}

/// The services of a namespace. Each has the namespace as a field, for filters.
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
    json!({
        "ID": registration.id, "ServiceName": registration.name, "Namespace": registration.job.namespace,
        "NodeID": shared.facts.node.id, "Datacenter": shared.facts.node.datacenter, "JobID": registration.job.id,
        "AllocID": registration.alloc, "Tags": registration.tags, "Address": registration.address,
        "Port": registration.port, "CreateIndex": index, "ModifyIndex": index,
    })
}
