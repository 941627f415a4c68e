//! What is known of a task that is a CSI plugin.

use serde::{Deserialize, Serialize};

/// What is known of an attempt that is a CSI plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginState {
    /// The attempt.
    pub attempt: u32,
    /// Whether the last report was that it is healthy.
    pub is_healthy: bool,
    /// It was healthy once: volumes may be in use.
    pub was_ready: bool,
}
