//! A node's session with its servers: it registers, sends heartbeats, watches its allocations, and reports on them.
//!
//! In: servers, an identity, a description of the node that may change, and a [`Factory`] for the runner of allocations. Out: calls to
//! servers, [`Desired`](crate::seam::Desired) for the runner, and a [`Contact`] for observers.
//!
//! ```text
//!   register ──► registered ──┬──► heartbeats ──► node unknown to servers: register
//!      ▲                      ├──► watch ──► Runner::apply
//!      └── the node changed   ├──► updates ◄── Reports::report
//!                             ├──► events ◄── Reports::event
//!                             └──► rebalance
//! ```
//!
//! A session is a single task, so that one process can run thousands of nodes; the decisions are in [`decide`](crate::decide).

mod beats;
mod events;
mod leave;
mod queries;
mod register;
mod updates;
mod watch;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use herdlet_rpc::{
    Service,
    connect::Dial,
    error::CallError,
    pool::{Chance, Pool, rebalance_after},
};
use tokio::{
    sync::{Semaphore, watch as channel},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

pub use crate::reports::{Acknowledgements, Contact, Heard, Reports};
pub use leave::{Drain, DrainError};
pub use queries::{Newer, Queries};

use crate::{
    decide::{
        acknowledged::Acknowledged,
        tokens::Tokens,
        watch::{Question, Responder},
    },
    identity::Identity,
    reports::{Shared, lock},
    seam::Factory,
    wire::{Eligibility, Node, QueryOptions, Secret, WriteOptions, registration::NodeUpdateResponse},
};

/// Minimum wait after a failure, even if other calls succeed.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Parameters of a session.
#[derive(Debug, Clone)]
pub struct Options {
    /// The servers' region.
    pub region: String,
    /// Replaces the name in the node's description, so that many nodes may share a description.
    pub name: Option<String>,
    /// Authorizes the node to join (1.11 and later). Usually empty.
    pub introduction: Secret,
    /// The identity that servers signed earlier (1.11 and later), from [`Session::signed`]. Usually empty.
    pub signed: Secret,
    /// What servers acknowledged to the previous session, from [`Session::acknowledgements`]. Usually empty.
    pub acknowledged: Acknowledged,
    /// Spreads events that would coincide; use [`Chance::new`] except for reproducible tests.
    pub chance: Chance,
}

impl Default for Options {
    fn default() -> Self {
        let region = "global".to_owned();
        let (introduction, signed) = (Secret::default(), Secret::default());
        let acknowledged = Acknowledged::default();
        Self { region, name: None, introduction, signed, acknowledged, chance: Chance::new() }
    }
}

/// A node's session with its servers.
#[derive(Debug)]
pub struct Session<S, D> {
    inner: Arc<Inner<S, D>>,
    node: channel::Receiver<Arc<Node>>,
}

#[derive(Debug)]
struct Inner<S, D> {
    pool: Arc<Pool<S, D>>,
    identity: Identity,
    region: String,
    name: Option<String>,
    chance: Mutex<Chance>,
    tokens: Mutex<Tokens>,
    /// The identity signed by servers; empty if there is none.
    signed: channel::Sender<Secret>,
    shared: Arc<Shared>,
    /// Permits for blocking queries of other callers. Fewer than the pool's, so that the watch always gets one.
    waits: Semaphore,
}

impl<S: Service, D: Dial> Session<S, D> {
    /// A session that does not run yet.
    #[must_use]
    pub fn new(
        pool: Arc<Pool<S, D>>,
        identity: Identity,
        node: channel::Receiver<Arc<Node>>,
        options: Options,
    ) -> Self {
        let Options { region, name, introduction, signed, acknowledged, chance } = options;
        let tokens = Mutex::new(Tokens::new(identity.secret.clone(), introduction, signed.clone()));
        let signed = channel::Sender::new(signed);
        let shared = Arc::new(Shared::new(identity.id.clone(), acknowledged));
        let chance = Mutex::new(chance);
        let waits = Semaphore::new(queries::WAITS);
        let inner = Inner { pool, identity, region, name, chance, tokens, signed, shared, waits };
        Self { inner: Arc::new(inner), node }
    }

    /// The node's contact with its servers.
    #[must_use]
    pub fn contact(&self) -> channel::Receiver<Contact> {
        self.inner.shared.contact.subscribe()
    }

    /// The identity signed by servers (1.11 and later), and each newer one; empty if there is none. Store it and pass it to the next
    /// session ([`Options::signed`]): then servers need not sign another one, and recognize the node if they require an identity.
    #[must_use]
    pub fn signed(&self) -> channel::Receiver<Secret> {
        self.inner.signed.subscribe()
    }

    /// Makes other calls to servers.
    #[must_use]
    pub fn queries(&self) -> Queries<S, D> {
        Queries::new(Arc::clone(&self.inner))
    }

    /// What servers acknowledge. Store it and pass it to the next session ([`Options::acknowledged`]) to avoid repeating all reports.
    #[must_use]
    pub fn acknowledgements(&self) -> Acknowledgements {
        Acknowledgements::new(Arc::clone(&self.inner.shared))
    }

    /// The runner's reports; other components may add node events.
    #[must_use]
    pub fn reports(&self) -> Reports {
        Reports::new(Arc::clone(&self.inner.shared))
    }

    /// Runs the session until it is cancelled. Servers are not notified of the end, and allocations keep running.
    pub async fn run<F: Factory>(mut self, factory: F, cancel: CancellationToken) {
        let runner = factory.start(self.reports());
        let inner = Arc::clone(&self.inner);
        let life = async {
            tokio::join!(
                inner.registrations(&mut self.node),
                inner.heartbeats(&runner),
                inner.allocations(&runner),
                inner.updates(),
                inner.events(),
                inner.rebalance(),
            )
        };
        let life = std::pin::pin!(life);
        // However this ends, the guard closes the connections before the calls in progress are dropped.
        let _leave = Leave(&inner.pool);
        tokio::select! {
            () = cancel.cancelled() => {}
            _ = life => {}
        }
    }
}

/// Closes all connections when it is dropped.
struct Leave<'p, S: Service, D: Dial>(&'p Pool<S, D>);

