//! The Task API of a node: the node's API for callers whose token the cluster's servers accept, ACLs on or off.
//!
//! In: tokens on the sockets of tasks. Out: whether servers know them, cached for some seconds. What a token may do is not
//! decided here: the API asks for each request, as on TCP.
//!
//! Facts: `hashicorp/nomad:command/agent/http.go` (`authMiddleware`), `nomad/acl_endpoint.go` (`WhoAmI`).

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api::http::{Authority, Principal, TaskApiServer, TokenCache, Unidentified};
use herdlet_api_types::AllocId;
use herdlet_nomad::wire::Secret;
use herdlet_rpc::error::{CallError, ErrorKind};
use serde::{Deserialize, de::IgnoredAny};

use super::{NodeApi, REGISTRATION_WAIT_MAX};
use crate::cluster_client::Question;

/// The accessor of the anonymous token.
const ANONYMOUS: &str = "anonymous";

/// The server of the sockets of a node's tasks.
#[must_use]
pub fn task_api(api: Arc<NodeApi>) -> TaskApiServer {
    TaskApiServer {
        router: super::router(Arc::clone(&api)),
        closing: api.shared.closing.clone(),
        authority: Arc::new(ClusterAuthority { api, accepted: TokenCache::default() }),
    }
}

/// Asks the cluster's servers.
struct ClusterAuthority {
    api: Arc<NodeApi>,
    /// The allocation of each accepted identity.
    accepted: TokenCache<Option<AllocId>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct WhoAmI {
    identity: Option<Identity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Identity {
    #[serde(rename = "ACLToken")]
    acl_token: Option<AclToken>,
    #[serde(rename = "Claims")]
    claims: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AclToken {
    #[serde(rename = "AccessorID")]
    accessor: String,
}

impl ClusterAuthority {
    async fn ask(&self, token: &str) -> Result<Principal, Unidentified> {
        let servers = &self.api.servers;
        let registered = tokio::time::timeout(REGISTRATION_WAIT_MAX, servers.registered()).await;
        registered.map_err(|_| Unidentified::Failed("no server has answered yet".to_owned()))?;
        let question = Question { token: Secret::from(token), stale: true, ..Question::new("ACL.WhoAmI") };
        let answer = servers.ask(question).await.and_then(|answer| answer.decode::<WhoAmI>());
        let identity = answer.map_err(|error| refusal(&error))?.identity.unwrap_or_default();
        let has_token = identity.acl_token.is_some_and(|token| token.accessor != ANONYMOUS);
        if !has_token && identity.claims.is_none() {
            return Err(Unidentified::Rejected);
        }
        self.accepted.keep(token, allocation_of(token));
        Ok(Principal::Operator)
    }
}

impl Authority for ClusterAuthority {
    fn known(&self, token: &str) -> Option<Principal> {
        let alloc = self.accepted.get(token)?;
        let view = alloc.and_then(|alloc| self.api.shared.model.alloc(&alloc));
        // Another node's allocation is not known here; its identity holds until the cache forgets it.
        view.is_none_or(|view| !view.status.is_terminal()).then_some(Principal::Operator)
    }

    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Principal, Unidentified>> {
        self.ask(token).boxed()
    }
}

fn refusal(error: &CallError) -> Unidentified {
    let CallError::Server(server) = error else { return Unidentified::Failed(error.to_string()) };
    match server.kind() {
        ErrorKind::PermissionDenied | ErrorKind::Token => Unidentified::Rejected,
        ErrorKind::NoLeader
        | ErrorKind::NotReady
        | ErrorKind::Region
        | ErrorKind::NodeNotFound
        | ErrorKind::NodeSecret
        | ErrorKind::UnknownMethod
        | ErrorKind::UnknownAllocation
        | ErrorKind::NoPathToNode
        | ErrorKind::Transport
        | ErrorKind::Other => Unidentified::Failed(server.text().to_owned()),
    }
}

/// The allocation that an identity names. Servers have checked it.
fn allocation_of(token: &str) -> Option<AllocId> {
    #[derive(Deserialize)]
    struct Claims {
        nomad_allocation_id: String,
    }
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Claims = serde_json::from_slice(&payload).ok()?;
    Some(AllocId(claims.nomad_allocation_id.parse().ok()?))
}

#[cfg(test)]
mod tests;
