//! A node's life with its servers: it registers, sends heartbeats, hears what to run, and tells how that goes.
//!
//! In: servers, an identity, a description of the node that may change, and a [`Factory`] for what runs allocations. Out: calls to
//! servers, [`Desired`](crate::seam::Desired) for the runner, and a [`Contact`] for whoever wants to know how it goes.
//!
//! ```text
//!   register ──► registered ──┬──► heartbeats ──► the node is unknown: register
//!      ▲                      ├──► watch ──► Runner::apply
//!      └── the node changed   ├──► updates ◄── Reports::report
//!                             ├──► events ◄── Reports::event
//!                             └──► rebalance
//! ```
//!
//! All of it is one task, so that thousands of nodes fit into a process; what is decided, and when, is in [`decide`](crate::decide).

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
    decide::{acknowledged::Acknowledged, tokens::Tokens},
    identity::Identity,
    reports::{Shared, lock},
    seam::Factory,
    wire::{Eligibility, Node, QueryOptions, Secret, WriteOptions, registration::NodeUpdateResponse},
};

/// After a failure nothing is tried again within this time, even if other calls succeed.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// What a session has to know beside the node.
#[derive(Debug, Clone)]
pub struct Options {
    /// The servers' region.
    pub region: String,
    /// The node's name, in place of the description's: so that many nodes may share one.
    pub name: Option<String>,
    /// Proves to servers that the node may join (1.11 and later). Mostly empty.
    pub introduction: Secret,
    /// The identity that servers have signed before (1.11 and later), as [`Session::signed`] has told it. Mostly empty.
    pub signed: Secret,
    /// What servers had acknowledged to the session before, as [`Session::acknowledgements`] has told it. Mostly empty.
    pub acknowledged: Acknowledged,
    /// Spreads what would happen at once; [`Chance::new`] unless a test wants to know it.
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

/// A node's side of the connection with its servers.
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
    /// The identity that servers have signed; empty: none.
    signed: channel::Sender<Secret>,
    shared: Arc<Shared>,
    /// For waits of others: the pool's room for those is never theirs alone, so that the watch has some.
    waits: Semaphore,
}

impl<S: Service, D: Dial> Session<S, D> {
    /// A node that has not begun to live.
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

    /// How the node stands with its servers.
    #[must_use]
    pub fn contact(&self) -> channel::Receiver<Contact> {
        self.inner.shared.contact.subscribe()
    }

    /// The identity that servers have signed (1.11 and later), and every newer one; empty: none. Whoever keeps it on disk, and gives it to
    /// the next session ([`Options::signed`]), spares the servers signing another one, and is known to those that ask for it.
    #[must_use]
    pub fn signed(&self) -> channel::Receiver<Secret> {
        self.inner.signed.subscribe()
    }

    /// What else servers can be asked.
    #[must_use]
    pub fn queries(&self) -> Queries<S, D> {
        Queries::new(Arc::clone(&self.inner))
    }

    /// What servers acknowledge. Whoever keeps it, and gives it to the next session ([`Options::acknowledged`]), spares both sides that all is
    /// told once more.
    #[must_use]
    pub fn acknowledgements(&self) -> Acknowledgements {
        Acknowledgements::new(Arc::clone(&self.inner.shared))
    }

    /// On what the runner reports; others may tell of events.
    #[must_use]
    pub fn reports(&self) -> Reports {
        Reports::new(Arc::clone(&self.inner.shared))
    }

    /// Lives until it is cancelled. Servers are not told of the end: what runs goes on.
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
        // Dropped before the calls that are under way, however this ends.
        let _leave = Leave(&inner.pool);
        tokio::select! {
            () = cancel.cancelled() => {}
            _ = life => {}
        }
    }
}

/// Takes leave of all servers when it is dropped.
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

    fn query(&self, min_query_index: u64, max_query_time: Duration, allow_stale: bool) -> QueryOptions {
        let auth_token = lock(&self.tokens).to_call();
        // Without time to wait the server must not be given anything to wait for: zero would mean 300 s to it.
        let min_query_index = if max_query_time.is_zero() { 0 } else { min_query_index };
        let region = self.region.clone();
        QueryOptions {
            region,
            min_query_index,
            max_query_time,
            allow_stale,
            auth_token,
            ..QueryOptions::default()
        }
    }

    /// Waits until the node is registered, since nothing else may be asked before.
    async fn registered(&self) {
        let _ = self.shared.contact.subscribe().wait_for(|contact| contact.is_registered).await;
    }

    /// Waits so long, or until any other call succeeds.
    async fn pause(&self, wait: Duration) {
        let mut successes = self.pool.successes();
        let least = wait.min(PAUSE_MIN);
        sleep(least).await;
        tokio::select! {
            () = sleep(wait - least) => {}
            Ok(()) = successes.changed() => {}
        }
    }

    /// What comes of a call, unless another one, such as a heartbeat, finds meanwhile that its server does not answer: then that call
    /// need not be waited for, which may take 348 s. The next one goes to another server.
    async fn while_kept<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        let (began, mut left) = (Instant::now(), self.pool.left());
        tokio::select! {
            biased;
            answer = call => answer,
            Ok(()) = left.changed() => Err(CallError::Late(began.elapsed())),
        }
    }

    /// What every answer to a registration or heartbeat tells.
    fn heard(&self, answer: &NodeUpdateResponse) {
        let addresses = answer.servers.iter().filter_map(|server| {
            let parsed = server.rpc_advertise_addr.parse();
            parsed.inspect_err(|error| tracing::warn!(%error, "a server told of")).ok()
        });
        self.pool.set_servers(addresses.collect());
        lock(&self.tokens).answered(answer.signed().cloned());
        self.show_signed();
        let servers = self.pool.servers().len();
        self.shared.contact.send_modify(|contact| contact.hear(answer, servers));
    }

    fn show_signed(&self) {
        let signed = lock(&self.tokens).signed();
        self.signed.send_if_modified(|known| std::mem::replace(known, signed.clone()) != signed);
    }

    /// A call was not answered, or refused.
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
            told @ (Eligibility::Eligible | Eligibility::Ineligible | Eligibility::Other(_)) => told,
        }
    }
}
