//! Simulated lives of the planner.

pub mod sim;

/// Folder of the stories.
pub const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stories");
