//! The driver's notes about its attempts, which survive an agent restart.
//!
//! In: claims, fences and exits of attempts. Out: entries. The storage of the entries decides which attempts start: a file for
//! each attempt ([`Store`](super::store::Store)); in tests also names in a simulated container engine, and tasks of a simulated
//! plugin.

use std::{collections::BTreeSet, io};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api_types::{UnixNanos, manifest::driver::MockConfig, task::ExitResult};
use herdlet_driver::{
    AttemptId, Claim, Device, DriverError, DriverResult, Handle, Ledger, Mount, NetworkSpace, TaskConfig,
};
use serde::{Deserialize, Serialize};

/// The note about an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) started_at: UnixNanos,
    /// Whether it was cancelled before it started.
    pub(super) fenced: bool,
    pub(super) config: MockConfig,
    pub(super) exit: Option<ExitResult>,
    #[serde(default)]
    pub(super) given: Given,
}

/// Resources that a driver with isolation would set up for a task. This driver only stores them; the command `showtask` prints
/// them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Given {
    pub(super) mounts: Vec<Mount>,
    pub(super) devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkSpace>,
}

/// Stores entries. The storage outlives the driver.
pub(super) trait Notes: Send + Sync {
    /// Stores an entry if there is none. Returns [`Claim::Free`] if there was none.
    fn claim(&self, id: &AttemptId, entry: &Entry) -> io::Result<Claim<Entry>>;

    fn read(&self, id: &AttemptId) -> io::Result<Option<Entry>>;

    fn set_exit(&self, id: &AttemptId, exit: &ExitResult) -> io::Result<()>;

    fn list(&self) -> io::Result<Vec<AttemptId>>;

    fn remove(&self, id: &AttemptId) -> io::Result<()>;

    /// The handle that is needed to recover an attempt.
    fn handle(&self, _: &AttemptId) -> Option<Handle> {
        None
    }

    /// Accepts the handle of an attempt to recover.
    fn recall(&self, _: &AttemptId, _: &Handle) {}

    fn set_earlier(&self, _: &BTreeSet<AttemptId>) {}

    /// Whether an attempt without an entry may have started.
    fn may_have_begun(&self, _: &AttemptId) -> bool {
        false
    }
}

impl Entry {
    pub(super) fn running(started_at: UnixNanos, config: MockConfig, given: Given) -> Self {
        Self { started_at, fenced: false, config, exit: None, given }
    }

    pub(super) fn fence() -> Self {
        let (config, given) = (MockConfig::default(), Given::default());
        Self { started_at: UnixNanos(0), fenced: true, config, exit: None, given }
    }

    pub(super) fn claim(self) -> Claim<Self> {
        if self.fenced { Claim::Fenced } else { Claim::Taken(self) }
    }
}

impl Given {
    pub(super) fn of(task: &TaskConfig) -> Self {
        Self { mounts: task.mounts.clone(), devices: task.devices.clone(), network: task.network.clone() }
    }
}

/// Notes of any kind, as a ledger.
pub(super) struct Kept(pub(super) Box<dyn Notes>);

impl std::ops::Deref for Kept {
    type Target = dyn Notes;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Ledger for Kept {
    type Entry = Entry;

    fn find<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Entry>>> {
        let found = self.read(id).map(|entry| entry.map_or(Claim::Free, Entry::claim));
        async { found.map_err(DriverError::retry) }.boxed()
    }

    fn fence<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Entry>>> {
        let found = self.claim(id, &Entry::fence());
        async { found.map_err(DriverError::retry) }.boxed()
    }

    fn may_have_begun(&self, id: &AttemptId) -> bool {
        self.0.may_have_begun(id)
    }
}
