//! Requests that this node answers without a call: metrics, the agent itself and its servers, disks; and permission to parse job files.
//!
//! In: a request, and the answer that its row names. Out: a response, or the request for the local API.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use herdlet_api::http::routes::NodeAnswer;
use herdlet_api_types::AllocId;
use herdlet_rpc::address::Address;
use serde_json::{Value as Json, json};

use super::{Dispatch, HttpError, Incoming, NodeApi, path_param, request::RequestParams};
use crate::acl::Access;

impl NodeApi {
    /// Answers a request that no call answers.
    pub(super) async fn answer_itself(
        &self,
        what: NodeAnswer,
        incoming: Incoming,
    ) -> Result<Dispatch, HttpError> {
        let Incoming { path, params, request } = incoming;
        let response = match what {
            NodeAnswer::Metrics => return Ok(Dispatch::On(Box::new(request))),
            NodeAnswer::ParsedJob => {
                let namespace = params.non_empty("namespace").unwrap_or("default");
                self.service.allows_parse(&params.token, namespace).await?;
                return Ok(Dispatch::On(Box::new(request)));
            }
            NodeAnswer::Snapshot => {
                self.snapshot(path_param(&path, "AllocID").unwrap_or_default(), &params).await?
            }
            NodeAnswer::Agent => {
                self.service.allows_agent(&params.token, Access::reads).await?;
                axum::Json(self.this()).into_response()
            }
            NodeAnswer::Health => self.health(&params)?,
            NodeAnswer::KnownServers => {
                self.service.allows_agent(&params.token, Access::reads).await?;
                let mut addresses = self.servers.addresses();
                addresses.sort();
                axum::Json(addresses).into_response()
            }
            NodeAnswer::SetServers => {
                self.set_servers(&params).await?;
                StatusCode::OK.into_response()
            }
        };
        Ok(Dispatch::Answer(response))
    }

    /// `PUT /v1/agent/servers`.
    async fn set_servers(&self, params: &RequestParams) -> Result<(), HttpError> {
        let addresses: Result<Vec<Address>, _> = params.all("address").map(str::parse).collect();
        let addresses = addresses.map_err(|error| HttpError(400, format!("address: {error}")))?;
        if addresses.is_empty() {
            return Err(HttpError(400, "missing server address".to_owned()));
        }
        self.service.allows_agent(&params.token, Access::writes).await?;
        self.servers.set_addresses(addresses).await.map_err(|why| HttpError(400, why))
    }

    /// For the node that runs the successor of this allocation, and for callers who may read all of its files.
    async fn snapshot(&self, id: &str, params: &RequestParams) -> Result<Response, HttpError> {
        let alloc = id.parse().ok().and_then(|id| self.shared.model.alloc(&AllocId(id)));
        let alloc = alloc.ok_or_else(|| HttpError(404, format!("Unknown allocation {id:?}")))?;
        if !self.snapshots.is_token(id, &params.token) {
            self.service.allows_files(id, &params.token).await?;
        }
        Ok(self.snapshots.answer(&alloc.spec).await)
    }

    /// `GET /v1/agent/self`, with the fields that Nomad's clients use.
    fn this(&self) -> Json {
        let (facts, node) = (&self.shared.facts, &self.shared.facts.node);
        let (standing, version) = ((self.standing)(), herdlet_api_types::api::VERSION);
        let last = standing.last_heartbeat.unwrap_or_default();
        json!({
            "config": {
                "Datacenter": node.datacenter, "Region": node.region, "NodeName": node.name,
                "Version": { "Version": version, "VersionPrerelease": "", "VersionMetadata": "herdlet" },
                "Client": { "Enabled": true }, "Server": { "Enabled": false },
            },
            "member": { "Name": "", "Addr": null, "Port": 0, "Tags": null, "Status": "" },
            "stats": {
                "client": {
                    "node_id": node.id, "known_servers": self.servers.addresses().join(","),
                    "num_allocations": self.shared.model.allocs().len().to_string(),
                    "last_heartbeat": format!("{last:?}"), "heartbeat_ttl": format!("{:?}", standing.ttl),
                },
                "herdlet": { "version": version, "instance": facts.instance, "isolation": facts.isolation },
            },
        })
    }

    fn health(&self, params: &RequestParams) -> Result<Response, HttpError> {
        if params.parameter("type") == Some("server") {
            return Err(HttpError(500, "server not enabled".to_owned()));
        }
        let is_ok = !self.servers.addresses().is_empty();
        let code = if is_ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
        let message = if is_ok { "ok" } else { "no known servers" };
        Ok((code, axum::Json(json!({ "client": { "ok": is_ok, "message": message } }))).into_response())
    }
}
