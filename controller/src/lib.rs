//! The shell of herdlet: everything that touches the world. Decisions are made in `herdlet-plan`, turns in
//! `herdlet-runtime`; this crate feeds them events and carries out their actions.

/// Tells people, on standard error. Where nobody can be told (a full disk, a reader that has gone) that is the end of nothing.
#[macro_export]
macro_rules! tell {
    ($($told:tt)*) => {{
        use std::io::Write as _;
        let _ = ::std::writeln!(::anstream::stderr(), $($told)*);
    }};
}

pub mod agent;
pub mod artifact;
pub mod authority;
pub mod cli;
pub mod clock;
pub mod config;
mod consul_config;
pub mod desired;
pub mod dns;
pub mod doctor;
pub mod drivers;
pub mod durable;
pub mod error;
pub mod executor;
pub mod fingerprint;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gc;
pub mod guard;
pub mod history;
pub mod http;
pub mod http_client;
pub mod instance;
pub mod interrupt;
mod listen;
pub mod logs;
pub mod memory;
pub mod node;
pub mod overview;
pub mod ownership;
pub mod paths;
mod peer;
pub mod planner;
pub mod publish;
pub mod reach;
pub mod requests;
pub mod run;
pub mod serve;
pub mod server_tokens;
pub mod simulate;
pub mod state_db;
pub mod telemetry;
#[cfg(test)]
mod test_recordings;
#[cfg(any(test, fuzzing))]
mod test_views;
pub mod token_path;
pub mod watch;
