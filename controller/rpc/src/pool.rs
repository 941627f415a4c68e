//! The servers of a region: which of them is asked, what follows when it fails, and one connection to each that is used.
//!
//! In: addresses, from the configuration and from what servers tell; calls. Out: answers. The first server of the list is asked always;
//! one that fails goes to its end. Over each connection the servers call us too: those calls go to our [`Service`].
//!
//! ```text
//!   query, write ──► first server ──► connection, dialled once ──► answer
//!                        ▲  │ fails                                  │
//!                        │  └──► end of the list, wait, again        └──► `successes`: whoever waits may try
//! ```
//!
//! Facts: `hashicorp/nomad:client/rpc.go` (`RPC`, `canRetry`), `client/servers/manager.go`, `helper/pool/pool.go`.

mod chance;
mod list;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    address::Address,
    call::{Caller, Reply},
    connect::{Dial, DialError, Network, Purpose},
    error::{CallError, ErrorKind},
    framed::{self, Framed},
    mux::{Io, Mux, Side},
    serve::{Peer, Service, serve},
};

pub use chance::{Chance, jitter};
pub use list::{ServerList, rebalance_after};

/// For how long a call is tried on one server after the other, beside the time for which it may block (Nomad's `RPCHoldTimeout`).
pub const HOLD: Duration = Duration::from_secs(5);

/// Between two tries of a call there is a part of the hold time, at most one in so many.
const TRIES_IN_HOLD: u32 = 16;

/// The longest that a server lets a query wait, whatever it asks for.
const BLOCK_MAX: Duration = Duration::from_secs(300);

/// What an answer may take on top of all that servers wait by themselves: 5 s for a leader, and their work.
const GRACE: Duration = Duration::from_secs(30);

/// A connection that nobody has used for so long is closed, unless it is to the first server of the list.
const IDLE: Duration = Duration::from_secs(300);

/// A server whose kernel answers and which itself does not: a ping waits so long, the servers' own wait for a leader included.
const PING: Duration = Duration::from_secs(10);

/// The servers of a region.
#[derive(Debug)]
pub struct Pool<S, D = Network> {
    service: Arc<S>,
    network: D,
    region: String,
    known: Mutex<Known>,
    successes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    servers: ServerList,
    links: HashMap<Address, Arc<Link>>,
    chance: Chance,
}

/// The way to one server.
#[derive(Debug)]
struct Link {
    dialled: tokio::sync::Mutex<Dialled>,
    used: Mutex<Instant>,
}

impl Link {
    fn new() -> Arc<Self> {
        Arc::new(Self { dialled: tokio::sync::Mutex::new(Dialled::Not), used: Mutex::new(Instant::now()) })
    }
}

/// What came of dialling a server.
#[derive(Debug)]
enum Dialled {
    /// Nobody has.
    Not,
    /// A connection, which may be lost by now.
    Open(Caller),
    /// It failed. Whoever waited for it meanwhile need not dial again.
    Failed { at: Instant, why: Arc<DialError> },
}

/// Whether a request may be done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Read,
    Write,
}

impl<S: Service, D: Dial> Pool<S, D> {
    /// A pool without connections. `chance` shuffles servers and spreads tries; [`Chance::new`] unless a test wants to know it.
    #[must_use]
    pub fn new(service: Arc<S>, region: String, servers: Vec<Address>, network: D, chance: Chance) -> Self {
        let known = Known { servers: ServerList::default(), links: HashMap::new(), chance };
        let pool =
            Self { service, network, region, known: Mutex::new(known), successes: watch::Sender::new(0) };
        pool.set_servers(servers);
        pool
    }

    /// Takes these servers in place of those before, and closes connections to those that are gone. Where they are the same ones, in
    /// whatever order, nothing changes: who has failed stays at the end. None at all are no news, and don't count.
    pub fn set_servers(&self, servers: Vec<Address>) {
        let mut known = self.known();
        let Known { servers: list, chance, links, .. } = &mut *known;
        if list.replace(servers, chance) {
            tracing::info!(servers = %list, "servers are known");
            // Calls that are under way there go on to their end.
            links.retain(|address, _| list.contains(address));
        }
    }

    /// The servers, first the one that is asked next.
    #[must_use]
    pub fn servers(&self) -> Vec<Address> {
        self.known().servers.all()
    }

    /// How servers are reached.
    #[must_use]
    pub fn network(&self) -> &D {
        &self.network
    }

    /// Changes with each call that succeeds: whoever waits for a server may try again.
    #[must_use]
    pub fn successes(&self) -> watch::Receiver<u64> {
        self.successes.subscribe()
    }

    /// Asks for what changes nothing. `request` makes the request for a given time for which it may block (`MaxQueryTime`); where a
    /// server fails meanwhile the next one is asked for what is left of `block`, and a last time without blocking.
    ///
    /// # Errors
    /// See [`CallError`]: the last one.
    pub async fn query<T: Serialize>(
        &self,
        method: &str,
        block: Duration,
        request: impl Fn(Duration) -> T,
    ) -> Result<Reply, CallError> {
        let end = Instant::now() + block + HOLD;
        let mut last = false;
        loop {
            let left =
                if last { Duration::ZERO } else { (end - HOLD).saturating_duration_since(Instant::now()) };
            let error = match self.once(method, &request(left), wait(left)).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if last || !may_repeat(&error, Manner::Read) {
                return Err(error);
            }
            last = Instant::now() >= end;
            if last && block.is_zero() {
                return Err(error);
            }
            self.pause(method, &error).await;
        }
    }

