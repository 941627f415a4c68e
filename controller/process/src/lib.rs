//! Tasks as processes: the drivers `raw_exec`, `exec`, `java`, `qemu` and `mock`, supervisors and their records, cgroups.
//!
//! In: attempts of tasks. Out: processes, and their exits. Every operation is idempotent, and a record is written before its
//! effect.

pub mod attempts;
pub mod cgroup;
pub mod check;
pub mod denied;
pub mod engine;
pub mod exec;
pub mod installed;
pub mod java;
mod login;
pub mod mock;
pub mod process_tree;
pub mod qemu;
pub mod raw_exec;
pub mod supervisor;
