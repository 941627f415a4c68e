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
//! Who may call rarely holds no room for it meanwhile: what a call needs is allocated when it begins.
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

/// For how long a call is tried on one server after the other, beside the time for which it may block (Nomad's `RPCHoldTimeout`).
pub const HOLD: Duration = Duration::from_secs(5);

/// Between two tries of a call there is a part of the hold time, at most one in so many.
const TRIES_IN_HOLD: u32 = 16;

/// The longest that a server lets a query wait, whatever it asks for.
const BLOCK_MAX: Duration = Duration::from_secs(300);

/// What an answer may take on top of all that servers wait by themselves: 5 s for a leader, and their work.
const GRACE: Duration = Duration::from_secs(30);

/// The shortest for which we ask a query to wait. None at all stands for [`BLOCK_MAX`].
const BLOCK_MIN: Duration = Duration::from_millis(1);

/// Queries that block at a time: the others of a connection's streams ([`STREAMS`](crate::mux::STREAMS)) are for what is answered at once.
const LONG: usize = 192;

/// How long a server is dialled while there are others.
const DIAL_HASTILY: Duration = Duration::from_secs(3);

/// How long a server is given to answer a ping: its own wait for a leader, and as much again.
const PING: Duration = Duration::from_secs(10);

/// The servers of a region.
#[derive(Debug)]
pub struct Pool<S, D = Network> {
    service: Arc<S>,
    network: D,
    region: String,
    known: Mutex<Known>,
    /// For queries that block.
    long: Semaphore,
    successes: watch::Sender<u64>,
    left: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    servers: ServerList,
    links: HashMap<Address, Arc<Link>>,
    chance: Chance,
}

/// Whether a request may be done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Read,
    Write,
}

/// How a call is repeated, and how long.
#[derive(Debug, Clone, Copy)]
struct Times {
    manner: Manner,
    /// For how long servers may let it wait.
    block: Duration,
    /// How long it may take as a whole.
    within: Option<Duration>,
}

/// Who is asked.
#[derive(Debug)]
struct Server {
    address: Address,
    /// How long that one is dialled.
    dial: Duration,
}

impl<S: Service, D: Dial> Pool<S, D> {
    /// A pool without connections. `chance` shuffles servers and spreads tries; [`Chance::new`] unless a test wants to know it.
    #[must_use]
    pub fn new(service: Arc<S>, region: String, servers: Vec<Address>, network: D, chance: Chance) -> Self {
        let known = Known { servers: ServerList::default(), links: HashMap::new(), chance };
        let (known, long) = (Mutex::new(known), Semaphore::new(LONG));
        let (successes, left) = (watch::Sender::new(0), watch::Sender::new(0));
        let pool = Self { service, network, region, known, long, successes, left };
        pool.set_servers(servers);
        pool
    }

    /// Takes these servers in place of those before, and closes connections to those that are gone, unless they call us over
    /// them. Where they are the same ones, in whatever order, nothing changes: who has failed stays at the end. None at all are no news, and
    /// don't count.
    pub fn set_servers(&self, servers: Vec<Address>) {
        let mut known = self.known();
        let Known { servers: list, chance, links, .. } = &mut *known;
        if list.replace(servers, chance) {
            tracing::info!(servers = %list, "servers are known");
            // What is under way there goes on to its end.
            links.retain(|address, link| list.contains(address) || link.is_serving());
        }
    }

