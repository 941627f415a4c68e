//! Mounts of this machine: making and removing them through held directories, and the table of them.

pub mod kernel;
pub mod table;
