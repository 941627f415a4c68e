//! What every crate of the agent builds on: files that others may not touch, paths, users, clocks, HTTP clients.
//!
//! In: paths, texts. Out: open directories, checked values, errors that say whether to try again. It knows no task, no job's life and no
//! planner.

/// Writes a line for people to standard error. Where nobody reads (a full disk, a closed pipe) it is dropped.
#[macro_export]
macro_rules! tell {
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
pub mod ownership;
pub mod paths;
pub mod privileges;
pub mod ready;
pub mod safe_fs;
pub mod sight;
pub mod signal;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod test_ground;
pub mod token_path;
pub mod user;
