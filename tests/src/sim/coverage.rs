//! Coverage of the simulations, to verify that every kind of fault occurs.

use std::ops::AddAssign;

macro_rules! kinds {
    ($($name:ident = $text:literal,)*) => {
        /// An event or fault of a simulation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $(#[doc = $text] $name,)* }

        impl Kind {
            /// All kinds, with their labels.
            pub const ALL: &[(Self, &str)] = &[$((Self::$name, $text),)*];
        }
    };
}

kinds! {
    Update = "job updates",
    Scale = "groups scaled",
    Revert = "jobs reverted to older versions",
    Promote = "deployments promoted by users",
    FailDeployment = "deployments failed by users",
    Judge = "allocations judged by users",
    Pause = "deployments paused by users",
    Drain = "drains of the node",
    AutoRevert = "jobs reverted by a failed deployment",
    Canary = "canaries",
    Crowded = "jobs that wait for resources",
    Unfit = "constraints that are not satisfied",
    InPlace = "allocations updated in place",
    Reschedule = "rescheduled allocations",
    StopJob = "jobs stopped by request",
    StartJob = "jobs started by request",
    Delete = "jobs deleted",
    Dispatch = "jobs dispatched",
    DispatchAgain = "jobs dispatched again with the same token",
    Launch = "jobs launched on time",
    LateLaunch = "jobs launched late",
    ForceLaunch = "jobs launched by request",
    Restart = "requested restarts",
    Stop = "allocations stopped by request",
    SkipDelay = "skipped delays of a stop",
    EndPoststop = "poststop tasks ended by request",
    CollectJob = "collected jobs",
    CollectAlloc = "collected allocations",
    VolumeDelete = "volumes deleted",
    PortTaken = "ports held by others",
    Failure = "failed operations",
    FailedDownload = "failed downloads",
    WithdrawnStart = "withdrawn starts",
    LostOutcome = "lost outcomes",
    DoubledOutcome = "repeated outcomes",
    SlowOperation = "slow operations",
    Overdue = "overdue operations",
    FailingCheck = "failing checks",
    CheckRestart = "tasks restarted by their checks",
    TokenRenewal = "token renewals",
    PendingPart = "parts that wait for a condition",
    OutdatedPart = "parts that keep an outdated value",
    ChangedData = "data of templates that changed",
    DataOutage = "outages of the data of templates",
    TemplateScript = "scripts of templates",
    RestartTurn = "allocations that wait for their turn to restart",
    ChangedProbe = "probes that changed under a task",
    RebuiltNetwork = "networks that were set up again under a task",
    Outage = "outages of the catalogue",
    Vanished = "vanished objects",
    Covered = "covered mounts",
    PluginReport = "reports about CSI plugins",
    PluginRestart = "CSI plugins restarted because they were not ready",
    DoubtedProcess = "reports that a process may have drifted",
    Killed = "processes killed",
    SupervisorLost = "supervisors killed",
    Crash = "crashes between commits",
    CrashAtCommit = "crashes at a commit",
    LateStart = "late starts of dead agents",
    Reboot = "reboots",
    PowerCut = "power cuts that lost directories",
    ClockForth = "clock set forward",
    ClockBack = "clock set back",
    DiskFull = "full disks",
    StopAhead = "stops ahead of a commit",
    DriverAway = "drivers that went away",
    EngineRestart = "engines that ended their tasks",
    UnseenExit = "exits seen once the driver was back",
    DriverBack = "drivers that came back",
    StateDamaged = "damaged states",
    RecordDamaged = "damaged supervisor records",
}

const KINDS: usize = Kind::ALL.len();

/// How often each kind occurred.
#[derive(Debug, Clone, Copy)]
pub struct Coverage([u64; KINDS]);

impl Coverage {
    /// Counts an occurrence.
    pub fn note(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    /// Reduces each count to 0 or 1, to sum up the number of simulations in which a kind occurred.
    pub fn at_all(mut self) -> Self {
        self.0.iter_mut().for_each(|count| *count = (*count).min(1));
        self
    }

    /// All counts with their labels.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Kind::ALL.iter().map(|(kind, name)| (*name, self.0[*kind as usize]))
    }
}

impl Default for Coverage {
    fn default() -> Self {
        Self([0; KINDS])
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, more: Self) {
        self.0.iter_mut().zip(more.0).for_each(|(sum, more)| *sum += more);
    }
}
