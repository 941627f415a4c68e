//! The runtime around a fake world and a fake store, mostly in paused time: what is promised to worlds and shells.
//!
//! Nothing here sleeps in real time; a store that hangs does so until its test lets it go on.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod commits;
mod fake;
mod operations;
mod turns;
mod whole;
