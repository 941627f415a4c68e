//! The table of a task's parts, in the order to bring up.

use std_alloc::{collections::BTreeSet, format, string::String};

use herdlet_api_types::{
    driver::MOCK,
    job::{ChangeMode, Task},
    task::TaskEventKind,
};

#[cfg(any(test, feature = "fixture"))]
use super::probe::{PROBE, PROBE_READER};
use super::{
    alloc::{CHECKS_ROW, READS_NETWORK, SERVICES_ROW},
    column::{
        BeforeStart, Down, IfFatal, IfLost, Inside, Medium, Memory, Need, PartRow, Read, ReadWhen, Source,
        Timeout, Trust, WhileRunning, Withdraw, Words,
    },
    has_own_checks, templates,
};
use crate::{
    facts::{ChangeAction, Facts, Notification},
    limits::{DOWNLOAD_TIMEOUT, OPERATION_TIMEOUT, START_TIMEOUT},
    op::{Part, TaskPart},
};

/// One part of a task.
#[derive(Debug, Clone, Copy)]
pub struct TaskPartRow {
    /// Which part.
    pub part: TaskPart,
    /// Whether the task needs it.
    pub needed: fn(&Task) -> Need,
    /// What a start requires of it.
    pub before_start: BeforeStart,
    /// What a running task must be notified of when the first facts are replaced by the second.
    pub on_change: fn(&Task, &Facts, &Facts) -> Option<Notification>,
    /// The properties of operations on it.
    pub row: PartRow,
}

/// The order to bring up, which is also the order of [`TaskPart`].
pub const TASK_PARTS: [&TaskPartRow; COUNT] = [
    &DIR,
    &IDENTITY,
    &VAULT,
    &CONSUL,
    &SECRETS,
    &ARTIFACTS,
    &MOUNTS,
    &TEMPLATES,
    &API_SOCKET,
    &CSI_PLUGIN,
    #[cfg(any(test, feature = "fixture"))]
    &PROBE,
    #[cfg(any(test, feature = "fixture"))]
    &PROBE_READER,
    &PROCESS,
    &SERVICES,
    &CHECKS,
    &PRESTOP,
];

const COUNT: usize = if cfg!(any(test, feature = "fixture")) { 16 } else { 14 };

impl TaskPart {
    /// Its row in the table.
    pub const fn row(self) -> &'static TaskPartRow {
        match self {
            Self::Dir => &DIR,
            Self::Identity => &IDENTITY,
            Self::Vault => &VAULT,
            Self::Consul => &CONSUL,
            Self::Secrets => &SECRETS,
            Self::Artifacts => &ARTIFACTS,
            Self::Mounts => &MOUNTS,
            Self::Templates => &TEMPLATES,
            Self::ApiSocket => &API_SOCKET,
            Self::CsiPlugin => &CSI_PLUGIN,
            #[cfg(any(test, feature = "fixture"))]
            Self::Probe => &PROBE,
            #[cfg(any(test, feature = "fixture"))]
            Self::ProbeReader => &PROBE_READER,
            Self::Process => &PROCESS,
            Self::Services => &SERVICES,
            Self::Checks => &CHECKS,
            Self::Prestop => &PRESTOP,
        }
    }
}

const DIR: TaskPartRow = TaskPartRow {
    part: TaskPart::Dir,
    needed: |_| Need::Needed,
    before_start: BeforeStart::Verify,
    on_change: NOTHING,
    row: PartRow {
        name: "task_dir",
        medium: Medium::Files,
        trust: Trust::InspectFirst,
        inside: Inside::AllocDir,
        while_running: WhileRunning::Keep,
        reads: &[],
        memory: Memory::Inspected,
        down: Down::WithDir,
        withdraw: Withdraw::Never,
        if_lost: IfLost::FailUsers("task directory is gone"),
        if_fatal: fails_with("task_dir"),
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "directory", them: "it", up: "creating", down: "removing" },
    },
};

const IDENTITY: TaskPartRow = TaskPartRow {
    part: TaskPart::Identity,
    needed: |task| Need::when(!task.identities.is_empty()),
    before_start: BeforeStart::Verify,
    on_change: token_notification,
    row: PartRow {
        name: "identity",
        medium: Medium::Files,
        trust: Trust::InspectFirst,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Keep,
        reads: &[],
        memory: Memory::Inspected,
        down: Down::WithDir,
        withdraw: Withdraw::Never,
        if_lost: IfLost::Restore,
        if_fatal: fails_with("identity"),
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "tokens", them: "them", up: "issuing", down: "removing" },
    },
};

