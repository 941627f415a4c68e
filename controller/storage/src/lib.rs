//! What lies on disk for an allocation: directories, mounts, volumes, artifacts, payloads, tokens.
//!
//! In: ids, specifications, users. Out: what was made, found or removed. Every operation is idempotent, follows no link of a task and acts on
//! directories that it holds open.

pub mod access;
pub mod alloc_dir;
pub mod artifact;
pub mod identity;
pub mod mounts;
pub mod payload;
pub mod task_dir;
pub mod volume;
