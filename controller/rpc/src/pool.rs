//! The servers of a region: server selection, failover, and one connection to each server in use.
//!
//! In: addresses, from the configuration and from the servers; calls. Out: replies. Calls always go to the first server of the list; a
//! server that fails moves to the end. Servers also call us over each connection: those calls go to our [`Service`].
//!
//! ```text
//!   query, write ──► first server ──► connection, dialled once ──► reply
//!                        ▲  │ fails                                  │
//!                        │  └──► end of the list, pause, retry       └──► `successes`: waiting callers may retry
//! ```
//!
//! Callers that call rarely hold no memory in between: a call allocates when it begins.
//!
//! Facts: `hashicorp/nomad:client/rpc.go` (`RPC`, `canRetry`), `client/servers/manager.go`, `helper/pool/pool.go`.

mod chance;
mod link;
mod list;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::{Instant, sleep},
};

use crate::{
    address::Address,
    call::{Caller, Reply},
    connect::{DIAL, Dial, Network, Purpose},
    error::{CallError, DialError, ErrorKind, MessageError},
    framed::{self, Framed},
    mux::{Io, Mux, Side},
    serve::{Peer, Service, serve},
};

use link::Link;

pub use chance::{Chance, jitter};
pub use list::{ServerList, rebalance_after};

/// How long a failing call is retried on one server after the other, on top of its blocking time (Nomad's `RPCHoldTimeout`).
pub const HOLD: Duration = Duration::from_secs(5);

/// The pause between two tries is at most the hold time divided by this.
const TRIES_IN_HOLD: u32 = 16;

/// The longest time for which servers block a query, whatever it requests.
const BLOCK_MAX: Duration = Duration::from_secs(300);

/// How long a reply may take beyond the time that servers block: 5 s to wait for a leader, and the processing.
const GRACE: Duration = Duration::from_secs(30);

/// The shortest blocking time to request. Servers treat zero as [`BLOCK_MAX`].
const BLOCK_MIN: Duration = Duration::from_millis(1);

/// Maximum number of blocking queries; the connection's other streams ([`STREAMS`](crate::mux::STREAMS)) are for calls answered at once.
const LONG: usize = 192;

/// Dial timeout while there are other servers to try.
const DIAL_HASTILY: Duration = Duration::from_secs(3);

/// How long a server may take to answer a ping: twice its own wait for a leader.
const PING: Duration = Duration::from_secs(10);

/// The servers of a region, and the connections to them.
#[derive(Debug)]
pub struct Pool<S, D = Network> {
    service: Arc<S>,
    network: D,
    region: String,
    known: Mutex<PoolState>,
    /// Permits for blocking queries.
    long: Semaphore,
    successes: watch::Sender<u64>,
    left: watch::Sender<u64>,
}

#[derive(Debug)]
struct PoolState {
    servers: ServerList,
    links: HashMap<Address, Arc<Link>>,
    chance: Chance,
}

/// Whether a request may be repeated after it may have been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Read,
    Write,
}

/// How often and for how long a call is retried.
#[derive(Debug, Clone, Copy)]
struct Times {
    manner: Manner,
    /// For how long servers may block the call.
    block: Duration,
    /// Time limit for the whole call.
    within: Option<Duration>,
}

/// The server to ask.
#[derive(Debug)]
struct Server {
    address: Address,
    /// Its dial timeout.
    dial: Duration,
}

impl<S: Service, D: Dial> Pool<S, D> {
    /// A pool without connections. `chance` shuffles servers and spreads retries; use [`Chance::new`] except for reproducible tests.
    #[must_use]
    pub fn new(service: Arc<S>, region: String, servers: Vec<Address>, network: D, chance: Chance) -> Self {
        let known = PoolState { servers: ServerList::default(), links: HashMap::new(), chance };
        let (known, long) = (Mutex::new(known), Semaphore::new(LONG));
        let (successes, left) = (watch::Sender::new(0), watch::Sender::new(0));
        let pool = Self { service, network, region, known, long, successes, left };
        pool.set_servers(servers);
        pool
    }

    /// Replaces the servers, and closes connections to servers no longer listed unless the server has open calls over them. If the set is
    /// unchanged, in whatever order, this does nothing: failed servers stay at the end. An empty list is ignored.
    pub fn set_servers(&self, servers: Vec<Address>) {
        let mut known = self.known();
        let PoolState { servers: list, chance, links, .. } = &mut *known;
        if list.replace(servers, chance) {
            tracing::info!(servers = %list, "the list of servers has changed");
            // Calls in progress there run to completion.
            links.retain(|address, link| list.contains(address) || link.is_serving());
        }
    }

