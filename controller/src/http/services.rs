//! The built-in catalogue of services, in Nomad's form.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{job::Provider, service::Registration};
use serde_json::{Value, json};

use super::{
    Shared,
    error::ApiResult,
    query::{Params, Read},
};

/// Everything the built-in catalogue holds, of every namespace.
pub(super) async fn registrations(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.answer(&read, |shared| Ok(shared.catalog.all())).await
}

/// Names and tags, by namespace.
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let stubs = |shared: &Shared| {
        let mut found: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        for registration in shared.catalog.all().into_iter().filter(|one| read.covers(&one.job.namespace)) {
            let services = found.entry(registration.job.namespace.to_string()).or_default();
            services.entry(registration.name).or_default().extend(registration.tags);
        }
        Ok(found.into_iter().map(|(namespace, services)| stub(&namespace, services)).collect::<Vec<_>>())
    };
    shared.answer(&read, stubs).await
}

/// Instances of one service.
pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let instances = |shared: &Shared| {
        let found = shared.catalog.all().into_iter();
        let found = found.filter(|one| one.name == name && read.covers(&one.job.namespace));
        Ok(found.map(|registration| instance(shared, &registration)).collect::<Vec<_>>())
    };
    shared.answer(&read, instances).await
}

fn stub(namespace: &str, services: BTreeMap<String, Vec<String>>) -> Value {
    let services: Vec<_> = services
        .into_iter()
        .map(|(name, mut tags)| {
            tags.sort();
            tags.dedup();
            json!({ "ServiceName": name, "Tags": tags })
        })
        .collect();
    json!({ "Namespace": namespace, "Services": services })
}

fn instance(shared: &Shared, registration: &Registration) -> Value {
    let index = shared.model.alloc(&registration.alloc).map_or(0, |view| view.spec.create_index);
    let provider = match registration.provider {
        Provider::Nomad => "nomad",
        Provider::Consul => "consul",
    };
    json!({
        "ID": registration.id, "ServiceName": registration.name, "Namespace": registration.job.namespace,
        "NodeID": shared.facts.node_id, "Datacenter": shared.facts.datacenter, "JobID": registration.job.id,
        "AllocID": registration.alloc, "Tags": registration.tags, "Address": registration.address,
        "Port": registration.port, "Provider": provider, "CreateIndex": index, "ModifyIndex": index,
    })
}
