//! The calls from servers to this node, over the connections that the node has opened.
//!
//! In: calls, with the token of the user who asked the server. Out: the same data as from the local API, in the format of Nomad's clients:
//! logs, files, commands, statistics, restarts and signals of allocations ([`herdlet_api::alloc_ops`]), the node's metadata, the agent's
//! log. Each call is checked against the cluster's ACLs, whatever the server has checked before.
//!
//! Facts: `hashicorp/nomad:client/rpc.go`, `client/*_endpoint.go`, and recordings.

mod agent;
mod allocs;
mod exec;
mod failure;
mod files;
mod identity;
pub mod meta;
mod stream_answer;

use std::sync::Arc;

use herdlet_api::alloc_ops::{AllocOps, host::HostSampler};
use herdlet_api_types::view::AllocView;
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{
    Service,
    codec::Value,
    error::{MessageError, Refusal},
    framed::Framed,
    mux::Io,
    serve::{Call, Peer, answer},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::{failure::Failure, meta::DynamicMeta};
use super::{
    acl::{Access, Acl, Capability, Denied, Resolver},
    cluster_client::Servers,
};

/// Maximum number of unread bytes in a stream within this process.
const PIPE_BYTES: usize = 64 << 10;

/// The known services: the parts of methods before the dot.
const SERVICES: [&str; 6] = ["Agent", "Allocations", "ClientStats", "FileSystem", "NodeIdentity", "NodeMeta"];

/// The service's dependencies.
pub struct Parts {
    /// Access to this machine's allocations.
    pub reach: AllocOps,
    /// Resolves tokens.
    pub acl: Resolver,
    pub servers: Arc<dyn Servers>,
    pub meta: Arc<dyn DynamicMeta>,
    /// The node's id, or its name: included in responses about the agent.
    pub agent: String,
    /// Whether commands may be executed in tasks; false with `disable_remote_exec`.
    pub remote_exec: bool,
    /// Whether anyone may read information about the agent and its machine if there are no ACLs: `enable_debug`.
    pub debug: bool,
    /// Cancelled when the agent shuts down; ends every stream.
    pub closing: CancellationToken,
}

/// Handles calls from servers.
pub struct NodeService {
    parts: Parts,
    host: HostSampler,
}

impl std::fmt::Debug for NodeService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeService").field("agent", &self.parts.agent).finish_non_exhaustive()
    }
}

/// A request with nothing but a token.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct TokenOnly {
    auth_token: Secret,
}

/// A response with the metadata that servers' responses have; from a node they are zero.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Queried<T> {
    #[serde(flatten)]
    what: T,
    index: u64,
    last_contact: i64,
    known_leader: bool,
    next_token: &'static str,
}

impl<T> Queried<T> {
    fn new(what: T) -> Self {
        Self { what, index: 0, last_contact: 0, known_leader: false, next_token: "" }
    }
}

/// An encoded response, or the reason for a failure.
type Answered = Result<Vec<u8>, Failure>;

/// The response to a call that returns no data.
fn done() -> Answered {
    Ok(answer(&json!({ "Index": 0 }))?)
}

