//! A session against stand-in servers, as named stories.
//!
//! Time is paused and connections are in memory, unless a test states otherwise.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod allocations;
mod contact;
mod flaws;
mod jobs;
mod leave;
mod many;
mod network;
mod reports;
mod restarts;
mod runner;
mod servers;
mod world;
