//! The runtime around a fake world and a fake store, mostly in paused time: its guarantees to worlds and shells.
//!
//! Nothing here sleeps in real time; a hanging store waits until its test releases it.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod commits;
mod fake;
mod operations;
mod turns;
mod whole;
