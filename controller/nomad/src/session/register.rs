//! Registration: at the start, when servers have forgotten the node, and when its description has changed.

use std::sync::Arc;

use herdlet_rpc::{
    Service,
    connect::Dial,
    error::{CallError, ErrorKind},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::Inner;
use crate::{
    decide::{
        contact::{change_delay, reach_again, register_again},
        tokens::Next,
    },
    reports::lock,
    wire::{
        Node, NodeStatus,
        registration::{NodeRegisterRequest, NodeUpdateResponse},
    },
};

impl<S: Service, D: Dial> Inner<S, D> {
    pub(super) async fn registrations(&self, node: &mut watch::Receiver<Arc<Node>>) {
        let mut contact = self.shared.contact.subscribe();
        let mut status = NodeStatus::Initializing;
        loop {
            tokio::select! {
                () = async { drop(contact.wait_for(|contact| !contact.is_registered).await) } => {}
                () = changed(node) => sleep(self.chance(change_delay)).await,
            }
            let mut tried_since = Instant::now();
            // Boxed, since it is rare.
            while let Err(error) = Box::pin(self.register(node, &status)).await {
                let again = self.chance(|chance| reach_again(&error, tried_since.elapsed(), chance));
                if let Some(again) = again {
                    tracing::debug!(%error, "the node could not be registered yet");
                    self.pause(again).await;
                    continue;
                }
                tracing::warn!(%error, "the node could not be registered");
                self.missed();
                let denied = matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Token);
                let mut next = Next::Same;
                if denied {
                    next = lock(&self.tokens).denied();
                    self.show_signed();
                    self.unregistered();
                }
                let servers = self.pool.servers().len();
                self.pause(self.chance(|chance| register_again(&error, next, servers, chance))).await;
                tried_since = Instant::now();
            }
            status = NodeStatus::Ready;
        }
    }

    async fn register(
        &self,
        node: &mut watch::Receiver<Arc<Node>>,
        status: &NodeStatus,
    ) -> Result<(), CallError> {
        let described = Arc::clone(&node.borrow_and_update());
        let mut node = Node::clone(&described);
        node.id = self.identity.id.clone();
        node.secret_id = self.identity.secret.clone();
        node.status = status.clone();
        node.scheduling_eligibility = self.eligibility();
        if let Some(name) = &self.name {
            node.name.clone_from(name);
        }
        let token = lock(&self.tokens).to_register();
        let request = NodeRegisterRequest { node, options: self.write(token) };
        let answer: NodeUpdateResponse = self.pool.write("Node.Register", &request).await?.decode()?;
        self.on_node_update(&answer);
        let is_news = !self.shared.contact.borrow().is_registered;
        if is_news {
            tracing::info!(node = %self.identity.id, ttl = ?answer.heartbeat_ttl, "the node is registered");
            self.shared.contact.send_modify(|contact| contact.is_registered = true);
        }
        Ok(())
    }

    /// Servers do not know the node or its token.
    pub(super) fn unregistered(&self) {
        self.shared.contact.send_if_modified(|contact| std::mem::take(&mut contact.is_registered));
    }
}

/// Waits for a new description; for ever if the sender was dropped.
async fn changed(node: &mut watch::Receiver<Arc<Node>>) {
    if node.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
