//! The real supervisor program with real processes: what design and contract promise, seen from outside.
//!
//! Works as root and as anybody; what needs root is skipped without it. Everything lives in temporary directories.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod bench;
mod logs;
mod sessions;
mod starts;
mod surroundings;
mod trees;
