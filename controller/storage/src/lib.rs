//! An allocation's data on disk: directories, mounts, volumes, artifacts, payloads, tokens.
//!
//! In: ids, specifications, users. Out: files created, found or removed. Every operation is idempotent, follows no link
//! of a task and works on open directories.

pub mod access;
pub mod alloc_dir;
pub mod api_socket;
pub mod artifact;
pub mod file_access;
pub mod identity;
pub mod mounts;
pub mod network_files;
pub mod payload;
pub mod task_dir;
pub mod volume;
