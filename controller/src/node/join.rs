//! Joining a cluster: a session whose allocations the agent runs.
//!
//! In: an agent, and a session that has not begun. Out: the session lives beside the agent's loop, from the moment at which it is known
//! what is here, to the agent's end. Tasks outlive both.

use std::path::PathBuf;

use herdlet_nomad::session::Session;
use herdlet_rpc::{Service, connect::Dial};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{limit, previous, runner};
use crate::{agent::Agent, desired::manifests::Drivers};

/// Lives with servers from now on. Jobs may use `drivers`; `dir` is the node's directory.
pub fn join<S: Service, D: Dial>(agent: &mut Agent, session: Session<S, D>, drivers: Drivers, dir: PathBuf) {
    let (previous, asked) = mpsc::unbounded_channel();
    let (inbox, model) = (agent.inbox.clone(), agent.model.clone());
    agent.watch(previous::follow(asked, session.queries(), inbox.clone()));
    agent.watch(limit::follow(session.contact(), model.clone(), inbox.clone(), dir));
    let restored = agent.handle.first_turn.clone();
    agent.watch(async move {
        // Before, what is here isn't shown, and would be taken for new.
        if restored.opened().await.is_ok() {
            let runner = runner::Parts { inbox, model, drivers, previous };
            session.run(runner, CancellationToken::new()).await;
        }
    });
}
