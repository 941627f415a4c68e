//! The machine's mounts: mounting and unmounting through open directories, and the mount table.

pub mod kernel;
pub mod table;
