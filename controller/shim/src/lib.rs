//! The shim: the tiny parent of one task attempt, which outlives the agent.
//!
//! In: a launch spec and a few descriptors, handed over by the agent. Out: a 64-byte [`record`] that tells how the attempt
//! fared, and rotated log files with their [`times`]. It must not know the agent, the job, or anything that could fail to be there after years.
//!
//! This crate is two things from the same source. As a *library* it is what agent and shim have in common, tested on the
//! host: [`record`], [`spec`], [`rotation`], [`times`], [`clone`]. As a *program* (`--cfg shim_program`, compiled by the
//! build script with one direct call of the compiler, because stable cargo can't build a `no_std` program as a workspace
//! member) it is `start` on top of that: no std, no libc, no allocator, no writable data, about 80 KB of real memory for each
//! task. The program is embedded here as `PROGRAM`.
//!
//! # Contract
//!
//! `herdlet-shim run NAME` with these descriptors; `NAME` is for people who look at `ps`:
//!
//! | fd | what |
//! | --- | --- |
//! | 0 | /dev/null, open for reading *and writing* |
//! | 1 | directory of the log files |
//! | 2 | runtime directory, which holds the records |
//! | 3 | launch spec, a sealed memfd or file with its bytes from offset 0 |
//! | 4 | leash (only with [`spec::Field::Leash`]): reading end of a pipe; when it hangs up, everything is killed |
//! | 5 | directory of the program (only with [`spec::Field::Entry`]; without a leash 4 is anything) |
//!
//! 1. It begins a session and claims the attempt: the record is created with `O_EXCL`, mode 0600. If it exists, the
//!    program ends with [`EXIT_LOST`] having done nothing; so an attempt is started at most once, and whoever creates the
//!    record first (`tombstone`) cancels it. If the record can't be made at all, it ends with [`EXIT_NO_RECORD`].
//! 2. It starts the task as a session leader with default signal dispositions, an empty signal mask, nothing open but
//!    stdin (/dev/null), stdout and stderr (pipes, or /dev/null), in its cgroups from birth, and with the ids of the
//!    spec. The record then says `running`, or `start_failed` with step and errno; in that case the program ends with 0.
//! 3. It reaps everything below it (it is a subreaper). When the main process ends, the record says so at once,
//!    whatever else still lives or holds the pipes.
//! 4. It goes on until both pipes are at their end and no child is left, then ends with 0. Killing what the task left
//!    behind is the agent's part.
//!
//! Every change of the record is one `pwrite` of 64 bytes (one `IN_MODIFY` for inotify); a reader who meets a wrong checksum
//! reads again. The file's block exists from the claim on, so that a full disk cannot lose an exit. While output is lost
//! the record is written in growing steps of the counter.
//!
//! `herdlet-shim enter NAME` is one exec session: descriptors 0 to 2 are the session's streams (a terminal with
//! [`spec::Field::Terminal`]), 3 the spec (its record and log fields are ignored), 4 the leash, always, 5 as above. It ends with the
//! command's code, 128 + n for signal n, 127 for a program that isn't there and 126 for what can't be executed.
//! When the leash hangs up, everything that the command started is killed. What a command leaves behind when it ends is
//! left alone inside a cgroup, and killed without one.
//!
//! The program ignores all signals but SIGKILL and SIGSTOP.
#![warn(missing_docs)]
#![cfg_attr(not(test), no_std)]
#![cfg_attr(shim_program, no_main)]
#![cfg_attr(shim_program, no_builtins)]

pub mod clone;
pub mod record;
pub mod rotation;
pub mod spec;
#[cfg(shim_program)]
mod start;
pub mod times;

/// The program, a static ELF executable for this machine.
#[cfg(not(shim_program))]
pub static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/herdlet-shim"));

/// Exit code: the attempt's record was there already.
pub const EXIT_LOST: u32 = 17;
/// Exit code: there is no readable record name, or the record could not be created or written.
pub const EXIT_NO_RECORD: u32 = 18;
/// Exit code of a session whose program can't be executed.
pub const EXIT_CANNOT_EXECUTE: u32 = 126;
/// Exit code of a session whose program isn't there.
pub const EXIT_NOT_FOUND: u32 = 127;
/// Descriptor of the logs directory (`run`).
pub const FD_LOGS: i32 = 1;
/// Descriptor of the runtime directory (`run`).
pub const FD_RUNTIME: i32 = 2;
