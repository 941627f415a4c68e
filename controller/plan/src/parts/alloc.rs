//! The table of an allocation's own parts. Their order is in [`super::UP`] and [`super::DOWN`].

use herdlet_api_types::{job::Group, task::TaskEventKind};

use super::{
    column::{
        Down, IfFatal, IfLost, Inside, Medium, Memory, Need, PartRow, Read, ReadWhen, Source, Timeout, Trust,
        WhileRunning, Withdraw, Words,
    },
    has_own_checks,
};
use crate::{
    limits::{CATALOG_TIMEOUT, NETWORK_DOWN_TIMEOUT, NETWORK_TIMEOUT, OPERATION_TIMEOUT},
    op::Part,
};

/// One part of an allocation.
#[derive(Debug, Clone, Copy)]
pub struct AllocPartRow {
    /// Whether the group needs it.
    pub needed: fn(&Group) -> Need,
    /// The properties of operations on it.
    pub row: PartRow,
}

/// Which of the allocation's own parts a group needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllocNeeds {
    pub dir: Need,
    pub network: Need,
    pub services: Need,
    pub checks: Need,
}

impl AllocNeeds {
    pub(crate) fn of(group: &Group) -> Self {
        let need = |row: &AllocPartRow| (row.needed)(group);
        Self { dir: need(&DIR), network: need(&NETWORK), services: need(&SERVICES), checks: need(&CHECKS) }
    }
}

/// The allocation directory.
pub const DIR: AllocPartRow = AllocPartRow {
    needed: |_| Need::Needed,
    row: PartRow {
        name: "alloc_dir",
        medium: Medium::Files,
        trust: Trust::InspectFirst,
        inside: Inside::Nothing,
        while_running: WhileRunning::Keep,
        reads: &[],
        memory: Memory::Inspected,
        down: Down::WithDir,
        withdraw: Withdraw::Never,
        if_lost: IfLost::FailUsers("allocation directory is gone"),
        if_fatal: IfFatal::FailUsers { kind: TaskEventKind::SetupFailure, prefix: "failed to set up" },
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "directory", them: "it", up: "creating", down: "removing" },
    },
};

/// The network that the tasks share, and the files about it: of the machine's network, how they resolve names.
pub const NETWORK: AllocPartRow = AllocPartRow {
    needed: |group| Need::when(group.has_own_network() || group.has_own_dns()),
    row: PartRow {
        name: "network",
        medium: Medium::Mounts,
        trust: Trust::InspectFirst,
        inside: Inside::Nothing,
        while_running: WhileRunning::Keep,
        // Files of the network, such as the hosts file of its tasks, are in the directory.
        reads: &[Read { source: Source::Shared(Part::Dir), when: ReadWhen::Confirmed }],
        // The catalogue is rebuilt before the first inspection.
        memory: Memory::Stored,
        down: Down::AfterProcess,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::Restore,
        if_fatal: IfFatal::FailUsers {
            kind: TaskEventKind::SetupFailure,
            prefix: "failed to set up network",
        },
        timeout: Timeout { look: OPERATION_TIMEOUT, up: NETWORK_TIMEOUT, down: NETWORK_DOWN_TIMEOUT },
        words: Words { name: "network", them: "it", up: "creating", down: "removing" },
    },
};

/// Registrations of the group's services.
pub const SERVICES: AllocPartRow =
    AllocPartRow { needed: |group| Need::when(!group.services.is_empty()), row: SERVICES_ROW };

/// Checks of the group's services.
pub const CHECKS: AllocPartRow =
    AllocPartRow { needed: |group| Need::when(has_own_checks(&group.services)), row: CHECKS_ROW };

/// The network, by parts that follow its changes.
pub(super) const READS_NETWORK: Read = Read { source: Source::Shared(Part::Network), when: ReadWhen::Live };

/// Registrations, of groups and of tasks.
pub(super) const SERVICES_ROW: PartRow = PartRow {
    name: "service",
    medium: Medium::Catalogue,
    trust: Trust::Assert,
    inside: Inside::Nothing,
    while_running: WhileRunning::Keep,
    // Addresses of services may be those of the network.
    reads: &[READS_NETWORK],
    memory: Memory::MayExist,
    down: Down::First,
    withdraw: Withdraw::Never,
    if_lost: IfLost::Restore,
    // Registrations never fail a task.
    if_fatal: IfFatal::Ignore,
    timeout: Timeout::same(CATALOG_TIMEOUT),
    words: Words { name: "services", them: "them", up: "registering", down: "deregistering" },
};

/// Checks, of groups and of tasks.
pub(super) const CHECKS_ROW: PartRow = PartRow {
    name: "check",
    medium: Medium::Agent,
    trust: Trust::Assert,
    inside: Inside::Nothing,
    while_running: WhileRunning::Keep,
    reads: &[READS_NETWORK],
    memory: Memory::Inspected,
    down: Down::First,
    withdraw: Withdraw::Never,
    if_lost: IfLost::Restore,
    if_fatal: IfFatal::Ignore,
    timeout: Timeout::same(OPERATION_TIMEOUT),
    words: Words { name: "checks", them: "them", up: "starting", down: "stopping" },
};
