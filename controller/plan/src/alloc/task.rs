//! Decisions about one task.
pub mod lifecycle;
pub mod machine;
pub mod notices;
pub mod restart;
