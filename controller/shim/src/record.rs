//! The attempt record: 64 bytes in the runtime directory with the state of a task attempt.
//!
//! In: a state from the shim (or an agent that writes a tombstone). Out: exactly [`RECORD_LEN`] bytes, written by one
//! `pwrite` at offset 0, and the state parsed from them. This module accesses no files and no clock.
//!
//! ```text
//!            ┌─► start_failed                 (final)
//! created ───┤
//!            └─► running ──► exited           (final; only the dropped counter still moves)
//! tombstone                                   (final; the attempt was cancelled before its shim came)
//! ```
//!
//! The layout is little endian. New fields use only the reserved bytes; a change of meaning requires a new magic.
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic `hrd1` |
//! | 4 | 1 | state |
//! | 5 | 1 | step that failed (`start_failed`) |
//! | 6 | 1 | signal that ended the task, or 0 |
//! | 7 | 1 | flags: bit 0 = dumped core |
//! | 8 | 2 | exit code |
//! | 10 | 2 | errno (`start_failed`) |
//! | 12 | 4 | shim pid |
//! | 16 | 8 | shim start time, clock ticks since boot |
//! | 24 | 8 | task start time, clock ticks since boot |
//! | 32 | 4 | task pid |
//! | 36 | 4 | number of the attempt's driver; 0: `raw_exec`, which was the only driver once |
//! | 40 | 8 | wall time of the end (exit or failed start), ns since the Unix epoch |
//! | 48 | 8 | log bytes that were dropped |
//! | 56 | 8 | FNV-1a (64 bit) of bytes 0 to 55 |

use core::fmt;

/// Size of a record in bytes.
pub const RECORD_LEN: usize = 64;

const MAGIC: [u8; 4] = *b"hrd1";
const FLAG_CORE: u8 = 1;

/// The state of one task attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The attempt's progress.
    pub state: State,
    /// The supervising process; all zero in a tombstone.
    pub shim: Process,
    /// The task's main process; all zero before its start.
    pub task: Process,
    /// Bytes of the task's output that were dropped.
    pub dropped_bytes: u64,
    /// The number of the driver that started the attempt. The shim sets it once it has read the launch spec.
    pub driver: u32,
}

/// The progress of an attempt. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The shim has claimed the attempt; the task isn't running yet.
    Created,
    /// The task's program is running.
    Running,
    /// The task's program could not be started. Final.
    StartFailed {
        /// The failed step.
        step: Step,
        /// The Linux errno; 0 if no system call failed (an invalid launch spec).
        errno: u16,
        /// The time of the failure, in nanoseconds since the Unix epoch.
        at_unix_ns: u64,
    },
    /// The task's main process ended. Final.
    Exited(Exit),
    /// The attempt was cancelled before its shim started; the shim will do nothing. Final.
    Tombstone,
}

/// How the main process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 0 if a signal ended the process.
    pub code: u8,
    /// The signal that ended it, or 0.
    pub signal: u8,
    /// Whether the kernel dumped core.
    pub core: Core,
    /// The time of reaping, in nanoseconds since the Unix epoch.
    pub at_unix_ns: u64,
}

/// Whether a core was dumped (`WCOREDUMP`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// No core.
    None,
    /// A core was dumped.
    Dumped,
}

/// A process; the start time distinguishes it from a later one with the same pid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Process id in the shim's namespace; 0 means none.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat` (proc(5)): clock ticks since boot; 0 if it could not be read.
    pub start_ticks: u64,
}

/// The steps of a start that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Reading the launch spec.
    Spec = 1,
    /// Setting up pipes and memory.
    Prepare = 2,
    /// Opening or entering the task's v2 cgroup.
    Cgroup = 3,
    /// Creating the process.
    Clone = 4,
    /// Starting a session.
    Session = 5,
    /// Entering a v1 cgroup.
    TasksFile = 6,
    /// Setting the OOM score adjustment.
    OomScore = 7,
    /// Limiting the number of open files.
    OpenFiles = 8,
    /// Setting up stdin, stdout and stderr.
    Stdio = 9,
    /// Taking the controlling terminal.
    Terminal = 10,
    /// Setting the supplementary groups.
    Groups = 11,
    /// Setting the group id.
    Gid = 12,
    /// Setting the user id.
    Uid = 13,
    /// Setting no_new_privs.
    NoNewPrivs = 14,
    /// Changing to the working directory.
    Directory = 15,
    /// Executing the program.
    Exec = 16,
    /// Entering the network namespace.
    Network = 17,
    /// Creating namespaces.
    Namespaces = 18,
    /// Entering the mount namespace.
    MountNamespace = 19,
    /// Mounting /proc, or what hides parts of it.
    Proc = 20,
    /// Mounting the message queues.
    MessageQueues = 21,
    /// Setting the host name.
    Hostname = 22,
    /// Setting the capabilities.
    Capabilities = 23,
    /// Entering the namespaces of a running task (`enter` only).
    Join = 24,
    /// Restricting the system calls.
    CallFilter = 25,
    /// Setting a resource limit.
    Limit = 26,
    /// Writing a setting of the kernel.
    Setting = 27,
    /// Mounting the cgroups.
    Cgroups = 28,
}

