//! A session against stand-in servers: what a node lives through with its cluster, each as a story with a name.
//!
//! In time that doesn't pass, over connections in memory, unless a test says otherwise.

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
