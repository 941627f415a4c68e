//! Whole agents as nodes of stand-in servers, in one process and with paused time: session, runner, planner,
//! loop, database, executor and directories are real, and tasks use the driver `mock`.
//! `controller/nomad/tests/session` has the tests that need no agent behind the session, `tests/e2e/tests/e2e`
//! those that need real processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue ends with the reason")]

mod acknowledged;
mod disconnect;
mod faults;
mod flaws;
mod jobs;
mod restarts;
mod world;