impl NodeService {
    /// Serves with these dependencies.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self { parts, host: HostSampler::default() }
    }

    /// The permissions of a token.
    ///
    /// # Errors
    /// Why it has none.
    pub async fn acl(&self, token: &Secret) -> Result<Arc<Acl>, Denied> {
        self.parts.acl.resolve(token).await
    }

    /// The allocation with this id, if the token has the capability for it.
    async fn alloc(
        &self,
        id: &str,
        token: &Secret,
        capability: Capability,
    ) -> Result<Arc<AllocView>, Failure> {
        let alloc = self.parts.reach.alloc(id)?;
        self.may(&alloc, token, &[capability]).await?;
        Ok(alloc)
    }

    /// Checks that the token has one of these capabilities for the allocation.
    async fn may(
        &self,
        alloc: &AllocView,
        token: &Secret,
        one_of: &[Capability],
    ) -> Result<Arc<Acl>, Denied> {
        let acl = self.acl(token).await?;
        let namespace = &alloc.spec.job_key.namespace;
        let is_allowed = one_of.iter().any(|capability| acl.allows(namespace, *capability));
        if is_allowed { Ok(acl) } else { Err(Denied::Refused) }
    }

    /// Handles a call from this process like one from a server.
    ///
    /// # Errors
    /// The error that a server would get.
    pub async fn ask(&self, method: &str, arguments: &Value) -> Result<Vec<u8>, Refusal> {
        let call = Call::new(method, arguments);
        let call = call.map_err(|error| Refusal::Error(format!("failed to {error}")))?;
        self.answer(&call).await.map_err(Refusal::from)
    }

    /// Starts a streaming call from this process like one from a server.
    ///
    /// # Errors
    /// If the arguments cannot be encoded.
    pub async fn begin(
        self: Arc<Self>,
        method: String,
        arguments: &Value,
    ) -> Result<Framed<Box<dyn Io>>, MessageError> {
        let (ours, theirs): (Box<dyn Io>, Box<dyn Io>) = {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            (Box::new(ours), Box::new(theirs))
        };
        tokio::spawn(async move {
            let peer = Peer { address: "this process".to_owned(), mux: None };
            let mut stream = Framed::new(theirs);
            self.stream(&peer, method, &mut stream).await;
            let _ = stream.finish().await;
        });
        let mut stream = Framed::new(ours);
        stream.send(arguments).await?;
        Ok(stream)
    }

    /// Checks a token's access to the agent.
    ///
    /// # Errors
    /// Why access is denied.
    pub async fn allows_agent(&self, token: &Secret, may: fn(Access) -> bool) -> Result<(), Denied> {
        if may(self.acl(token).await?.agent()) { Ok(()) } else { Err(Denied::Refused) }
    }

    /// Checks that a token may have job files of the namespace parsed.
    ///
    /// # Errors
    /// Why it may not.
    pub async fn allows_parse(&self, token: &Secret, namespace: &str) -> Result<(), Denied> {
        let acl = self.acl(token).await?;
        let one_of = [Capability::ParseJob, Capability::SubmitJob];
        let is_allowed = one_of.into_iter().any(|capability| acl.allows(namespace, capability));
        if is_allowed { Ok(()) } else { Err(Denied::Refused) }
    }

    /// Checks that a token may read all files of an allocation on this node.
    ///
    /// # Errors
    /// Why it may not.
    pub async fn allows_files(&self, id: &str, token: &Secret) -> Result<(), Denied> {
        let Ok(alloc) = self.parts.reach.alloc(id) else { return Err(Denied::Refused) };
        self.may(&alloc, token, &[Capability::ReadFs]).await.map(drop)
    }

    /// Whether an allocation is on this node.
    pub fn has(&self, id: &str) -> bool {
        self.parts.reach.alloc(id).is_ok()
    }

    async fn answer(&self, call: &Call) -> Answered {
        match &*call.method {
            "Allocations.Restart" => self.restart(call.arguments()?).await,
            "Allocations.Signal" => self.signal(call.arguments()?).await,
            "Allocations.Stats" => self.stats(call.arguments()?).await,
            "Allocations.Checks" => self.checks(call.arguments()?).await,
            "Allocations.GarbageCollect" => self.collect(call.arguments()?).await,
            "Allocations.GarbageCollectAll" => self.collect_all(call.arguments()?).await,
            "Allocations.GetPauseState" => self.pause_state(call.arguments()?).await,
            "Allocations.SetPauseState" => self.set_pause_state(call.arguments()?).await,
            "FileSystem.List" => self.list(call.arguments()?).await,
            "FileSystem.Stat" => self.stat(call.arguments()?).await,
            "ClientStats.Stats" => self.host_stats(call.arguments()?).await,
            "Agent.Host" => self.host_data(call.arguments()?).await,
            "Agent.Profile" => self.profile(call.arguments()?).await,
            "NodeMeta.Read" => self.read_meta(call.arguments()?).await,
            "NodeMeta.Apply" => self.apply_meta(call.arguments()?).await,
            "NodeIdentity.Get" => self.read_identity(call.arguments()?).await,
            "NodeIdentity.Renew" => self.renew_identity(call.arguments()?).await,
            method => Err(Failure::Refusal(unknown(method))),
        }
    }
}

/// The error of Go's `net/rpc` for an unknown method.
fn unknown(method: &str) -> Refusal {
    match method.rsplit_once('.') {
        Some((service, _)) if SERVICES.contains(&service) => Refusal::UnknownMethod,
        Some(_) => Refusal::UnknownService,
        None => Refusal::Error(format!("rpc: service/method request ill-formed: {method}")),
    }
}

impl Service for NodeService {
    async fn call(&self, _: &Peer, call: Call) -> Result<Vec<u8>, Refusal> {
        self.answer(&call).await.map_err(|failure| {
            tracing::debug!(method = call.method, %failure, "a call from a server failed");
            failure.into()
        })
    }

    fn streams(&self, method: &str) -> bool {
        matches!(
            method,
            "FileSystem.Logs"
                | "FileSystem.Stream"
                | "Allocations.Exec"
                | "Agent.Monitor"
                | "Agent.MonitorExport"
        )
    }

    async fn stream(&self, _: &Peer, method: String, stream: &mut Framed<Box<dyn Io>>) {
        let ended = match &*method {
            "FileSystem.Logs" => self.logs(stream).await,
            "FileSystem.Stream" => self.file(stream).await,
            "Allocations.Exec" => self.exec(stream).await,
            "Agent.Monitor" => self.monitor(stream).await,
            "Agent.MonitorExport" => self.export_log(stream).await,
            _ => return,
        };
        if let Err(error) = ended {
            tracing::debug!(method, %error, "a stream to a server ended");
        }
    }
}

#[cfg(test)]
mod tests;
