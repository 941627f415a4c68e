//! Simulated lives of the planner, and what benchmarks share.

pub mod sim;
pub mod template_sample;

/// Folder of the stories.
pub const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stories");
