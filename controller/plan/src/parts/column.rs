//! The columns of the tables: what can be said of a part.

use herdlet_api_types::{Duration, task::TaskEventKind};

use crate::{
    op::{Part, TaskIndex, TaskPart},
    state::Doing,
};

/// What holds for operations on a part, an allocation's or a task's.
#[derive(Debug, Clone, Copy)]
pub struct PartRow {
    /// For metrics and events; never renamed.
    pub name: &'static str,
    /// What it consists of.
    pub medium: Medium,
    /// What is done with it after a start of the agent.
    pub trust: Trust,
    /// Which directory's drift makes it suspect.
    pub inside: Inside,
    /// What its drift means for a task that runs.
    pub while_running: WhileRunning,
    /// Whose facts it reads.
    pub reads: &'static [Read],
    /// What is stored of it.
    pub memory: Memory,
    /// When it is taken down.
    pub down: Down,
    /// Whether bringing it up is taken back.
    pub withdraw: Withdraw,
    /// What follows where a look does not find it.
    pub if_lost: IfLost,
    /// What follows where it can never be brought up.
    pub if_fatal: IfFatal,
    /// After which time an operation on it is overdue.
    pub timeout: Timeout,
    /// How people speak of it.
    pub words: Words,
}

/// Whether a specification asks for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It does.
    Needed,
    /// It does not.
    Unneeded,
}

impl Need {
    pub(crate) fn when(needed: bool) -> Self {
        if needed { Self::Needed } else { Self::Unneeded }
    }
}

/// What a part consists of, and so what else ends it than its own operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Files: they need room on a disk and go with their directory.
    Files,
    /// Mounts: they go with a reboot.
    Mounts,
    /// Processes: they go with a reboot.
    Processes,
    /// Entries of a catalogue: it may be out of reach, and forgets nothing.
    Catalogue,
    /// Work of the agent itself: it goes with the agent.
    Agent,
}

/// How a part is brought up of which nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// It is looked for before anything is done.
    LookFirst,
    /// Bringing it up compares by itself and changes only what differs.
    Assert,
}

/// Facts that a part reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Whose.
    pub source: Source,
    /// What the reader asks of them.
    pub when: ReadWhen,
}

/// A part whose facts are read. Where it is not needed there is nothing to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A part of the same task.
    Own(TaskPart),
    /// A part of the allocation.
    Shared(Part),
}

impl Source {
    /// The part, for a reader of this task; none where the allocation itself reads a task's part.
    pub fn part(self, task: Option<TaskIndex>) -> Option<Part> {
        match self {
            Self::Own(part) => task.map(|index| Part::Task(index, part)),
            Self::Shared(part) => Some(part),
        }
    }
}

/// What a reader asks of facts. None is brought up, nor started, while they are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadWhen {
    /// They are read once, when it is brought up or started.
    AtStart,
    /// It is looked at again whenever they change.
    Live,
    /// The source is up: what it was asked is confirmed.
    Confirmed,
}

/// What is stored of a part, and so what is known of it after a start of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Nothing: its facts are found again by looking.
    Inspected,
    /// Its facts.
    Stored,
    /// That it may exist, before it is brought up for the first time: whoever holds it can't always be asked.
    MayExist,
}

/// The directory that a part lies in: where that drifts, this may have too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// It lies in none.
    Nothing,
    /// The allocation's directory.
    AllocDir,
    /// The task's directory, and with it the allocation's.
    TaskDir,
}

/// What a start of the task asks of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeforeStart {
    /// Nothing: it comes with the process or after it.
    Nothing,
    /// It is up before later parts are begun. The task may change it afterwards.
    Once,
    /// It is up.
    Verify,
}

/// What becomes of a part that drifts while the task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhileRunning {
    /// It is brought up again.
    Keep,
    /// It is looked for before the next start.
    Leave,
}

/// When a part is taken down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// Before the kill, also where the decision to stop can't be stored.
    First,
    /// Once the task has ended for good and nothing of its process is left.
    AfterProcess,
    /// With each attempt.
    EachAttempt,
    /// With the allocation directory.
    WithDir,
}

/// Whether an operation that brings a part up is taken back once its task is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdraw {
    /// It runs to its end.
    Never,
    /// It may wait or take long.
    WhileStarting,
}

/// What follows where a look does not find a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfLost {
    /// It is made again.
    Restore,
    /// Tasks that have used it fail, for this reason: it is not made again, empty, under them.
    FailUsers(&'static str),
}

/// What follows where a part can never be brought up as specified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfFatal {
    /// It is tried again as after any other failure.
    Ignore,
    /// Tasks that wait to start fail, with this event; its message begins with the prefix.
    FailUsers {
        /// Nomad's event.
        kind: TaskEventKind,
        /// Before the reason.
        prefix: &'static str,
    },
    /// The restart policy counts it as a failed start.
    RestartPolicy,
    /// Its turn is over.
    GoOn,
}

/// After which time an operation is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout {
    /// For looking.
    pub look: Duration,
    /// For bringing it up or renewing it.
    pub up: Duration,
    /// For taking it down.
    pub down: Duration,
}

impl Timeout {
    pub(crate) const fn same(time: Duration) -> Self {
        Self { look: time, up: time, down: time }
    }

    pub(crate) fn of(self, doing: Doing) -> Duration {
        match doing {
            Doing::Look(_) => self.look,
            Doing::Up | Doing::Renew => self.up,
            Doing::Down => self.down,
        }
    }
}

/// How people speak of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Its name.
    pub name: &'static str,
    /// Its pronoun.
    pub them: &'static str,
    /// What bringing it up is called.
    pub up: &'static str,
    /// What taking it down is called.
    pub down: &'static str,
}