    /// Asks for a change. It is repeated only where nothing was done, see [`CallError::nothing_was_done`].
    ///
    /// # Errors
    /// See [`CallError`]: the last one.
    pub async fn write<T: Serialize + ?Sized>(&self, method: &str, request: &T) -> Result<Reply, CallError> {
        let end = Instant::now() + HOLD;
        loop {
            let error = match self.once(method, request, wait(Duration::ZERO)).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if Instant::now() >= end || !may_repeat(&error, Manner::Write) {
                return Err(error);
            }
            self.pause(method, &error).await;
        }
    }

    /// Calls the first server once. If it fails it goes to the end of the list.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn once<T: Serialize + ?Sized>(
        &self,
        method: &str,
        request: &T,
        wait: Duration,
    ) -> Result<Reply, CallError> {
        let address = self.first()?;
        let answer = self.ask(&address, method, request, wait).await;
        match &answer {
            Ok(_) => self.successes.send_modify(|count| *count = count.wrapping_add(1)),
            Err(_) => self.known().servers.failed(&address),
        }
        answer
    }

    /// Begins a streaming call at the first server, over a connection of its own, as stock clients do.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn stream<T: Serialize + ?Sized>(
        &self,
        method: &str,
        arguments: &T,
    ) -> Result<Framed<Box<dyn Io>>, CallError> {
        let io = self.network.dial(&self.first()?, Purpose::OneStream).await.map_err(unreachable)?;
        let begun = tokio::time::timeout(GRACE, framed::begin(io, method, arguments)).await;
        begun.unwrap_or(Err(CallError::Late(GRACE)))
    }

    /// Spreads clients over servers: shuffles them and takes that order from the first one on that answers a ping. To be called
    /// [`rebalance_after`] now and again. Without an answer the order stays.
    pub async fn rebalance(&self) {
        let order = {
            let mut known = self.known();
            let Known { servers, chance, .. } = &mut *known;
            servers.shuffled(chance)
        };
        for (at, address) in order.iter().enumerate() {
            let ping = Ping { region: &self.region };
            if self.ask(address, "Status.Ping", &ping, PING).await.is_ok() {
                let mut order = order.clone();
                order.rotate_left(at);
                self.known().servers.reorder(order);
                break;
            }
        }
        self.close_unused();
    }

    fn first(&self) -> Result<Address, CallError> {
        self.known().servers.first().ok_or(CallError::NoServers)
    }

    async fn ask<T: Serialize + ?Sized>(
        &self,
        address: &Address,
        method: &str,
        request: &T,
        wait: Duration,
    ) -> Result<Reply, CallError> {
        let caller = self.caller(address).await?;
        let received = caller.mux().received();
        let answer = caller.call(method, request, wait).await;
        // Who says nothing at all, to nobody, hangs: other calls need not wait for it. A call that found no room was not sent.
        let is_silent = caller.mux().received() == received && caller.mux().has_room();
        if is_silent && matches!(answer, Err(CallError::Late(_))) {
            tracing::warn!(%address, method, "a server is silent; its connection is closed");
            caller.mux().close();
        }
        answer
    }

    /// The connection to a server. Whoever comes while it is dialled waits for it.
    async fn caller(&self, address: &Address) -> Result<Caller, CallError> {
        let link = Arc::clone(self.known().links.entry(address.clone()).or_insert_with(Link::new));
        let asked = Instant::now();
        *link.used.lock().unwrap_or_else(PoisonError::into_inner) = asked;
        let mut dialled = link.dialled.lock().await;
        match &*dialled {
            Dialled::Open(caller) if caller.mux().lost().is_none() => return Ok(caller.clone()),
            Dialled::Failed { at, why } if *at >= asked => {
                return Err(CallError::Unreachable(Arc::clone(why)));
            }
            Dialled::Open(_) | Dialled::Failed { .. } | Dialled::Not => {}
        }
        let io = match self.network.dial(address, Purpose::Streams).await {
            Ok(io) => io,
            Err(error) => {
                let why = Arc::new(error);
                *dialled = Dialled::Failed { at: Instant::now(), why: Arc::clone(&why) };
                return Err(CallError::Unreachable(why));
            }
        };
        tracing::info!(%address, "connected to a server");
        let (mux, incoming) = Mux::start(io, Side::Client);
        // Without a handle of its own: the connection is closed once nobody calls over it.
        let peer = Peer { address: address.to_string(), mux: None };
        tokio::spawn(serve(incoming, Arc::clone(&self.service), peer));
        let caller = Caller::new(mux);
        *dialled = Dialled::Open(caller.clone());
        Ok(caller)
    }

    fn close_unused(&self) {
        let mut known = self.known();
        let first = known.servers.first();
        known.links.retain(|address, link| {
            let used = link.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            first.as_ref() == Some(address) || used < IDLE
        });
    }

    async fn pause(&self, method: &str, error: &CallError) {
        let pause = self.known().chance.below(HOLD / TRIES_IN_HOLD);
        tracing::debug!(method, %error, ?pause, "a call is tried again");
        sleep(pause).await;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a ping needs.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Ping<'a> {
    region: &'a str,
}

fn unreachable(error: DialError) -> CallError {
    CallError::Unreachable(Arc::new(error))
}

/// How long an answer may take to a query that blocks so long: servers add up to a sixteenth, so that not all queries end at once, and wait
/// for a leader.
fn wait(block: Duration) -> Duration {
    let block = block.min(BLOCK_MAX);
    block + block / 16 + GRACE
}

/// Nomad's rule (`canRetry`), and one more: where nothing was sent, anything may be.
fn may_repeat(error: &CallError, manner: Manner) -> bool {
    let is_leaderless = matches!(error, CallError::Server(error) if error.kind() == ErrorKind::NoLeader);
    is_leaderless || error.nothing_was_done() || (manner == Manner::Read && error.is_lost())
}

#[cfg(test)]
mod tests;
