//! The shim (supervisor): the small parent process of one task attempt, which outlives the agent.
//!
//! In: a launch spec and a few descriptors from the agent. Out: a 64-byte [`record`] with the attempt's state, and
//! rotated log files with their [`times`]. It must not depend on the agent, the job, or anything that may be gone after
//! years.
//!
//! This crate compiles to two things from the same source. The *library* has what agent and shim share, tested on the
//! host: [`record`], [`spec`], [`isolation`], [`rotation`], [`times`], [`clone`]. The *program* (`--cfg shim_program`, compiled by the
//! build script with a direct call of the compiler, because stable cargo can't build a `no_std` program as a workspace
//! member) adds `start`: no std, no libc, no allocator, no writable data, about 80 KB of real memory per task. The
//! library embeds the program as `PROGRAM`.
//!
//! # Contract
//!
//! `herdlet-shim run NAME` with these descriptors; `NAME` is only for `ps`:
//!
//! | fd | content |
//! | --- | --- |
//! | 0 | /dev/null, open for reading *and writing*; with a mount namespace, one that is mounted in it |
//! | 1 | directory of the log files |
//! | 2 | runtime directory, which contains the records |
//! | 3 | launch spec, a sealed memfd or file with its bytes from offset 0 |
//! | 4 | leash (only with [`spec::Field::Leash`]): read end of a pipe; when the write end closes, everything is killed |
//! | 5 | directory of the program (only with [`spec::Field::Entry`]) |
//! | 6 | mount namespace to enter (only with [`spec::Field::MountNamespace`]) |
//! | 7 | this program, in memory that nobody can change (only with [`spec::Field::Init`]) |
//!
//! A number from 4 on that the spec does not ask for may be anything, below one that it asks for.
//!
//! 1. It starts a session and claims the attempt: it creates the record with `O_EXCL`, mode 0600. If the record exists,
//!    the program exits with [`EXIT_LOST`] without doing anything. So an attempt starts at most once, and creating the
//!    record first (`tombstone`) cancels it. If the record can't be created, it exits with [`EXIT_NO_RECORD`].
//! 2. It starts the task as a session leader with default signal dispositions, an empty signal mask, no descriptors but
//!    stdin (/dev/null), stdout and stderr (pipes, or /dev/null), or a terminal for all three, in its cgroups and its namespaces from the
//!    beginning, and with the ids and capabilities of the spec. The program itself stays in the agent's namespaces. The
//!    record's state becomes `running`, or `start_failed` with step and errno; then the program exits with 0.
//! 3. It reaps all descendants (it is a subreaper). When the main process ends, the record is updated at once, even if
//!    other processes still live or hold the pipes.
//! 4. It continues until both pipes are at end of file and no child is left, then exits with 0. The agent kills what
//!    the task leaves behind.
//!
//! Every change of the record is one `pwrite` of 64 bytes (one `IN_MODIFY` for inotify); readers retry on a wrong
//! checksum. The file's disk block is allocated by the claim, so that a full disk can't lose an exit. While output is
//! lost, the record is written at growing intervals of the counter.
//!
//! `herdlet-shim enter NAME` runs one exec session: descriptors 0 to 2 are the session's streams (a terminal with
//! [`spec::Field::Terminal`]), 3 the spec (its record and log fields are ignored), 4 always the leash, 5 as above, 7 a
//! pidfd of the process whose namespaces the command enters (only with [`spec::Field::Join`]). It
//! exits with the command's code, 128 + n for signal n, 127 if the program does not exist and 126 if it can't be
//! executed. When the leash closes, everything that the command started is killed. Processes that a command leaves
//! behind are left alone in a cgroup or a pid namespace, and killed without one.
//!
//! `herdlet-shim init PROGRAM ENTRY ARGUMENTS…` is the first process of a pid namespace ([`spec::Field::Init`]), executed
//! by the program itself. It runs the command in a session of its own, passes every signal on to it, reaps orphans, and
//! exits with the command's code as `enter` does; then the kernel ends what is left in the namespace. With an `ENTRY` that
//! is not empty, descriptor 3 is the directory of the program.
//!
//! `herdlet-shim hold PATH` enters the network namespace that the file `PATH` keeps, drops all capabilities, and stays until
//! SIGTERM. It exits with [`EXIT_NO_NAMESPACE`] if it can't enter the namespace. Container engines that join only the network
//! of another container join this one's.
//!
//! Otherwise no signal except SIGKILL and SIGSTOP affects the program.
#![warn(missing_docs)]
#![cfg_attr(not(test), no_std)]
#![cfg_attr(shim_program, no_main)]
#![cfg_attr(shim_program, no_builtins)]

pub mod clone;
pub mod isolation;
pub mod record;
pub mod rotation;
pub mod spec;
#[cfg(shim_program)]
mod start;
pub mod times;

/// The program, a static ELF executable for this machine.
#[cfg(not(shim_program))]
pub static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/herdlet-shim"));

/// Exit code: the attempt's record already existed.
pub const EXIT_LOST: u32 = 17;
/// Exit code: the record's name can't be read, or the record can't be created or written.
pub const EXIT_NO_RECORD: u32 = 18;
/// Exit code of `hold`: the network namespace can't be entered.
pub const EXIT_NO_NAMESPACE: u32 = 19;
/// Exit code of a session whose program can't be executed.
pub const EXIT_CANNOT_EXECUTE: u32 = 126;
/// Exit code of a session whose program does not exist.
pub const EXIT_NOT_FOUND: u32 = 127;
/// Descriptor of the logs directory (`run`).
pub const FD_LOGS: i32 = 1;
/// Descriptor of the runtime directory (`run`).
pub const FD_RUNTIME: i32 = 2;
