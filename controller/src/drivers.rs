//! The hands of the agent: what makes, looks at and removes real things. Every operation is idempotent.
//!
//! In: paths, ids and specifications. Out: what was done or seen, and errors that say whether trying again may help.
//! Nothing here knows the planner; the executor translates.

pub mod access;
pub mod acl;
pub mod alloc_dir;
pub mod artifact;
pub mod attempts;
pub(crate) mod below;
pub mod catalog;
pub mod cgroup;
pub mod checks;
pub mod identity;
pub mod limits;
pub mod mock;
pub mod mounts;
pub mod payload;
pub mod privileges;
pub mod process_tree;
pub mod raw_exec;
pub(crate) mod ready;
pub mod safe_fs;
pub mod sight;
pub mod signal;
pub mod supervisor;
pub mod task;
pub mod task_dir;
#[cfg(test)]
pub(crate) mod test_ground;
pub mod user;
pub mod volume;
