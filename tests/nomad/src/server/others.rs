//! Methods that only record their arguments, or return the answer set by a test.

use herdlet_nomad::wire::{Secret, catalogue::ServiceInstance, registration::GenericResponse};
use herdlet_rpc::{
    codec::Value,
    serve::{Call, answer},
};
use serde::Deserialize;

use super::{Answer, Server, refuse};
use crate::inner::lock;

/// Services to register, or one to remove.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct ServiceRequest {
    services: Vec<ServiceInstance>,
    #[serde(rename = "ID")]
    id: String,
    namespace: String,
    region: String,
    auth_token: Secret,
}

/// The number of recorded requests for each method.
const KEPT: usize = 1_000;

impl Server {
    /// The answer set by a test, if any.
    pub(super) fn scripted_answer(&self, call: &Call) -> Option<Answer> {
        let answer = lock(&self.cluster.answers).get(&call.method).cloned()?;
        self.keep(call);
        Some(Ok(answer))
    }

    /// `ServiceRegistration.Upsert` and `DeleteByID`, as far as a node may call them. The requests are recorded for
    /// tests.
    pub(super) async fn service(&self, call: &Call) -> Answer {
        let request: ServiceRequest = call.arguments()?;
        self.led(&request.region).await?;
        self.keep(call);
        let is_removed = call.method.ends_with("DeleteByID");
        for service in &request.services {
            self.allow(self.is_token(&request.auth_token, Some(&service.node_id)))?;
            if matches!(&service.address[..], "0.0.0.0" | "::") {
                return refuse("invalid service registration address");
            }
        }
        let key = (request.namespace, request.id);
        if is_removed && !lock(&self.cluster.state).services.contains_key(&key) {
            // From 2.0 on, if ACLs are enabled.
            self.allow(false)?;
            return refuse("service registration not found");
        }
        let index = self.cluster.write(|state| {
            state.remove_services(|known, _| *known == key);
            state.register_services(request.services)
        });
        answer(&GenericResponse { index })
    }

    pub(super) fn keep(&self, call: &Call) {
        if let Ok(request) = call.arguments::<Value>() {
            let mut asked = lock(&self.cluster.asked);
            let requests = asked.entry(call.method.clone()).or_default();
            if requests.len() < KEPT {
                requests.push(request);
            }
        }
    }
}
