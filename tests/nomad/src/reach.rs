//! Calls from servers to a node, over the connection that it has dialled.
//!
//! In: a node, a method, arguments. Out: its answer, or a stream. As with stock servers, a node can be called once it
//! has registered, sent a heartbeat or requested its allocations over a connection; the newest connection is used; each
//! call has its own stream.

use std::time::Duration;

use herdlet_nomad::wire::NodeId;
use herdlet_rpc::{
    call::Caller,
    error::{CallError, ServerError},
    framed::{self, Framed},
    mux::Mux,
    stream::Stream,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Cluster, inner::lock};

/// The time limit of a call.
const WITHIN: Duration = Duration::from_secs(60);

impl Cluster {
    /// Calls a node, such as `Allocations.Restart`.
    ///
    /// # Errors
    /// See [`CallError`]. An unreachable node is an error with the text of stock servers.
    pub async fn call_node<T: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        node: &NodeId,
        method: &str,
        arguments: &T,
    ) -> Result<R, CallError> {
        Caller::new(self.mux_of(node)?).call(method, arguments, WITHIN).await?.decode()
    }

    /// Begins a streaming call to a node, such as `FileSystem.Logs` or `Allocations.Exec`.
    ///
    /// # Errors
    /// As [`Cluster::call_node`].
    pub async fn stream_to_node<T: Serialize + ?Sized>(
        &self,
        node: &NodeId,
        method: &str,
        arguments: &T,
    ) -> Result<Framed<Stream>, CallError> {
        framed::stream(&self.mux_of(node)?, method, arguments, WITHIN).await
    }

    fn mux_of(&self, node: &NodeId) -> Result<Mux, CallError> {
        let refuse = |text: &str| Err(CallError::from(ServerError::new(text)));
        let version = self.read(|state| {
            let stored = state.nodes.get(node)?;
            Some(stored.node.attributes.contains_key("nomad.version"))
        });
        match version {
            None => return refuse(&format!("Unknown node {node}")),
            Some(false) => return refuse("Unable to determine Nomad version"),
            Some(true) => {}
        }
        let mux = lock(&self.0.connections).get(node).filter(|mux| mux.lost().is_none()).cloned();
        mux.map_or_else(|| refuse("No path to node"), Ok)
    }
}
