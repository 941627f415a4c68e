//! What all servers of a cluster share: their state, its index, the leader, faults, and the calls received.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use herdlet_nomad::wire::{NodeId, Secret};
use herdlet_rpc::{codec::Value, mux::Mux};
use tokio::{sync::watch, time::Instant};

use crate::{
    faults::{Fault, Faults},
    fields::Fields,
    state::State,
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
    pub(crate) faults: Mutex<Faults>,
    seen: Mutex<Vec<RecordedCall>>,
    is_quiet: AtomicBool,
}

impl Inner {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
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
        }
    }

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

    pub(crate) fn seen(&self, method: &str) -> Vec<RecordedCall> {
        lock(&self.seen).iter().filter(|seen| seen.method == method).cloned().collect()
    }

    pub(crate) fn forget_calls(&self) {
        self.is_quiet.store(true, Ordering::Relaxed);
        lock(&self.seen).clear();
    }
}

/// The leader checks nodes twice a second, as long as the cluster exists.
pub(crate) async fn miss_heartbeats(cluster: Weak<Inner>) {
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
