//! The real supervisor program with real processes, tested from outside against its contract.
//!
//! Works as root and as any other user; without root, the tests that need it are skipped. All files are in temporary
//! directories.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod bench;
mod logs;
mod namespaces;
mod sessions;
mod starts;
mod surroundings;
mod trees;
