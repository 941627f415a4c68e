//! The columns of the tables: the properties of a part.

use herdlet_api_types::{Duration, task::TaskEventKind};

use crate::{
    op::{Part, TaskIndex, TaskPart},
    state::Doing,
};

/// The properties of operations on a part, an allocation's or a task's.
#[derive(Debug, Clone, Copy)]
pub struct PartRow {
    /// For metrics and events; never renamed.
    pub name: &'static str,
    /// What it consists of.
    pub medium: Medium,
    /// How the agent treats it after its own start.
    pub trust: Trust,
    /// The directory whose drift makes it suspect.
    pub inside: Inside,
    /// What its drift means for a running task.
    pub while_running: WhileRunning,
    /// The parts whose facts it reads.
    pub reads: &'static [Read],
    /// The part of its state that is stored.
    pub memory: Memory,
    /// When it is taken down.
    pub down: Down,
    /// Whether a stop cancels bringing it up.
    pub withdraw: Withdraw,
    /// What happens if an inspection does not find it.
    pub if_lost: IfLost,
    /// What happens if it can never be brought up.
    pub if_fatal: IfFatal,
    /// The time after which an operation on it is overdue.
    pub timeout: Timeout,
    /// How texts for people name it.
    pub words: Words,
}

impl PartRow {
    /// Whether its facts are stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.memory == Memory::Stored
    }
}

/// Whether a specification needs a part.
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

/// What a part consists of. This determines what else ends it, apart from its own operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Files: they need disk space and are removed with their directory.
    Files,
    /// Mounts: a reboot removes them.
    Mounts,
    /// Processes: a reboot ends them.
    Processes,
    /// Entries of a catalogue: it may be unreachable, and forgets nothing.
    Catalogue,
    /// Work of the agent itself: it ends with the agent.
    Agent,
}

/// How a part of unknown state is brought up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// It is inspected first.
    InspectFirst,
    /// Bringing it up compares, and changes only what differs.
    Assert,
}

/// Facts that a part reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The part that produced them.
    pub source: Source,
    /// When the reader uses them.
    pub when: ReadWhen,
}

/// A part whose facts are read. If it is not needed, there are no facts to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A part of the same task.
    Own(TaskPart),
    /// A part of the allocation.
    Shared(Part),
}

impl Source {
    /// The part, for a reader of this task; `None` if the allocation itself reads a task's part.
    pub fn part(self, task: Option<TaskIndex>) -> Option<Part> {
        match self {
            Self::Own(part) => task.map(|index| Part::Task(index, part)),
            Self::Shared(part) => Some(part),
        }
    }
}

/// When a reader uses facts. While they are unknown, no reader is brought up or started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadWhen {
    /// Once, when the reader is brought up or started.
    AtStart,
    /// Whenever they change: the reader is then inspected again.
    Live,
    /// Once the source is up, that is, the catalogue has confirmed it.
    Confirmed,
}

/// What is stored of a part, and so what is known of it after a start of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Nothing: an inspection recovers its facts.
    Inspected,
    /// Its facts.
    Stored,
    /// That it may exist, before it is first brought up: its catalogue can't always be asked.
    MayExist,
}

/// The directory that a part lies in. If that drifts, the part may have drifted too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// None.
    Nothing,
    /// The allocation's directory.
    AllocDir,
    /// The task's directory, and so the allocation's.
    TaskDir,
}

/// What a start of the task requires of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeforeStart {
    /// Nothing: it comes up with the process or after it.
    Nothing,
    /// It is up before later parts begin. The task may change it afterwards.
    Once,
    /// It is up.
    Verify,
}

/// What happens to a part that drifts while the task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhileRunning {
    /// It is brought up again.
    Keep,
    /// It is inspected before the next start.
    Leave,
}

/// When a part is taken down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// Before the kill, even if the decision to stop can't be stored.
    First,
    /// Once the task has ended for good and its process is removed.
    AfterProcess,
    /// With each attempt.
    EachAttempt,
    /// With the allocation directory.
    WithDir,
}

/// Whether an operation that brings a part up is cancelled when its task is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdraw {
    /// It is not.
    Never,
    /// It is, because it may wait or take long.
    WhileStarting,
}

/// What happens if an inspection does not find a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfLost {
    /// It is created again.
    Restore,
    /// Tasks that have used it fail, for this reason: it is not recreated, empty, while they run.
    FailUsers(&'static str),
}

/// What happens if a part can never be brought up as specified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfFatal {
    /// It is retried as after any other failure.
    Ignore,
    /// Tasks that wait to start fail, with this event. Its message begins with the prefix.
    FailUsers {
        /// Nomad's event.
        kind: TaskEventKind,
        /// Precedes the reason.
        prefix: &'static str,
    },
    /// The restart policy counts it as a failed start.
    RestartPolicy,
    /// The stop goes on without it.
    GoOn,
}

/// The time after which an operation is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout {
    /// For an inspection.
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
            Doing::Inspect(_) => self.look,
            Doing::Up | Doing::Renew => self.up,
            Doing::Down => self.down,
        }
    }
}

/// How texts for people name a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Its name.
    pub name: &'static str,
    /// Its pronoun.
    pub them: &'static str,
    /// The verb for bringing it up.
    pub up: &'static str,
    /// The verb for taking it down.
    pub down: &'static str,
}
