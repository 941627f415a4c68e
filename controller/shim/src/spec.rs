//! The launch spec: everything a shim needs to start a task or an exec session, as a flat binary blob.
//!
//! In: a list of [`Field`]s from the agent, which writes the blob to a sealed memfd. Out: a [`Spec`] that borrows from
//! the mapped blob, so that the shim needs no allocator. This module knows no files, processes or policies.
//!
//! The format is a magic number followed by entries of tag (u16), length (u32) and value, little endian. An empty entry
//! with tag 0 must be the last. Strings include a terminating NUL byte, so that system calls can use them in place.
//! Decoding is total: any bytes give a `Spec` or a [`SpecError`]. Unknown tags are errors: both sides come from the
//! same build, and a spec never outlives a start.

mod decode;
#[cfg(test)]
mod tests;

use crate::isolation::{CAPABILITIES_LEN, Capabilities, Namespaces};
use core::fmt;
pub use decode::Spec;

/// The maximum size of a blob, in bytes. It covers the arguments and environment that Linux accepts with the default
/// stack limit.
pub const SPEC_LEN_MAX: usize = 2 * 1024 * 1024;
/// The maximum length of a log file stem, in bytes: `.4294967295` must still fit into a file name.
pub const STEM_LEN_MAX: usize = 240;
/// The maximum length of a record name, in bytes.
pub const RECORD_NAME_LEN_MAX: usize = 255;
/// The maximum length of a name in a directory, in bytes.
const ENTRY_LEN_MAX: usize = 255;
/// The maximum length of a host name, in bytes (sethostname(2)).
pub const HOSTNAME_LEN_MAX: usize = 64;

/// The length of an instruction of a seccomp filter.
const INSTRUCTION_LEN: usize = 8;
/// The most instructions of a seccomp filter (`BPF_MAXINSNS`).
const INSTRUCTIONS_MAX: usize = 4096;
/// The length of an encoded resource limit.
const LIMIT_LEN: usize = 20;
/// The maximum length of a setting's path, in bytes, so that it fits on a small stack.
pub const SETTING_PATH_LEN_MAX: usize = 127;

const MAGIC: [u8; 4] = *b"hls1";
const HEADER_LEN: usize = 6;