const VAULT: TaskPartRow = TaskPartRow {
    part: TaskPart::Vault,
    needed: |task| Need::when(task.vault.is_some()),
    before_start: BeforeStart::Verify,
    on_change: vault_notification,
    row: PartRow {
        name: "vault",
        medium: Medium::Files,
        // After a restart of the agent, the token is in its file, and nothing is issued.
        trust: Trust::InspectFirst,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Keep,
        // The task logs in with an identity.
        reads: &[READS_IDENTITY],
        memory: Memory::Inspected,
        // The token is revoked.
        down: Down::AfterProcess,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::Restore,
        if_fatal: fails_with("vault"),
        timeout: Timeout { up: DOWNLOAD_TIMEOUT, ..Timeout::same(OPERATION_TIMEOUT) },
        words: Words { name: "Vault token", them: "it", up: "getting", down: "revoking" },
    },
};

const CONSUL: TaskPartRow = TaskPartRow {
    part: TaskPart::Consul,
    needed: |task| Need::when(task.consul.is_some()),
    before_start: BeforeStart::Verify,
    // A running task keeps the token that it has started with. As in Nomad, it is not notified of another one.
    on_change: NOTHING,
    row: PartRow {
        name: "consul",
        medium: Medium::Files,
        // After a restart of the agent, the token is in its file, and nothing is issued.
        trust: Trust::InspectFirst,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Keep,
        // The task logs in with an identity.
        reads: &[READS_IDENTITY],
        memory: Memory::Inspected,
        // The token is revoked.
        down: Down::AfterProcess,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::Restore,
        if_fatal: fails_with("consul"),
        timeout: Timeout { up: DOWNLOAD_TIMEOUT, ..Timeout::same(OPERATION_TIMEOUT) },
        words: Words { name: "Consul token", them: "it", up: "getting", down: "revoking" },
    },
};

const SECRETS: TaskPartRow = TaskPartRow {
    part: TaskPart::Secrets,
    needed: |task| Need::when(!task.secrets.is_empty()),
    // Every later part may have `${secret.NAME.KEY}` in its texts.
    before_start: BeforeStart::Once,
    on_change: NOTHING,
    row: PartRow {
        name: "secrets",
        medium: Medium::Files,
        trust: Trust::InspectFirst,
        inside: Inside::TaskDir,
        // The process has read them. They are fetched again only if a later start does not find them.
        while_running: WhileRunning::Leave,
        // A plugin may need the token of Vault.
        reads: &[READS_IDENTITY, READS_VAULT, READS_CONSUL],
        memory: Memory::Inspected,
        down: Down::WithDir,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::Restore,
        if_fatal: fails_with("secrets"),
        timeout: Timeout { up: DOWNLOAD_TIMEOUT, ..Timeout::same(OPERATION_TIMEOUT) },
        words: Words { name: "secrets", them: "them", up: "fetching", down: "removing" },
    },
};

const ARTIFACTS: TaskPartRow = TaskPartRow {
    part: TaskPart::Artifacts,
    needed: |task| Need::when(!task.artifacts.is_empty()),
    before_start: BeforeStart::Once,
    on_change: NOTHING,
    row: PartRow {
        name: "artifacts",
        medium: Medium::Files,
        trust: Trust::InspectFirst,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Leave,
        // Addresses and headers may have values of secrets, and variables with tokens.
        reads: &[
            READS_VAULT,
            READS_CONSUL,
            Read { source: Source::Own(TaskPart::Secrets), when: ReadWhen::AtStart },
        ],
        memory: Memory::Inspected,
        down: Down::WithDir,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::Restore,
        if_fatal: IfFatal::RestartPolicy,
        timeout: Timeout { up: DOWNLOAD_TIMEOUT, ..Timeout::same(OPERATION_TIMEOUT) },
        words: Words { name: "artifacts", them: "them", up: "downloading", down: "removing" },
    },
};

