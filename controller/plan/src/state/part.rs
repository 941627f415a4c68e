//! The state of one part, and whether an operation runs on it.
//!
//! While an operation runs, nothing else is known of its part and no other operation may begin: its slot is taken until
//! it has really ended, even when it is overdue. [`PartState::set`] enforces this, so that callers need not.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use crate::op::Part;

/// The state of one part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PartState {
    /// Nothing is known: the planner inspects it.
    #[default]
    Unknown,
    /// It was up, and something suggests that it no longer is: the planner inspects it, and counts drift if so.
    Suspect(Noticed),
    /// It does not exist: the planner brings it up if it is wanted.
    Absent,
    /// It exists: the planner takes it down if it is not wanted.
    Up,
    /// An operation runs: the planner waits for its outcome.
    Busy {
        /// The operation's number.
        generation: u64,
        /// What it does.
        doing: Doing,
        /// Since when, by `CLOCK_BOOTTIME`.
        since_ns: u64,
        /// Its subject has changed meanwhile: its outcome means only that it has ended.
        overtaken: bool,
        /// It has exceeded its timeout.
        overdue: bool,
    },
    /// The last operation found that something the part needs does not exist yet, perhaps for days. The planner asks
    /// again at `ask_at_ns`, or when an event reports a change. Meanwhile no operation runs, and none holds a permit.
    Pending {
        /// What it waits for, in texts for people: follows "waits for".
        on: String,
        /// Since when it has been pending, by `CLOCK_BOOTTIME`, whatever it has waited for meanwhile.
        since_ns: u64,
        /// When to ask again, by `CLOCK_BOOTTIME`.
        ask_at_ns: u64,
        /// What it has made before.
        last: LastValue,
    },
    /// The last operation failed: the planner tries again at `retry_at_ns`.
    Failed {
        /// What the operation did.
        doing: Doing,
        /// Number of failures in a row.
        attempt: u32,
        /// When to try again, by `CLOCK_BOOTTIME`.
        retry_at_ns: u64,
        /// The reason.
        why: String,
    },
}

/// What a part that waits for something has made before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastValue {
    /// Nothing, or it is gone.
    Gone,
    /// It is there, but no longer the newest.
    Kept,
}

/// What an operation on a part is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Bringing it up.
    Up,
    /// Bringing it up again while it is up.
    Renew,
    /// Taking it down.
    Down,
    /// Inspecting it; with the kind of notice, if it was up before.
    Inspect(Option<Noticed>),
}

/// How drift was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Noticed {
    /// By an event, at once.
    Event,
    /// By a periodic inspection.
    Periodic,
}

impl Noticed {
    /// Its name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Periodic => "look",
        }
    }
}

/// How an operation on a part has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedOperation {
    /// Its outcome is valid. This is what it did.
    Fresh(Doing),
    /// Its subject has changed meanwhile.
    Overtaken,
}

/// The states of all parts that an allocation may have.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Sorted by part: a few dozen at most, looked up many times in each plan.
    known: Vec<(Part, PartState)>,
    unseen: PartState,
    /// Drifted parts, with the time of detection by `CLOCK_BOOTTIME`.
    drifted: BTreeMap<Part, u64>,
    failures: BTreeMap<Part, u32>,
    /// Since when parts have been pending, kept while they are asked again.
    pending: BTreeMap<Part, u64>,
    /// Processes that may have drifted while an operation ran on them: they are inspected after it.
    noticed: BTreeMap<Part, Noticed>,
    /// Parts whose data may have changed while an operation ran on them: they are renewed after it.
    outdated: BTreeSet<Part>,
}

impl PartState {
    /// Whether an operation runs on it.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    /// Marks it as busy with an operation.
    pub fn begin(&mut self, generation: u64, doing: Doing, since_ns: u64) {
        *self = Self::Busy { generation, doing, since_ns, overtaken: false, overdue: false };
    }

    /// Ends the awaited operation: the state is unknown until its outcome is applied. `None` if another operation is
    /// awaited.
    pub fn end(&mut self, ended: u64) -> Option<FinishedOperation> {
        let Self::Busy { generation, doing, overtaken, .. } = *self else { return None };
        if generation != ended {
            return None;
        }
        *self = Self::Unknown;
        Some(if overtaken { FinishedOperation::Overtaken } else { FinishedOperation::Fresh(doing) })
    }

    /// Marks the operation as overdue. It keeps its slot.
    pub fn run_over(&mut self, late: u64) {
        if let Self::Busy { generation, overdue, .. } = self
            && *generation == late
        {
            *overdue = true;
        }
    }

    /// Marks the operation in flight as overtaken: its subject has changed.
    pub fn supersede(&mut self) {
        if let Self::Busy { overtaken, .. } = self {
            *overtaken = true;
        }
    }

    /// Sets the state, unless an operation runs: then its outcome will determine it.
    pub fn set(&mut self, known: Self) {
        if !self.is_busy() {
            *self = known;
        }
    }
}

