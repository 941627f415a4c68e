//! What a user of the runtime implements ([`World`]) and what one turn of it yields ([`Turn`]).
//!
//! A world is synchronous: it gets the time as an argument, does no IO and waits for nothing, so the same world runs in
//! the agent, in a simulator and in a test. The runtime must not know what keys, events and actions mean.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display};

use crate::clock::Now;
use crate::metrics::Counts;
use crate::queue::Wake;

/// The number of a commit; grows by at least one with each, over restarts too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitIndex(pub u64);

impl Display for CommitIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

/// Desired and observed state, and the decisions about them.
pub trait World: Send + 'static {
    /// What is reconciled, one at a time.
    type Key: Ord + Clone + Debug + Send + 'static;
    /// Something that happened: desired state, an outcome, an exit, a request.
    type Event: Send + 'static;
    /// Something to do.
    type Action: Action;
    /// Something to remember before it is done.
    type Record: Send + 'static;
    /// Something to tell.
    type Status: Send + 'static;
    /// An answer that waits for the commit of the turn it belongs to; `()` when there are none.
    type Reply: Reply;

    /// Called once, before the first turn: marks what was restored.
    fn begin(&mut self, now: Now, dirty: &mut Dirty<Self::Key>) {
        let _ = (now, dirty);
    }

    /// The key an event is about, if it is one. Asked before [`World::apply`], so that a panic there can quarantine it.
    fn key_of(&self, event: &Self::Event) -> Option<Self::Key> {
        let _ = event;
        None
    }

    /// Changes the state by one event and marks the keys that may now decide differently. What an event yields of its
    /// own accord (a record of an accepted request, its reply) goes into `turn`.
    fn apply(&mut self, now: Now, event: Self::Event, dirty: &mut Dirty<Self::Key>, turn: &mut Turn<Self>);

    /// Decides about one key, adding to `turn`. Called at most once per key and turn, in the order of keys. The wakes of
    /// `key` from earlier turns are taken back before: a reconcile states everything the key waits for.
    fn reconcile(&mut self, now: Now, key: &Self::Key, turn: &mut Turn<Self>);

    /// `key` panicked with `message` and is not reconciled any more until [`Dirty::release`]. What the panicking call
    /// had added to the turn is gone; this one may add a record and a status.
    fn quarantined(&mut self, now: Now, key: &Self::Key, message: &str, turn: &mut Turn<Self>);
}

/// When an action may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// At once, whatever the state of the store: a look which changes nothing.
    AtOnce,
    /// After the commit of its turn, or after [`crate::Settings::stop_grace`] without one, so that a hung disk never
    /// keeps something from being stopped. It may then overtake a start of an earlier turn that still waits: stops
    /// must win such a race by themselves (a tombstone, a generation).
    Stop,
    /// Only after the commit of its turn.
    AfterCommit,
}

/// What the committer needs to know of an action.
pub trait Action: Send + 'static {
    /// When it may be started.
    fn release(&self) -> Release;
}

/// An answer to someone who waits for durability.
pub trait Reply: Send + 'static {
    /// The turn is durable at `index`. Must not block. A reply that is dropped instead was not committed in time (the
    /// agent went down); its receiver should say so.
    fn release(self, index: CommitIndex);

    /// When it may be given: [`Release::AtOnce`] for one that promises nothing, which a store that can't write must not
    /// hold back; it then gets the index of an earlier commit. Any other value waits for the commit.
    fn release_when(&self) -> Release {
        Release::AfterCommit
    }
}

impl Reply for () {
    fn release(self, _: CommitIndex) {}
}

impl Reply for tokio::sync::oneshot::Sender<CommitIndex> {
    fn release(self, index: CommitIndex) {
        // Whoever asked may have gone away.
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

/// A change of a key's quarantine.
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
    /// `key` is to be reconciled in this turn; marking it again changes nothing.
    pub fn mark(&mut self, key: K) {
        self.keys.insert(key);
    }

    /// Takes `key` out of quarantine and marks it: somebody has repaired what made it panic.
    pub fn release(&mut self, key: K) {
        self.readmit(key.clone());
        self.mark(key);
    }

    /// Takes `key` out of quarantine: it may be marked again.
    pub fn readmit(&mut self, key: K) {
        self.holds.push((key, Hold::Release));
    }

    /// Puts `key` into quarantine, as remembered from an earlier life.
    pub fn quarantine(&mut self, key: K) {
        self.holds.push((key, Hold::Take));
    }

    /// The marked keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.keys.iter()
    }
}

/// Everything one turn decided.
pub struct Turn<W: World + ?Sized> {
    /// What to start, released as [`Action::release`] says, in this order.
    pub actions: Vec<W::Action>,
    /// What to make durable, in one transaction.
    pub records: Vec<W::Record>,
    /// What to tell once the records are durable.
    pub statuses: Vec<W::Status>,
    /// Who to answer once the records are durable.
    pub replies: Vec<W::Reply>,
    /// When to look again.
    pub wakes: Vec<Wake<W::Key>>,
    /// Further keys to reconcile because of what was decided here: in this turn if they were not yet, else in the next.
    pub dirty: Vec<W::Key>,
    /// What the turn was made of.
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
    /// Asks for `key` to be reconciled again at `at_boot_ns`.
    pub fn wake(&mut self, key: W::Key, at_boot_ns: u64, why: &'static str) {
        self.wakes.push(Wake { key, at_boot_ns, why });
    }

    /// Whether nothing is to be stored, done, told or answered.
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

    /// Takes back what was added since [`Turn::extent`]: half a decision is none.
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
