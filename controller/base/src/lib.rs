//! The foundation of all crates of the agent: files protected from other users, paths, users, clocks, HTTP clients.
//!
//! In: paths, strings. Out: open directories, validated values, errors that say whether a retry can help. This crate
//! does not know tasks, the lifecycle of jobs or the planner.

/// Writes a line for people to standard error. It is dropped if it can't be written (a full disk, a closed pipe).
#[macro_export]
macro_rules! stderr_line {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = ::std::writeln!($crate::anstream::stderr(), $($line)*);
    }};
}

#[doc(hidden)]
pub use anstream;

pub mod acl;
pub mod artifact;
pub mod authority;
pub mod below;
pub mod clock;
pub mod directory;
pub mod durable;
pub mod error;
pub mod http_client;
pub mod interrupt;
pub mod mounts;
pub mod network_texts;
pub mod observation;
pub mod own_thread;
pub mod ownership;
pub mod paths;
pub mod privileges;
pub mod ready;
pub mod regular;
pub mod resolver;
pub mod rsa_key;
pub mod safe_fs;
pub mod signal;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod test_env;
pub mod token_path;
pub mod user;
