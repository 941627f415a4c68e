//! Several servers over one state, and the controls of a test.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, DesiredStatus, NodeId, NodeStatus, Secret};
use herdlet_rpc::{
    codec::{self, Value},
    mux::Mux,
};
use tokio::{sync::watch, time::Instant};

use crate::{
    faults::{Fault, Faults},
    fields::Fields,
    schedule::Key,
    server::Server,
    state::{State, job},
};

/// The kind of servers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Their number.
    pub servers: usize,
    /// Nodes get a heartbeat TTL between this time and twice as much.
    pub ttl_min: Duration,
    /// How late heartbeats may arrive.
    pub grace: Duration,
    /// Allocations outlive the loss of contact with their node (`disconnect`).
    pub outlive: bool,
    /// Servers require tokens as from 1.11 on; otherwise as up to 1.4.
    pub tokens: bool,
    /// Nodes and allocations get identities signed by servers, as from 1.11 on.
    pub signs: bool,
    /// How long requested identities are valid; zero: forever.
    pub identity_ttl: Duration,
    /// Only nodes that present this may join; empty: all.
    pub introduction: Secret,
    /// The fields of answers.
    pub fields: Fields,
    /// How long updates are batched.
    pub gather: Duration,
    /// How long a call waits for a leader.
    pub hold: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            servers: 1,
            ttl_min: seconds(10),
            grace: seconds(10),
            outlive: false,
            tokens: false,
            signs: false,
            identity_ttl: Duration::ZERO,
            fields: Fields::default(),
            introduction: Secret::default(),
            gather: Duration::from_millis(50),
            hold: seconds(5),
        }
    }
}

/// How long a new leader waits for nodes.
const FAILOVER: Duration = Duration::from_secs(300);

/// A received call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCall {
    /// When.
    pub at: Instant,
    /// To which server.
    pub server: usize,
    /// Its method.
    pub method: String,
}

/// The servers. Clones share them.
#[derive(Debug, Clone)]
pub struct Cluster(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) state: Mutex<State>,
    /// The index of the state, for those that wait for a change.
    pub(crate) index: watch::Sender<u64>,
    pub(crate) leader: watch::Sender<Option<usize>>,
    pub(crate) addresses: Mutex<Vec<String>>,
    pub(crate) frozen: Mutex<BTreeMap<usize, State>>,
    pub(crate) down: watch::Sender<Vec<bool>>,
    pub(crate) hung: watch::Sender<Vec<bool>>,
    /// The connection over which each node can be called.
    pub(crate) connections: Mutex<BTreeMap<NodeId, Mux>>,
    /// Answers to methods that are not implemented here.
    pub(crate) answers: Mutex<BTreeMap<String, Vec<u8>>>,
    pub(crate) asked: Mutex<BTreeMap<String, Vec<Value>>>,
    faults: Mutex<Faults>,
    seen: Mutex<Vec<RecordedCall>>,
    is_quiet: AtomicBool,
}

impl Cluster {
    /// Starts them on the current runtime. The first one leads.
    #[must_use]
    pub fn start(settings: Settings) -> Self {
        let inner = Arc::new(Inner {
            addresses: Mutex::new((0..settings.servers).map(|server| format!("s{server}:4647")).collect()),
            down: watch::Sender::new(vec![false; settings.servers]),
            hung: watch::Sender::new(vec![false; settings.servers]),
            state: Mutex::new(State::new(settings.signs)),
            settings,
            index: watch::Sender::new(1),
            leader: watch::Sender::new(Some(0)),
            frozen: Mutex::default(),
            connections: Mutex::default(),
            answers: Mutex::default(),
            asked: Mutex::default(),
            faults: Mutex::default(),
            seen: Mutex::default(),
            is_quiet: AtomicBool::new(false),
        });
        tokio::spawn(miss_heartbeats(Arc::downgrade(&inner)));
        Self(inner)
    }

    /// One of the servers, to call it.
    #[must_use]
    pub fn server(&self, number: usize) -> Arc<Server> {
        Arc::new(Server { number, cluster: Arc::clone(&self.0) })
    }