const MOUNTS: TaskPartRow = TaskPartRow {
    part: TaskPart::Mounts,
    needed: |task| Need::when(!task.volume_mounts.is_empty()),
    before_start: BeforeStart::Verify,
    on_change: NOTHING,
    row: PartRow {
        name: "mount",
        medium: Medium::Mounts,
        trust: Trust::InspectFirst,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Keep,
        reads: &[],
        memory: Memory::Inspected,
        down: Down::AfterProcess,
        withdraw: Withdraw::Never,
        if_lost: IfLost::Restore,
        if_fatal: fails_with("mount"),
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "volumes", them: "them", up: "mounting", down: "unmounting" },
    },
};

const TEMPLATES: TaskPartRow = TaskPartRow {
    part: TaskPart::Templates,
    needed: |task| Need::when(!task.templates.is_empty()),
    before_start: BeforeStart::Verify,
    on_change: templates::notification,
    row: PartRow {
        name: "templates",
        medium: Medium::Files,
        trust: Trust::Assert,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Keep,
        // A template's text may be in a volume, and its data may need a token.
        reads: &[
            READS_IDENTITY,
            READS_VAULT,
            READS_CONSUL,
            Read { source: Source::Own(TaskPart::Secrets), when: ReadWhen::AtStart },
            Read { source: Source::Own(TaskPart::Mounts), when: ReadWhen::AtStart },
            // A template can contain addresses of the network.
            READS_NETWORK,
        ],
        memory: Memory::Stored,
        down: Down::WithDir,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::Restore,
        if_fatal: IfFatal::FailUsers { kind: TaskEventKind::Killing, prefix: "Template failed" },
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "templates", them: "them", up: "rendering", down: "removing" },
    },
};

const API_SOCKET: TaskPartRow = TaskPartRow {
    part: TaskPart::ApiSocket,
    // A simulated task has no program that could connect.
    needed: |task| Need::when(task.driver != MOCK),
    before_start: BeforeStart::Verify,
    on_change: NOTHING,
    row: PartRow {
        name: "api_socket",
        medium: Medium::Agent,
        // The next agent opens it at once, in the place of the socket that nobody serves any more.
        trust: Trust::Assert,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Keep,
        reads: &[],
        memory: Memory::Inspected,
        down: Down::AfterProcess,
        withdraw: Withdraw::Never,
        if_lost: IfLost::Restore,
        if_fatal: IfFatal::Ignore,
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "Task API socket", them: "it", up: "opening", down: "closing" },
    },
};

const CSI_PLUGIN: TaskPartRow = TaskPartRow {
    part: TaskPart::CsiPlugin,
    needed: |task| Need::when(task.csi_plugin.is_some()),
    before_start: BeforeStart::Verify,
    on_change: NOTHING,
    row: PartRow {
        name: "csi_plugin",
        // That of the volumes is a mount of its own.
        medium: Medium::Mounts,
        trust: Trust::Assert,
        inside: Inside::Nothing,
        while_running: WhileRunning::Keep,
        reads: &[],
        memory: Memory::Inspected,
        // The socket goes; what the plugin has mounted for others stays.
        down: Down::AfterProcess,
        withdraw: Withdraw::Never,
        if_lost: IfLost::Restore,
        if_fatal: fails_with("csi_plugin"),
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "CSI plugin's directories", them: "them", up: "making", down: "removing" },
    },
};

const PROCESS: TaskPartRow = TaskPartRow {
    part: TaskPart::Process,
    needed: |_| Need::Needed,
    before_start: BeforeStart::Nothing,
    on_change: NOTHING,
    row: PartRow {
        name: "process",
        medium: Medium::Processes,
        trust: Trust::InspectFirst,
        inside: Inside::Nothing,
        while_running: WhileRunning::Keep,
        reads: &[
            // The last value may be that of a network that is gone.
            Read { source: Source::Shared(Part::Network), when: ReadWhen::Confirmed },
            READS_IDENTITY,
            READS_VAULT,
            READS_CONSUL,
            Read { source: Source::Own(TaskPart::Secrets), when: ReadWhen::AtStart },
            Read { source: Source::Own(TaskPart::Templates), when: ReadWhen::AtStart },
            // A start that is repeated by the next agent waits for its socket too.
            Read { source: Source::Own(TaskPart::ApiSocket), when: ReadWhen::AtStart },
            // After a reboot, the directories of a plugin are mounted again before it starts.
            Read { source: Source::Own(TaskPart::CsiPlugin), when: ReadWhen::AtStart },
            #[cfg(any(test, feature = "fixture"))]
            Read { source: Source::Own(TaskPart::Probe), when: ReadWhen::AtStart },
            #[cfg(any(test, feature = "fixture"))]
            Read { source: Source::Own(TaskPart::ProbeReader), when: ReadWhen::AtStart },
        ],
        memory: Memory::Inspected,
        down: Down::EachAttempt,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::Restore,
        if_fatal: IfFatal::RestartPolicy,
        timeout: Timeout { up: START_TIMEOUT, ..Timeout::same(OPERATION_TIMEOUT) },
        words: Words { name: "process", them: "it", up: "starting", down: "stopping" },
    },
};

