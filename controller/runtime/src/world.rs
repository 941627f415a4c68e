//! The trait that a user of the runtime implements ([`World`]) and the result of one turn ([`Turn`]).
//!
//! A world is synchronous: it receives the time as an argument, does no IO and never waits, so the same world runs in
//! the agent, in a simulator and in a test. The runtime must not know the meaning of keys, events and actions.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display};

use crate::clock::Now;
use crate::metrics::Counts;
use crate::queue::Wake;

/// The number of a commit; it grows by at least one with each commit, also across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitIndex(pub u64);

impl Display for CommitIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

/// Desired and observed state, and the decisions about them.
pub trait World: Send + 'static {
    /// Identifies an object that is reconciled by itself.
    type Key: Ord + Clone + Debug + Send + 'static;
    /// Something that happened: a change of desired state, an outcome, an exit, a request.
    type Event: Send + 'static;
    /// Something to do.
    type Action: Action;
    /// Something to store before the actions start.
    type Record: Send + 'static;
    /// Something to publish.
    type Status: Send + 'static;
    /// An answer that waits for the commit of its turn; `()` if there are none.
    type Reply: Reply;

    /// Called once, before the first turn, to mark the restored keys.
    fn begin(&mut self, now: Now, dirty: &mut Dirty<Self::Key>) {
        let _ = (now, dirty);
    }

    /// The key of an event, if it has one. Called before [`World::apply`], so that a panic there can quarantine it.
    fn key_of(&self, event: &Self::Event) -> Option<Self::Key> {
        let _ = event;
        None
    }

    /// Changes the state by one event and marks the keys whose decisions may change. Direct results of an event (the
    /// record of an accepted request, its reply) go into `turn`.
    fn apply(&mut self, now: Now, event: Self::Event, dirty: &mut Dirty<Self::Key>, turn: &mut Turn<Self>);

    /// Decides about one key, adding to `turn`. Called at most once per key and turn, in key order. The key's wakes
    /// from earlier turns are cancelled before the call, so each call must request every wake that the key needs.
    fn reconcile(&mut self, now: Now, key: &Self::Key, turn: &mut Turn<Self>);

    /// `key` panicked with `message` and is not reconciled again until [`Dirty::release`]. Everything that the
    /// panicking call had added to the turn is discarded; this call may add a record and a status.
    fn quarantined(&mut self, now: Now, key: &Self::Key, message: &str, turn: &mut Turn<Self>);
}

/// When an action may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// At once, whatever the state of the store: an inspection that changes nothing.
    AtOnce,
    /// After the commit of its turn, or after [`crate::Settings::stop_grace`] without one, so that a hung disk never
    /// prevents a stop. It may then overtake a start of an earlier turn that still waits; the stop itself must win
    /// such a race (by a tombstone or a generation).
    Stop,
    /// Only after the commit of its turn.
    AfterCommit,
}

/// The property of an action that the committer needs.
pub trait Action: Send + 'static {
    /// When the action may be started.
    fn release(&self) -> Release;
}

/// An answer to a caller that waits for durability.
pub trait Reply: Send + 'static {
    /// Sends the answer: the turn is durable at `index`. Must not block. If a reply is dropped instead, the turn was
    /// not committed in time (the agent went down), and the receiver should report that.
    fn release(self, index: CommitIndex);

    /// When the reply may be sent. Use [`Release::AtOnce`] for a reply that promises nothing: a failing store must
    /// not delay it, and it gets the index of an earlier commit. Any other value waits for the commit.
    fn release_when(&self) -> Release {
        Release::AfterCommit
    }
}

impl Reply for () {
    fn release(self, _: CommitIndex) {}
}

impl Reply for tokio::sync::oneshot::Sender<CommitIndex> {
    fn release(self, index: CommitIndex) {
        // The caller may have gone away.
        let _ = self.send(index);
    }
}

impl Reply for Box<dyn FnOnce(CommitIndex) + Send> {
    fn release(self, index: CommitIndex) {
        self(index);
    }
}

/// The keys to reconcile in this turn.
#[derive(Debug)]
pub struct Dirty<K> {
    pub(crate) keys: BTreeSet<K>,
    pub(crate) holds: Vec<(K, Hold)>,
}

/// A change to a key's quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Take,
    Release,
}

impl<K: Ord> Default for Dirty<K> {
    fn default() -> Self {
        Self { keys: BTreeSet::new(), holds: Vec::new() }
    }
}

impl<K: Ord + Clone> Dirty<K> {
    /// Marks `key` for this turn; marking it again changes nothing.
    pub fn mark(&mut self, key: K) {
        self.keys.insert(key);
    }

    /// Takes `key` out of quarantine and marks it, once the cause of its panic is repaired.
    pub fn release(&mut self, key: K) {
        self.readmit(key.clone());
        self.mark(key);
    }

    /// Takes `key` out of quarantine, so that it may be marked again.
    pub fn readmit(&mut self, key: K) {
        self.holds.push((key, Hold::Release));
    }

    /// Puts `key` into quarantine, as restored from an earlier run.
    pub fn quarantine(&mut self, key: K) {
        self.holds.push((key, Hold::Take));
    }

    /// The marked keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.keys.iter()
    }
}

/// The decisions of one turn.
pub struct Turn<W: World + ?Sized> {
    /// Actions to start in this order, each when [`Action::release`] allows.
    pub actions: Vec<W::Action>,
    /// Records to make durable, in one transaction.
    pub records: Vec<W::Record>,
    /// Statuses to publish once the records are durable.
    pub statuses: Vec<W::Status>,
    /// Replies to send once the records are durable.
    pub replies: Vec<W::Reply>,
    /// Requests to reconcile keys later.
    pub wakes: Vec<Wake<W::Key>>,
    /// Further keys to reconcile because of these decisions: in this turn if they were not reconciled yet, otherwise
    /// in the next.
    pub dirty: Vec<W::Key>,
    /// The counts of the turn.
    pub counts: Counts,
}

impl<W: World + ?Sized> Default for Turn<W> {
    fn default() -> Self {
        Self {
            actions: Vec::new(),
            records: Vec::new(),
            statuses: Vec::new(),
            replies: Vec::new(),
            wakes: Vec::new(),
            dirty: Vec::new(),
            counts: Counts::default(),
        }
    }
}

impl<W: World + ?Sized> Turn<W> {
    /// Requests that `key` be reconciled again at `at_boot_ns`.
    pub fn wake(&mut self, key: W::Key, at_boot_ns: u64, why: &'static str) {
        self.wakes.push(Wake { key, at_boot_ns, why });
    }

    /// Whether there is nothing to store, start, publish or answer.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.actions.is_empty()
            && self.records.is_empty()
            && self.statuses.is_empty()
            && self.replies.is_empty()
    }

    pub(crate) fn extent(&self) -> [usize; 6] {
        [
            self.actions.len(),
            self.records.len(),
            self.statuses.len(),
            self.replies.len(),
            self.wakes.len(),
            self.dirty.len(),
        ]
    }

    /// Removes everything added since [`Turn::extent`], so that no partial decision remains.
    pub(crate) fn roll_back(&mut self, extent: [usize; 6]) {
        let [actions, records, statuses, replies, wakes, dirty] = extent;
        self.actions.truncate(actions);
        self.records.truncate(records);
        self.statuses.truncate(statuses);
        self.replies.truncate(replies);
        self.wakes.truncate(wakes);
        self.dirty.truncate(dirty);
    }
}