    /// Takes leave of all servers. Before calls under way are dropped: servers tell an error for each that is reset.
    pub fn close(&self) {
        self.known().links.values().for_each(|link| link.close());
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

    /// Changes with each call for which a server had to be left that did not answer: whoever waits for it in another call, which may take
    /// minutes, does well to ask anew.
    #[must_use]
    pub fn left(&self) -> watch::Receiver<u64> {
        self.left.subscribe()
    }

    /// Asks for what changes nothing. `request` makes the request for a given time for which it may block (`MaxQueryTime`); where a
    /// server fails meanwhile the next one is asked for what is left of `block`, and a last time for next to nothing. A request with an
    /// index must have that time: with none at all servers let it wait for 300 s.
    ///
    /// # Errors
    /// See [`CallError`]: the last one.
    pub async fn query<T: Serialize>(
        &self,
        method: &str,
        block: Duration,
        request: impl Fn(Duration) -> T,
    ) -> Result<Reply, CallError> {
        Box::pin(self.tried(method, Times { manner: Manner::Read, block, within: None }, request)).await
    }

    /// As [`Pool::query`], and as a whole within a time. Who just drops a call that takes too long asks the same server the next time.
    ///
    /// # Errors
    /// See [`CallError`]: the last one.
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

    /// Asks for a change. It is repeated only where nothing was done, see [`CallError::nothing_was_done`].
    ///
    /// # Errors
    /// See [`CallError`]: the last one.
    pub async fn write<T: Serialize + ?Sized>(&self, method: &str, request: &T) -> Result<Reply, CallError> {
        let times = Times { manner: Manner::Write, block: Duration::ZERO, within: None };
        Box::pin(self.tried(method, times, |_| request)).await
    }

    /// As [`Pool::write`], and as a whole within a time: for what must be said in time, such as a heartbeat.
    ///
    /// # Errors
    /// See [`CallError`]: the last one.
    pub async fn write_within<T: Serialize + ?Sized>(
        &self,
        method: &str,
        request: &T,
        within: Duration,
    ) -> Result<Reply, CallError> {
        let times = Times { manner: Manner::Write, block: Duration::ZERO, within: Some(within) };
        Box::pin(self.tried(method, times, |_| request)).await
    }

    /// Calls the first server once, and waits so long, dialling included. If the server fails it goes to the end of the list.
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

    /// Begins a streaming call at the first server that is reached, over a connection of its own, as stock clients do.
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

    /// Spreads clients over servers: shuffles them and takes that order from the first one on that answers a ping. To be called
    /// [`rebalance_after`] now and again. Without an answer the order stays.
    pub async fn rebalance(&self) {
        let order = {
            let mut known = self.known();
            let Known { servers, chance, .. } = &mut *known;
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

    /// Asks a server, which need not be a known one, for a sign of life.
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
            // Nobody there: the next one is asked at once, and none twice.
            if let CallError::Unreachable(_) = error {
                unreached.push(server.address);
                if self.next(&unreached).is_none() {
                    return Err(error);
                }
                continue;
            }
            // A connection that has held begins anew: one that is always lost is no reason to dial for minutes.
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

    /// Room for a query that blocks.
    async fn long(&self, wait: Duration) -> Result<SemaphorePermit<'_>, CallError> {
        let permit = tokio::time::timeout(wait, self.long.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or(CallError::NoRoom(wait))
    }

    /// The first server of the list but these.
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
        // Where a connection is lost all calls over it learn so by themselves.
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
        // Who says nothing at all, to nobody, hangs: other calls need not wait for it. In less time a server may have looked for a leader.
        let is_silent = wait >= GRACE && caller.mux().received() == received;
        if is_silent && matches!(answer, Err(CallError::Late(_))) {
            tracing::warn!(address = %server.address, method, "a server is silent; its connection is closed");
            caller.mux().close();
        }
        answer
    }

    /// The connection to a server, where there is one within this time.
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
        // Without a handle of its own: the connection is closed once nobody calls over it.
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
    error.nothing_was_done() || (manner == Manner::Read && error.is_lost())
}

/// Whether another server may do better. Stock clients leave a server after any error; here not after those that all servers would tell,
/// such as one about a token: else who asks for what can't be had drives all other calls from server to server.
fn is_servers(error: &CallError) -> bool {
    use ErrorKind::{NoLeader, NotReady, Region, Transport};
    match error {
        CallError::Server(error) => matches!(error.kind(), NoLeader | NotReady | Region | Transport),
        // Too much was asked for, or something that can't be said.
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
