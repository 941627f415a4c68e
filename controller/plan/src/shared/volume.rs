//! Host volumes: made once, shared by the allocations that claim them.

use std_alloc::string::String;

use herdlet_api_types::volume::Volume;
use serde::{Deserialize, Serialize};

/// What is remembered of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    /// Its specification.
    pub spec: Volume,
    /// Where it comes from.
    pub origin: Origin,
    /// It is being removed with its data.
    pub purging: bool,
    /// Its path once it was made.
    pub path: Option<String>,
}

/// Where a volume comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The agent's config: read anew at each start, never stored.
    Config,
    /// A manifest.
    Manifest,
}
