//! Several servers over one state, and the controls of a test.

use std::{sync::Arc, time::Duration};

use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, DesiredStatus, NodeId, NodeStatus};
use herdlet_rpc::codec::{self, Value};
use tokio::time::Instant;

use crate::{
    faults::Fault,
    inner::{self, Inner, RecordedCall, Settings, lock},
    server::Server,
    state::{Key, State, job},
};

/// How long a new leader waits for nodes.
const FAILOVER: Duration = Duration::from_secs(300);

/// The servers. Clones share them.
#[derive(Debug, Clone)]
pub struct Cluster(pub(crate) Arc<Inner>);

impl Cluster {
    /// Starts them on the current runtime. The first one leads.
    #[must_use]
    pub fn start(settings: Settings) -> Self {
        let inner = Arc::new(Inner::new(settings));
        tokio::spawn(inner::miss_heartbeats(Arc::downgrade(&inner)));
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
        self.0.seen(method)
    }

    /// Records no more calls from now on.
    pub fn forget_calls(&self) {
        self.0.forget_calls();
    }
}