impl Parts {
    /// The parts of an allocation that never had any: there is nothing to inspect.
    pub fn absent() -> Self {
        Self::all(PartState::Absent)
    }

    /// The parts of an allocation of which this agent process knows nothing yet.
    pub fn unknown() -> Self {
        Self::all(PartState::Unknown)
    }

    /// The state of a part.
    pub fn get(&self, part: Part) -> &PartState {
        self.place(part).ok().and_then(|at| self.known.get(at)).map_or(&self.unseen, |(_, state)| state)
    }

    /// See [`PartState::set`]. Once a part is up or gone, its failures are forgotten.
    pub fn set_part(&mut self, part: Part, known: PartState) {
        if matches!(known, PartState::Up | PartState::Absent) {
            self.failures.remove(&part);
            self.pending.remove(&part);
        }
        self.get_mut(part).set(known);
    }

    /// Something that the part needs has not existed since then, perhaps longer than this agent runs.
    pub fn note_need(&mut self, part: Part, since_ns: u64) {
        let known = self.pending.entry(part).or_insert(since_ns);
        *known = since_ns.min(*known);
    }

    /// Marks the part as pending: something it needs does not exist yet.
    pub fn await_need(&mut self, part: Part, on: String, (now_ns, ask_at_ns): (u64, u64), last: LastValue) {
        let since_ns = *self.pending.entry(part).or_insert(now_ns);
        self.set_part(part, PartState::Pending { on, since_ns, ask_at_ns, last });
    }

    /// See [`PartState::begin`].
    pub fn begin(&mut self, part: Part, generation: u64, doing: Doing, since_ns: u64) {
        self.get_mut(part).begin(generation, doing, since_ns);
    }

    /// See [`PartState::end`].
    pub fn end(&mut self, part: Part, generation: u64) -> Option<FinishedOperation> {
        self.get_mut(part).end(generation)
    }

    /// See [`PartState::run_over`].
    pub fn run_over(&mut self, part: Part, generation: u64) {
        self.get_mut(part).run_over(generation);
    }

    /// See [`PartState::supersede`].
    pub fn supersede_part(&mut self, part: Part) {
        self.get_mut(part).supersede();
    }

    /// Counts one more failed operation on the part. Returns the number of failures in a row.
    pub fn count_failure(&mut self, part: Part) -> u32 {
        let failures = self.failures.entry(part).or_default();
        *failures = failures.saturating_add(1);
        *failures
    }

    /// Records that the part has drifted and is not repaired yet.
    pub fn mark_drifted(&mut self, part: Part, at_ns: u64) {
        self.drifted.entry(part).or_insert(at_ns);
    }

    /// The part is up again. Returns since when it had drifted.
    pub fn clear_drifted(&mut self, part: Part) -> Option<u64> {
        self.drifted.remove(&part)
    }

    /// Has a failed operation on the part retried at once.
    pub fn retry_now(&mut self, part: Part) {
        if matches!(self.get(part), PartState::Failed { .. })
            && let PartState::Failed { retry_at_ns, .. } = self.get_mut(part)
        {
            *retry_at_ns = 0;
        }
    }

    /// Records that the part may have drifted since the operation that runs on it began.
    pub fn note_drift(&mut self, part: Part, noticed: Noticed) {
        self.noticed.entry(part).or_insert(noticed);
    }

    /// Takes the note that the part may have drifted while an operation ran.
    pub fn take_drift_note(&mut self, part: Part) -> Option<Noticed> {
        self.noticed.remove(&part)
    }

    /// Records that the data of the part may have changed since the operation that runs on it began.
    pub fn note_source_change(&mut self, part: Part) {
        self.outdated.insert(part);
    }

    /// Takes the note that the data of the part may have changed while an operation ran.
    pub fn take_source_change(&mut self, part: Part) -> bool {
        self.outdated.remove(&part)
    }

    /// All parts with a known state.
    pub fn iter(&self) -> impl Iterator<Item = (Part, &PartState)> {
        self.known.iter().map(|(part, state)| (*part, state))
    }

    fn all(unseen: PartState) -> Self {
        Self {
            known: Vec::new(),
            unseen,
            drifted: BTreeMap::new(),
            failures: BTreeMap::new(),
            pending: BTreeMap::new(),
            noticed: BTreeMap::new(),
            outdated: BTreeSet::new(),
        }
    }

    fn get_mut(&mut self, part: Part) -> &mut PartState {
        let at = match self.place(part) {
            Ok(at) => at,
            Err(at) => {
                self.known.insert(at, (part, self.unseen.clone()));
                at
            }
        };
        &mut self.known[at].1
    }

    /// The part's index, or where to insert it.
    fn place(&self, part: Part) -> Result<usize, usize> {
        self.known.binary_search_by(|(known, _)| known.cmp(&part))
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self::unknown()
    }
}
