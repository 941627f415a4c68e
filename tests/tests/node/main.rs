//! Whole agents as nodes of stand-in servers, in one process and in time that doesn't pass: session, runner, planner, loop, database, executor
//! and directories are the real ones, and the tasks those of the driver `mock`. What needs no agent behind the session is told by
//! `controller/nomad/tests/session`, what needs real processes by `tests/tests/e2e`.

#![expect(clippy::unwrap_used, reason = "a test that can't go on says why and ends")]

mod acknowledged;
mod disconnect;
mod faults;
mod flaws;
mod jobs;
mod restarts;
mod world;