    /// Closes all connections. Call it before dropping calls in progress: servers log an error for each stream that is reset.
    pub fn close(&self) {
        self.known().links.values().for_each(|link| link.close());
    }

    /// The servers, in the order in which they will be asked.
    #[must_use]
    pub fn servers(&self) -> Vec<Address> {
        self.known().servers.all()
    }

    /// How the pool connects to servers.
    #[must_use]
    pub fn network(&self) -> &D {
        &self.network
    }

    /// Changes with each successful call: a caller that waits for a reachable server may retry.
    #[must_use]
    pub fn successes(&self) -> watch::Receiver<u64> {
        self.successes.subscribe()
    }

    /// Changes whenever a call gives up a server that did not answer: a caller with another call pending there, which may take minutes,
    /// should retry it.
    #[must_use]
    pub fn left(&self) -> watch::Receiver<u64> {
        self.left.subscribe()
    }

    /// Makes a read-only call. `request` builds the request for a given blocking time (`MaxQueryTime`). If a server fails, the next one is
    /// asked with the rest of `block`, and one last time with almost none. A request with an index must set that time: servers block a
    /// query without it for 300 s.
    ///
    /// # Errors
    /// The last [`CallError`].
    pub async fn query<T: Serialize>(
        &self,
        method: &str,
        block: Duration,
        request: impl Fn(Duration) -> T,
    ) -> Result<Reply, CallError> {
        Box::pin(self.tried(method, Times { manner: Manner::Read, block, within: None }, request)).await
    }

    /// As [`Pool::query`], with a time limit for the whole call. Dropping a slow call instead would leave the same server first in the
    /// list.
    ///
    /// # Errors
    /// The last [`CallError`].
    pub async fn query_within<T: Serialize>(
        &self,
        method: &str,
        block: Duration,
        request: impl Fn(Duration) -> T,
        within: Duration,
    ) -> Result<Reply, CallError> {
        Box::pin(self.tried(method, Times { manner: Manner::Read, block, within: Some(within) }, request))
            .await
    }

    /// Makes a call that changes something. It is repeated only if nothing was done, see [`CallError::nothing_was_done`].
    ///
    /// # Errors
    /// The last [`CallError`].
    pub async fn write<T: Serialize + ?Sized>(&self, method: &str, request: &T) -> Result<Reply, CallError> {
        let times = Times { manner: Manner::Write, block: Duration::ZERO, within: None };
        Box::pin(self.tried(method, times, |_| request)).await
    }

    /// As [`Pool::write`], with a time limit for the whole call: for calls with a deadline, such as heartbeats.
    ///
    /// # Errors
    /// The last [`CallError`].
    pub async fn write_within<T: Serialize + ?Sized>(
        &self,
        method: &str,
        request: &T,
        within: Duration,
    ) -> Result<Reply, CallError> {
        let times = Times { manner: Manner::Write, block: Duration::ZERO, within: Some(within) };
        Box::pin(self.tried(method, times, |_| request)).await
    }