    /// Sets the addresses that the servers report.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        *lock(&self.0.addresses) = addresses;
    }

    /// Makes another server the leader, or none. A new leader waits for all nodes again.
    pub fn lead(&self, server: Option<usize>) {
        if server.is_some() {
            self.0.write(|state| state.wait_for_nodes(Instant::now() + FAILOVER));
        }
        self.0.leader.send_replace(server);
    }

    /// A server stops following the state and keeps its present copy.
    pub fn freeze(&self, server: usize) {
        let state = lock(&self.0.state).clone();
        lock(&self.0.frozen).insert(server, state);
    }

    /// The server follows the state again.
    pub fn thaw(&self, server: usize) {
        lock(&self.0.frozen).remove(&server);
        self.0.index.send_modify(|_| {});
    }

    /// A server becomes unreachable, or reachable again. Connections to it break.
    pub fn set_down(&self, server: usize, is_down: bool) {
        self.0.down.send_modify(|down| down[server] = is_down);
    }

    /// A server takes calls and answers none, or answers again, including the calls that wait.
    pub fn set_hung(&self, server: usize, is_hung: bool) {
        self.0.hung.send_modify(|hung| hung[server] = is_hung);
    }

    /// The next `times` calls of a method fail.
    pub fn fault(&self, method: &str, times: usize, fault: &Fault) {
        lock(&self.0.faults).add(method, times, fault);
    }

    /// Sets the answer to all calls of a method, for `ACL.ResolveToken`, `ACL.GetPolicies`, `CSIVolume.Claim` and such.
    ///
    /// # Errors
    /// When it can't be encoded.
    pub fn set_answer(&self, method: &str, reply: &(impl serde::Serialize + ?Sized)) -> Result<(), String> {
        let bytes = codec::encode(reply).map_err(|error| format!("failed to {error}"))?;
        lock(&self.0.answers).insert(method.to_owned(), bytes);
        Ok(())
    }

    /// The arguments of calls that are answered this way, and of those of `ServiceRegistration`.
    #[must_use]
    pub fn requests(&self, method: &str) -> Vec<Value> {
        lock(&self.0.asked).get(method).cloned().unwrap_or_default()
    }

    /// Removes all faults.
    pub fn no_faults(&self) {
        lock(&self.0.faults).clear();
    }

    /// Places an allocation of a job with this id on a node.
    #[must_use]
    pub fn place(&self, node: &NodeId, job_id: &str) -> AllocId {
        self.0.write(|state| state.place(node, &job(job_id), "group"))
    }

    /// Places many of them, in one change.
    #[must_use]
    pub fn place_many(&self, node: &NodeId, job_id: &str, count: usize) -> Vec<AllocId> {
        let job = job(job_id);
        self.0.write(|state| (0..count).map(|_| state.place(node, &job, "group")).collect())
    }

    /// Submits a job, as `nomad job run` does: JSON, or a recorded value.
    ///
    /// # Errors
    /// When it is not a job.
    pub fn submit(&self, job: &(impl serde::Serialize + ?Sized)) -> Result<Key, String> {
        self.0.write(|state| state.submit(job))
    }

    /// Stops a job. With `purge` it is removed.
    pub fn stop_job(&self, key: &Key, purge: bool) {
        self.0.write(|state| state.stop_job(key, purge));
    }

    /// Allocations of a job, in the order of their creation.
    #[must_use]
    pub fn allocs_of(&self, key: &Key) -> Vec<Allocation> {
        let is_of = |alloc: &&Allocation| alloc.job_id == key.1 && alloc.namespace == key.0;
        let mut allocs: Vec<_> = self.read(|state| state.allocs.values().filter(is_of).cloned().collect());
        allocs.sort_by_key(|alloc| alloc.create_index);
        allocs
    }

    /// The status of a job's last deployment; empty if there is none.
    #[must_use]
    pub fn deployment(&self, key: &Key) -> String {
        self.read(|state| state.deployments.get(key).map(|it| it.status.clone()).unwrap_or_default())
    }

    /// Stops an allocation.
    pub fn stop(&self, id: &AllocId) {
        self.0.write(|state| state.change(id, |alloc| alloc.desired_status = DesiredStatus::Stop));
    }

    /// Changes the state in any way.
    pub fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.0.write(change)
    }

    /// Reads the state.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&lock(&self.0.state))
    }

    /// The status of a node; `None` if it is unknown.
    #[must_use]
    pub fn status(&self, node: &NodeId) -> Option<NodeStatus> {
        self.read(|state| state.nodes.get(node).map(|stored| stored.node.status.clone()))
    }

    /// An allocation as it is stored.
    #[must_use]
    pub fn alloc(&self, id: &AllocId) -> Option<Allocation> {
        self.read(|state| state.allocs.get(id).cloned())
    }

    /// The client status of an allocation, as far as servers know.
    #[must_use]
    pub fn client_status(&self, id: &AllocId) -> ClientStatus {
        self.alloc(id).map(|alloc| alloc.client_status).unwrap_or_default()
    }

    /// All accepted reports on an allocation.
    #[must_use]
    pub fn reports(&self, id: &AllocId) -> Vec<ClientStatus> {
        self.read(|state| state.reports.get(id).cloned().unwrap_or_default())
    }

    /// Waits until the state satisfies `wanted`.
    pub async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut index = self.0.index.subscribe();
        while !wanted(&lock(&self.0.state)) {
            if index.changed().await.is_err() {
                break;
            }
        }
    }

    /// Received calls of a method, including failed ones.
    #[must_use]
    pub fn seen(&self, method: &str) -> Vec<RecordedCall> {
        lock(&self.0.seen).iter().filter(|seen| seen.method == method).cloned().collect()
    }

    /// Records no more calls from now on.
    pub fn forget_calls(&self) {
        self.0.is_quiet.store(true, Ordering::Relaxed);
        lock(&self.0.seen).clear();
    }
}

impl Inner {
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (done, index) = {
            let mut state = lock(&self.state);
            let before = state.index;
            let done = change(&mut state);
            // Without a leader there are no decisions, and most heartbeats change nothing.
            if state.index != before && self.leader.borrow().is_some() {
                state.evaluate(Instant::now());
            }
            (done, state.index)
        };
        let set = |known: &mut u64| std::mem::replace(known, index) != index;
        self.index.send_if_modified(set);
        done
    }

    pub(crate) fn see(&self, server: usize, method: &str) -> Option<Fault> {
        if !self.is_quiet.load(Ordering::Relaxed) {
            lock(&self.seen).push(RecordedCall { at: Instant::now(), server, method: method.to_owned() });
        }
        lock(&self.faults).next(method)
    }
}

/// The leader checks nodes twice a second, as long as the cluster exists.
async fn miss_heartbeats(cluster: Weak<Inner>) {
    while let Some(cluster) = cluster.upgrade() {
        let is_led = cluster.leader.borrow().is_some();
        let is_late = {
            let mut state = lock(&cluster.state);
            let before = state.index;
            if is_led {
                state.expire(Instant::now(), cluster.settings.outlive);
                state.evaluate(Instant::now());
            }
            (state.index != before).then_some(state.index)
        };
        if let Some(index) = is_late {
            cluster.index.send_replace(index);
        }
        drop(cluster);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