const STEPS: [(Step, &str); 28] = [
    (Step::Spec, "read the launch spec"),
    (Step::Prepare, "prepare pipes and memory"),
    (Step::Cgroup, "enter the cgroup"),
    (Step::Clone, "create the process"),
    (Step::Session, "start a session"),
    (Step::TasksFile, "enter a v1 cgroup"),
    (Step::OomScore, "set the OOM score adjustment"),
    (Step::OpenFiles, "limit the number of open files"),
    (Step::Stdio, "set up the standard streams"),
    (Step::Terminal, "take the controlling terminal"),
    (Step::Groups, "set the supplementary groups"),
    (Step::Gid, "set the group id"),
    (Step::Uid, "set the user id"),
    (Step::NoNewPrivs, "set no_new_privs"),
    (Step::Directory, "change to the working directory"),
    (Step::Exec, "execute the program"),
    (Step::Network, "enter the network namespace"),
    (Step::Namespaces, "create the namespaces"),
    (Step::MountNamespace, "enter the mount namespace"),
    (Step::Proc, "mount /proc"),
    (Step::MessageQueues, "mount /dev/mqueue"),
    (Step::Hostname, "set the host name"),
    (Step::Capabilities, "set the capabilities"),
    (Step::Join, "enter the namespaces of the task"),
    (Step::CallFilter, "restrict the system calls"),
    (Step::Limit, "set a resource limit"),
    (Step::Setting, "write a setting of the kernel"),
    (Step::Cgroups, "mount the cgroups"),
];

impl Step {
    /// The step with this number, if there is one.
    #[must_use]
    pub fn of(byte: u8) -> Option<Self> {
        STEPS.iter().map(|(step, _)| *step).find(|step| *step as u8 == byte)
    }

    /// A phrase that reads after "failed to".
    #[must_use]
    pub fn phrase(self) -> &'static str {
        STEPS.iter().find(|(step, _)| *step == self).map_or("start", |(_, phrase)| phrase)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phrase())
    }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// Not [`RECORD_LEN`] bytes.
    Length(usize),
    /// Another format, or a newer one.
    Magic,
    /// Damaged, or read during a write.
    Checksum,
    /// An unknown state or step.
    Unknown(u8),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "decode a record of {len} bytes instead of {RECORD_LEN}"),
            Self::Magic => f.write_str("decode a record of another format"),
            Self::Checksum => f.write_str("decode a record with a wrong checksum"),
            Self::Unknown(byte) => write!(f, "decode a record with the unknown state or step {byte}"),
        }
    }
}

impl core::error::Error for RecordError {}

impl Record {
    /// The record of a claimed attempt without further information.
    ///
    /// An *empty* file counts as this record: its creator is about to write it, or died before doing so.
    #[must_use]
    pub const fn claimed() -> Self {
        Self::blank(State::Created)
    }

    /// The record that cancels an attempt before its shim starts.
    #[must_use]
    pub const fn tombstone() -> Self {
        Self::blank(State::Tombstone)
    }

    const fn blank(state: State) -> Self {
        let nobody = Process { pid: 0, start_ticks: 0 };
        Self { state, shim: nobody, task: nobody, dropped_bytes: 0, driver: 0 }
    }

    /// Whether the state can't change any more.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        match self.state {
            State::Created | State::Running => false,
            State::StartFailed { .. } | State::Exited(_) | State::Tombstone => true,
        }
    }

    /// Encodes the record.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        out[0..4].copy_from_slice(&MAGIC);
        match self.state {
            State::Created => out[4] = 1,
            State::Running => out[4] = 2,
            State::StartFailed { step, errno, at_unix_ns } => {
                out[4] = 3;
                out[5] = step as u8;
                out[10..12].copy_from_slice(&errno.to_le_bytes());
                out[40..48].copy_from_slice(&at_unix_ns.to_le_bytes());
            }
            State::Exited(exit) => {
                out[4] = 4;
                out[6] = exit.signal;
                out[7] = if exit.core == Core::Dumped { FLAG_CORE } else { 0 };
                out[8..10].copy_from_slice(&u16::from(exit.code).to_le_bytes());
                out[40..48].copy_from_slice(&exit.at_unix_ns.to_le_bytes());
            }
            State::Tombstone => out[4] = 5,
        }
        out[12..16].copy_from_slice(&self.shim.pid.to_le_bytes());
        out[16..24].copy_from_slice(&self.shim.start_ticks.to_le_bytes());
        out[24..32].copy_from_slice(&self.task.start_ticks.to_le_bytes());
        out[32..36].copy_from_slice(&self.task.pid.to_le_bytes());
        out[36..40].copy_from_slice(&self.driver.to_le_bytes());
        out[48..56].copy_from_slice(&self.dropped_bytes.to_le_bytes());
        let sum = fnv1a(&out[..56]);
        out[56..64].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are not a complete record of a known format. [`RecordError::Checksum`] may also mean a concurrent
    /// write; a retry then helps.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let b: &[u8; RECORD_LEN] = bytes.try_into().map_err(|_| RecordError::Length(bytes.len()))?;
        if b[0..4] != MAGIC {
            return Err(RecordError::Magic);
        }
        if fnv1a(&b[..56]) != u64_at(b, 56) {
            return Err(RecordError::Checksum);
        }
        let at_unix_ns = u64_at(b, 40);
        let state = match b[4] {
            1 => State::Created,
            2 => State::Running,
            3 => {
                let step = Step::of(b[5]).ok_or(RecordError::Unknown(b[5]))?;
                State::StartFailed { step, errno: u16::from_le_bytes([b[10], b[11]]), at_unix_ns }
            }
            4 => {
                let core = if b[7] & FLAG_CORE == 0 { Core::None } else { Core::Dumped };
                State::Exited(Exit { code: b[8], signal: b[6], core, at_unix_ns })
            }
            5 => State::Tombstone,
            other => return Err(RecordError::Unknown(other)),
        };
        Ok(Self {
            state,
            shim: Process { pid: u32_at(b, 12), start_ticks: u64_at(b, 16) },
            task: Process { pid: u32_at(b, 32), start_ticks: u64_at(b, 24) },
            dropped_bytes: u64_at(b, 48),
            driver: u32_at(b, 36),
        })
    }
}