impl<S: Service, D: Dial> Drop for Leave<'_, S, D> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<S: Service, D: Dial> Inner<S, D> {
    fn chance<T>(&self, draw: impl FnOnce(&mut Chance) -> T) -> T {
        draw(&mut lock(&self.chance))
    }

    fn write(&self, auth_token: Secret) -> WriteOptions {
        WriteOptions { region: self.region.clone(), auth_token, ..WriteOptions::default() }
    }

    /// The options of a question that servers may block for this time.
    fn query(&self, question: Question, max_query_time: Duration) -> QueryOptions {
        let auth_token = lock(&self.tokens).to_call();
        // A query that must not block needs index 0: servers would take a time of zero for 300 s.
        let min_query_index = if max_query_time.is_zero() { 0 } else { question.index };
        let region = self.region.clone();
        QueryOptions {
            region,
            min_query_index,
            max_query_time,
            allow_stale: question.responder == Responder::AnyServer,
            auth_token,
            ..QueryOptions::default()
        }
    }

    /// Waits until the node is registered: servers refuse all other calls before that.
    async fn registered(&self) {
        let _ = self.shared.contact.subscribe().wait_for(|contact| contact.is_registered).await;
    }

    /// Waits for `wait`, or until any other call succeeds.
    async fn pause(&self, wait: Duration) {
        let mut successes = self.pool.successes();
        let least = wait.min(PAUSE_MIN);
        sleep(least).await;
        tokio::select! {
            () = sleep(wait - least) => {}
            Ok(()) = successes.changed() => {}
        }
    }

    /// Runs a call, but gives up if another one, such as a heartbeat, finds that the server does not respond: waiting may take 348 s. The
    /// next call goes to another server.
    async fn while_kept<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        let (began, mut left) = (Instant::now(), self.pool.left());
        tokio::select! {
            biased;
            answer = call => answer,
            Ok(()) = left.changed() => Err(CallError::Late(began.elapsed())),
        }
    }

    /// Processes the fields that responses to registrations and heartbeats share.
    fn on_node_update(&self, answer: &NodeUpdateResponse) {
        let addresses = answer.servers.iter().filter_map(|server| {
            let parsed = server.rpc_advertise_addr.parse();
            parsed.inspect_err(|error| tracing::warn!(%error, "ignoring an invalid address of a server")).ok()
        });
        self.pool.set_servers(addresses.collect());
        lock(&self.tokens).on_answer(answer.signed().cloned());
        self.show_signed();
        let servers = self.pool.servers().len();
        self.shared.contact.send_modify(|contact| contact.record_answer(answer, servers));
    }

    fn show_signed(&self) {
        let signed = lock(&self.tokens).signed();
        self.signed.send_if_modified(|known| std::mem::replace(known, signed.clone()) != signed);
    }

    /// Records that a registration or heartbeat failed or was refused.
    fn missed(&self) {
        self.shared.contact.send_modify(|contact| {
            contact.is_in_reach = false;
            contact.failures += 1;
            contact.wants_servers += 1;
        });
    }

    async fn rebalance(&self) {
        loop {
            let servers = self.pool.servers().len();
            let nodes = self.shared.contact.borrow().nodes;
            sleep(self.chance(|chance| rebalance_after(nodes, servers, chance))).await;
            self.pool.rebalance().await;
        }
    }

    fn eligibility(&self) -> Eligibility {
        match self.shared.contact.borrow().eligibility.clone() {
            Eligibility::Unsaid => Eligibility::Eligible,
            eligibility @ (Eligibility::Eligible | Eligibility::Ineligible | Eligibility::Other(_)) => {
                eligibility
            }
        }
    }
}