const SERVICES: TaskPartRow = TaskPartRow {
    part: TaskPart::Services,
    needed: |task| Need::when(!task.services.is_empty()),
    before_start: BeforeStart::Nothing,
    on_change: NOTHING,
    row: SERVICES_ROW,
};

const CHECKS: TaskPartRow = TaskPartRow {
    part: TaskPart::Checks,
    needed: |task| Need::when(has_own_checks(&task.services)),
    before_start: BeforeStart::Nothing,
    on_change: NOTHING,
    row: CHECKS_ROW,
};

const PRESTOP: TaskPartRow = TaskPartRow {
    part: TaskPart::Prestop,
    needed: |task| Need::when(task.prestop.is_some()),
    before_start: BeforeStart::Nothing,
    on_change: NOTHING,
    row: PartRow {
        name: "prestop",
        medium: Medium::Processes,
        trust: Trust::InspectFirst,
        inside: Inside::Nothing,
        while_running: WhileRunning::Leave,
        reads: &[],
        memory: Memory::Inspected,
        down: Down::EachAttempt,
        withdraw: Withdraw::Never,
        if_lost: IfLost::Restore,
        if_fatal: IfFatal::GoOn,
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "prestop", them: "it", up: "running", down: "stopping" },
    },
};

const READS_IDENTITY: Read = Read { source: Source::Own(TaskPart::Identity), when: ReadWhen::AtStart };
const READS_CONSUL: Read = Read { source: Source::Own(TaskPart::Consul), when: ReadWhen::AtStart };
const READS_VAULT: Read = Read { source: Source::Own(TaskPart::Vault), when: ReadWhen::AtStart };

/// The change does not concern a running task.
const NOTHING: fn(&Task, &Facts, &Facts) -> Option<Notification> = |_, _, _| None;

/// Tokens that don't expire are never renewed. One restart is enough for all tokens, and makes signals unnecessary.
fn token_notification(task: &Task, _: &Facts, _: &Facts) -> Option<Notification> {
    let expiring = || task.identities.iter().filter(|identity| identity.ttl.is_some());
    let mut restarting = expiring().filter(|identity| identity.change_mode == ChangeMode::Restart);
    if let Some(identity) = restarting.next() {
        // Nomad's text.
        let why = format!("Identity[{}]: new token acquired", identity.name);
        return Some(Notification::at_once(ChangeAction::Restart(why)));
    }
    let signalled = expiring().filter(|identity| identity.change_mode == ChangeMode::Signal);
    let signals: BTreeSet<String> = signalled
        .map(|identity| identity.change_signal.clone().unwrap_or_else(|| String::from("SIGHUP")))
        .collect();
    (!signals.is_empty()).then_some(Notification::at_once(ChangeAction::Signal(signals)))
}

/// Only another token concerns the task; a renewal keeps the token.
fn vault_notification(task: &Task, before: &Facts, after: &Facts) -> Option<Notification> {
    let access = task.vault.as_ref().filter(|_| before.revision != after.revision)?;
    let action = match access.change_mode {
        ChangeMode::Noop => return None,
        ChangeMode::Signal => ChangeAction::Signal([access.signal()].into()),
        // Nomad's text.
        ChangeMode::Restart => ChangeAction::Restart(String::from("Vault: new Vault token acquired")),
    };
    Some(Notification::at_once(action))
}

/// The task fails with Nomad's event for hooks.
const fn fails_with(prefix: &'static str) -> IfFatal {
    IfFatal::FailUsers { kind: TaskEventKind::HookFailed, prefix }
}