    /// Calls the first server once, with `wait` as the time limit including dialling. If the server fails, it moves to the end of the list.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn once<T: Serialize + ?Sized>(
        &self,
        method: &str,
        request: &T,
        wait: Duration,
    ) -> Result<Reply, CallError> {
        let server = self.next(&[]).ok_or(CallError::NoServers)?;
        Box::pin(self.try_once(&server, method, request, wait)).await
    }

    /// Starts a streaming call on the first reachable server, over a connection of its own, as stock clients do.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn stream<T: Serialize + ?Sized>(
        &self,
        method: &str,
        arguments: &T,
    ) -> Result<Framed<Box<dyn Io>>, CallError> {
        let (mut unreached, mut error) = (Vec::new(), CallError::NoServers);
        while let Some(server) = self.next(&unreached) {
            error = match self.begin(&server, method, arguments).await {
                Ok(begun) => return Ok(begun),
                Err(error) => error,
            };
            self.failed(&server, &error);
            if !matches!(error, CallError::Unreachable(_)) {
                break;
            }
            unreached.push(server.address);
        }
        Err(error)
    }

    /// Spreads clients over servers: shuffles the list, rotates it to start with the first server that answers a ping, and uses that order.
    /// If none answers, the order is unchanged. Call it at intervals of [`rebalance_after`].
    pub async fn rebalance(&self) {
        let order = {
            let mut known = self.known();
            let PoolState { servers, chance, .. } = &mut *known;
            servers.shuffled(chance)
        };
        for (at, address) in order.iter().enumerate() {
            if self.ping(address).await.is_ok() {
                let mut order = order.clone();
                order.rotate_left(at);
                self.known().servers.reorder(order);
                break;
            }
        }
        self.close_unused();
    }

    /// Pings a server, which need not be in the list.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn ping(&self, address: &Address) -> Result<(), CallError> {
        let ping = Ping { region: &self.region };
        let server = Server { address: address.clone(), dial: PING };
        Box::pin(self.ask(&server, "Status.Ping", &ping, PING)).await.map(drop)
    }

    async fn tried<T: Serialize>(
        &self,
        method: &str,
        Times { manner, block, within }: Times,
        request: impl Fn(Duration) -> T,
    ) -> Result<Reply, CallError> {
        let end = within.and_then(|within| Instant::now().checked_add(within));
        let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let block = block.min(BLOCK_MAX);
        let _long = if block.is_zero() { None } else { Some(self.long(wait(block).min(left())).await?) };
        let began = Instant::now();
        let mut failing = began;
        let mut unreached = Vec::new();
        let mut is_last = false;
        loop {
            let server = self.next(&unreached).ok_or(CallError::NoServers)?;
            let tried = Instant::now();
            let blocks = match block {
                Duration::ZERO => block,
                _ => (began + block).saturating_duration_since(tried).max(BLOCK_MIN),
            };
            let answer = self.try_once(&server, method, &request(blocks), wait(blocks).min(left())).await;
            let error = match answer {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if left().is_zero() {
                return Err(error);
            }
            // Unreachable: ask the next server at once, and none twice.
            if let CallError::Unreachable(_) = error {
                unreached.push(server.address);
                if self.next(&unreached).is_none() {
                    return Err(error);
                }
                continue;
            }
            // Restart the hold time after a connection that lasted. A connection that always breaks does not justify minutes of dialling.
            if tried.elapsed() > HOLD {
                failing = Instant::now();
            }
            let all = began + block + HOLD;
            let until = if error.is_lost() { all.min(failing + HOLD) } else { all };
            let is_over = Instant::now() >= until;
            let was_last = is_last || (is_over && (block.is_zero() || error.is_lost()));
            if was_last || !may_repeat(&error, manner) {
                return Err(error);
            }
            is_last = is_over;
            self.pause(method, &error, left()).await;
        }
    }

    /// Waits for a permit to make a blocking query.
    async fn long(&self, wait: Duration) -> Result<SemaphorePermit<'_>, CallError> {
        let permit = tokio::time::timeout(wait, self.long.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or(CallError::NoRoom(wait))
    }

    /// The first server of the list that is not in `unreached`.
    fn next(&self, unreached: &[Address]) -> Option<Server> {
        let mut servers = self.servers().into_iter().filter(|server| !unreached.contains(server));
        let address = servers.next()?;
        Some(Server { address, dial: if servers.next().is_some() { DIAL_HASTILY } else { DIAL } })
    }

    async fn try_once<T: Serialize + ?Sized>(
        &self,
        server: &Server,
        method: &str,
        request: &T,
        wait: Duration,
    ) -> Result<Reply, CallError> {
        let answer = self.ask(server, method, request, wait).await;
        match &answer {
            Ok(_) => self.successes.send_modify(|count| *count = count.wrapping_add(1)),
            Err(error) => self.failed(server, error),
        }
        answer
    }

    fn failed(&self, server: &Server, error: &CallError) {
        let is_left = is_servers(error) && self.known().servers.failed(&server.address);
        // When a connection is lost, every call over it fails by itself.
        if is_left && matches!(error, CallError::Late(_)) {
            self.left.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    async fn ask<T: Serialize + ?Sized>(
        &self,
        server: &Server,
        method: &str,
        request: &T,
        wait: Duration,
    ) -> Result<Reply, CallError> {
        let began = Instant::now();
        let caller = self.caller(server, wait).await?;
        let received = caller.mux().received();
        let answer = caller.call(method, request, wait.saturating_sub(began.elapsed())).await;
        // No bytes at all arrived on the connection: the server hangs, and other calls should not wait for it. With a shorter `wait` the
        // server may still have been waiting for a leader.
        let is_silent = wait >= GRACE && caller.mux().received() == received;
        if is_silent && matches!(answer, Err(CallError::Late(_))) {
            tracing::warn!(address = %server.address, method, "a server does not answer; closing its connection");
            caller.mux().close();
        }
        answer
    }

    /// The connection to a server, dialled if necessary, within `wait`.
    async fn caller(&self, Server { address, dial }: &Server, wait: Duration) -> Result<Caller, CallError> {
        let link = Arc::clone(self.known().links.entry(address.clone()).or_insert_with(Link::new));
        let within = wait.min(*dial);
        let caller = tokio::time::timeout(within, link.caller(|| self.connect(address))).await;
        caller.unwrap_or_else(|_| Err(unreachable(DialError::Late { address: address.clone(), within })))
    }

    async fn connect(&self, address: &Address) -> Result<Caller, DialError> {
        let io = self.network.dial(address, Purpose::Streams).await?;
        tracing::info!(%address, "connected to a server");
        let (mux, incoming) = Mux::start(io, Side::Client);
        // The service gets no handle of the connection, so that the connection closes once nobody calls over it.
        let peer = Peer { address: address.to_string(), mux: None };
        tokio::spawn(serve(incoming, Arc::clone(&self.service), peer));
        Ok(Caller::new(mux))
    }

    async fn begin<T: Serialize + ?Sized>(
        &self,
        Server { address, dial }: &Server,
        method: &str,
        arguments: &T,
    ) -> Result<Framed<Box<dyn Io>>, CallError> {
        let dialled = tokio::time::timeout(*dial, self.network.dial(address, Purpose::OneStream)).await;
        let late = || DialError::Late { address: address.clone(), within: *dial };
        let io = dialled.unwrap_or_else(|_| Err(late())).map_err(unreachable)?;
        let begun = tokio::time::timeout(GRACE, framed::begin(io, method, arguments)).await;
        begun.unwrap_or(Err(CallError::Late(GRACE)))
    }

    fn close_unused(&self) {
        let mut known = self.known();
        let first = known.servers.first();
        known
            .links
            .retain(|address, link| first.as_ref() == Some(address) || link.is_used() || link.is_serving());
    }

    async fn pause(&self, method: &str, error: &CallError, most: Duration) {
        let pause = self.known().chance.below(HOLD / TRIES_IN_HOLD).min(most);
        tracing::debug!(method, %error, ?pause, "retrying a call");
        sleep(pause).await;
    }

    fn known(&self) -> MutexGuard<'_, PoolState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The arguments of a ping.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Ping<'a> {
    region: &'a str,
}

fn unreachable(error: DialError) -> CallError {
    CallError::Unreachable(Arc::new(error))
}

/// Time limit for the reply to a query that blocks for `block`: servers add up to a sixteenth as jitter, and wait for a leader.
fn wait(block: Duration) -> Duration {
    let block = block.min(BLOCK_MAX);
    block + block / 16 + GRACE
}

/// Nomad's rule (`canRetry`), plus: any call may be retried if nothing was done.
fn may_repeat(error: &CallError, manner: Manner) -> bool {
    error.nothing_was_done() || (manner == Manner::Read && error.is_lost())
}

/// Whether another server may do better. Stock clients leave a server after any error. Here an error that every server would return, such
/// as one about a token, does not count: otherwise a caller with a bad request would drive all calls from server to server.
fn is_servers(error: &CallError) -> bool {
    use ErrorKind::{NoLeader, NotReady, Region, Transport};
    match error {
        CallError::Server(error) => matches!(error.kind(), NoLeader | NotReady | Region | Transport),
        // The reply exceeds a limit, or the request cannot be encoded.
        CallError::Message(MessageError::Limit(_) | MessageError::Encode(_)) => false,
        CallError::NoServers
        | CallError::Unreachable(_)
        | CallError::NotSent(_)
        | CallError::NoRoom(_)
        | CallError::Lost(_)
        | CallError::Late(_)
        | CallError::Message(MessageError::Ended | MessageError::Io(_) | MessageError::Decode(_))
        | CallError::Sequence { .. } => true,
    }
}

#[cfg(test)]
mod tests;