impl Exit {
    /// Decodes a wait status of waitpid(2).
    #[must_use]
    pub const fn of_wait_status(status: u32, at_unix_ns: u64) -> Self {
        let signal = (status & 0x7f) as u8;
        let code = if signal == 0 { (status >> 8) as u8 } else { 0 };
        let core = if signal != 0 && status & 0x80 != 0 { Core::Dumped } else { Core::None };
        Self { code, signal, core, at_unix_ns }
    }
}

/// The start time in the text of `/proc/PID/stat`: field 22, counted after the last `)`, because process names are
/// arbitrary.
#[must_use]
pub fn start_ticks(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = stat.get(name_end + 2..)?;
    let field = rest.split(|byte| *byte == b' ').nth(19)?;
    let mut ticks: u64 = 0;
    for digit in field {
        if !digit.is_ascii_digit() {
            return None;
        }
        ticks = ticks.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    if field.is_empty() { None } else { Some(ticks) }
}

fn u32_at(bytes: &[u8; RECORD_LEN], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8; RECORD_LEN], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(state: State) -> Record {
        Record {
            state,
            shim: Process { pid: 4321, start_ticks: 987_654_321 },
            task: Process { pid: 4322, start_ticks: 987_654_322 },
            dropped_bytes: 17,
            driver: 0x1234_5679,
        }
    }

    #[test]
    fn every_state_survives_the_round_trip() {
        let exit = Exit { code: 3, signal: 0, core: Core::None, at_unix_ns: 1_700_000_000_000_000_001 };
        let mut states = vec![
            State::Created,
            State::Running,
            State::Exited(exit),
            State::Exited(Exit { code: 0, signal: 11, core: Core::Dumped, ..exit }),
            State::Tombstone,
        ];
        for (step, phrase) in STEPS {
            assert_eq!(step.to_string(), phrase);
            states.push(State::StartFailed { step, errno: 2, at_unix_ns: 5 });
        }
        for state in states {
            let record = sample(state);
            assert_eq!(Record::from_bytes(&record.to_bytes()).unwrap(), record);
        }
    }

    #[test]
    fn each_flipped_bit_is_detected() {
        let bytes = sample(State::Running).to_bytes();
        for bit in 0..RECORD_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::from_bytes(&damaged).is_err(), "bit {bit}");
        }
        assert_eq!(Record::from_bytes(&bytes[..63]), Err(RecordError::Length(63)));
        assert_eq!(Record::from_bytes(&[]), Err(RecordError::Length(0)));
    }

    #[test]
    fn wait_statuses_are_split() {
        assert_eq!(Exit::of_wait_status(0x2a00, 1).code, 42);
        let killed = Exit::of_wait_status(9, 1);
        assert_eq!((killed.code, killed.signal, killed.core), (0, 9, Core::None));
        let core = Exit::of_wait_status(0x8b, 1);
        assert_eq!((core.signal, core.core), (11, Core::Dumped));
    }

    #[test]
    fn a_hostile_process_name_does_not_shift_the_fields() {
        let stat = b"77 (a) R 1 (x) S 1 77 77 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 2 3\n";
        assert_eq!(start_ticks(stat), Some(123_456));
        assert_eq!(start_ticks(b""), None);
        assert_eq!(start_ticks(b"1 (x) S 1 2"), None);
        assert_eq!(
            start_ticks(&std::fs::read("/proc/self/stat").unwrap()).map(|ticks| ticks > 0),
            Some(true)
        );
    }
}