/// One parameter of a start. Repeating a single field is an error; list fields may repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// File name of the attempt's record. Must be the first field (`run` only).
    Record(&'a [u8]),
    /// Resolved path of the program: executed as it is, relative to the working directory.
    Program(&'a [u8]),
    /// An argument; the first is the program's own name (list).
    Argument(&'a [u8]),
    /// An environment variable `NAME=value` (list).
    Variable(&'a [u8]),
    /// Working directory. Without it the agent's is kept.
    Directory(&'a [u8]),
    /// User and group to become. Without it, ids and supplementary groups are kept.
    User {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// A supplementary group; with [`Field::User`] the list is exact, an empty one means none (list).
    Group(u32),
    /// File mode creation mask; 0o022 if absent.
    Umask(u32),
    /// Soft and hard limit of open files, reduced to the current hard limit if that can't be raised.
    OpenFiles(u64),
    /// OOM score adjustment, -1000 to 1000. Lowering it without the right to do so is silently skipped.
    OomScoreAdj(i16),
    /// Set no_new_privs.
    NoNewPrivs,
    /// Directory of the v2 cgroup to create the task in; must never have been killed through `cgroup.kill`.
    Cgroup(&'a [u8]),
    /// A v1 `tasks` file to which the child writes itself (list).
    TasksFile(&'a [u8]),
    /// Stem of the stdout files: `<stem>.0`, `<stem>.1`, … Without it stdout is /dev/null.
    Stdout(&'a [u8]),
    /// Stem of the stderr files. Without it stderr is /dev/null.
    Stderr(&'a [u8]),
    /// The number of files kept for each stream, at least 1.
    LogFiles(u32),
    /// The maximum size of a file in bytes, at least 1.
    LogFileSize(u64),
    /// Make the task wait for the disk instead of dropping output.
    LogBlock,
    /// Kill everything when the pipe at fd 4 closes (`enter` always does).
    Leash,
    /// A terminal becomes the controlling terminal. `enter`: it is at fd 0. `run`: it is at fd 8, and becomes the program's standard
    /// streams; fd 9 is its other side, whose output goes to the stdout files. [`Field::Stderr`] has no effect then.
    Terminal,
    /// Number of the attempt's driver, for its record; 0 if absent (`run` only).
    Driver(u32),
    /// Name of the program in the directory at fd 5. It is executed there, wherever the path leads by then; the path is
    /// used where the kernel passes one on, as to a script's interpreter.
    Entry(&'a [u8]),
    /// A file that keeps the network namespace to enter. Without it the agent's is kept.
    Network(&'a [u8]),
    /// Namespaces to make for the task: pid, ipc, uts, cgroup (`run` only).
    Namespaces(Namespaces),
    /// Enter the mount namespace at fd 6; its root becomes the task's root and first working directory. Paths of the
    /// program and of the working directory are within it (`run` only).
    MountNamespace,
    /// Mount /proc of the new pid namespace in the mount namespace; both are required.
    Proc,
    /// A path below /proc to make read-only; one that does not exist is skipped (list).
    ReadOnlyProc(&'a [u8]),
    /// A path below /proc to hide, a file by /dev/null and a directory by an empty one; one that does not exist is
    /// skipped (list).
    MaskedProc(&'a [u8]),
    /// Mount the message queues of the new ipc namespace at /dev/mqueue in the mount namespace; both are required.
    MessageQueues,
    /// Host name of the new uts namespace, which is required.
    Hostname(&'a [u8]),
    /// Capability sets. Without them root keeps those of the agent, and other users have none.
    Capabilities(Capabilities),
    /// Run the verb `init` as the first process, by the program at fd 7, and the task below it (`run` only).
    Init,
    /// Namespaces of the process with the pidfd at fd 7 to enter (`enter` only).
    Join(Namespaces),
    /// A seccomp filter: whole instructions of 8 bytes as in the kernel's `struct sock_filter` (list). The last one is asked
    /// first. Applied once the keyring is left, before the user is changed.
    CallFilter(&'a [u8]),
    /// A resource limit by its number (getrlimit(2)), soft and hard (list).
    Limit {
        /// `RLIMIT_…`.
        resource: u32,
        /// Soft limit.
        soft: u64,
        /// Hard limit.
        hard: u64,
    },
    /// A setting of the task's namespaces as `PATH=VALUE`, the path below `/proc/sys`; requires [`Field::Proc`] (list).
    Setting(&'a [u8]),
    /// Mount the v2 cgroups at /sys/fs/cgroup, read-only, with the root of the new cgroup namespace; requires
    /// [`Field::MountNamespace`] and that namespace.
    Cgroups,
    /// The task may change the cgroups that [`Field::Cgroups`] mounts, which is required.
    WritableCgroups,
    /// Fd 8 becomes the program's standard input (`run` only).
    Input,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Tag {
    End = 0,
    Record = 1,
    Program = 2,
    Argument = 3,
    Variable = 4,
    Directory = 5,
    User = 6,
    Group = 7,
    Umask = 8,
    OpenFiles = 9,
    OomScoreAdj = 10,
    NoNewPrivs = 11,
    Cgroup = 12,
    TasksFile = 13,
    Stdout = 14,
    Stderr = 15,
    LogFiles = 16,
    LogFileSize = 17,
    LogBlock = 18,
    Leash = 19,
    Terminal = 20,
    Entry = 21,
    Driver = 22,
    Network = 23,
    Namespaces = 24,
    MountNamespace = 25,
    Proc = 26,
    ReadOnlyProc = 27,
    MaskedProc = 28,
    MessageQueues = 29,
    Hostname = 30,
    Capabilities = 31,
    Init = 32,
    Join = 33,
    CallFilter = 34,
    Limit = 35,
    Setting = 36,
    Cgroups = 37,
    WritableCgroups = 38,
    Input = 39,
}

const TAGS: [Tag; 40] = [
    Tag::End,
    Tag::Record,
    Tag::Program,
    Tag::Argument,
    Tag::Variable,
    Tag::Directory,
    Tag::User,
    Tag::Group,
    Tag::Umask,
    Tag::OpenFiles,
    Tag::OomScoreAdj,
    Tag::NoNewPrivs,
    Tag::Cgroup,
    Tag::TasksFile,
    Tag::Stdout,
    Tag::Stderr,
    Tag::LogFiles,
    Tag::LogFileSize,
    Tag::LogBlock,
    Tag::Leash,
    Tag::Terminal,
    Tag::Entry,
    Tag::Driver,
    Tag::Network,
    Tag::Namespaces,
    Tag::MountNamespace,
    Tag::Proc,
    Tag::ReadOnlyProc,
    Tag::MaskedProc,
    Tag::MessageQueues,
    Tag::Hostname,
    Tag::Capabilities,
    Tag::Init,
    Tag::Join,
    Tag::CallFilter,
    Tag::Limit,
    Tag::Setting,
    Tag::Cgroups,
    Tag::WritableCgroups,
    Tag::Input,
];

/// What a field is to a user.
fn name_of(tag: u16) -> &'static str {
    match TAGS.into_iter().find(|known| *known as u16 == tag) {
        Some(Tag::Program) => "the command",
        Some(Tag::Argument) => "an argument of the command",
        Some(Tag::Variable) => "a variable of the environment",
        Some(Tag::Directory) => "the working directory",
        Some(Tag::Hostname) => "the host name",
        Some(Tag::Setting) => "a setting of the kernel",
        Some(
            Tag::End
            | Tag::Record
            | Tag::User
            | Tag::Group
            | Tag::Umask
            | Tag::OpenFiles
            | Tag::OomScoreAdj
            | Tag::NoNewPrivs
            | Tag::Cgroup
            | Tag::TasksFile
            | Tag::Stdout
            | Tag::Stderr
            | Tag::LogFiles
            | Tag::LogFileSize
            | Tag::LogBlock
            | Tag::Leash
            | Tag::Terminal
            | Tag::Entry
            | Tag::Driver
            | Tag::Network
            | Tag::Namespaces
            | Tag::MountNamespace
            | Tag::Proc
            | Tag::ReadOnlyProc
            | Tag::MaskedProc
            | Tag::MessageQueues
            | Tag::Capabilities
            | Tag::Init
            | Tag::Join
            | Tag::CallFilter
            | Tag::Limit
            | Tag::Cgroups
            | Tag::WritableCgroups
            | Tag::Input,
        )
        | None => "a setting",
    }
}

/// Why bytes are not a launch spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// Larger than [`SPEC_LEN_MAX`].
    TooLong,
    /// Not a launch spec, or one of another version.
    Magic,
    /// The blob ends within an entry, or continues after the end.
    Truncated,
    /// An unknown tag.
    Unknown(u16),
    /// A value of the wrong size, with a NUL byte, out of range, or repeated. Contains the tag.
    Value(u16),
    /// A required field is missing. Contains the tag.
    Missing(u16),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "fit arguments and environment into {SPEC_LEN_MAX} bytes"),
            Self::Magic => f.write_str("decode a launch spec of another format"),
            Self::Truncated => f.write_str("decode a truncated launch spec"),
            Self::Unknown(tag) => write!(f, "decode the unknown launch spec field {tag}"),
            Self::Value(tag) => {
                let name = name_of(*tag);
                write!(
                    f,
                    "accept {name} (launch spec field {tag}: NUL byte, wrong size, out of range, or given twice)"
                )
            }
            Self::Missing(tag) => write!(f, "find the required launch spec field {tag}"),
        }
    }
}

impl core::error::Error for SpecError {}

/// Appends a spec to `out` (for instance a `Vec<u8>`).
///
/// # Errors
/// If a string contains a NUL byte, or the spec is too long. `out` then contains a useless prefix.
pub fn encode<'a>(
    fields: impl IntoIterator<Item = Field<'a>>,
    out: &mut impl Extend<u8>,
) -> Result<(), SpecError> {
    let mut len = MAGIC.len() + HEADER_LEN;
    out.extend(MAGIC);
    for field in fields {
        let mut number = [0; CAPABILITIES_LEN];
        let (tag, value, closing) = field.parts(&mut number);
        if closing == Closing::Nul && value.contains(&0) {
            return Err(SpecError::Value(tag as u16));
        }
        let value_len = value.len() + closing as usize;
        len = len.saturating_add(HEADER_LEN).saturating_add(value_len);
        if len > SPEC_LEN_MAX {
            return Err(SpecError::TooLong);
        }
        put_header(tag, value_len, out);
        out.extend(value.iter().copied());
        out.extend(core::iter::repeat_n(0, closing as usize));
    }
    put_header(Tag::End, 0, out);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    None = 0,
    Nul = 1,
}

fn put_header(tag: Tag, len: usize, out: &mut impl Extend<u8>) {
    out.extend((tag as u16).to_le_bytes());
    out.extend((len as u32).to_le_bytes());
}

impl<'a> Field<'a> {
    fn parts<'b>(&'b self, number: &'b mut [u8; CAPABILITIES_LEN]) -> (Tag, &'b [u8], Closing)
    where
        'a: 'b,
    {
        let text = |tag, value: &'b [u8]| (tag, value, Closing::Nul);
        match *self {
            Self::Record(name) => text(Tag::Record, name),
            Self::Program(path) => text(Tag::Program, path),
            Self::Argument(argument) => text(Tag::Argument, argument),
            Self::Variable(variable) => text(Tag::Variable, variable),
            Self::Directory(path) => text(Tag::Directory, path),
            Self::User { uid, gid } => {
                number[..4].copy_from_slice(&uid.to_le_bytes());
                number[4..8].copy_from_slice(&gid.to_le_bytes());
                (Tag::User, &number[..8], Closing::None)
            }
            Self::Group(gid) => small(Tag::Group, gid, number),
            Self::Umask(mask) => small(Tag::Umask, mask, number),
            Self::OpenFiles(limit) => large(Tag::OpenFiles, limit, number),
            Self::OomScoreAdj(adjustment) => {
                number[..2].copy_from_slice(&adjustment.to_le_bytes());
                (Tag::OomScoreAdj, &number[..2], Closing::None)
            }
            Self::NoNewPrivs => (Tag::NoNewPrivs, &[], Closing::None),
            Self::Cgroup(path) => text(Tag::Cgroup, path),
            Self::TasksFile(path) => text(Tag::TasksFile, path),
            Self::Stdout(stem) => text(Tag::Stdout, stem),
            Self::Stderr(stem) => text(Tag::Stderr, stem),
            Self::LogFiles(count) => small(Tag::LogFiles, count, number),
            Self::LogFileSize(bytes) => large(Tag::LogFileSize, bytes, number),
            Self::LogBlock => (Tag::LogBlock, &[], Closing::None),
            Self::Leash => (Tag::Leash, &[], Closing::None),
            Self::Terminal => (Tag::Terminal, &[], Closing::None),
            Self::Entry(name) => text(Tag::Entry, name),
            Self::Network(path) => text(Tag::Network, path),
            Self::Driver(number_of_driver) => small(Tag::Driver, number_of_driver, number),
            Self::Namespaces(kinds) => small(Tag::Namespaces, kinds.flags(), number),
            Self::MountNamespace => (Tag::MountNamespace, &[], Closing::None),
            Self::Proc => (Tag::Proc, &[], Closing::None),
            Self::ReadOnlyProc(path) => text(Tag::ReadOnlyProc, path),
            Self::MaskedProc(path) => text(Tag::MaskedProc, path),
            Self::MessageQueues => (Tag::MessageQueues, &[], Closing::None),
            Self::Hostname(name) => text(Tag::Hostname, name),
            Self::Capabilities(sets) => {
                *number = sets.to_bytes();
                (Tag::Capabilities, number, Closing::None)
            }
            Self::Init => (Tag::Init, &[], Closing::None),
            Self::Join(kinds) => small(Tag::Join, kinds.flags(), number),
            Self::CallFilter(program) => (Tag::CallFilter, program, Closing::None),
            Self::Limit { resource, soft, hard } => {
                number[..4].copy_from_slice(&resource.to_le_bytes());
                number[4..12].copy_from_slice(&soft.to_le_bytes());
                number[12..20].copy_from_slice(&hard.to_le_bytes());
                (Tag::Limit, &number[..LIMIT_LEN], Closing::None)
            }
            Self::Setting(setting) => text(Tag::Setting, setting),
            Self::Cgroups => (Tag::Cgroups, &[], Closing::None),
            Self::WritableCgroups => (Tag::WritableCgroups, &[], Closing::None),
            Self::Input => (Tag::Input, &[], Closing::None),
        }
    }
}

fn small(tag: Tag, value: u32, number: &mut [u8; CAPABILITIES_LEN]) -> (Tag, &[u8], Closing) {
    number[..4].copy_from_slice(&value.to_le_bytes());
    (tag, &number[..4], Closing::None)
}

fn large(tag: Tag, value: u64, number: &mut [u8; CAPABILITIES_LEN]) -> (Tag, &[u8], Closing) {
    number[..8].copy_from_slice(&value.to_le_bytes());
    (tag, &number[..8], Closing::None)
}
