//! What takes the kernel tens of milliseconds, after the calls that need it have returned: connections are forgotten, and interfaces
//! of networks that were taken down are awaited.
//!
//! In: ports that were just mapped; networks that were taken down. Out: a thread that does this for all of them at once, and ends when
//! nothing is left. The address of a network that was taken down is free only afterwards, so an agent that dies meanwhile leaves a
//! claim, which the next one finds.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    net::IpAddr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use herdlet_base::error::in_full;

use super::{NetworkError, open_netfilter, open_socket};
use crate::{
    address_pool::AddressPool,
    conntrack,
    link::{self, InterfaceName, Link},
};

/// How long the thread collects work: the kernel needs about 10 ms for each list of connections, however few there are.
const GATHERING: Duration = Duration::from_millis(50);

/// How long the kernel gets to remove interfaces with their namespace. A process may keep the namespace, so they are removed then.
const INTERFACES_LAST: Duration = Duration::from_millis(200);
const INTERFACE_PERIOD: Duration = Duration::from_millis(20);

/// Longest wait for the thread; far longer than it can take.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Ports of the machine, at one address or at all.
pub(super) type MachinePorts = BTreeSet<(Option<IpAddr>, u16)>;

/// A network that was taken down.
#[derive(Debug, Clone)]
pub(super) struct RemovedNetwork {
    pub(super) addresses: Vec<IpAddr>,
    /// Its interface on the machine, and the text by which that is recognized.
    pub(super) link: InterfaceName,
    pub(super) alias: String,
}

/// The thread's work.
#[derive(Debug)]
pub(super) struct Cleanup(Arc<CleanupQueue>);

#[derive(Debug)]
struct CleanupQueue {
    pool: Arc<AddressPool>,
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    /// Mapped ports whose connections are to be forgotten.
    mapped: MachinePorts,
    /// By owner; also those that the thread is at.
    removed: BTreeMap<String, RemovedNetwork>,
    is_running: bool,
}

impl Cleanup {
    pub(super) fn new(pool: Arc<AddressPool>) -> Self {
        Self(Arc::new(CleanupQueue { pool, work: Mutex::default(), changed: Condvar::new() }))
    }

    /// Forgets connections by UDP to ports that led nowhere when they began, so that clients that send on reach the allocation.
    pub(super) fn forget_untranslated(&self, mut ports: MachinePorts) {
        if !ports.is_empty() {
            self.add(|work| work.mapped.append(&mut ports));
        }
    }

    /// Completes the removal of a network whose namespace has no file any more.
    pub(super) fn complete(&self, owner: &str, removed: RemovedNetwork) {
        self.add(|work| _ = work.removed.insert(owner.to_owned(), removed));
    }

    /// Whether the removal of its network is not complete.
    pub(super) fn has(&self, owner: &str) -> bool {
        self.0.lock().removed.contains_key(owner)
    }

    /// Waits until the removal of its network is complete.
    pub(super) fn wait_for(&self, owner: &str) -> Result<(), NetworkError> {
        self.wait_while(|work| work.removed.contains_key(owner))
    }

    /// Waits until nothing is left to do.
    pub(super) fn finish(&self) -> Result<(), NetworkError> {
        self.wait_while(|work| work.is_running)
    }

    fn wait_while(&self, is_busy: impl Fn(&Work) -> bool) -> Result<(), NetworkError> {
        let (work, waited) = self
            .0
            .changed
            .wait_timeout_while(self.0.lock(), WAIT_MAX, |work| is_busy(work))
            .unwrap_or_else(PoisonError::into_inner);
        drop(work);
        match waited.timed_out() {
            false => Ok(()),
            true => Err(NetworkError::Io {
                what: "complete the removal of networks",
                source: io::ErrorKind::TimedOut.into(),
            }),
        }
    }

    fn add(&self, add: impl FnOnce(&mut Work)) {
        let mut work = self.0.lock();
        add(&mut work);
        if mem::replace(&mut work.is_running, true) {
            return;
        }
        drop(work);
        let shared = Arc::clone(&self.0);
        // In the network namespace of this thread.
        let started = thread::Builder::new().name("networks".to_owned()).spawn(move || shared.run());
        if let Err(error) = started {
            tracing::debug!(%error, "failed to start a thread: networks are cleaned up meanwhile");
            self.0.run();
        }
    }
}

/// On the thread of this module, or instead of it.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing waits for this thread but callers that want its work done"
)]
fn pause(duration: Duration) {
    thread::sleep(duration);
}

impl CleanupQueue {
    fn run(&self) {
        loop {
            pause(GATHERING);
            let mut work = self.lock();
            let (mapped, removed) = (mem::take(&mut work.mapped), work.removed.clone());
            if mapped.is_empty() && removed.is_empty() {
                work.is_running = false;
                self.changed.notify_all();
                return;
            }
            drop(work);
            if let Err(error) = forget(&mapped, &removed) {
                tracing::debug!(error = in_full(&error), "failed to forget connections to networks");
            }
            let gone = remove_links(&removed);
            if let Err(error) = &gone {
                tracing::warn!(
                    error = in_full(error),
                    "failed to remove interfaces of networks; their addresses stay in use"
                );
            }
            for owner in removed.keys() {
                if gone.is_ok() {
                    self.release(owner);
                }
                self.lock().removed.remove(owner);
            }
            self.changed.notify_all();
        }
    }

    fn release(&self, owner: &str) {
        if let Err(error) = self.pool.release(owner) {
            tracing::warn!(owner, error = in_full(&error), "failed to free the address of a network");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets connections, so that clients reach whatever the ports lead to next. Without that they pause for a while.
fn forget(mapped: &MachinePorts, removed: &BTreeMap<String, RemovedNetwork>) -> Result<(), NetworkError> {
    let mut socket = open_netfilter()?;
    if !mapped.is_empty() {
        conntrack::forget_untranslated(&mut socket, mapped)?;
    }
    let addresses = removed.values().flat_map(|removed| removed.addresses.iter().copied()).collect();
    Ok(conntrack::forget(&mut socket, &addresses)?)
}

/// Waits until the kernel has removed the interfaces with their namespaces, and removes those that are left: a process in the
/// namespace would share its address with the next owner.
fn remove_links(removed: &BTreeMap<String, RemovedNetwork>) -> Result<(), NetworkError> {
    if removed.is_empty() {
        return Ok(());
    }
    let mut socket = open_socket()?;
    let aliases: BTreeMap<&str, &str> =
        removed.values().map(|removed| (removed.link.as_str(), removed.alias.as_str())).collect();
    let is_ours = |found: &Link| {
        let alias = aliases.get(found.name.as_str());
        found.kind == "veth" && alias.is_some_and(|alias| found.alias.is_empty() || found.alias == *alias)
    };
    let until = Instant::now() + INTERFACES_LAST;
    loop {
        let left: Vec<Link> = link::list(&mut socket)?.into_iter().filter(is_ours).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let removed = left.iter().filter_map(|found| InterfaceName::new(&found.name).ok());
            return removed.into_iter().try_for_each(|name| Ok(link::delete(&mut socket, &name)?));
        }
        pause(INTERFACE_PERIOD);
    }
}
