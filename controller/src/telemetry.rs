//! What the agent says of itself: logs.

pub mod logs;
