//! Joining a cluster: connects a session with the agent.
//!
//! In: an agent, and a session that has not started. Out: the session runs beside the agent's loop until the agent ends, starting once the
//! stored state is loaded. Tasks outlive both.

use std::sync::Arc;

use herdlet_agent::agent::Agent;
use herdlet_manifest::manifests::Drivers;
use herdlet_nomad::session::Session;
use herdlet_plan::env::NodeFacts;
use herdlet_rpc::{Service, connect::Dial};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    acknowledged, catalog,
    identities::Servers,
    limit,
    predecessor::{self, mover::Mover},
    runner,
    server_alloc::Reading,
    templates::ServerData,
};

/// Runs the session once the node is `described`. Jobs may use `drivers`; `mover` fetches disks from other nodes.
pub fn join<S: Service, D: Dial>(
    agent: &mut Agent,
    session: Session<S, D>,
    drivers: watch::Receiver<Drivers>,
    mover: Mover,
    described: impl Future<Output = ()> + Send + 'static,
) {
    let (previous, asked) = mpsc::channel(predecessor::WAITING_MAX);
    let (inbox, model) = (agent.inbox.clone(), agent.model.clone());
    let tokens = Arc::clone(&agent.context.server_tokens);
    let moving = Some(Arc::new((mover, model.clone())));
    agent.watch(predecessor::follow(asked, session.queries(), inbox.clone(), moving));
    agent.watch(limit::follow(session.contact(), model.clone(), inbox.clone(), agent.context.paths.node()));
    agent.watch(acknowledged::keep(session.acknowledgements(), agent.context.paths.node()));
    if agent.context.cluster.set(Box::new(Servers(session.queries()))).is_err() {
        tracing::error!("the agent has joined a cluster already; identities are signed by that one");
    }
    agent.context.renderer.join(Arc::new(ServerData(session.queries())));
    let told_again = watch::Sender::new(0);
    let node = NodeFacts::clone(&agent.context.node.get());
    let catalog = catalog::Mirror::new(agent.context.services.catalogs.built_in.clone(), model.clone(), node);
    agent.watch(catalog.follow(session.queries(), told_again.subscribe()));
    let restored = agent.handle.first_turn.clone();
    agent.watch(async move {
        // Until then the read model is empty, and known allocations would look new.
        if restored.opened().await.is_ok() {
            described.await;
            let runner = runner::Parts {
                inbox,
                model,
                tokens: Some(tokens),
                reading: Reading::Real(drivers),
                previous,
                told_again,
            };
            session.run(runner, CancellationToken::new()).await;
        }
    });
}
